"""Each rule finds what it is for, and leaves alone what only looks like it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from synthgen.corpus.records import Finish, FunctionCall, Message, Sampling, ToolCall, TruncatedIn
from synthgen.corpus.sections import ScreenConfig
from synthgen.corpus.verdicts import DropReason, Verdict
from synthgen.screen.leaks import SpecialTokens, leaked_tokens
from synthgen.screen.refusals import refusal
from synthgen.screen.rules import Screener, empty_response, empty_thinking, over_long, unclosed_thinking
from synthgen.screen.scripts import language_drift
from synthgen.screen.view import View
from tests.screen.screened import IM_END, SPECIAL, THINK, THINK_END, TOOL_CALL, TOOL_SECTION, a_view

NO_THINKING = Sampling(temperature=0.7, top_p=1.0, max_tokens=384, thinking=False)
CALL = ToolCall(id="c1", function=FunctionCall(name="add", arguments="{}"))
CUT_IN_THINKING: dict[str, Any] = {
    "output": (10, 11),
    "think_end": None,
    "response": None,
    "finish": Finish.LENGTH,
    "truncated_in": TruncatedIn.THINKING,
}
CUT_IN_RESPONSE: dict[str, Any] = {
    "output": (10, 11, 12, THINK_END, 13),
    "finish": Finish.LENGTH,
    "truncated_in": TruncatedIn.RESPONSE,
}
OPEN: dict[str, Any] = {"output": (10, 11, IM_END), "think_end": None}
TOOLS: dict[str, Any] = {
    "output": (10, THINK_END, TOOL_SECTION, TOOL_CALL, 20, IM_END),
    "think_end": 1,
    "tool_start": 2,
    "response": None,
}


def screened(
    *views: View, drop: tuple[DropReason, ...] = tuple(DropReason), most: int = 1024
) -> list[Verdict]:
    """The verdicts on some traces, one after the other."""
    screener = Screener(ScreenConfig(drop=drop, max_seq_tokens=most), SPECIAL)
    return [screener.screen(view)[0] for view in views]


def tags(**changes: Any) -> list[str]:
    """What is found in one trace."""
    return [tag.value for tag in screened(a_view(**changes))[0].tags]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, []),
        ({"sampling": NO_THINKING, "output": (13, 14, IM_END), "think_end": None, "thinking": None}, []),
        (CUT_IN_THINKING, ["truncated_in_thinking"]),
        (CUT_IN_RESPONSE, ["truncated_in_response"]),
        (OPEN, ["unclosed_thinking"]),
        (OPEN | {"response": None}, ["unclosed_thinking", "empty_response"]),
        ({"output": (THINK_END, 13, IM_END), "think_end": 0, "thinking": None}, ["empty_thinking"]),
        ({"thinking": "\n\n"}, ["empty_thinking"]),
        ({"thinking": None, **CUT_IN_RESPONSE}, ["empty_thinking", "truncated_in_response"]),
        ({"thinking": None, **CUT_IN_THINKING}, ["truncated_in_thinking"]),
        ({"response": None}, ["empty_response"]),
        ({"response": " \n"}, ["empty_response"]),
        ({"response": None, **CUT_IN_RESPONSE}, ["truncated_in_response"]),
        (TOOLS | {"tools": ({"name": "add"},)}, []),
        (TOOLS | {"tool_calls": (CALL,), "finish": Finish.TOOL_CALLS}, []),
        (OPEN | {"tool_calls": (CALL,), "finish": Finish.TOOL_CALLS, "response": None}, []),
        (TOOLS, ["leaked_tokens"]),
    ],
)
def test_what_is_missing_or_cut_is_found(changes: dict[str, Any], found: list[str]) -> None:
    """Thinking that is empty or open, a turn without an answer, and where the budget ran out."""
    assert tags(**changes) == found


def test_thinking_that_the_server_left_in_the_response_is_not_missing() -> None:
    """Without a reasoning parser the text has it all; the tokens' names in it are the leak."""
    assert tags(thinking=None, response="Two and two.</think>The answer is 4.") == ["leaked_tokens"]


