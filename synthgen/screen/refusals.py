"""Responses that begin by refusing, in English and Chinese.

`can't` alone is no refusal: "I can't find an error, so the proof holds". Either the verb is one of helping,
or an apology goes before and the verb is one of giving. A refusal counts at the start of a sentence among
the first 200 characters of the response; what the thinking says doesn't matter.
"""

from __future__ import annotations

import re

from synthgen.screen.view import View, excerpt

OPENING_CHARS = 200

_GATES = ("can't", "cannot", "can not", "unable", "not able", "won't", "will not", "decline", "not going to")
_ZH_GATES = ("能", "法", "拒绝", "拒絕")
_APOLOGY = (
    r"(?:(?:i'?m|i am)\s+(?:\w+\s+)?(?:sorry|afraid)|sorry|i\s+(?:\w+\s+)?apologi[sz]e|(?:my\s+)?apologies|"
    r"unfortunately|regrettably|as\s+an?\s+(?:ai|language model|assistant)\b[^.,]{0,60})"
)
_UNABLE = (
    r"(?:can'?t|can\s?not|won'?t|will\s+not|(?:am|'m)\s+(?:\w+\s+)?(?:unable|not\s+able|not\s+going)\s+to|"
    r"(?:must|have\s+to|need\s+to|will)\s+(?:\w+\s+)?decline\s+to)(?:\s+\w+ly)?"
)
_HELP = (
    r"(?:help\b(?!\s+but|\s+\w+ing)|assist\b|comply\b|fulfil|engage\s+in\b|participate\b|condone\b|"
    r"do\s+(?:that|this)\b|support\s+(?:that|this|your|any|such)\b|facilitate\b|"
    r"(?:answer|discuss|provide|give|share|write|create|generate|offer|produce|complete)\s+"
    r"(?:you\s+)?(?:with\s+)?(?:that|this|such|any|instructions|guidance|advice|information|details|content|"
    r"assistance|medical|legal)\b(?!\s+(?:exact|number|value|term|proof|case|step)))"
)
_GIVE = (
    r"(?:provide|give|share|write|create|generate|offer|produce|complete|answer|discuss|continue|fulfil|"
    r"support|reveal|disclose|recommend|talk\s+about)\b"
)
_DECLINE = r"(?:must|have\s+to|will)\s+(?:\w+\s+)?decline\b(?!\s+(?:in|by|to\s+\d))"
_APOLOGETIC = re.compile(rf"\W*{_APOLOGY}[\s,.;:—-]+(?:\w+[\s,]+){{0,3}}?i\s*{_UNABLE}\s+{_GIVE}")
_REFUSES = re.compile(rf"i(?:\s*{_UNABLE}\s+{_HELP}|\s+{_DECLINE})")
_SENTENCE_STARTS = re.compile(r"(?:^\W*|[.!?,;:\n—-]\s+|\b(?:but|however|so|and)\s+)$")
_CHINESE = re.compile(
    r"(?:^|[。！？，,.!\s]|但是?|所以|因此|作为[^。]{0,30}?)"
    r"(?:我|本助手|本模型)?(?:们)?(?:还|并|暂时|目前)?(?:不能|不可以|没有?办法|無法|无法|沒有?辦法|拒绝|拒絕)"
    r"(?:继续|繼續)?(?:为|為|给|給|向|对|對|就)?(?:您|你)?(?:的|此|这个|這個|这一|該|该)?(?:问题|問題|请求|請求|要求)?"
    r"(?:提供|协助|協助|帮助|幫助|帮|幫|回答|满足|滿足|参与|參與|讨论|討論|生成|给到|給到|执行您|完成(?:您|你|这|這|该|該))"
)


def refusal(trace: View) -> str | None:
    """How the response refuses, or None."""
    opening = (trace.response or "")[:OPENING_CHARS]
    if not opening.isascii():
        if any(gate in opening for gate in _ZH_GATES) and _CHINESE.search(opening):
            return excerpt(opening)
        opening = opening.replace("’", "'")
    return excerpt(opening) if _refuses(opening.lower()) else None


def _refuses(opening: str) -> bool:
    if not ("not" in opening or "n't" in opening or "unable" in opening or "decline" in opening):
        return False
    if not any(gate in opening for gate in _GATES):
        return False
    if _APOLOGETIC.match(opening):
        return True
    return any(_SENTENCE_STARTS.search(opening, 0, at.start()) for at in _REFUSES.finditer(opening))
