"""The demo verifier and its problems live beside the packages, so their folders are put on the path here."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

ROOT = Path(__file__).resolve().parents[2]
for folder in (ROOT, ROOT / "models" / "tiny-kimi"):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))


@pytest.fixture(scope="session")
def model_dir() -> Path:
    """Folder of the published checkpoint."""
    return ROOT / "models" / "tiny-kimi"


@pytest.fixture(scope="session")
def tokenizer(model_dir: Path) -> PreTrainedTokenizerBase:
    """The published tokenizer, loaded as users load it."""
    loaded: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(model_dir)
    return loaded
