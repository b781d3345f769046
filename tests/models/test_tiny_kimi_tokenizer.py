"""The tokenizer of the demo verifier can write everything and keeps Kimi's marks apart."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

MARKS = (
    "[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|media_begin|>", "<|media_content|>",
    "<|media_end|>", "<|media_pad|>", "[EOT]", "[UNK]", "[PAD]",
)  # fmt: skip


@pytest.fixture(scope="module")
def ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int]:
    """The whole vocabulary by name."""
    vocabulary: dict[str, int] = tokenizer.get_vocab()
    return vocabulary


def test_any_text_round_trips(model_dir: Path) -> None:
    """Whatever is encoded decodes to itself, for every text that Unicode allows."""
    tokenizer = AutoTokenizer.from_pretrained(model_dir)

    @given(st.text(alphabet=st.characters(codec="utf-8")))
    def check(text: str) -> None:
        assert tokenizer.decode(tokenizer.encode(text)) == text

    check()


def test_every_byte_has_a_token(tokenizer: PreTrainedTokenizerBase, ids: dict[str, int]) -> None:
    """No byte needs an unknown token."""
    unknown = ids["[UNK]"]
    for point in (*range(0x250), 0x4E2D, 0x1F642, 0x10FFFF):
        assert unknown not in tokenizer.encode(chr(point))


def test_digits_stand_alone(tokenizer: PreTrainedTokenizerBase) -> None:
    """Each digit of a number is one token."""
    for digit in "0123456789":
        assert len(tokenizer.encode(digit)) == 1
    assert tokenizer.tokenize("4821") == ["4", "8", "2", "1"]
    assert not [
        token for token in tokenizer.get_vocab() if len(token) > 1 and any(c.isdigit() for c in token)
    ]


@pytest.mark.parametrize("mark", MARKS)
def test_marks_are_special(tokenizer: PreTrainedTokenizerBase, ids: dict[str, int], mark: str) -> None:
    """Kimi's marks are one token each and vanish from text that leaves out special tokens."""
    assert tokenizer.encode(mark) == [ids[mark]]
    assert tokenizer.decode([ids[mark]], skip_special_tokens=True) == ""


@pytest.mark.parametrize("mark", ["<think>", "</think>"])
def test_thinking_marks_are_not_special(
    tokenizer: PreTrainedTokenizerBase, ids: dict[str, int], mark: str
) -> None:
    """The marks of thinking are one token each but stay in text, as with Kimi."""
    assert tokenizer.encode(f"a{mark}b") == [*tokenizer.encode("a"), ids[mark], *tokenizer.encode("b")]
    assert tokenizer.decode([ids[mark]], skip_special_tokens=True) == mark


def test_common_words_are_whole(tokenizer: PreTrainedTokenizerBase) -> None:
    """Words of the problems are single tokens, so that a reply is short."""
    for word in (
        " carry",
        " answer",
        " Monday",
        " banana",
        " Anna",
        " taller",
        "user",
        "assistant",
        "system",
    ):
        assert len(tokenizer.encode(word)) == 1


def test_configs_agree_with_the_tokenizer(
    tokenizer: PreTrainedTokenizerBase, ids: dict[str, int], model_dir: Path
) -> None:
    """Both config files end a reply at the end of a turn, and generation has no defaults of its own."""
    config = json.loads((model_dir / "config.json").read_text(encoding="utf-8"))
    generation = json.loads((model_dir / "generation_config.json").read_text(encoding="utf-8"))
    expected = {"bos": ids["[BOS]"], "eos": ids["<|im_end|>"], "pad": ids["[PAD]"]}
    assert generation == {f"{name}_token_id": value for name, value in expected.items()}
    assert {name: config[f"{name}_token_id"] for name in expected} == expected
    assert config["vocab_size"] == len(tokenizer)
