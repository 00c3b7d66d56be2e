"""Whether an answer is the one that a task asks for.

A check is an object; all that it names has to hold:

    {"contains": ["Sandhavn", …]}   one of them stands in the answer, as words, and the answer is short
    {"exact": "Sandhavn"}           the answer, whatever the case, spaces and last full stop
    {"number": 159}                 the one number in it that isn't in the question; "tolerance" may be given
    {"set": ["copper", "tin"]}      these items and no others, in any order
    {"regex": "…"}                  found in the answer
    {"same": ["yes", …]}            one of them, as HotpotQA compares: without case, punctuation and articles
    {"called": {"tool": …, "arguments": {…}}}   such a call was executed; the arguments may be left out
    {"uncalled": true}              no call was executed
    {"bfcl": {…}}                   the calls pass BFCL's own checker (`outside/bfcl.py`)
    {"insufficient": true}          there is no answer: the right ending says that something is missing

Where only calls are checked, the run is judged by its calls, however it ended.
"""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from localreact.eval.outside import bfcl
from localreact.types import ToolCall

MOST_CHARACTERS = 120
"""Of an answer that only has to contain something: a copied page is no answer."""

_BY_CALLS = ("called", "uncalled", "bfcl")
_KINDS = ("contains", "exact", "same", "number", "tolerance", "set", "regex", *_BY_CALLS, "insufficient")
_NUMBER = re.compile(r"(?<![A-Za-z0-9_.])[-−]?\d+(?:\.\d+)?")
_GROUPED = re.compile(r"(?<=\d)[,，\u202f](?=\d{3}(?!\d))")
_BETWEEN_ITEMS = re.compile(r"\s*(?:[,;，；、]|\band\b|和|以及)\s*")


def problem_of(check: Any) -> str:
    """What is wrong with a check, for a person; empty where nothing is."""
    if not isinstance(check, Mapping) or not check:
        return 'the check is an object such as {"contains": ["…"]}'
    if unknown := sorted(set(check) - set(_KINDS)):
        return f"there is no check {unknown[0]!r}; there are {', '.join(_KINDS)}"
    for kind, value in check.items():
        if problem := _problem_of(kind, value):
            return problem
    if "tolerance" in check and "number" not in check:
        return "a tolerance needs a number"
    if "insufficient" in check and len(check) > 1:
        return "a task that has no answer has nothing else to check"
    return ""


def _problem_of(kind: str, value: Any) -> str:
    texts = (
        isinstance(value, list) and value and all(isinstance(each, str) and each.strip() for each in value)
    )
    if kind in ("contains", "set", "same") and not texts:
        return f"{kind} takes a list of texts"
    if kind in ("number", "tolerance") and (isinstance(value, bool) or not isinstance(value, int | float)):
        return f"{kind} takes a number"
    if kind == "exact" and not isinstance(value, str):
        return "exact takes a text"
    if kind in ("insufficient", "uncalled") and value is not True:
        return f"{kind} takes true"
    if kind == "bfcl" and not (
        isinstance(value, Mapping) and {"category", "function", "answer"} <= value.keys()
    ):
        return "bfcl takes an object with category, function and answer"
    if kind == "called":
        arguments = value.get("arguments", {}) if isinstance(value, Mapping) else None
        if not (isinstance(arguments, Mapping) and isinstance(value.get("tool"), str)):
            return "called takes an object with a tool, and arguments if they matter"
    if kind == "regex":
        try:
            re.compile(value)
        except (re.error, TypeError) as error:
            return f"the regex is broken: {error}"
    return ""


def check_available(check: Mapping[str, Any]) -> None:
    """
    Raises:
        MissingPartError: the check needs a package that isn't installed.
    """
    if "bfcl" in check:
        bfcl.checker()


def is_by_calls(check: Mapping[str, Any]) -> bool:
    """Whether only calls are checked."""
    return set(check) <= set(_BY_CALLS)


def is_right(check: Mapping[str, Any], question: str, answer: str, calls: Sequence[ToolCall]) -> bool:
    """Whether an answer passes; `calls` are those that were executed."""
    plain = _plain(answer)
    return all(
        _calls_pass(kind, value, calls) if kind in _BY_CALLS else _passes(kind, value, check, question, plain)
        for kind, value in check.items()
    )


def _calls_pass(kind: str, value: Any, calls: Sequence[ToolCall]) -> bool:
    match kind:
        case "uncalled":
            return not calls
        case "bfcl":
            return bfcl.is_valid(value, calls)
    return _called(value, calls)


def _called(wanted: Mapping[str, Any], calls: Iterable[ToolCall]) -> bool:
    return any(
        call.tool == wanted["tool"]
        and ("arguments" not in wanted or dict(call.arguments) == dict(wanted["arguments"]))
        for call in calls
    )


def numbers(text: str) -> list[float]:
    """The numbers in a text; commas between thousands belong to them."""
    return [float(each.replace("−", "-")) for each in _NUMBER.findall(_GROUPED.sub("", text))]


def _passes(kind: str, value: Any, check: Mapping[str, Any], question: str, answer: str) -> bool:
    match kind:
        case "contains":
            return len(answer) <= MOST_CHARACTERS and any(_contains(answer, _plain(each)) for each in value)
        case "exact":
            return answer.casefold().rstrip(".。") == _plain(value).casefold().rstrip(".。")
        case "same":
            return _as_compared(answer) in map(_as_compared, value)
        case "number":
            return _says_number(answer, question, value, check.get("tolerance", 0))
        case "set":
            items = [_item(each) for each in _BETWEEN_ITEMS.split(answer) if _item(each)]
            return sorted(set(items)) == sorted({_item(each) for each in value})
        case "regex":
            return re.search(value, answer) is not None
        case "insufficient":
            return False
    return True


def _plain(text: str) -> str:
    return _GROUPED.sub("", " ".join(text.split()))


def _item(text: str) -> str:
    return text.strip(" .。\"'“”").casefold()


def _as_compared(text: str) -> str:
    """The normal form in which HotpotQA (and SQuAD before it) compares answers."""
    kept = "".join(each for each in text.lower() if each not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", kept).split())


def _contains(answer: str, wanted: str) -> bool:
    """As whole words; Chinese, which has no spaces, anywhere; a number not within a longer one."""
    before = r"(?<![\w.])" if wanted[0].isascii() else ""
    after = r"(?!\w|\.\d)" if wanted[-1].isascii() else ""
    if not answer.isascii():  # next to Chinese characters there is no word boundary
        before, after = before.replace(r"\w", "A-Za-z0-9"), after.replace(r"\w", "[A-Za-z0-9]")
    return re.search(before + re.escape(wanted) + after, answer, re.I) is not None


def _says_number(answer: str, question: str, value: float, tolerance: float) -> bool:
    """Numbers that the question gives may be said again beside the one that is asked for."""
    given = numbers(question)
    said = {each for each in numbers(answer) if abs(each - value) <= tolerance or each not in given}
    return bool(said) and all(abs(each - value) <= tolerance for each in said)
