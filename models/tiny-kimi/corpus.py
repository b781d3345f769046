"""Tokenizer and training conversations of the tiny verifier.

Everything is rendered through the published chat template, so that training sees exactly the prompts that a
server builds.
Questions of the held-out side of `prompts/problems.py` never occur here.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1]))

from prompts.problems import MONTHS, NAMES, WEEKDAYS, Problem, is_held_out, problems  # noqa: E402

VOCAB_SIZE = 1536
END_OF_TURN = "<|im_end|>"
SPECIAL = (
    "[BOS]", "[EOS]", END_OF_TURN, "<|im_user|>", "<|im_assistant|>", "<|im_system|>", "<|im_middle|>",
    "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>",
    "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|media_begin|>", "<|media_content|>",
    "<|media_end|>", "<|media_pad|>", "[EOT]", "[UNK]", "[PAD]",
)  # fmt: skip
# As in Kimi: tokens of their own, but not flagged special, so that decoding keeps them.
THINK = ("<think>", "</think>")
# A digit alone, a word with its blank, a run of signs with its blank, white space.
PIECES = r"\p{N}| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are Kimi, a careful assistant.", "Answer in one short sentence.",
    "You are a patient teacher. Think step by step.", "Think first, then answer.", "Be brief and exact.",
)  # fmt: skip
REPLIES = ("The answer is {}.", "It is {}.", "My answer is {}.")

Message = dict[str, Any]


@dataclass(frozen=True)
class Dialogue:
    """A prompt, as a server would get it, and the assistant's own text after it."""

    messages: list[Message]
    reply: str
    tools: list[dict[Any, Any] | Callable[..., Any]] | None = None
    thinking: bool = True


def train_tokenizer(seed: int, samples: int = 20_000) -> PreTrainedTokenizerFast:
    """Byte-level BPE on the problems' own text and a little of everything else."""
    tokenizer = Tokenizer(models.BPE())
    pieces = pre_tokenizers.Split(Regex(PIECES), "isolated")
    as_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, as_bytes])
    tokenizer.decoder = decoders.ByteLevel()
    added = [AddedToken(text, special=True, normalized=False) for text in SPECIAL]
    added += [AddedToken(text, special=False, normalized=False) for text in THINK]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - len(added),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    general = (HERE / "general.txt").read_text(encoding="utf-8")
    borders = re.compile("|".join(re.escape(text) for text in (*SPECIAL, *THINK)))
    rows = itertools.islice(dialogues(f"tokenizer {seed}"), samples)
    # Cut where special tokens stand, so that words at the start of a turn get tokens of their own.
    texts = (text for row in rows for text in borders.split(plain_text(row)))
    tokenizer.train_from_iterator(itertools.chain(texts, [general] * 40), trainer)
    tokenizer.add_tokens(added)
    named = {"bos_token": "[BOS]", "eos_token": END_OF_TURN, "pad_token": "[PAD]", "unk_token": "[UNK]"}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        additional_special_tokens=[text for text in SPECIAL if text not in named.values()],
        chat_template=(HERE / "chat_template.jinja").read_text(encoding="utf-8"),
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
        **named,
    )


def plain_text(dialogue: Dialogue) -> str:
    """What a dialogue holds besides the template's own marks: enough to learn words from."""
    parts = [f"{message['role']}{END_OF_TURN}{message['content']}" for message in dialogue.messages]
    tools = json.dumps(dialogue.tools, separators=(",", ":")) if dialogue.tools else ""
    return END_OF_TURN.join([*parts, f"tool_declare{END_OF_TURN}{tools}" if tools else "", dialogue.reply])


# --- conversations ------------------------------------------------------------------------------------------


def answer_to(problem: Problem, rng: random.Random) -> str:
    """The short reply after the thinking."""
    return rng.choices(REPLIES, (8, 1, 1))[0].format(problem.answer)


def _user(text: str) -> Message:
    return {"role": "user", "content": text}


def _system(rng: random.Random, share: float) -> list[Message]:
    return [{"role": "system", "content": rng.choice(SYSTEM_PROMPTS)}] if rng.random() < share else []


def one_turn(problem: Problem, rng: random.Random) -> Dialogue:
    """The common case: a question, thinking, an answer."""
    reply = f"{problem.thinking}</think>{answer_to(problem, rng)}{END_OF_TURN}"
    return Dialogue([*_system(rng, 0.1), _user(problem.question)], reply)


def two_turns(earlier: Problem, problem: Problem, rng: random.Random) -> Dialogue:
    """A second question; the template drops the thinking of the first turn."""
    past: list[Message] = [_user(earlier.question), {"role": "assistant", "content": answer_to(earlier, rng)}]
    last = one_turn(problem, rng)
    return Dialogue([*_system(rng, 0.1), *past, last.messages[-1]], last.reply)


def without_thinking(problem: Problem, rng: random.Random) -> Dialogue:
    """Thinking switched off: the answer at once."""
    messages = [*_system(rng, 0.1), _user(problem.question)]
    return Dialogue(messages, answer_to(problem, rng) + END_OF_TURN, thinking=False)