def test_a_rule_says_what_it_found() -> None:
    """An excerpt of it in at most 200 characters, on one line."""
    assert unclosed_thinking(a_view(**OPEN)) == "Two and two make four.The answer is 4."
    assert empty_thinking(a_view(thinking="")) == "The answer is 4."
    assert empty_response(a_view(response="", thinking="x" * 300)) == "x" * 200
    assert over_long(a_view(), 7, 9) == "3 prompt and 7 output tokens"


def test_over_long_counts_prompt_and_reply() -> None:
    """Ten tokens: 3 of the prompt and 7 of the reply."""
    assert screened(a_view(), most=9)[0].reason is DropReason.OVER_LONG
    assert screened(a_view(), most=10)[0].reason is None
    assert screened(a_view())[0].tokens == 7


LEAKS: list[dict[str, Any]] = [
    {"output": (10, IM_END, 12, THINK_END, 13, IM_END)},
    {"output": (10, 11, 12, THINK_END, 13, THINK_END, IM_END)},
    {"output": (10, 11, 12, THINK_END, THINK, 13, IM_END)},
    {"output": (10, 11, 12, THINK_END, 13, IM_END, IM_END)},
    {"output": (163587, 11, 12, THINK_END, 13, IM_END)},
    {"output": (10, 11, 12, THINK_END, TOOL_CALL, IM_END), "tools": ({"name": "add"},)},
    CUT_IN_RESPONSE | {"output": (10, 11, 12, THINK_END, 13, IM_END)},
    {"output": (13, THINK_END, 14, IM_END), "think_end": None, "sampling": NO_THINKING},
    {"response": "The answer is 4.<|im_user|>And 3 + 3?"},
    {"thinking": "Two</think> and two"},
    {"response": "<|tool_call_begin|>add"},
    {"response": "<tool_call>add</tool_call>"},
]


@pytest.mark.parametrize("changes", LEAKS)
def test_special_tokens_are_leaks_where_they_have_no_place(changes: dict[str, Any]) -> None:
    """By id anywhere but where they belong, by name in either text."""
    assert leaked_tokens(a_view(**changes), SPECIAL)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"output": (THINK, 11, 12, THINK_END, 13, IM_END)},
        {"output": (10, 11, 12, THINK_END, 13, 14, 163587)},
        {"output": (16360, 163, 1635860, THINK_END, 13, 14, IM_END)},
        CUT_IN_RESPONSE | {"output": (10, 11, 12, THINK_END)},
        {"response": "if a <b> and c[i] <| d |> e: <custom> [INFO] <p>text</p>"},
        {"ask": "What does <|im_user|> mean?", "response": "<|im_user|> opens a turn."},
        TOOLS | {"tools": ({"name": "add"},), "response": "<|tool_call_begin|>add"},
    ],
)
def test_special_tokens_in_their_place_are_none(changes: dict[str, Any]) -> None:
    """The closing token, `</think>`, tool tokens of an offered tool, names that the prompt speaks of."""
    assert leaked_tokens(a_view(**changes), SPECIAL) is None


def test_a_corpus_without_special_tokens_is_searched_for_the_usual_names() -> None:
    """Ids say nothing then. Short ids are found whole, not within others."""
    unknown = SpecialTokens.of({}, None, None)
    assert leaked_tokens(a_view(output=(10, IM_END, 12, THINK_END, 13)), unknown) is None
    assert leaked_tokens(a_view(response="Bye<|im_end|>"), unknown) == "Bye<|im_end|>"
    small = SpecialTokens.of({"<|im_start|>": 1, "<|im_end|>": 2, "</s>": 3}, None, None)
    plain: dict[str, Any] = {"sampling": NO_THINKING, "think_end": None}
    assert leaked_tokens(a_view(output=(10, 12, 21, 22, 111, 2), **plain), small) is None
    assert leaked_tokens(a_view(output=(10, 1, 21, 2), **plain), small)
    assert leaked_tokens(a_view(output=(2, 21, 2), **plain), small)
    assert leaked_tokens(a_view(output=(7, 2, 2), **plain), small)
    assert leaked_tokens(a_view(response="<s>struck</s> out", output=(7, 2), **plain), small) is None


