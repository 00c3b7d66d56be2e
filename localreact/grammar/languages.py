"""The languages that turn grammars are written in: what a protocol's template needs of each."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

from localreact.errors import GrammarError
from localreact.grammar import gbnf, lark
from localreact.grammar.arguments import bracket_argument, bracket_regexes
from localreact.grammar.cutting import SlotWriter
from localreact.grammar.marker_rules import marker_rules
from localreact.grammar.markers import marker_words
from localreact.grammar.schema_rules import SchemaRules
from localreact.types import JsonSchema, TurnSpec


class Writer(Protocol):
    """Writes the parts of one grammar. `helpers` are for the template alone."""

    @property
    def helpers(self) -> dict[str, Any]: ...

    def literal(self, text: str) -> str:
        """Exactly this text."""

    def json(self, schema: JsonSchema) -> str:
        """The right side of a rule for values of a schema, in the one spelling that turns have."""

    def keywords(self, rule: str, parameters: Sequence[tuple[str, JsonSchema, bool]]) -> str:
        """Rules for keyword arguments in their order: names, schemas, and whether each is needed."""

    def argument(self, schema: JsonSchema, least: int, most: int) -> str:
        """The right side of a rule for a bracket argument: a line without a marker or a bracket that fits
        the schema of a string, and has from `least` to `most` characters.

        Raises:
            GrammarError: nothing fits, or the schema has what this language can't hold there.
        """


class LarkWriter:
    def __init__(self, compact: bool, markers: Sequence[str]) -> None:
        self._compact = compact
        self._markers = tuple(markers)
        self.helpers: dict[str, Any] = {"markers": marker_words(markers)}

    def literal(self, text: str) -> str:
        return lark.literal(text)

    def json(self, schema: JsonSchema) -> str:
        return lark.json_rule(schema, compact=self._compact)

    def keywords(self, rule: str, parameters: Sequence[tuple[str, JsonSchema, bool]]) -> str:
        """`RULE` begins; `RULE_first_N` stands before parameter N while none was written, `RULE_more_N`
        after one."""
        lines = [f"{rule}: {rule}_first_0"]
        for number, (name, schema, needed) in enumerate(parameters):
            following = f"{rule}_more_{number + 1}"
            lines.append(f"{rule}_value_{number}: {self.json(schema)}")
            for state, comma in (("first", ""), ("more", ", ")):
                written = f"{self.literal(f'{comma}{name}=')} {rule}_value_{number} {following}"
                left_out = "" if needed else f" | {rule}_{state}_{number + 1}"
                lines.append(f"{rule}_{state}_{number}: {written}{left_out}")
        lines += [f'{rule}_{state}_{len(parameters)}: ""' for state in ("first", "more")]
        return "\n".join(lines)

    def argument(self, schema: JsonSchema, least: int, most: int) -> str:
        parts = [f"/[^\\x00-\\x1f\\x7f\\]]{{{least},{most}}}/", "FREE"]
        return " & ".join(
            [*parts, *(f"/{regex}/" for regex in bracket_regexes(schema, self._markers, least, most))]
        )


class GbnfWriter:
    """Schemas become rules, which `definitions` writes at the end of the template."""

    def __init__(self, compact: bool, markers: Sequence[str]) -> None:
        self._schemas = SchemaRules(compact=compact, most_counted=gbnf.MOST_COUNTED, prefix="json-")
        self._markers = tuple(markers)
        self._free: dict[str, str] = {}
        self.helpers: dict[str, Any] = {"free": self._free_text, "definitions": self._definitions}

    def literal(self, text: str) -> str:
        return gbnf.literal(text)

    def json(self, schema: JsonSchema) -> str:
        return gbnf.expression(self._schemas.add(schema))

    def keywords(self, rule: str, parameters: Sequence[tuple[str, JsonSchema, bool]]) -> str:
        return f"{rule} ::= {gbnf.expression(self._schemas.keywords(parameters))}"

    def argument(self, schema: JsonSchema, least: int, most: int) -> str:
        """Its length is counted by the engine."""
        node = bracket_argument(schema, self._markers, least, most)
        return f"{self._free_text('inner', ']')}-blank" if node is None else gbnf.expression(node)

    def _free_text(self, name: str, without: str = "") -> str:
        """The name of a rule for text without a marker, and without some characters, that doesn't begin with
        a blank; NAME-blank may."""
        self._free[name] = _marker_definitions(name, without, self._markers)
        return name

    def _definitions(self) -> str:
        return "\n".join([gbnf.definitions(gbnf.named(self._schemas.book.rules)), *self._free.values()])


@functools.lru_cache(maxsize=64)
def _marker_definitions(name: str, without: str, markers: tuple[str, ...]) -> str:
    return gbnf.definitions(marker_rules(name, without, markers))


AnyWriter: TypeAlias = LarkWriter | GbnfWriter | SlotWriter
WRITERS: dict[str, type[AnyWriter]] = {"lark": LarkWriter, "gbnf": GbnfWriter, "slots": SlotWriter}


def writer(
    language: str, spec: TurnSpec, *, protocol: str, compact: bool = False, markers: Sequence[str] = ()
) -> AnyWriter:
    """
    Raises:
        GrammarError: turns can't be written in that language.
    """
    if language not in WRITERS:
        raise GrammarError(f"the {protocol} protocol can't be written in {language!r}")
    longest = max(spec.thought_max, spec.argument_max, spec.answer_max)
    if language == "gbnf" and longest > gbnf.MOST_COUNTED:
        raise GrammarError(
            f"GBNF can't bound a string at {longest:,} characters: it counts to {gbnf.MOST_COUNTED:,}",
            "Ask for lower bounds, or use the engine llguidance.",
        )
    return WRITERS[language](compact, markers)
