"""Reasoning problems written by rules: a question, a worked thinking text and one right answer.

They are the demo's seed prompts and, from another seed space, what its tiny verifier was trained on. A
thinking text goes step by step and each step needs only what stands in the question or a few words before,
so a very small network can follow it; its wording varies where that changes nothing. One question in
sixteen, picked by the hash of its text, is held out: training never sees those, the demo and the evaluation
see only those.

    python prompts/problems.py --count 400 --seed 7 > seeds.jsonl
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

HELD_OUT_ONE_IN = 16

PLACES = ("Ones", "Tens", "Hundreds", "Thousands", "Ten-thousands")
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
MONTH_DAYS = {
    "January": 31, "February": 28, "March": 31, "April": 30, "May": 31, "June": 30, "July": 31,
    "August": 31, "September": 30, "October": 31, "November": 30, "December": 31,
}  # fmt: skip
MONTHS = tuple(MONTH_DAYS)
ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
NAMES = (
    "Anna", "Ben", "Clara", "David", "Emma", "Felix", "Grace", "Henry", "Iris", "Jack", "Kate", "Leo",
    "Mia", "Noah", "Olga", "Paul", "Rosa", "Sam", "Tara", "Victor",
)  # fmt: skip
THINGS = (
    "apples", "books", "coins", "shells", "stamps", "pencils", "marbles", "cards", "eggs", "stones",
    "tickets", "plums",
)  # fmt: skip
WORDS = (
    "anchor", "apple", "arrow", "autumn", "badge", "banana", "basket", "beach", "berry", "blanket",
    "bottle", "bridge", "butter", "button", "cabin", "camera", "candle", "carpet", "castle", "cherry",
    "circle", "cloud", "coffee", "corner", "cotton", "dance", "desert", "doctor", "donkey", "dragon",
    "drum", "eagle", "earth", "engine", "fabric", "falcon", "family", "farmer", "feather", "finger",
    "flower", "forest", "garden", "ghost", "glass", "gold", "grape", "hammer", "harbor", "honey",
    "horse", "house", "hunter", "island", "jacket", "jungle", "kettle", "kitten", "ladder", "lantern",
    "lemon", "letter", "lion", "lizard", "machine", "magnet", "marble", "meadow", "melon", "mirror",
    "monkey", "morning", "mountain", "museum", "music", "needle", "night", "ocean", "olive", "orange",
    "orchard", "oven", "paper", "parrot", "pepper", "piano", "pillow", "pirate", "planet", "pocket",
    "potato", "puzzle", "queen", "quilt", "rabbit", "raven", "ribbon", "river", "robot", "rocket",
    "saddle", "salmon", "school", "shadow", "silver", "soldier", "spider", "spring", "stone", "summer",
    "table", "temple", "tiger", "tomato", "tower", "train", "tunnel", "turtle", "uncle", "valley",
    "velvet", "village", "violin", "wagon", "water", "whale", "window", "winter", "wizard", "yellow",
    "zebra",
)  # fmt: skip
KINDS_OF_BEING = (
    "cat", "dog", "bird", "fish", "poet", "baker", "singer", "dancer", "pilot", "nurse", "robot",
    "giant", "wizard", "farmer", "painter", "sailor", "runner", "writer", "teacher", "driver",
)  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """One question with its worked thinking and its one right answer."""

    domain: str
    question: str
    thinking: str
    answer: str


Maker = Callable[[random.Random], Problem]


def is_held_out(question: str) -> bool:
    """Whether this question is kept out of training, by the hash of its text."""
    return hashlib.sha256(question.encode()).digest()[0] % HELD_OUT_ONE_IN == 0


def _worded(rng: random.Random, wordings: Sequence[str]) -> str:
    """One of several wordings, the first by far the most often.

    Equal chances would leave a greedy reader with ties, which rounding decides: the same server would
    then write another text for each batch size.
    """
    others = [0.3 / (len(wordings) - 1)] * (len(wordings) - 1)
    return rng.choices(wordings, [0.7, *others])[0]


def _close(rng: random.Random, answer: str) -> str:
    """The last sentence of a thinking text."""
    return _worded(
        rng, ("So the answer is {}.", "That gives {}.", "So it is {}.", "The result is {}.")
    ).format(answer)


# --- arithmetic ---------------------------------------------------------------------------------------------


def _digits(number: int) -> list[int]:
    """Digits from the ones upwards."""
    return [int(digit) for digit in reversed(str(number))]


def _at(digits: list[int], place: int) -> int:
    return digits[place] if place < len(digits) else 0


def add_steps(first: int, second: int) -> str:
    """Column addition, one sentence for each place."""
    steps, carry, ours, theirs = [], 0, _digits(first), _digits(second)
    for place in range(max(len(ours), len(theirs))):
        x, y = _at(ours, place), _at(theirs, place)
        total = x + y + carry
        steps.append(f"{PLACES[place]}: {x}+{y}+{carry}={total}, write {total % 10}, carry {total // 10}.")
        carry = total // 10
    return " ".join(steps)


def subtract_steps(first: int, second: int) -> str:
    """Column subtraction of the smaller from the larger number."""
    steps, borrow, ours, theirs = [], 0, _digits(first), _digits(second)
    for place, x in enumerate(ours):
        y = _at(theirs, place)
        left = x - y - borrow
        lend = ", add 10" if left < 0 else ""
        steps.append(
            f"{PLACES[place]}: {x}-{y}-{borrow}={left}{lend}, write {left % 10}, borrow {int(left < 0)}."
        )
        borrow = int(left < 0)
    return " ".join(steps)


def multiply_steps(number: int, factor: int) -> str:
    """Column multiplication by one digit."""
    steps, carry = [], 0
    for place, x in enumerate(_digits(number)):
        total = x * factor + carry
        steps.append(
            f"{PLACES[place]}: {x}*{factor}+{carry}={total}, write {total % 10}, carry {total // 10}."
        )
        carry = total // 10
    return " ".join(steps)


def _number(rng: random.Random, fewest: int, most: int) -> int:
    """A number whose count of digits, not its value, is evenly spread."""
    size = rng.randint(fewest, most)
    return rng.randrange(10 ** (size - 1), 10**size)


def addition(rng: random.Random) -> Problem:
    """Two numbers of 2 to 4 digits."""
    first, second = _number(rng, 2, 4), _number(rng, 2, 4)
    ask = rng.choice((
        "What is {} + {}?", "Compute {} + {}.", "Add {} and {}.", "What is the sum of {} and {}?",
        "Please work out {} plus {}.", "How much is {} + {}?",
    ))  # fmt: skip
    begin = _worded(
        rng, ("I add {} and {} place by place.", "Let me add {} and {} from the right.", "Adding {} and {}.")
    )
    answer = str(first + second)
    thinking = f"{begin.format(first, second)} {add_steps(first, second)} {_close(rng, answer)}"
    return Problem("arithmetic", ask.format(first, second), thinking, answer)


def subtraction(rng: random.Random) -> Problem:
    """The smaller of two numbers of 2 to 4 digits from the larger."""
    second, first = sorted((_number(rng, 2, 4), _number(rng, 2, 4)))
    ask = rng.choice((
        "What is {} - {}?", "Compute {} - {}.", "What is {} minus {}?", "Please work out {} - {}.",
        "How much is {} minus {}?", "What is the difference between {} and {}?",
    ))  # fmt: skip
    begin = _worded(rng, (
        "I take {1} from {0} place by place.", "Let me subtract {1} from {0} from the right.",
        "Subtracting {1} from {0}.",
    ))  # fmt: skip
    answer = str(first - second)
    thinking = f"{begin.format(first, second)} {subtract_steps(first, second)} {_close(rng, answer)}"
    return Problem("arithmetic", ask.format(first, second), thinking, answer)


def multiplication(rng: random.Random) -> Problem:
    """A number of 2 or 3 digits by one digit."""
    number, factor = _number(rng, 2, 3), rng.randint(2, 9)
    ask = rng.choice((
        "What is {} * {}?", "Compute {} times {}.", "Multiply {} by {}.", "What is the product of {} and {}?",
        "How much is {} * {}?", "Please work out {} times {}.",
    ))  # fmt: skip
    begin = _worded(
        rng,
        (
            "I multiply {} by {} place by place.",
            "Let me multiply {} by {} from the right.",
            "Multiplying {} by {}.",
        ),
    )
    answer = str(number * factor)
    thinking = f"{begin.format(number, factor)} {multiply_steps(number, factor)} {_close(rng, answer)}"
    return Problem("arithmetic", ask.format(number, factor), thinking, answer)


def story(rng: random.Random) -> Problem:
    """A short story in which someone gains or loses things."""
    name, thing, gains = rng.choice(NAMES), rng.choice(THINGS), rng.random() < 0.5
    second, first = sorted((_number(rng, 2, 3), _number(rng, 2, 3)))
    verb = rng.choice(
        ("gets", "finds", "buys", "wins") if gains else ("loses", "sells", "gives away", "drops")
    )
    more = " more" if gains else " of them"
    ask = rng.choice((
        "{0} has {1} {2} and {3} {4}{5}. How many {2} does {0} have now?",
        "{0} had {1} {2}. Then {0} {3} {4}{5}. How many {2} are there now?",
        "There are {1} {2} in a box. {0} {3} {4}{5}. How many {2} is that in the end?",
    ))  # fmt: skip
    begin = _worded(
        rng, ("It starts with {} {} and {} {}, so I {}.", "At first {} {}, then {} {}: I have to {}.")
    )
    begin = begin.format(first, thing, verb, second, "add" if gains else "subtract")
    answer = str(first + second if gains else first - second)
    steps = add_steps(first, second) if gains else subtract_steps(first, second)
    question = ask.format(name, first, thing, verb, second, more)
    return Problem("arithmetic", question, f"{begin} {steps} {_close(rng, answer)}", answer)


# --- comparison ---------------------------------------------------------------------------------------------


def compare_steps(first: int, second: int) -> str:
    """Compare by length, else by the first digit that differs."""
    left, right = str(first), str(second)
    sizes = f"{left} has {len(left)} digits and {right} has {len(right)} digits"
    if len(left) != len(right):
        return f"{sizes}, so {max(first, second)} is larger."
    steps = [f"{sizes}, the same."]
    for place in range(len(left)):
        x, y = left[place], right[place]
        name = PLACES[len(left) - 1 - place]
        if x != y:
            steps.append(f"{name}: {x} and {y}, {max(x, y)} is more, so {max(first, second)} is larger.")
            break
        steps.append(f"{name}: {x} and {y}, equal.")
    return " ".join(steps)


def _rival(rng: random.Random, number: int) -> int:
    """Another number, often one that shares the first digits."""
    while True:
        other = _number(rng, 2, 4)
        if rng.random() < 0.6:
            text = str(number)
            kept = rng.randrange(len(text))
            other = int(text[:kept] + "".join(rng.choice("123456789") for _ in text[kept:]))
        if other != number:
            return other


def larger_of_two(rng: random.Random) -> Problem:
    """The larger or the smaller of two numbers."""
    first = _number(rng, 2, 4)
    second = _rival(rng, first)
    large = rng.random() < 0.5
    ask = rng.choice(
        ("Which number is {2}, {0} or {1}?", "Which is {2}: {0} or {1}?", "Of {0} and {1}, which one is {2}?")
    )
    begin = _worded(rng, ("I compare {} with {}.", "Let me compare {} and {}.", "The numbers are {} and {}."))
    answer = str(max(first, second) if large else min(first, second))
    asked = "larger" if large else "smaller"
    thinking = f"{begin.format(first, second)} {compare_steps(first, second)} The {asked} one is {answer}."
    return Problem("comparison", ask.format(first, second, asked), thinking, answer)


def is_it_larger(rng: random.Random) -> Problem:
    """A yes/no question about two numbers."""
    first = _number(rng, 2, 4)
    second = _rival(rng, first)
    asked = rng.choice(("larger", "smaller"))
    ask = rng.choice(
        (
            "Is {0} {2} than {1}?",
            "Is it true that {0} is {2} than {1}?",
            "Tell me whether {0} is {2} than {1}.",
        )
    )
    begin = _worded(rng, ("I compare {} with {}.", "Let me compare {} and {}.", "The numbers are {} and {}."))
    found = "larger" if first > second else "smaller"
    answer = "yes" if asked == found else "no"
    rest = (
        f"{compare_steps(first, second)} {first} is {found}, and the question is about {asked}, so {answer}."
    )
    return Problem(
        "comparison", ask.format(first, second, asked), f"{begin.format(first, second)} {rest}", answer
    )


def extreme_of_three(rng: random.Random) -> Problem:
    """The largest or smallest of three numbers of equal length."""
    size = rng.randint(2, 3)
    numbers = rng.sample(range(10 ** (size - 1), 10**size), 3)
    large = rng.random() < 0.5
    best: Callable[[int, int], int] = max if large else min
    asked, more = ("largest", "larger") if large else ("smallest", "smaller")
    ask = rng.choice((
        "Which is the {3} of {0}, {1} and {2}?", "Find the {3} number: {0}, {1}, {2}.",
        "What is the {3} number among {0}, {1} and {2}?",
    ))  # fmt: skip
    first = best(numbers[0], numbers[1])
    last = best(first, numbers[2])
    begin = _worded(
        rng, ("I go through them in pairs.", "Let me compare two at a time.", "One pair after the other.")
    )
    thinking = (
        f"{begin} Of {numbers[0]} and {numbers[1]}, {first} is {more}. "
        f"Of {first} and {numbers[2]}, {last} is {more}. {_close(rng, str(last))}"
    )
    return Problem("comparison", ask.format(*numbers, asked), thinking, str(last))


# --- sorting ------------------------------------------------------------------------------------------------


def _joined(items: list[int] | list[str]) -> str:
    return ", ".join(str(item) for item in items)


def sort_numbers(rng: random.Random) -> Problem:
    """Three to five numbers of two digits, by picking the next one again and again."""
    left = rng.sample(range(10, 100), rng.randint(3, 5))
    up = rng.random() < 0.6
    ask = rng.choice((
        "Sort these numbers from {1}: {0}.", "Put {0} in order from {1}.", "Arrange from {1}: {0}.",
        "Order the numbers {0} from {1}.",
    ))  # fmt: skip
    question = ask.format(_joined(left), "smallest to largest" if up else "largest to smallest")
    word, ordered = ("smallest" if up else "largest"), sorted(left, reverse=not up)
    begin = _worded(
        rng,
        (
            "I pick the {} one each time.",
            "Let me always take the {} one.",
            "Taking the {} one again and again.",
        ),
    )
    steps = []
    for number in ordered[:-1]:
        steps.append(f"From {_joined(left)} take {number}.")
        left.remove(number)
    answer = _joined(ordered)
    thinking = f"{begin.format(word)} {' '.join(steps)} {left[0]} remains. {_close(rng, answer)}"
    return Problem("sorting", question, thinking, answer)


def sort_words(rng: random.Random) -> Problem:
    """Three or four words with different first letters, in alphabetical order."""
    words = list({word[0]: word for word in rng.sample(WORDS, 12)}.values())
    words = rng.sample(words, min(rng.randint(3, 4), len(words)))
    ask = rng.choice((
        "Sort these words alphabetically: {}.", "Put the words {} in alphabetical order.",
        "Arrange in alphabetical order: {}.", "What is the alphabetical order of {}?",
    ))  # fmt: skip
    begin = _worded(rng, ("I look at the first letters.", "The first letters decide.", "First letters:"))
    ordered = sorted(words)
    initials = ", ".join(f"{word} {word[0]}" for word in words)
    order = ", ".join(f"{word[0]} {word}" for word in ordered)
    answer = _joined(ordered)
    thinking = f"{begin} {initials}. In order: {order}. {_close(rng, answer)}"
    return Problem("sorting", ask.format(_joined(words)), thinking, answer)


# --- strings ------------------------------------------------------------------------------------------------


def _letters(rng: random.Random) -> tuple[str, str]:
    """How a question names its letters, and the letters: a word, or letters that make no word."""
    if rng.random() < 0.5:
        word = rng.choice(WORDS)
        return f"the word {word}", word
    letters = "".join(rng.choice("abcdefghiklmnoprstuw") for _ in range(rng.randint(3, 6)))
    return f"the letters {'-'.join(letters)}", letters


def reverse_letters(rng: random.Random) -> Problem:
    """Spell letters backwards."""
    named, letters = _letters(rng)
    ask = rng.choice(
        (
            "Spell {} backwards.",
            "Reverse {}.",
            "How do you spell {} in reverse?",
            "Write {} from back to front.",
        )
    )
    begin = _worded(rng, ("I spell it first:", "In order it is", "Forwards:"))
    numbered = ", ".join(f"{letter} {i}" for i, letter in enumerate(letters, 1))
    answer = "-".join(reversed(letters))
    back = ", ".join(f"{i} {letters[i - 1]}" for i in range(len(letters), 0, -1))
    return Problem(
        "strings", ask.format(named), f"{begin} {numbered}. Back: {back}. {_close(rng, answer)}", answer
    )


def count_letter(rng: random.Random) -> Problem:
    """How often a letter occurs."""
    named, letters = _letters(rng)
    letter = rng.choice(letters) if rng.random() < 0.8 else rng.choice("aeinrst")
    ask = rng.choice(
        ("How many times does {1} occur in {0}?", "Count the letter {1} in {0}.", "How often is {1} in {0}?")
    )
    begin = _worded(rng, ("I count {} as I go:", "Counting {}:", "Let me go through it and count {}:"))
    seen = 0
    steps = []
    for each in letters:
        seen += each == letter
        steps.append(f"{each} {seen}")
    thinking = f"{begin.format(letter)} {', '.join(steps)}. {_close(rng, str(seen))}"
    return Problem("strings", ask.format(named, letter), thinking, str(seen))


def nth_letter(rng: random.Random) -> Problem:
    """The letter at a place."""
    named, letters = _letters(rng)
    place = rng.randint(1, len(letters))
    ordinal = ORDINALS[place - 1]
    ask = rng.choice(
        ("What is the {1} letter of {0}?", "Which letter is {1} in {0}?", "Give me the {1} letter of {0}.")
    )
    begin = _worded(rng, ("I number them up to the {}:", "Counting to the {}:", "The {} is wanted:"))
    numbered = ", ".join(f"{letter} {i}" for i, letter in enumerate(letters[:place], 1))
    answer = letters[place - 1]
    thinking = f"{begin.format(ordinal)} {numbered}. {_close(rng, answer)}"
    return Problem("strings", ask.format(named, ordinal), thinking, answer)


# --- dates --------------------------------------------------------------------------------------------------


def weekday_after(rng: random.Random) -> Problem:
    """The weekday some days later or earlier."""
    start, days, later = rng.randrange(7), rng.randint(2, 60), rng.random() < 0.6
    ask = rng.choice(
        ("Today is {}. What day is it in {} days?", "If today is {}, which weekday is it {} days from now?",
         "It is {}. What weekday will it be after {} days?")
        if later
        else ("Today is {}. What day was it {} days ago?",
              "If today is {}, which weekday was it {} days ago?",
              "It is {}. What weekday was it {} days before?")
    )  # fmt: skip
    weeks, rest = divmod(days, 7)
    begin = _worded(
        rng, ("{} days are {} weeks and {} days.", "A week has 7 days: {} is {} weeks and {} days.")
    )
    sign = 1 if later else -1
    walk = "".join(f", {WEEKDAYS[(start + sign * i) % 7]} {i}" for i in range(1, rest + 1))
    answer = WEEKDAYS[(start + sign * rest) % 7]
    way = "forward" if later else "back"
    begin = begin.format(days, weeks, rest)
    thinking = f"{begin} Going {way} {rest}: {WEEKDAYS[start]} 0{walk}. {_close(rng, answer)}"
    return Problem("dates", ask.format(WEEKDAYS[start], days), thinking, answer)


def month_after(rng: random.Random) -> Problem:
    """The month some months later or earlier."""
    start, count, later = rng.randrange(12), rng.randint(2, 9), rng.random() < 0.5
    ask = rng.choice((
        "Which month is {1} months {2} {0}?", "What month comes {1} months {2} {0}?",
        "Name the month {1} months {2} {0}.",
        "Tell me which month is {1} months {2} {0}.",
    ))  # fmt: skip
    begin = _worded(
        rng, ("I count {} steps {} from {}:", "Going {1} {0} months from {2}:", "{} steps {} from {}:")
    )
    sign = 1 if later else -1
    walk = ", ".join(f"{MONTHS[(start + sign * i) % 12]} {i}" for i in range(1, count + 1))
    answer = MONTHS[(start + sign * count) % 12]
    begin = begin.format(count, "forward" if later else "back", MONTHS[start])
    question = ask.format(MONTHS[start], count, "after" if later else "before")
    return Problem("dates", question, f"{begin} {walk}. {_close(rng, answer)}", answer)


def date_after(rng: random.Random) -> Problem:
    """The date some days later, perhaps in the next month."""
    index, more = rng.randrange(12), rng.randint(2, 27)
    month = MONTHS[index]
    length = MONTH_DAYS[month]
    day = rng.randint(1, length)
    ask = rng.choice((
        "What is the date {2} days after {0} {1}?", "Which date is {2} days after {0} {1}?",
        "A trip starts on {0} {1} and ends {2} days later. On which date does it end?",
        "Today is {0} {1}. What is the date in {2} days?",
    ))  # fmt: skip
    begin = _worded(
        rng,
        (
            "{0} has {1} days in a normal year.",
            "There are {1} days in {0}.",
            "The length of {0} is {1} days.",
        ),
    )
    total = day + more
    if total <= length:
        rest, answer = f"{total} is not past {length}, so it stays {month}.", f"{month} {total}"
    else:
        after = MONTHS[(index + 1) % 12]
        rest, answer = (
            f"{total} is past {length}: {total}-{length}={total - length} in {after}.",
            f"{after} {total - length}",
        )
    thinking = f"{begin.format(month, length)} {day}+{more}={total}. {rest} {_close(rng, answer)}"
    return Problem("dates", ask.format(month, day, more), thinking, answer)


# --- logic --------------------------------------------------------------------------------------------------

ORDERS = (
    ("taller", "shorter", "tallest", "shortest"),
    ("older", "younger", "oldest", "youngest"),
    ("faster", "slower", "fastest", "slowest"),
    ("richer", "poorer", "richest", "poorest"),
)


def ordering(rng: random.Random) -> Problem:
    """Who is first or last of three or four people that are compared in pairs."""
    people = rng.sample(NAMES, rng.choice((3, 3, 4)))
    more, less, most, least = rng.choice(ORDERS)
    pairs = [(i, i + 1) for i in range(len(people) - 1)]
    rng.shuffle(pairs)
    said, read = [], []
    for upper, lower in pairs:
        high, low = people[upper], people[lower]
        said.append(
            f"{high} is {more} than {low}." if rng.random() < 0.6 else f"{low} is {less} than {high}."
        )
        read.append(f"{high} > {low}")
    top = rng.random() < 0.5
    asked, answer = (most, people[0]) if top else (least, people[-1])
    ask = rng.choice(("Who is the {}?", "Which person is the {}?", "Tell me who is the {}."))
    begin = _worded(rng, ("I write > for {}:", "Let > mean {}:", "With > for {}:"))
    thinking = (
        f"{begin.format(more)} {', '.join(read)}. In a row: {' > '.join(people)}. "
        f"The {asked} is {'first' if top else 'last'}. {_close(rng, answer)}"
    )
    return Problem("logic", f"{' '.join(said)} {ask.format(asked)}", thinking, answer)


def syllogism(rng: random.Random) -> Problem:
    """A chain of `all` and `no` statements about a person."""
    name = rng.choice(NAMES)
    kinds = rng.sample(KINDS_OF_BEING, rng.choice((2, 3)))
    positive = rng.random() < 0.5
    rules = [f"Every {low} is a {high}." for low, high in itertools.pairwise(kinds)]
    steps = [f"{name} is a {kinds[0]}."]
    steps += [f"Every {low} is a {high}, so {name} is a {high}." for low, high in itertools.pairwise(kinds)]
    if not positive:
        rules[-1] = f"No {kinds[-2]} is a {kinds[-1]}."
        steps[-1] = f"No {kinds[-2]} is a {kinds[-1]}, so {name} is not a {kinds[-1]}."
    facts = [*rules, f"{name} is a {kinds[0]}."]
    rng.shuffle(facts)
    ask = rng.choice(("Is {} a {}?", "Can we say that {} is a {}?", "Does it follow that {} is a {}?"))
    begin = _worded(rng, ("I start from what is known.", "Let me follow the chain.", "Step by step."))
    answer = "yes" if positive else "no"
    thinking = f"{begin} {' '.join(steps)} {_close(rng, answer)}"
    return Problem("logic", f"{' '.join(facts)} {ask.format(name, kinds[-1])}", thinking, answer)


def condition(rng: random.Random) -> Problem:
    """One conditional sentence and a fact: forwards it holds, backwards only the denial does."""
    cause, effect = rng.sample((
        "the lamp is on", "the door is open", "the shop is closed", "the road is wet", "the bell is loud",
        "the room is warm", "the box is full", "the sky is dark", "the train is late", "the field is green",
        "the river is high", "the light is red", "the cup is empty", "the garden is quiet", "the key is lost",
    ), 2)  # fmt: skip
    forward = rng.random() < 0.5
    name = rng.choice(NAMES)
    denied = effect.replace(" is ", " is not ")
    fact, asked = (cause, effect) if forward else (denied, cause)
    rule = rng.choice(
        (
            "{2} says: if {0}, then {1}.",
            "{2} knows that whenever {0}, {1}.",
            "For {2} it holds that if {0}, {1}.",
        )
    )
    ask = rng.choice(("Is it true that {}?", "Does it follow that {}?", "Can {1} say that {0}?"))
    begin = _worded(
        rng,
        ("The rule goes from the first part to the second.", "Let me use the rule.", "I look at the rule."),
    )
    answer = "yes" if forward else "no"
    known = f"We know that {fact}."
    result = (
        f"The first part holds, so {effect}."
        if forward
        else f"The second part fails, so {cause.replace(' is ', ' is not ')}."
    )
    question = f"{rule.format(cause, effect, name)} Now {fact}. {ask.format(asked, name)}"
    return Problem("logic", question, f"{begin} {known} {result} {_close(rng, answer)}", answer)


# --- all of them --------------------------------------------------------------------------------------------

MAKERS: dict[str, tuple[Maker, ...]] = {
    "arithmetic": (addition, subtraction, multiplication, story),
    "comparison": (larger_of_two, is_it_larger, extreme_of_three),
    "sorting": (sort_numbers, sort_words),
    "strings": (reverse_letters, count_letter, nth_letter),
    "dates": (weekday_after, month_after, date_after),
    "logic": (ordering, syllogism, condition),
}
DOMAINS = tuple(MAKERS)


def problems(seed: int | str, count: int, *, held_out: bool | None = None) -> Iterator[Problem]:
    """`count` problems, evenly over the domains; with `held_out` only those of that side of the split."""
    rng = random.Random(f"problems {seed}")
    made = 0
    while made < count:
        problem = rng.choice(MAKERS[DOMAINS[made % len(DOMAINS)]])(rng)
        if held_out is None or is_held_out(problem.question) == held_out:
            made += 1
            yield problem


def is_right(problem: Problem, response_text: str) -> bool:
    """Whether a reply (without its thinking) states the right answer and no other."""
    text = response_text.lower()
    answer = problem.answer.lower()
    if answer.isdigit():
        numbers = re.findall(r"\d+", text)
        return bool(numbers) and numbers[-1] == answer
    if answer in {"yes", "no"}:
        return set(re.findall(r"\b(?:yes|no)\b", text)) == {answer}
    last = re.split(r"(?<=[.!?])\s+", text.strip())[-1]
    return re.search(rf"(?<![\w-])(?<![\w-], ){re.escape(answer)}(?!,? ?[\d-])(?!\w|, \w)", last) is not None


def _asked(path: Path | None) -> set[str]:
    """The questions of a file of seed prompts."""
    if path is None:
        return set()
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip())
    return {row["messages"][-1]["content"] for row in rows}


def main(arguments: list[str] | None = None) -> None:
    """Print seed prompts, one JSON object on a line, no question twice."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--count", type=int, required=True, help="number of prompts")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--heldout", action="store_true", help="only questions that were held out of training"
    )
    parser.add_argument("--exclude", type=Path, help="a file of seed prompts whose questions are left out")
    options = parser.parse_args(arguments)
    seen, written = _asked(options.exclude), 0
    # Far more are drawn than are wanted, because some come twice.
    for problem in problems(options.seed, 100 * options.count, held_out=True if options.heldout else None):
        if written == options.count:
            break
        if problem.question in seen:
            continue
        seen.add(problem.question)
        messages = [{"role": "user", "content": problem.question}]
        row = {"domain": problem.domain, "messages": messages, "answer": problem.answer}
        sys.stdout.write(json.dumps(row, ensure_ascii=False) + "\n")
        written += 1


if __name__ == "__main__":
    main()
