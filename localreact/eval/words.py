"""What a text claims, as a set of words and numbers: to see where an answer has it from."""

from __future__ import annotations

import re

from localreact.eval.checks import numbers

_CJK = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_WORD = re.compile(rf"[^\W\d_{_CJK}][\w'’-]*", re.U)
_RUN = re.compile(rf"[{_CJK}]{{2,}}")
_SAYS_LITTLE = """about all also and answer any are based been but can does each for from given had has have
    her his how its known may more most not one only our result says she should some than that the their them
    then there these they this those was were what when where which who whose why will with would you your"""
_LITTLE = frozenset(_SAYS_LITTLE.split())


def claims(text: str) -> frozenset[str]:
    """Numbers (as #159), words that say something, and pairs of Chinese characters."""
    said = {f"#{number:g}" for number in numbers(text)}
    for word in _WORD.findall(text.casefold()):
        if len(word) > 2 and word not in _LITTLE:
            said.add(word.removesuffix("'s").removesuffix("’s"))
    for run in _RUN.findall(text):
        said |= {run[at : at + 2] for at in range(len(run) - 1)}
    return frozenset(said)


def is_grounded(answer: str, question: str, shown: str) -> bool:
    """Whether an answer can come from what tools have shown: all its numbers stand there or in the
    question, and at least half of what else it says beyond the question.

    Words only: a grounded answer can still be wrong.
    """
    new = claims(answer) - claims(question)
    found = claims(shown)
    if any(each.startswith("#") and each not in found for each in new):
        return False
    words = [each for each in new if not each.startswith("#")]
    return bool(shown.strip()) and 2 * sum(each in found for each in words) >= len(words)
