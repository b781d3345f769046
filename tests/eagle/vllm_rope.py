"""Save the tables of cos and sin that vLLM makes of rotary parameters.

    python vllm_rope.py CASES_JSON OUT

Each case is a head size and rotary parameters. It asks vLLM's `get_rope`, as its Llama attention does with
the draft's config.
"""

from __future__ import annotations

import json
import sys

import torch
from safetensors.torch import save_file
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.model_executor.layers.rotary_embedding import get_rope


def main() -> None:
    cases, out = json.loads(sys.argv[1]), sys.argv[2]
    tables, classes = {}, {}
    with set_current_vllm_config(VllmConfig()):
        for number, (head_dim, parameters) in enumerate(cases):
            rope = get_rope(head_dim, max_position=4096, rope_parameters=parameters, dtype=torch.float32)
            tables[str(number)] = rope.cos_sin_cache.clone()
            classes[str(number)] = type(rope).__name__
    save_file(tables, out, metadata=classes)


if __name__ == "__main__":
    main()
