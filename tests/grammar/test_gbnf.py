from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localreact.errors import GrammarError
from localreact.grammar import gbnf
from localreact.grammar.marker_rules import marker_rules
from localreact.grammar.markers import marker_pattern
from localreact.grammar.nodes import EMPTY, NOTHING, alt, repeat, seq
from localreact.grammar.recogniser import Recogniser
from localreact.grammar.rules import Chars, Node, Ref, Repeat, Rules, Text
from localreact.protocols import PROTOCOLS, protocol
from localreact.types import Finish, ToolCall, ToolSpec, TurnSpec
from tests.specs import SEARCH

TEXTS = st.text(st.sampled_from('ab"\\]^-[\n\t日😀 '), max_size=4)
NODES: st.SearchStrategy[Node] = st.recursive(
    st.one_of(
        TEXTS.map(Text),
        st.lists(st.sampled_from('ab"\\]^-[\n日😀'), min_size=1, max_size=3).map(
            lambda chars: Chars(tuple((ord(c), ord(c) + 2) for c in sorted(set(chars))))
        ),
    ),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: seq(*parts)),
        st.lists(inner, min_size=1, max_size=3).map(alt),
        st.tuples(inner, st.integers(0, 2), st.sampled_from([None, 2, 3])).map(lambda each: repeat(*each)),
    ),
    max_leaves=6,
)


@given(NODES, st.lists(TEXTS, max_size=8))
def test_what_is_written_is_read_back_the_same(node: Node, texts: list[str]) -> None:
    again = gbnf.read(gbnf.definitions(gbnf.named({"root": node})))
    first, second = Recogniser(Rules(node)), Recogniser(again)
    assert all(first.accepts(text) == second.accepts(text) for text in texts)


def test_what_is_counted_gets_a_name() -> None:
    rules = gbnf.named({"root": repeat(seq(Text("a"), alt([Text("b"), Text("c")])), 2, 500)})
    assert gbnf.definitions(rules) == 'root-part-0 ::= "a" ("b" | "c")\nroot ::= root-part-0{2,500}'


@pytest.mark.parametrize("node", [NOTHING, Repeat(Text("a"), 0, 2001), Repeat(Text("a"), 2001, None)])
def test_what_cannot_be_written_is_an_error(node: Node) -> None:
    with pytest.raises(GrammarError):
        gbnf.definitions({"root": node})


def test_bounds_that_gbnf_cannot_count_are_an_error() -> None:
    with pytest.raises(GrammarError, match="5,000"):
        protocol("json").grammar(TurnSpec((SEARCH,), answer_max=5000), "gbnf")


@pytest.mark.parametrize(
    "text", ["root ::= gone", 'root ::= "a', "x ::= [a]", "root ::= [a]{3000}", "root ::= (a"]
)
def test_what_is_no_gbnf_is_an_error(text: str) -> None:
    with pytest.raises(GrammarError):
        gbnf.read(text)


MARKER = marker_pattern()
FREE = Recogniser(Rules(Ref("free"), marker_rules("free")))
INNER = Recogniser(Rules(Ref("inner-blank"), marker_rules("inner", "]")))
WORDS = [
    "observation",
    "OBSERVATION",
    "Obſervation",
    "final",
    "answer",
    "action",
    "input",
    "ob",
    "观察",
    "行动输入",
]
LINES = st.lists(st.sampled_from([*WORDS, " ", "  ", ":", "：", "x", "]", "!"]), min_size=1, max_size=7).map(
    "".join
)


@given(LINES)
def test_a_line_is_free_exactly_when_it_holds_no_marker(line: str) -> None:
    assert FREE.accepts(line) == (not MARKER.search(line) and line[0] != " ")
    assert INNER.accepts(line) == (not MARKER.search(line) and "]" not in line)


def test_a_free_line_is_printable_and_not_empty() -> None:
    assert not any(FREE.accepts(text) for text in ("", "a\nb", "a\tb", "\x7f"))
    assert not any(FREE.accepts(f"{blank}a") for blank in map(chr, range(0x10000)) if not blank.strip())
    assert FREE.accepts("At 12:30 the observation was: 日本：語")


@pytest.mark.parametrize("name", PROTOCOLS)
def test_every_protocol_is_written(name: str) -> None:
    written = protocol(name)
    grammar = written.grammar(TurnSpec((SEARCH,), insufficient=True), "gbnf")
    found = Recogniser(gbnf.read(grammar.text))
    for turn in (
        ToolCall("I look it up.", "search", {"query": "x"}),
        Finish("I know it now.", "12"),
        Finish("I know nothing.", missing="a number"),
    ):
        text = written.write(turn)
        assert found.accepts(text)
        assert not found.accepts(text + text)
        assert not found.accepts(text + "Observation: 12")
    barred = Recogniser(gbnf.read(written.grammar(TurnSpec((SEARCH,), answer=False), "gbnf").text))
    assert not barred.accepts(written.write(Finish("I know it now.", "12")))


def test_optional_keywords_come_in_their_order() -> None:
    tool = ToolSpec(
        "t",
        "",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "null"}, "c": {}},
            "required": ["b"],
        },
    )
    found = Recogniser(gbnf.read(protocol("call").grammar(TurnSpec((tool,), answer=False), "gbnf").text))
    for arguments, legal in [
        ("b=null", True),
        ("a=1, b=null, c=[1]", True),
        ("a=1", False),
        ("b=null, a=1", False),
        ("", False),
    ]:
        assert found.accepts(f"Thought: I call the tool.\nAction: t({arguments})") == legal


def test_nothing_and_empty_are_told_apart() -> None:
    assert gbnf.definitions({"root": EMPTY}) == 'root ::= ""'
    assert Recogniser(gbnf.read('root ::= ""')).accepts("")