@pytest.mark.parametrize(
    "response",
    [
        "I'm sorry, but I can't help with that.",
        "I’m sorry, but I can’t assist with that request.",
        "I cannot help you with this.",
        "Sorry, I am unable to provide that.",
        "I apologize, but I cannot write this story.",
        "As an AI language model, I cannot provide medical advice.",
        "I understand what you are looking for. However, I can't help with that.",
        "Unfortunately, I won't be sharing it. I'm not able to assist with this.",
        "I must decline this request.",
        "I will not engage in that kind of conversation.",
        "I can't provide instructions for that.",
        "抱歉，我无法回答这个问题。",
        "对不起，我不能提供这类信息。",
        "作为一个人工智能助手，我不能协助您完成这个请求。",
        "很抱歉，我無法協助您。",
    ],
)
def test_a_refusal_is_found_at_the_start_of_the_response(response: str) -> None:
    """In English with either apostrophe, and in Chinese."""
    assert refusal(a_view(response=response)) is not None


@pytest.mark.parametrize(
    "response",
    [
        "I can't find an error in the second step, so the proof holds.",
        "I cannot see how the claim could fail: the sum is always even.",
        "You can't divide by zero, so x = 0 is excluded.",
        "I can't help but notice that both sides are equal.",
        "I'm sorry to hear that! Here is what you can do.",
        "Sorry for the confusion: the answer is 7, not 6.",
        "Unfortunately, the bakery cannot provide bread on Sundays.",
        "The knight said that he would not help the king.",
        "I'm unable to find a closed form, but the series converges to 2.",
        "Profits decline by 5% a year.",
        'A polite letter: "I can\'t help with that, but my colleague can."',
        "我无法找到错误，所以证明成立。",
        "这个方程不能分解，所以没有整数解。",
        "The answer is 4." + " It really is." * 20 + " I'm sorry, but I can't help with that.",
        None,
    ],
)
def test_an_inability_or_apology_is_no_refusal(response: str | None) -> None:
    """Nor is what others say, or what comes late."""
    assert refusal(a_view(response=response)) is None
    assert refusal(a_view(thinking="I can't help with that.", response=response)) is None


RUSSIAN, CHINESE = "Ответ равен четырём, потому что два и два.", "答案是四，因为二加二等于四，没有别的可能。"


@pytest.mark.parametrize(
    ("ask", "reply"),
    [
        ("What is 2 + 2?", RUSSIAN),
        ("What is 2 + 2?", CHINESE),
        ("What is 2 + 2?", "정답은 사입니다. 이 더하기 이는 사입니다."),
        ("What is 2 + 2?", "الجواب هو أربعة لأن اثنين واثنين"),
        ("What is 2 + 2?", "Answer: " + CHINESE),
        ("二加二等于几？", "The answer is four, because two and two make four."),
        ("二加二等于几？", RUSSIAN),
    ],
)
def test_a_reply_in_a_foreign_script_has_drifted(ask: str, reply: str) -> None:
    """Thinking and response are looked at each on its own."""
    assert language_drift(a_view(ask=ask, response=reply)) is not None
    if ask.isascii():
        assert language_drift(a_view(ask=ask, thinking=reply)) is not None


