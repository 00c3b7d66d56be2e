from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from localreact.engines.llguidance import LLGuidanceEngine
from localreact.engines.outlines import OutlinesEngine
from localreact.grammar.exclude import other_strings, without
from localreact.protocols import JsonProtocol, protocol
from localreact.types import ToolCall, ToolSpec, TurnSpec
from tests.specs import SEARCH

ENGINE = LLGuidanceEngine.over_bytes()
OUTLINES = OutlinesEngine.over_bytes()
ROOM = ToolSpec(
    "book",
    "Book a room.",
    {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer", "minimum": 1, "maximum": 9},
            "breakfast": {"type": "boolean"},
            "bed": {"enum": ["one", "two", 3]},
        },
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
rooms = st.fixed_dictionaries(
    {"city": st.sampled_from(["Rome", "Rom", "Romea", "", "Ävr\n"]), "days": st.integers(1, 4)},
    optional={"breakfast": st.booleans(), "bed": st.sampled_from(["one", 3])},
)


def takes(pieces: tuple[ToolSpec, ...], arguments: Mapping[str, Any], name: str = "json") -> bool:
    if not pieces:
        return False
    writer = protocol(name)
    grammar = writer.grammar(TurnSpec(tools=pieces, answer=False), "lark")
    text = writer.write(ToolCall("I think about it.", pieces[0].name, arguments))
    taken = ENGINE.accepts(grammar, text)
    slots = writer.grammar(TurnSpec(tools=pieces, answer=False), "slots")
    assert OUTLINES.accepts(slots, text) == taken
    return taken


@settings(max_examples=60, deadline=None)
@given(st.lists(rooms, min_size=1, max_size=4), st.lists(rooms, max_size=4))
def test_exactly_the_excluded_calls_leave_the_language(
    excluded: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    pieces = without(ROOM, excluded)
    for call in [*excluded, *others]:
        ordered = {name: call[name] for name in ROOM.parameters["properties"] if name in call}
        assert takes(pieces, ordered) == (call not in excluded)


@pytest.mark.parametrize("name", ["json", "text", "bracket", "call"])
def test_every_protocol_leaves_out_a_dead_call(name: str) -> None:
    pieces = without(SEARCH, [{"query": "zeta-9 (a/b)"}, {"query": "Kyoto"}])
    for query, legal in (("zeta-9 (a/b)", False), ("zeta-9 (a", True), ("Kyoto", False), ("Kyoto?", True)):
        assert takes(pieces, {"query": query}, name) == legal, query


@pytest.mark.parametrize("dead", ['say "hi"', '"', "\\", "a\\b", '\n"', 'a\n\\"b', "\0", '\0"'])
def test_a_dead_call_with_characters_that_json_escapes_is_gone_from_every_engine(dead: str) -> None:
    pieces = without(SEARCH, [{"query": dead}])
    assert not takes(pieces, {"query": dead})
    for other in (dead + "x", "x" + dead, "say", "\n", "\t\r\f", "\x1f", "a", "日", '"x', "\\x"):
        assert takes(pieces, {"query": other}), other


texts = st.text(st.sampled_from('ab^]\\-"\n/日'), max_size=6)


@given(st.sets(texts, max_size=4), st.lists(texts, max_size=8), st.integers(0, 1), st.integers(4, 6))
def test_other_strings_are_all_but_those(texts: set[str], tries: list[str], least: int, most: int) -> None:
    pattern = re.compile(other_strings(texts, least, most))
    for text in [*texts, *tries, *(text + "a" for text in texts), *(text[:-1] for text in texts)]:
        assert bool(pattern.fullmatch(text)) == (text not in texts and least <= len(text) <= most)


def test_a_long_string_goes_with_what_begins_like_it() -> None:
    pieces = without(SEARCH, [{"query": "x" * 500}])
    assert not takes(pieces, {"query": "x" * 500})
    assert not takes(pieces, {"query": "x" * 150 + "y"})
    assert takes(pieces, {"query": "x" * 149 + "y"})
    assert takes(pieces, {"query": "x" * 140})


def test_where_nothing_else_can_be_said_the_tool_goes() -> None:
    shape = {"type": "object", "properties": {"a": {"type": "integer"}}}
    tool = ToolSpec(
        "draw", "Draw.", {"type": "object", "properties": {"shape": shape}, "required": ["shape"]}
    )
    assert without(tool, [{"shape": {"a": 1}}]) == ()
    ping = ToolSpec("ping", "Say hello.", {"type": "object", "properties": {}})
    assert without(ping, [{}]) == ()
    assert without(ping, []) == (ping,)


def test_bounds_of_the_schema_stay() -> None:
    bounded = {"type": "string", "minLength": 1, "maxLength": 3}
    tool = ToolSpec("f", "F.", {"type": "object", "properties": {"s": bounded}, "required": ["s"]})
    pieces = without(tool, [{"s": "ab"}])
    assert [takes(pieces, {"s": s}) for s in ("", "a", "ab", "abc", "abcd")] == [
        False,
        True,
        False,
        True,
        False,
    ]


def test_a_grammar_of_pieces_is_one_grammar() -> None:
    pieces = without(ROOM, [{"city": "Rome", "days": 2, "breakfast": True, "bed": 3}])
    grammar = JsonProtocol().grammar(TurnSpec(tools=pieces, answer=True), "lark")
    ENGINE.start(grammar)
    assert len(pieces) == 5  # days below and above 2
