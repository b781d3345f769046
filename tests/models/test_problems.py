"""Problems are repeatable, right about themselves, and cleanly split into training and held-out ones."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import pytest
from corpus import asks_held_out, dialogues

from prompts.problems import (
    DOMAINS,
    Problem,
    add_steps,
    is_held_out,
    is_right,
    main,
    problems,
    subtract_steps,
)

WRONG = {"yes": "no", "no": "yes", "Anna": "Ben", "Monday": "Sunday", "a": "b"}


def wrong_answer(answer: str) -> str:
    """Something of the same form that is not the answer."""
    if answer.isdigit():
        return str(int(answer) + 10)
    if ", " in answer:
        return ", ".join(reversed(answer.split(", ")))
    if "-" in answer:
        return f"{answer}-x"
    return WRONG.get(answer, "nobody")


def test_same_seed_same_problems() -> None:
    """A seed fixes the problems, and another seed gives others."""
    assert list(problems(3, 50)) == list(problems(3, 50))
    assert list(problems(3, 50)) != list(problems(4, 50))


def test_domains_are_even() -> None:
    """Every domain gets its share."""
    counts = dict.fromkeys(DOMAINS, 0)
    for problem in problems(0, 60):
        counts[problem.domain] += 1
    assert set(counts.values()) == {10}


def test_an_answer_is_right_and_another_is_not() -> None:
    """A reply with the problem's answer is accepted, one with another answer or none is rejected."""
    for problem in problems("check", 3000):
        assert is_right(problem, f"The answer is {problem.answer}."), problem
        assert not is_right(problem, f"The answer is {wrong_answer(problem.answer)}."), problem
        assert not is_right(problem, ""), problem


def test_thinking_reaches_the_answer() -> None:
    """The last sentence of every thinking text states the answer."""
    for problem in problems("check", 3000):
        assert problem.answer in problem.thinking.split(". ")[-1], problem


@pytest.mark.parametrize(
    ("answer", "reply", "right"),
    [
        ("12", "The answer is 12.", True),
        ("12", "5 + 7 = 12", True),
        ("12", "The answer is 112.", False),
        ("12", "12 + 1 = 13", False),
        ("yes", "Yes.", True),
        ("yes", "Yes and no.", False),
        ("3, 5, 9", "The order is 3, 5, 9.", True),
        ("3, 5, 9", "The order is 1, 3, 5, 9.", False),
        ("3, 5, 9", "The order is 3, 5, 9, 11.", False),
        ("e-n-o", "It is e-n-o.", True),
        ("e-n-o", "It is e-n-o-t.", False),
        ("May 3", "It is May 3.", True),
        ("May 3", "It is May 31.", False),
    ],
)
def test_replies_are_judged_whole(answer: str, reply: str, right: bool) -> None:
    """A longer number, word or list that merely contains the answer is wrong."""
    assert is_right(Problem("any", "?", "", answer), reply) is right


def test_column_addition_is_written_out() -> None:
    """Addition goes from the ones up and carries."""
    assert add_steps(58, 7) == (
        "Ones: 8+7+0=15, write 5, carry 1. Tens: 5+0+1=6, write 6, carry 0."
    )  # fmt: skip


def test_column_subtraction_is_written_out() -> None:
    """Subtraction goes from the ones up and borrows."""
    assert subtract_steps(52, 7) == (
        "Ones: 2-7-0=-5, add 10, write 5, borrow 1. Tens: 5-0-1=4, write 4, borrow 0."
    )  # fmt: skip


def test_split_is_clean() -> None:
    """Each side of the split holds only its own questions."""
    assert all(is_held_out(problem.question) for problem in problems(1, 60, held_out=True))
    assert not any(is_held_out(problem.question) for problem in problems(1, 60, held_out=False))


def test_training_never_sees_a_held_out_question() -> None:
    """No conversation that the verifier was trained on contains a held-out question."""
    assert not any(map(asks_held_out, itertools.islice(dialogues(0), 2000)))


def test_command_prints_distinct_seed_prompts(capsys: pytest.CaptureFixture[str]) -> None:
    """The command prints as many different prompts as asked for, one JSON object on a line."""
    main(["--count", "30", "--seed", "7", "--heldout"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [set(row) for row in rows] == [{"domain", "messages", "answer"}] * 30
    asked = [row["messages"][0]["content"] for row in rows]
    assert len(set(asked)) == 30
    assert all(map(is_held_out, asked))


def test_command_leaves_out_excluded_questions(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Questions of another file of prompts are not printed again."""
    other = tmp_path / "seeds.jsonl"
    main(["--count", "30", "--seed", "7"])
    first = capsys.readouterr().out
    other.write_text(first, encoding="utf-8")
    main(["--count", "30", "--seed", "7", "--exclude", str(other)])
    second = capsys.readouterr().out
    assert not set(first.splitlines()) & set(second.splitlines())
    assert len(second.splitlines()) == 30
