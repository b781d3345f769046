"""Whether speculators and SpecForge read our exports: their own loaders on the formats of their names.

    python benchmarks/peers_load.py RUN_DIR/exports VERIFIER_DIR

Run it with a Python that has speculators 0.9.0, hs-connectors 0.9.0, specforge 0.2.0 and yunchang beside
torch, transformers and datasets. Exact ids and masks have to come through unchanged; of text it prints what
SpecForge would supervise: the chat template decides whether thinking is left in it. The last line of stdout
is one JSON object; exit code 1 when something differs.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

MAX_TOKENS = 4096
TEMPLATE = "kimi-k2-thinking"

Row = tuple[list[int], list[int]]


def main() -> None:
    """Load, compare, print."""
    exports, verifier = Path(sys.argv[1]), sys.argv[2]
    ids_file = exports / "speculators/data/train.jsonl"
    lines = [json.loads(line) for line in ids_file.read_bytes().splitlines()]
    written = sorted((line["input_ids"], line["loss_mask"]) for line in lines)
    tokenizer = importlib.import_module("transformers").AutoTokenizer.from_pretrained(verifier)
    text = specforge(exports / "specforge/data/train.jsonl", tokenizer)
    supervised = [tokenizer.decode([t for t, kept in zip(*row, strict=True) if kept]) for row in text]
    for said in supervised:
        print(repr(said))
    figures = {
        "rows": len(written),
        "speculators_same": speculators(ids_file, verifier) == written,
        "specforge_ids_same": sorted(specforge(ids_file, tokenizer)) == written,
        "specforge_text_rows": len(text),
        "specforge_text_without_thinking": sum("<think></think>" in said for said in supervised),
    }
    print(json.dumps(figures))
    sys.exit(not (figures["speculators_same"] and figures["specforge_ids_same"]))


def speculators(file: Path, verifier: str) -> list[Row]:
    """The rows that its trainer reads after `speculators prepare-data`."""
    preprocessing = importlib.import_module("speculators.data_generation.preprocessing")
    data = importlib.import_module("speculators.train.data")
    prepared, _ = preprocessing.load_and_preprocess_dataset(
        verifier, [str(file)], seq_length=MAX_TOKENS, build_dataset_num_proc=1
    )
    with tempfile.TemporaryDirectory() as directory:
        prepared.save_to_disk(directory)
        rows = data.ArrowDataset(MAX_TOKENS, directory, on_missing="raise").data
        return sorted((row["input_ids"].tolist(), row["loss_mask"].tolist()) for row in rows)


def specforge(file: Path, tokenizer: Any) -> list[Row]:
    """The rows that its online training reads of a file of ids, or of conversations."""
    tasks = importlib.import_module("specforge.data.prompt_builder").prepare_prompt_tasks(
        file,
        tokenizer,
        chat_template=TEMPLATE,
        max_length=MAX_TOKENS,
        is_preformatted=False,
        train_only_last_turn=True,
        cache_dir=None,
        cache_key=None,
        num_proc=1,
    )
    return [(task["payload"]["input_ids"], task["payload"]["loss_mask"]) for task in tasks]


if __name__ == "__main__":
    main()
