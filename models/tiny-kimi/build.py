"""Builds the tiny verifier from nothing: tokenizer, conversations, weights, and the files a server reads.

    python models/tiny-kimi/build.py --out DIR --minutes 60

Everything is seeded. `--steps` instead of `--minutes` makes a run independent of the machine's speed. A run
that was interrupted, or that is to be longer, goes on from `DIR/progress.pt`.
"""

from __future__ import annotations

import argparse
import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import torch
from corpus import Row, dialogues, encode, train_tokenizer
from network import Shape, TinyKimi
from safetensors.torch import save_file
from training import Plan, Trainer, batches
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
log = logging.getLogger("build")


def rows(seed: int | str, tokenizer: PreTrainedTokenizerFast) -> Iterator[Row]:
    """An endless stream of encoded conversations."""
    for dialogue in dialogues(seed):
        yield encode(dialogue, tokenizer)


def write_settings(out: Path, shape: Shape, tokenizer: PreTrainedTokenizerFast) -> None:
    """Template and the two config files."""
    if out.resolve() != HERE:
        shutil.copyfile(HERE / "chat_template.jinja", out / "chat_template.jinja")
    ids = {"bos": tokenizer.bos_token_id, "eos": tokenizer.eos_token_id, "pad": tokenizer.pad_token_id}
    config = shape.config(**ids)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    generation = {f"{name}_token_id": value for name, value in ids.items()}
    (out / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def write_weights(out: Path, model: TinyKimi) -> None:
    """The checkpoint in bfloat16; only the routers' choice bias stays in float32, as servers expect it."""
    tensors = {
        name: (tensor if name.endswith("e_score_correction_bias") else tensor.bfloat16())
        .detach()
        .clone()
        .contiguous()
        for name, tensor in model.state_dict().items()
    }
    aside = out / "model.safetensors.tmp"
    save_file(tensors, aside, metadata={"format": "pt"})
    aside.chmod(0o644)
    aside.replace(out / "model.safetensors")


@torch.no_grad()
def largest_difference(out: Path, model: TinyKimi, tokens: list[int]) -> float:
    """Largest distance between our logits and those of transformers for the written checkpoint."""
    reference = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    rounded = TinyKimi(model.shape)
    rounded.load_state_dict({
        name: tensor if name.endswith("e_score_correction_bias") else tensor.bfloat16().float()
        for name, tensor in model.state_dict().items()
    })  # fmt: skip
    ids = torch.tensor([tokens])
    ours = rounded.lm_head(rounded(ids)[0])
    return float((ours - reference(ids).logits).abs().max())


def main() -> None:
    """Train and write the checkpoint."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=60.0, help="length of the training by the clock")
    parser.add_argument("--steps", type=int, help="length of the training in steps, instead of --minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    options.out.mkdir(parents=True, exist_ok=True)

    # A resumed run keeps the tokenizer that its weights know.
    if (options.out / "progress.pt").exists():
        tokenizer = PreTrainedTokenizerFast.from_pretrained(options.out)
    else:
        tokenizer = train_tokenizer(options.seed)
        tokenizer.save_pretrained(options.out)
    model = TinyKimi(Shape(vocab_size=len(tokenizer)))
    write_settings(options.out, model.shape, tokenizer)
    plan = Plan(minutes=options.minutes, steps=options.steps)
    trainer = Trainer(model, plan, options.out / "progress.pt")
    trainer.resume()
    # After a resume the stream must not repeat what was seen.
    stream = rows(f"{options.seed} {trainer.step}", tokenizer)
    source = batches(stream, plan, tokenizer.pad_token_id, options.seed)
    log.info("%d parameters", sum(parameter.numel() for parameter in model.parameters()))
    trainer.run(source, lambda trained: write_weights(options.out, trained))
    difference = largest_difference(options.out, model, next(stream).tokens)
    log.info("%d tokens in %.1f minutes; logits differ from transformers by at most %.1e",
             trainer.tokens, trainer.seconds / 60, difference)  # fmt: skip


if __name__ == "__main__":
    main()
