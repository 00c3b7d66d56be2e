from __future__ import annotations

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localreact.errors import GrammarError
from localreact.grammar.characters import in_string
from localreact.grammar.nodes import NOTHING, seq
from localreact.grammar.patterns import lengths, limited, parse, written
from localreact.grammar.recogniser import Recogniser
from localreact.grammar.rules import Node, Rules, Text


def quoted(tree: Node) -> Recogniser:
    """Accepts the JSON strings of the tree's texts."""
    return Recogniser(Rules(seq(Text('"'), written(tree, in_string), Text('"'))))


def matches(pattern: str, text: str) -> bool:
    return quoted(parse(pattern)).accepts(json.dumps(text, ensure_ascii=False))


PATTERNS = [
    "^$",
    "a",
    "^a|b$",
    "^(a|b)$",
    "(^a|b)c$",
    "^a{2,3}b*$",
    "^a{2}$|^b{1,}$",
    r"^[a-c\d_-]+$",
    r"^[^a-c\s]$",
    "^(?:ab)?(?P<x>c)+?$",
    r"^\u0061\x62$",
    r'^["\\/]{1,2}$',
    r"^a\.b$",
    "^.b$",
    r"\d\w\s",
    "^[\\]]$",
    "x{2",
]


@pytest.mark.parametrize("pattern", PATTERNS)
@given(text=st.text(st.sampled_from('abcd01_- ."\\/]{,2}x\n'), max_size=6))
def test_a_pattern_matches_what_python_finds(pattern: str, text: str) -> None:
    if text.endswith("\n") and "$" in pattern:  # Python's $ also matches before a last newline
        text = text[:-1] + "x"
    assert matches(pattern, text) == bool(re.search(pattern, text))


@given(st.text(max_size=20))
def test_a_pattern_of_everything_takes_every_text(text: str) -> None:
    assert matches(r"^[\s\S]*$", text.replace("\x7f", "")) or re.search(r"[\x1c-\x1f\x85\ufeff]", text)
    assert matches("^[^a]*$", text.replace("a", "").replace("\x7f", ""))


def test_classes_are_those_of_ecma() -> None:
    assert matches(r"^\d\w\s$", "0a\u3000")
    assert not matches(r"^\d$", "٣")
    assert not matches(r"^\w$", "é")
    assert matches(r"^\W\D\S$", "é٣中")


def test_escapes_are_no_disguise_for_plain_letters() -> None:
    letters = quoted(parse("^[^b]+$"))
    assert letters.accepts('"a\\n\\"\\\\\\u0001\\u001F"')
    for text in ('"\\u0061"', '"\\/"', '"\n"', '"\\u00e9"', '"b"', '"\\u0022"', '"\\ud83d\\ude00"'):
        assert not letters.accepts(text)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("(?=a)", "ahead or behind"),
        ("(?<!a)b", "ahead or behind"),
        (r"(a)\1", "refers back"),
        (r"(?P<n>a)(?P=n)", "kind that no grammar"),
        (r"\bword", "word boundary"),
        ("(?i)a", "kind that no grammar"),
        (r"\p{L}", r"escape '\\p'"),
        ("a^b", "anchor in the middle"),
        ("(^a)*", "repeats an anchor"),
        ("(a", "open parenthesis"),
        ("a)", "parenthesis too many"),
        ("[a", "ends too early"),
        ("[b-a]", "range that ends before"),
        ("a{,2}", "without a least number"),
        ("a{3,2}", "quantifier that ends before"),
        ("*a", "repeats nothing"),
        ("a**", "quantifier after a quantifier"),
        ("a\\", "ends too early"),
        ("(" * 60 + ")" * 60, "nests too deep"),
        (r"\ud83d", "surrogate"),
    ],
)
def test_what_no_grammar_can_hold_is_an_error_that_says_so(pattern: str, why: str) -> None:
    with pytest.raises(GrammarError, match=why):
        parse(pattern)


@pytest.mark.parametrize(
    ("pattern", "least", "most", "good", "bad"),
    [
        ("^[a-z]*$", 2, 3, ["ab", "abc"], ["a", "abcd"]),
        ("^[A-Z][a-z]+$", 0, 3, ["Ab", "Abc"], ["A", "Abcd"]),
        ("^(ab)+$", 3, 5, ["abab"], ["ab", "ababab"]),
        ("^x{3}$", 1, 5, ["xxx"], ["xx"]),
        ("^a*$|^bcd$", 0, 2, ["", "aa"], ["aaa", "bcd"]),
    ],
)
def test_a_length_is_held_where_one_part_of_the_pattern_varies(
    pattern: str, least: int, most: int, good: list[str], bad: list[str]
) -> None:
    tree = limited(parse(pattern), least, most)
    assert tree is not None
    assert all(quoted(tree).accepts(f'"{text}"') for text in good)
    assert not any(quoted(tree).accepts(f'"{text}"') for text in bad)


def test_a_length_that_nodes_cannot_hold_is_said() -> None:
    assert limited(parse("^a*b*$"), 0, 3) is None
    assert limited(parse("a"), 0, 3) is None
    assert limited(parse("^abc$"), 4, 9) == NOTHING
    assert lengths(parse("^a{2,5}(b|cd)$")) == (3, 7)
    assert lengths(parse("^a+$")) == (1, None)
