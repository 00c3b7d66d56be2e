"""Words of a text, in any script: for search, for novelty, for grounding.

Chinese, Japanese and Korean text has no spaces: its words are overlapping pairs of characters, since no
tokenizer at hand (FTS5's own neither) finds a word of two.
"""

from __future__ import annotations

import re
import unicodedata

CJK = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uac00-\ud7af"
CJK_RUN = re.compile(rf"[{CJK}]+")
_WORDS = re.compile(rf"[{CJK}]+|[^\W{CJK}]+")
_NUMBER = re.compile(r"\d[\d.,\u00a0\u202f]*\d|\d")
_SAYS_LITTLE = """a an and are as at be by did do does for from had has have how in is it its of on or
that the their this to was were what when where which who whom whose why with"""
STOPWORDS = frozenset(_SAYS_LITTLE.split())


def words(text: str) -> list[str]:
    """Lower-case words; runs of CJK characters as overlapping pairs, each run's last alone too."""
    found = []
    for word in _WORDS.findall(text.casefold()):
        if CJK_RUN.match(word):
            found += [word[i : i + 2] for i in range(len(word))]
        else:
            found.append(word)
    return found


def telling_words(text: str) -> list[str]:
    """The words by which a text is looked for: pairs of CJK characters (one alone only where there is no
    more), and no stop words unless there is nothing else."""
    found = [
        word
        for run in _WORDS.findall(text.casefold())
        for word in (words(run)[:-1] if len(run) > 1 and CJK_RUN.match(run) else [run])
    ]
    telling = [word for word in found if word not in STOPWORDS]
    return list(dict.fromkeys(telling or found))


def match_any(text: str) -> str:
    """An FTS5 query for any of the telling words of a text, indexed by `words`; empty if it has none."""
    return " OR ".join(
        f'"{word}"' + ("*" if len(word) == 1 and CJK_RUN.match(word) else "") for word in telling_words(text)
    )


def numbers(text: str) -> set[str]:
    """Numbers as digits and decimal points: 1,437 and 1 437 are 1437, 3.50 is 3.5."""
    return {_plain_number(found) for found in _NUMBER.findall(unicodedata.normalize("NFKC", text))}


def _plain_number(text: str) -> str:
    text = re.sub(r"[\u00a0\u202f ]", "", text)
    if re.fullmatch(r"\d{1,3}(,\d{3})+(\.\d+)?", text):
        text = text.replace(",", "")
    text = text.replace(",", ".")
    if text.count(".") == 1:
        text = text.rstrip("0").rstrip(".")
    return text.lstrip("0") or "0" if "." not in text else text
