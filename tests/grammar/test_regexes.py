from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localreact.errors import GrammarError
from localreact.grammar.recogniser import Recogniser
from localreact.grammar.regexes import escaped, regex_of
from localreact.grammar.rules import Alt, Chars, Node, Ref, Repeat, Rules, Seq, Text
from tests.grammar.nodes import NODES, TEXTS


@given(NODES, TEXTS)
def test_a_regex_matches_the_texts_of_its_rules(node: Node, text: str) -> None:
    rules = Rules(node)
    assert (re.fullmatch(regex_of(rules.start, rules.rules), text) is not None) == Recogniser(rules).accepts(
        text
    )


@given(st.characters(codec="utf-8"))
def test_every_character_stands_for_itself(character: str) -> None:
    assert re.fullmatch(escaped(character), character)
    assert re.fullmatch(f"[{escaped(character)}]", character)
    assert not re.fullmatch(escaped(character), "x" if character != "x" else "y")


def test_references_are_written_out() -> None:
    rules = Rules(
        Seq((Ref("pair"), Text("-"), Ref("pair"))), {"pair": Alt((Text("a"), Ref("b"))), "b": Text("b")}
    )
    assert regex_of(rules.start, rules.rules) == r"(?:a|b)\-(?:a|b)"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        (Rules(Ref("a"), {"a": Alt((Text("x"), Seq((Text("("), Ref("a"), Text(")")))))}), "isn't regular"),
        (Rules(Alt(())), "nothing fits"),
        (Rules(Repeat(Chars(()))), "nothing fits"),
    ],
)
def test_what_is_no_regex_is_an_error(rules: Rules, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        regex_of(rules.start, rules.rules)
