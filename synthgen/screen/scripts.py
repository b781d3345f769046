"""Replies that drift into another script.

Languages that share a script aren't told apart, nor Chinese from Japanese. A reply may be in any script of
which the prompt has a letter, so a Chinese prompt that names `Python` may be answered in English; and in
any at all when the prompt names a language or speaks of translating. Code between fences and LaTeX
commands are left out.
"""

from __future__ import annotations

import re

from synthgen.screen.view import View, excerpt

LEAST_LETTERS = 8
"""With fewer letters a reply is a name or a formula."""

_SCRIPTS = {
    "latin": r"A-Za-z\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u024f\u1e00-\u1eff",
    "han": r"\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f"
    r"\U00020000-\U0003ffff",
    "hangul": r"\u1100-\u11ff\u3131-\u318e\uac00-\ud7a3",
    "cyrillic": r"\u0400-\u052f",
    "arabic": r"\u0620-\u064a\u066e-\u06d3\u0750-\u077f\u08a0-\u08c9\ufb50-\ufdff\ufe70-\ufefc",
    "hebrew": r"\u05d0-\u05ea",
    "devanagari": r"\u0900-\u0963\u0970-\u097f",
    "thai": r"\u0e01-\u0e4e",
    "greek": r"\u0370-\u03ff\u1f00-\u1fff",
}
_RUNS = re.compile("|".join(f"(?P<{name}>[{letters}]+)" for name, letters in _SCRIPTS.items()))
_LATIN = re.compile("[A-Za-z]")
_CODE = re.compile(r"```.*?(?:```|\Z)|\\[A-Za-z]+", re.DOTALL)
_ASKED = re.compile(
    r"\btranslat|\btranscri|\btransliterat|\blanguages?\b|\balphabet|\bmultilingual|\bbilingual|\bchinese\b|"
    r"\bmandarin\b|\bcantonese\b|\bjapan|\bkanji\b|\bkana\b|\bhiragana\b|\bkatakana\b|\bkorea|\bhangul\b|"
    r"\brussia|\bukrain|\bbulgaria|\bserbia|\bbelarus|\bmacedonia|\bkazakh|\bmongolia|\bcyrillic\b|\barab|"
    r"\bpersian?\b|\bfarsi\b|\burdu\b|\bpashto\b|\bhebrew\b|\byiddish\b|\bhindi\b|\bsanskrit\b|\bmarathi\b|"
    r"\bnepali\b|\bdevanagari\b|\bthai\b|\bgreek\b|\benglish\b|\bfrench\b|\bgerman\b|\bspanish\b|"
    r"\bportuguese\b|\bitalian\b|\bvietnamese\b|\bindonesian\b|\bturkish\b|"
    r"翻译|翻譯|翻訳|英语|英文|英語|法语|法文|德语|德文|西班牙语|俄语|俄文|日语|日文|日本語|韩语|韩文|阿拉伯语|外语|"
    r"영어|번역|англий|перевед|перевод|русск|بالإنجليزية|ترجم|انجليزي|תרגם|אנגלית|अंग्रेज|अनुवाद|อังกฤษ|แปล|αγγλικ|μετάφρα",
    re.IGNORECASE,
)


def language_drift(trace: View) -> str | None:
    """Thinking or response that is mostly in a script the prompt neither uses nor asks for; or None."""
    prompt = "\n".join([message.content or "" for message in trace.messages])
    in_latin = _LATIN.search(prompt) is not None
    for text in trace.texts:
        if not (in_latin and _is_plain(text)):
            start = _drift(text, prompt)
            if start is not None:
                return excerpt(text, start)
    return None


def _is_plain(text: str) -> bool:
    """Whether nearly all is ASCII, by the bytes of UTF-8: there may be dashes, symbols, foreign words."""
    return text.isascii() or 8 * (len(text.encode("utf-8", "replace")) - len(text)) < len(text)


def _drift(text: str, prompt: str) -> int | None:
    """Where the script begins that has most of the letters and is foreign to the prompt."""
    letters = count_letters(_CODE.sub(" ", text))
    total = sum(letters.values())
    script = max(letters, key=letters.__getitem__, default="")
    if total < LEAST_LETTERS or 2 * letters[script] <= total:
        return None
    used = count_letters(prompt)
    if not used or script in used or _ASKED.search(prompt):
        return None
    return next(found.start() for found in _RUNS.finditer(text) if found.lastgroup == script)


def count_letters(text: str) -> dict[str, int]:
    """How many letters of each script there are."""
    counts: dict[str, int] = {}
    for found in _RUNS.finditer(text):
        script = str(found.lastgroup)
        counts[script] = counts.get(script, 0) + found.end() - found.start()
    return counts
