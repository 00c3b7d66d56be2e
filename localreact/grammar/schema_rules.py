"""JSON Schema to rules, for the languages that know no JSON Schema.

Values come in one spelling: one space after colon and comma (or none), properties in the order in
which they are declared, then further ones. What rules can't hold is left out, which widens the language,
and reported; nothing is ever silently narrower or wider. (Two further names of one object may be the same
to a grammar; the strict parser refuses such a turn.)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from localreact.errors import GrammarError
from localreact.grammar.merging import MAX_BRANCHES, Plain, apart, both, merge, never, same, types_of
from localreact.grammar.nodes import EMPTY, NOTHING, alt, maybe, repeat, seq
from localreact.grammar.rulebook import RuleBook, pointer_token, resolve
from localreact.grammar.rules import Alt, Node, Ref, Rules, Text
from localreact.grammar.scalars import Scalars, SchemaError
from localreact.grammar.validation import Validator, found
from localreact.types import JsonSchema


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_COMBINING = _words("$ref allOf anyOf oneOf")
_PLAIN = _words(
    """type enum const properties required additionalProperties patternProperties minProperties
    maxProperties items prefixItems minItems maxItems minLength maxLength pattern format minimum maximum
    exclusiveMinimum exclusiveMaximum multipleOf"""
)
_SILENT = _words(  # says something about a schema, or only holds others
    """$defs definitions title description default examples deprecated readOnly writeOnly $schema $id
    $comment $anchor contentMediaType contentEncoding x-guidance"""
)


MOST_COMBINED = 20_000
"""Schemas looked at as parts of others: two parts that each have two, and so on, would be without end."""


def schema_rules(
    schema: JsonSchema, *, compact: bool = False, most_counted: int | None = None
) -> tuple[Rules, list[tuple[str, str]]]:
    """The rules for the values of one schema, and what they don't hold: pointers and keywords.

    Raises:
        SchemaError: the schema is broken, or no value fits.
    """
    compiler = SchemaRules(compact=compact, most_counted=most_counted)
    start = compiler.add(schema)
    return Rules(start, compiler.book.rules), list(compiler.left_out)


class SchemaRules:
    """Compiles schemas into rules that they share.

    Args:
        compact: no space after colon and comma.
        most_counted: the largest number of repetitions that the language can count.
        prefix: begins the names of all rules.
    """

    def __init__(self, *, compact: bool = False, most_counted: int | None = None, prefix: str = "") -> None:
        self.book = RuleBook(compact=compact, prefix=prefix)
        self.left_out: dict[tuple[str, str], None] = {}
        """What the rules don't hold: pointer and keyword, once each."""

        self._scalars = Scalars(self.book, self._leave_out, most_counted)
        self._root: JsonSchema = {}
        self._roots: list[JsonSchema] = []  # kept, so that their ids stay theirs
        self._named: dict[tuple[int, str], str] = {}
        self._making: set[str] = set()
        self._combined = 0

    def add(self, schema: JsonSchema | bool) -> Node:
        """A node for the values of a schema, which is the root for its references.

        Raises:
            SchemaError: it is broken, or no value fits.
        """
        outer, self._root = self._root, schema if isinstance(schema, Mapping) else {}
        self._roots.append(self._root)
        try:
            node = self._value(schema, "")
        finally:
            self._root = outer
        if node == NOTHING:
            raise SchemaError("", "no value fits")
        return node

    def keywords(self, parameters: Sequence[tuple[str, JsonSchema, bool]]) -> Node:
        """Keyword arguments in their order: names, schemas, and whether each is needed."""
        members = [(seq(Text(f"{name}="), self.add(schema)), needed) for name, schema, needed in parameters]
        return self.book.members(members, NOTHING)

    # --- any schema

    def _value(self, schema: Any, at: str, within: tuple[str, ...] = ()) -> Node:
        """`within` are the references that led here without a character between: a schema that is itself
        or something else is that something else."""
        if never(schema):
            return NOTHING
        if schema is True or schema == {}:
            return self.book.anything()
        if not isinstance(schema, Mapping):
            raise SchemaError(at, f"{schema!r} is no schema")
        self._look_at(schema, at)
        telling = schema.keys() & (_PLAIN | _COMBINING)
        if telling == {"$ref"}:
            return self._reference(schema["$ref"], at, within)
        if telling in ({"anyOf"}, {"oneOf"}):
            (key,) = telling
            if key == "oneOf":
                self._check_one(schema[key], at, within)
            return alt(self._value(each, f"{at}/{key}/{i}", within) for i, each in enumerate(schema[key]))
        return alt(self._plain(each, at) for each in self._alternatives(schema, at, within))

    def _reference(self, reference: Any, at: str, within: tuple[str, ...]) -> Node:
        if reference in within:
            return NOTHING
        target, pointer = self._resolve(reference, at), str(reference).removeprefix("#")
        if within:
            return self._value(target, pointer, (*within, reference))
        return self._by_name(
            (id(self._root), reference),
            pointer.rsplit("/", 1)[-1] or "root",
            lambda: self._value(target, pointer, (reference,)),
        )

    def _by_name(self, key: tuple[int, str], base: str, make: Callable[[], Node]) -> Node:
        """A rule that is made once, and may refer to itself meanwhile."""
        if key not in self._named:
            self._named[key] = name = self.book.name(base)
            self._making.add(name)
            known = len(self.left_out)
            self.book.rules[name] = make()
            self._making.discard(name)
            if len(self.left_out) > known:  # elsewhere it is to be reported again
                del self._named[key]
        else:
            name = self._named[key]
        nothing = self.book.rules[name] == NOTHING and name not in self._making
        return NOTHING if nothing else Ref(name)

    def _alternatives(self, schema: Any, at: str, within: tuple[str, ...]) -> list[Plain]:
        """Plain schemas of which a value has to fit one."""
        self._combined += 1
        if self._combined > MOST_COMBINED:
            raise SchemaError(at, "combines too many alternatives")
        if never(schema):
            return []
        if not isinstance(schema, Mapping):
            return [{}]
        self._look_at(schema, at)
        found: list[Plain] = [{key: value for key, value in schema.items() if key in _PLAIN}]
        parts: list[list[Plain]] = []
        for index, part in enumerate(schema.get("allOf", ())):
            parts.append(self._alternatives(part, f"{at}/allOf/{index}", within))
        if "$ref" in schema:
            reference = schema["$ref"]
            target = self._resolve(reference, at)
            inner = (*within, reference)
            parts.append([] if reference in within else self._alternatives(target, at, inner))
        for key in ("anyOf", "oneOf"):
            if key in schema:
                if key == "oneOf":
                    self._check_one(schema[key], at, within)
                options = enumerate(schema[key])
                parts.append(
                    [x for i, each in options for x in self._alternatives(each, f"{at}/{key}/{i}", within)]
                )
        for options_of in parts:
            merged = (
                merge(one, other, lambda key: self._leave_out(at, key))
                for one in found
                for other in options_of
            )
            found = [each for each in merged if each is not None]
            if len(found) > MAX_BRANCHES:
                raise SchemaError(at, "combines too many alternatives")
        return found

    def _resolve(self, reference: Any, at: str) -> Any:
        try:
            return resolve(self._root, reference)
        except LookupError as error:
            raise SchemaError(at, str(error.args[0])) from None

    def _look_at(self, schema: JsonSchema, at: str) -> None:
        """Report what is unknown, and check what merging will match names with."""
        for key in schema.keys() - _PLAIN - _COMBINING - _SILENT:
            self._leave_out(at, key)
        for pattern in schema.get("patternProperties", ()):
            self._scalars.pattern(pattern, f"{at}/patternProperties/{pointer_token(pattern)}", report=False)

    def _leave_out(self, at: str, keyword: str) -> None:
        self.left_out[(at or "/", keyword)] = None

    def _check_one(self, options: Sequence[Any], at: str, within: tuple[str, ...]) -> None:
        """`oneOf` is held as far as at most one can fit anyway."""
        plain = [self._alternatives(each, f"{at}/oneOf/{i}", within) for i, each in enumerate(options)]
        for i, one in enumerate(plain):
            for other in plain[i + 1 :]:
                if not all(apart(a, b) for a in one for b in other):
                    self._leave_out(at, "oneOf")
                    return

    # --- plain schemas

    def _plain(self, schema: Plain, at: str) -> Node:
        if "const" in schema or "enum" in schema:
            return self._constants(schema, at)
        kinds = types_of(schema)
        options: list[Node] = []
        for kind in kinds:
            if kind == "integer" and "number" in kinds:
                continue
            match kind:
                case "null":
                    options.append(Text("null"))
                case "boolean":
                    options.append(alt([Text("true"), Text("false")]))
                case "integer" | "number":
                    options.append(self._scalars.number(schema, kind, at))
                case "string":
                    options.append(self._scalars.string(schema, at))
                case "array":
                    options.append(self._container(kind, schema, at, self._array))
                case "object":
                    options.append(self._container(kind, schema, at, self._object))
                case _:
                    raise SchemaError(at, f"there is no type {kind!r}")
        return alt(options)

    def _container(self, kind: str, schema: Plain, at: str, make: Callable[[Plain, str], Node]) -> Node:
        key = f"{kind} {json.dumps(schema, sort_keys=False)}"
        root = id(self._root) if '"$ref"' in key else 0
        return self._by_name((root, key), kind, lambda: make(schema, at))

    def _constants(self, schema: Plain, at: str) -> Node:
        values = [schema["const"]] if "const" in schema else list(schema["enum"])
        if "const" in schema and "enum" in schema:
            values = [value for value in values if any(same(value, each) for each in schema["enum"])]
        rest = {key: value for key, value in schema.items() if key not in ("const", "enum")}
        root = {key: self._root[key] for key in ("$defs", "definitions") if key in self._root}
        validator = Validator({**root, **rest})
        try:
            node = alt(Text(self.book.dumps(value)) for value in values if validator.fits(value))
        except GrammarError as error:
            raise SchemaError(at, error.message) from error
        return self.book.rule("enum", node) if isinstance(node, Alt) and len(node.options) > 3 else node

    # --- arrays and objects

    def _array(self, schema: Plain, at: str) -> Node:
        heads = [
            self._value(each, f"{at}/prefixItems/{i}") for i, each in enumerate(schema.get("prefixItems", ()))
        ]
        rest = self._value(schema.get("items", True), f"{at}/items")
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        possible = next((i for i, head in enumerate(heads) if head == NOTHING), None)
        if possible is None and rest == NOTHING:
            possible = len(heads)
        if possible is not None:
            most = possible if most is None else min(most, possible)
        least, most = self._scalars.counted(least, most, "Items", at)
        if most is not None and least > most:
            return NOTHING
        n = len(heads) if most is None else min(len(heads), most)
        if n == 0:
            return self.book.array(rest, least, most)
        room = None if most is None else most - n
        tail = EMPTY if rest == NOTHING else repeat(self.book.following(rest), max(0, least - n), room)
        for i in range(n - 1, -1, -1):
            written = seq(Text(self.book.comma if i else ""), heads[i], tail)
            tail = written if i < least else maybe(written)
        return seq(Text("["), tail, Text("]"))

    def _object(self, schema: Plain, at: str) -> Node:
        declared: dict[str, Any] = dict(schema.get("properties", {}))
        required = schema.get("required", ())
        by_pattern: dict[str, Any] = dict(schema.get("patternProperties", {}))
        further: Any = schema.get("additionalProperties", True)
        for name in required:
            if name not in declared:
                matched = any(found(pattern, name) for pattern in by_pattern)
                declared[name] = True if matched else further
        for name in declared:
            for pattern, each in by_pattern.items():
                if found(pattern, name):
                    declared[name] = both(declared[name], each)
        members: list[tuple[Node, bool]] = []
        for name, each in declared.items():
            where = f"{at}/properties/{pointer_token(name)}" if name in schema.get("properties", {}) else at
            value = self._value(each, where)
            if value != NOTHING or name in required:
                members.append((self.book.member(name, value), name in required))
        others = self._further(declared, by_pattern, further, at)
        low, high = schema.get("minProperties", 0), schema.get("maxProperties")
        if not members:  # all that is counted is further
            return self.book.object(
                self.book.listed(others, *self._scalars.counted(low, high, "Properties", at))
            )
        if low > sum(needed for _, needed in members):
            self._leave_out(at, "minProperties")
        if high is not None and (others != NOTHING or high < len(members)):
            self._leave_out(at, "maxProperties")
        return self.book.object(self.book.members(members, others))

    def _further(
        self, declared: Mapping[str, Any], by_pattern: Mapping[str, Any], further: Any, at: str
    ) -> Node:
        """A member with a name that isn't declared.

        Where names may match a pattern, those that match none are left out of the language, since no node
        says "not this pattern". Where one may match several, or be a declared one, patterns are left out.
        """
        if not by_pattern:
            value = self._value(further, f"{at}/additionalProperties")
            return NOTHING if value == NOTHING else self.book.other_name(sorted(declared), value)
        ((pattern, each), *more) = by_pattern.items()
        clear = not more and not any(found(pattern, name) for name in declared)
        tree = self._scalars.pattern(pattern, at, report=False) if clear else None
        if tree is not None:
            value = self._value(each, f"{at}/patternProperties/{pointer_token(pattern)}")
            return seq(Text('"'), self._scalars.written(tree), Text(f'"{self.book.colon}'), value)
        if never(further) and all(map(never, by_pattern.values())):
            return NOTHING
        self._leave_out(at, "patternProperties")
        if further not in (True, {}):
            self._leave_out(at, "additionalProperties")
        return self._further(declared, {}, True, at)