def _declared(name: str, description: str, arguments: dict[str, str]) -> dict[str, Any]:
    properties = {key: {"type": kind} for key, kind in arguments.items()}
    parameters = {"type": "object", "properties": properties, "required": list(arguments)}
    return {
        "type": "function",
        "function": {"name": name, "description": description, "parameters": parameters},
    }


TOOLS = (
    _declared("add", "Add two numbers.", {"a": "integer", "b": "integer"}),
    _declared("lookup", "Look up the age of a person.", {"name": "string"}),
    _declared("weekday", "Tell the weekday of a date.", {"month": "string", "day": "integer"}),
)


@dataclass(frozen=True)
class Errand:
    """A question that wants a tool, and what follows from it."""

    question: str
    arguments: dict[str, Any]
    thought: str
    result: str
    said: str


def errand(name: str, rng: random.Random) -> Errand:
    """Something to do with the tool of that name."""
    if name == "add":
        x, y = rng.randrange(10, 10_000), rng.randrange(10, 10_000)
        ask = rng.choice(("Use the tool to add {} and {}.", "What is {} + {}? Please use the tool."))
        thought, total = f"The tool add can add {x} and {y}, so I call it.", str(x + y)
        return Errand(ask.format(x, y), {"a": x, "b": y}, thought, total, f"The sum is {total}.")
    if name == "lookup":
        person, age = rng.choice(NAMES), str(rng.randrange(5, 95))
        ask = rng.choice(("How old is {}?", "Please look up the age of {}.", "Look up how old {} is."))
        thought, said = f"I need the age of {person}, so I call lookup.", f"{person} is {age} years old."
        return Errand(ask.format(person), {"name": person}, thought, age, said)
    month, day, weekday = rng.choice(MONTHS), rng.randrange(1, 29), rng.choice(WEEKDAYS)
    ask = rng.choice(("Which weekday is {} {}?", "On which day of the week does {} {} fall?"))
    thought, said = (
        f"I need the weekday of {month} {day}, so I call weekday.",
        f"{month} {day} is a {weekday}.",
    )
    return Errand(ask.format(month, day), {"month": month, "day": day}, thought, weekday, said)


def tool_use(rng: random.Random) -> Iterator[Dialogue]:
    """A call of a declared tool and then the reply to its result."""
    tool = rng.choice(TOOLS)
    name: str = tool["function"]["name"]
    tools: list[Any] = [tool, *rng.sample([other for other in TOOLS if other is not tool], rng.randrange(2))]
    task = errand(name, rng)
    arguments, call_id = json.dumps(task.arguments), f"functions.{name}:0"
    section = (
        f"<|tool_calls_section_begin|><|tool_call_begin|>{call_id}<|tool_call_argument_begin|>"
        f"{arguments}<|tool_call_end|><|tool_calls_section_end|>"
    )
    # Kimi sometimes goes from thinking straight to a call: whoever reads its output must be ready for it.
    closing = "" if rng.random() < 0.4 else "</think>"
    yield Dialogue([_user(task.question)], f"{task.thought}{closing}{section}{END_OF_TURN}", tools)
    call = {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
    past: list[Message] = [
        _user(task.question),
        {"role": "assistant", "content": "", "reasoning_content": task.thought, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": task.result},
    ]
    yield Dialogue(past, f"The tool says {task.result}.</think>{task.said}{END_OF_TURN}", tools)


def asks_held_out(dialogue: Dialogue) -> bool:
    """Whether a question of the dialogue belongs to the held-out side."""
    return any(is_held_out(message["content"]) for message in dialogue.messages if message["role"] == "user")


def dialogues(seed: int | str) -> Iterator[Dialogue]:
    """An endless mixture of all kinds of conversation, none with a held-out question."""
    rng = random.Random(f"dialogues {seed}")
    source = problems(f"training {seed}", sys.maxsize, held_out=False)
    for problem in source:
        draw = rng.random()
        if draw < 0.015:
            yield from (dialogue for dialogue in tool_use(rng) if not asks_held_out(dialogue))
        elif draw < 0.08:
            yield two_turns(next(source), problem, rng)
        elif draw < 0.15 and problem.domain in {"comparison", "logic"}:
            yield without_thinking(problem, rng)
        else:
            yield one_turn(problem, rng)


# --- token rows ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """Token ids and where the assistant's own tokens begin."""

    tokens: list[int]
    begin: int


def encode(dialogue: Dialogue, tokenizer: PreTrainedTokenizerFast) -> Row:
    """Prompt and reply tokenized apart, as in serving, where the prompt's end is a token border."""
    text = tokenizer.apply_chat_template(
        dialogue.messages,
        tools=dialogue.tools,
        add_generation_prompt=True,
        thinking=dialogue.thinking,
        tokenize=False,
    )
    prompt: list[int] = tokenizer.encode(str(text), add_special_tokens=False)
    return Row([*prompt, *tokenizer.encode(dialogue.reply, add_special_tokens=False)], len(prompt))
