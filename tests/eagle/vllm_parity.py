"""Run one greedy request through vLLM with a draft, and save what its draft model was given and gave.

    python vllm_parity.py VERIFIER DRAFT OUT

It runs vLLM within this process and records the calls of vLLM's own `Eagle3LlamaForCausalLM`: the aux
states it combines, then the inputs and the head's input of each forward pass.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from vllm import LLM, SamplingParams
from vllm.model_executor.models.llama_eagle3 import Eagle3LlamaForCausalLM

PROMPT = [3, 17, 42, 5, 99, 61, 7, 23, 80, 11, 2]
DRAFT_TOKENS = 3


def main() -> None:
    verifier, draft, out = (Path(argument) for argument in sys.argv[1:])
    recorded: dict[str, torch.Tensor] = {}
    combine, forward = Eagle3LlamaForCausalLM.combine_hidden_states, Eagle3LlamaForCausalLM.forward

    def record_combine(self: Any, hidden_states: torch.Tensor) -> torch.Tensor:
        if len(hidden_states) == len(PROMPT) and "aux" not in recorded:
            recorded["aux"] = hidden_states.float().clone()
        combined: torch.Tensor = combine(self, hidden_states)
        return combined

    def record_forward(self: Any, **inputs: Any) -> Any:
        number = sum(name.startswith("outputs") for name in recorded)
        outputs = forward(self, **inputs)
        if "aux" in recorded and number < DRAFT_TOKENS:
            recorded[f"input_ids{number}"] = inputs["input_ids"].long().clone()
            recorded[f"positions{number}"] = inputs["positions"].long().clone()
            recorded[f"outputs{number}"] = outputs[0].float().clone()
        return outputs

    Eagle3LlamaForCausalLM.combine_hidden_states = record_combine
    Eagle3LlamaForCausalLM.forward = record_forward
    llm = LLM(
        str(verifier),
        dtype="float32",
        enforce_eager=True,
        skip_tokenizer_init=True,
        max_model_len=128,
        distributed_executor_backend="uni",
        speculative_config={
            "method": "eagle3",
            "model": str(draft),
            "num_speculative_tokens": DRAFT_TOKENS,
        },
    )
    llm.generate({"prompt_token_ids": PROMPT}, SamplingParams(temperature=0, max_tokens=8, detokenize=False))
    save_file({name: tensor.contiguous() for name, tensor in recorded.items()}, out)


if __name__ == "__main__":
    main()
