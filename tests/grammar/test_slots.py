from __future__ import annotations

import pytest
from hypothesis import given

from localreact.errors import GrammarError
from localreact.grammar.cutting import Cutter
from localreact.grammar.rules import Alt, Chars, Node, Ref, Repeat, Seq, Text
from localreact.grammar.schema_rules import SchemaRules
from localreact.grammar.slots import Chain, Choice, Counted, Loop, Pattern, Slots, chain, read, written
from tests.grammar.nodes import NODES


@given(NODES)
def test_what_is_written_is_read_back(node: Node) -> None:
    slots = read(f"start: {written(Cutter({}).cut(node), {})}")["start"]
    assert read(f"start: {written(slots, {})}")["start"] == slots


def test_the_notation() -> None:
    grammar = read(
        "// a comment\n"
        'start: "a\\n|" (other | /b\\/[c"]/){2,3} PART{1,9} PART ("x")?\n'
        "\n"
        "other: PART{0,}\n"
        "PART: /[a-z]/\n"
    )
    assert grammar == {
        "start": Chain(
            (
                Text("a\n|"),
                Loop(Choice((Ref("other"), Pattern('b\\/[c"]'))), 2, 3),
                Counted("[a-z]", 1, 9),
                Pattern("[a-z]"),
                Loop(Text("x"), 0, 1),
            )
        ),
        "other": Counted("[a-z]", 0, None),
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("start: other", "lacks the rules \\['other'\\]"),
        ('other: "a"', "lacks the rules \\['start'\\]"),
        ('start: ("a"', "'start'"),
        ('start: "a" %json', "'%'"),
        ("start: PART", "'PART'"),
        ('start: "a"\nstart: "b"', "twice"),
        ("start", "no such rule"),
    ],
)
def test_what_is_not_the_notation_is_refused(text: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        read(text)


def cut(schema: object) -> Slots:
    compiler = SchemaRules()
    node = compiler.add(schema)  # type: ignore[arg-type]
    cutter = Cutter(compiler.book.rules)
    slots = cutter.cut(node)
    return cutter.found[slots.name] if isinstance(slots, Ref) else slots


def test_a_string_is_counted_and_a_pattern_is_a_regex() -> None:
    string = cut({"type": "string", "maxLength": 1000})
    assert isinstance(string, Chain)
    assert isinstance(string.parts[1], Counted)
    pattern = cut({"type": "string", "pattern": "^[a-z]+-[0-9]{2}$"})
    assert pattern == chain([Text('"'), Pattern(r"[a-z]+\-[0-9]{2}"), Text('"')])


def test_a_date_and_a_number_are_one_slot_each() -> None:
    assert isinstance(cut({"type": "number"}), Pattern)
    assert isinstance(cut({"type": "integer", "minimum": -3, "maximum": 1234}), Pattern)
    assert isinstance(cut({"type": "integer", "minimum": -3, "maximum": 12345678901234567890}), Pattern)
    date = cut({"type": "string", "format": "date"})
    assert isinstance(date, Chain)
    assert [type(part) for part in date.parts] == [Text, Pattern, Text]


def test_words_are_literals() -> None:
    assert cut({"enum": ["celsius", "fahrenheit"]}) == Choice((Text('"celsius"'), Text('"fahrenheit"')))


def test_what_would_make_a_large_automaton_is_counted_or_cut() -> None:
    wide = Chars(((0x20, 0x10FFFF),))
    assert Cutter({}).cut(Seq((Repeat(wide, 0, 2), Repeat(wide, 3, 500)))) == chain(
        [Pattern("[ -\\U0010ffff]{0,2}"), Counted("[ -\\U0010ffff]", 3, 500)]
    )
    pair = Seq((wide, Text("-")))
    assert Cutter({}).cut(Repeat(pair, 0, 500)) == Loop(Pattern("[ -\\U0010ffff]\\-"), 0, 500)


LETTERS, MORE = Chars(((97, 98),)), Chars(((97, 99),))


def test_what_one_automaton_would_have_too_many_states_for_is_cut() -> None:
    inner = Seq((LETTERS, Repeat(MORE, 0, 40), LETTERS))
    assert isinstance(Cutter({}).cut(inner), Pattern)  # where it begins is known
    assert Cutter({}).cut(Seq((Repeat(MORE), inner))) == chain(
        [Pattern("[a-c]*[a-b]"), Pattern("[a-c]{0,40}[a-b]")]
    )
    repeated = Repeat(Seq((LETTERS, Repeat(MORE, 1, 20))), 1, 5)
    assert Cutter({}).cut(repeated) == Loop(Pattern("[a-b][a-c]{1,20}"), 1, 5)


def test_a_rule_that_refers_to_itself_stays_a_rule() -> None:
    rules = {"list": Alt((Text("[]"), Seq((Text("["), Ref("list"), Text("]")))))}
    cutter = Cutter(rules)
    assert cutter.cut(Ref("list")) == Ref("list")
    assert cutter.found == {"list": Choice((Text("[]"), Chain((Text("["), Ref("list"), Text("]")))))}
