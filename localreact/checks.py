"""What an answer has to meet before it is accepted.

A check is a function of the run as it would end with this answer. It returns None, True or "" where the
answer is good, and otherwise what the model is to mend. Whatever else it returns or raises counts as not
good: a broken check accepts nothing.

    def brief(run: Run) -> str:
        return "answer in one sentence" if len(run.answer or "") > 200 else ""

    Agent(tools=[…], checks=[brief, tools_called("search"), grounded])
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from jsonschema.exceptions import SchemaError

from localreact.errors import UsageError
from localreact.grammar.validation import Validator, check_schema
from localreact.run import Run
from localreact.types import JsonSchema, ToolCall
from localreact.words import CJK, STOPWORDS, numbers, words

Check = Callable[[Run], object]

_NAME = re.compile(r"[^\W\d_](?:[\w'’-]*\w)?")
_SENTENCE = re.compile(r"(?<=[.!?:;\n])\s+")
_KATAKANA = re.compile(r"[\u30a1-\u30fa\u30fc]{3,}")
_TITLES = re.compile(r"[《「『]([^《》「」『』]+)[》」』]")
_CJK_PIECE = re.compile(rf"(?:(?![的是在了和与及为由于有也都这那之はがのをにでとも])[{CJK}]){{2,}}")


def unmet(checks: Iterable[Check], run: Run) -> str:
    """What the first check that isn't met says; empty where all are."""
    for check in checks:
        name = getattr(check, "__name__", type(check).__name__)
        try:
            said = check(run)
        except (Exception, SystemExit) as error:  # a check is somebody else's code: anything goes
            return f"the check {name} failed: {error or type(error).__name__}"
        if isinstance(said, str) and said:
            return said
        if not (said is None or said is True or said == ""):
            return f"the check {name} isn't met"
    return ""


# --- built-in checks


def evidence(run: Run) -> str:
    """The answer cites something, or some of what it adds to the question stands in a result."""
    if run.evidence:
        return ""
    added = set(words(_plain(run.answer or ""))) - STOPWORDS - set(words(_plain(run.question)))
    if not added or added & set(words(_plain("\n".join(_results(run))))):
        return ""
    return "the answer uses nothing of what the tools said; answer from their results"


def grounded(run: Run) -> str:
    """Every number and every name of the answer stands in a result or in the question.

    Names are capitalised words (not the first of a sentence that goes on in small letters), katakana of
    three characters or more, and titles in brackets. Of other Chinese, Japanese or Korean text at least
    half has to stand there, in pairs of characters. What is said of the names is not looked at.
    """
    answer = _plain(run.answer or "")
    known = _plain("\n".join([run.question, *_results(run)]))
    lost = sorted(numbers(answer) - numbers(known)) + _lost_names(answer, known)
    if lost:
        return f"no tool said {', '.join(lost[:5])}; answer with what the results say"
    pieces = _CJK_PIECE.findall(answer)
    pairs = {piece[i : i + 2] for piece in pieces for i in range(len(piece) - 1)}
    if pairs and sum(pair in known for pair in pairs) * 2 < len(pairs):
        return "most of the answer stands in no result; answer with what the results say"
    return ""


def tools_called(*names: str) -> Check:
    """These tools were called, each with success at least once."""

    def called(run: Run) -> str:
        made = {
            step.turn.tool
            for step in run.steps
            if isinstance(step.turn, ToolCall) and step.observation is not None and step.observation.ok
        }
        left = [name for name in names if name not in made]
        return f"call {', '.join(left)} before you answer" if left else ""

    return called


def file_exists(path: str | os.PathLike[str]) -> Check:
    """There is such a file, and something in it."""

    def exists(run: Run) -> str:
        file = Path(path)
        there = file.is_file() and file.stat().st_size > 0
        return "" if there else f"the file {os.fspath(path)} isn't there, or is empty; write it first"

    return exists


def matches(pattern: str | re.Pattern[str] | JsonSchema) -> Check:
    """The whole answer matches a regex, or is JSON that fits a schema. Unlike an answer's type this is no
    part of the grammar: the model is told afterwards.

    Raises:
        UsageError: a broken regex or schema.
    """
    try:
        if isinstance(pattern, Mapping):
            check_schema(pattern)
            return _fits(Validator(pattern))
        regex = re.compile(pattern)
    except (re.error, SchemaError) as error:
        raise UsageError(f"an answer can't be checked with {pattern!r}: {error}") from error

    def matched(run: Run) -> str:
        return "" if regex.fullmatch(run.answer or "") else f"the answer has to match {regex.pattern}"

    return matched


def named(text: str) -> Check:
    """A built-in check as a command line names it: `grounded`, `evidence`, `called:TOOL`, `file:PATH` or
    `matches:REGEX`.

    Raises:
        UsageError: there is no such check.
    """
    name, colon, argument = text.partition(":")
    plain: dict[str, Check] = {"grounded": grounded, "evidence": evidence}
    made: dict[str, Callable[[str], Check]] = {
        "called": tools_called,
        "file": file_exists,
        "matches": matches,
    }
    if name in plain and not colon:
        return plain[name]
    if name in made and argument:
        return made[name](argument)
    raise UsageError(
        f"there is no check {text!r}", "Checks: grounded, evidence, called:TOOL, file:PATH, matches:REGEX."
    )


def _fits(validator: Validator) -> Check:
    def fits(run: Run) -> str:
        value: Any = run.value
        if isinstance(value, str) or value is None:
            try:
                value = json.loads(run.answer or "")
            except ValueError:
                return "the answer has to be JSON"
        problem = validator.problem(value)
        return "" if problem is None else f"the answer doesn't fit: {problem.message[:300]}"

    return fits


def _results(run: Run) -> list[str]:
    """What tools said in calls that succeeded."""
    return [step.observation.content for step in run.steps if step.observation and step.observation.ok]


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _lost_names(answer: str, known: str) -> list[str]:
    held = known.casefold()
    names = [*_KATAKANA.findall(answer), *_TITLES.findall(answer)]
    for sentence in _SENTENCE.split(answer):
        found = _NAME.findall(sentence)
        goes_on = any(word[0].islower() for word in found[1:])
        names += [word for word in (found[1:] if goes_on else found) if word[0].isupper() and word != "I"]
    little = {*STOPWORDS, "yes", "no"}
    lost = [name for name in names if name.casefold() not in held and name.casefold() not in little]
    return list(dict.fromkeys(lost))