@pytest.mark.parametrize(
    ("ask", "reply"),
    [
        ("What is 2 + 2?", "It’s 4 — naïve as it sounds: α + β ≤ γ, 漢字 and all that is no matter. 🙂"),
        ("Translate into Russian: four.", RUSSIAN),
        ("Say it in Chinese.", CHINESE),
        ("二加二等于几？", CHINESE),
        ("二加二等于几？用英语回答。", "The answer is four, because two and two make four."),
        ("用 Python 写一个函数", "```python\ndef add(left, right):\n    return left + right\n```"),
        ("写一个函数", "好的：\n```python\ndef add(left, right):\n    return left + right\n```"),
        ("Что такое 2 + 2?", RUSSIAN),
        ("What does 四 mean?", CHINESE),
        ("2 + 2 = ?", "Four, because two and two make four."),
        ("二加二等于几？", "4 = 2 + 2"),
    ],
)
def test_a_script_that_the_prompt_uses_or_asks_for_is_none(ask: str, reply: str) -> None:
    """Nor is a name, a formula, code, or a prompt without any letter."""
    thinking = "二加二，答案应该是四，没有别的可能。" if "二" in ask else "4"
    assert language_drift(a_view(ask=ask, response=reply, thinking=thinking)) is None


def test_the_first_of_two_equal_replies_stays() -> None:
    """The same ids after the same prompt, whatever its case and blanks; not after another prompt or turn."""
    first, same = a_view(), a_view(sample_index=1)
    spaced = a_view(sample_index=2, ask="what  is 2 + 2?")
    other_prompt = a_view(ask="What is 1 + 3?")
    other_reply = a_view(sample_index=3, output=(10, 11, 15, THINK_END, 13, 14, IM_END))
    question = Message(role="user", content="What is 2 + 2?")
    later = a_view(turn=1, messages=(question, Message(role="assistant", content="4"), question))
    found = screened(first, same, other_prompt, spaced, other_reply, later, later)
    assert [verdict.tags for verdict in found] == [
        (),
        (DropReason.DUPLICATE,),
        (),
        (DropReason.DUPLICATE,),
        (),
        (),
        (DropReason.DUPLICATE,),
    ]


def test_the_reason_is_the_first_tag_that_drops() -> None:
    """All tags stay, in the order of precedence."""
    view = a_view(response="!" * 40, ask="二加二", thinking="", **CUT_IN_RESPONSE)
    every = (DropReason.DEGENERATE, DropReason.EMPTY_THINKING, DropReason.TRUNCATED_IN_RESPONSE)
    for drop, reason in (
        (tuple(DropReason), DropReason.DEGENERATE),
        ((DropReason.TRUNCATED_IN_RESPONSE, DropReason.EMPTY_THINKING), DropReason.EMPTY_THINKING),
        ((DropReason.DUPLICATE,), None),
        ((), None),
    ):
        verdict = screened(view, drop=drop)[0]
        assert (verdict.tags, verdict.reason) == (every, reason)


def test_a_verdict_names_trace_source_and_prompt() -> None:
    """With the key of the prompt, under which mixing finds its other samples."""
    verdict = screened(a_view(sample_index=2, turn=1))[0]
    assert (verdict.trace, verdict.source, verdict.domain) == ("00000000000000aa-2.1", "math.jsonl", "math")
    assert verdict.prompt == "692a9daa52e42c50"


views = st.builds(
    a_view,
    ask=st.sampled_from(["What is 2 + 2?", "二加二", "Translate: two"]),
    sample_index=st.integers(0, 9),
    response=st.one_of(
        st.none(), st.text(max_size=80), st.sampled_from(["!" * 40, CHINESE, "Bye<|im_end|>"])
    ),
    thinking=st.one_of(st.none(), st.text(max_size=80), st.just(RUSSIAN)),
    output=st.sampled_from(
        [(10, 11, 12, THINK_END, 13, IM_END), (10, IM_END, 12, THINK_END), (1, 2, 3, THINK_END)]
    ),
)


@given(st.lists(views, max_size=8))
def test_a_verdict_depends_on_no_other_trace_but_as_a_duplicate(traces: list[View]) -> None:
    """Screening them together finds what screening each alone does, and duplicates."""
    for together, view in zip(screened(*traces), traces, strict=True):
        alone = screened(view)[0]
        assert tuple(tag for tag in together.tags if tag is not DropReason.DUPLICATE) == alone.tags
        assert together.trace == alone.trace
