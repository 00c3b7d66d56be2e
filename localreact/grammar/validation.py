"""Whether a value fits a JSON Schema: the one place that asks, since schemas come from anywhere.

No reference is followed out of the schema, and looking for a pattern takes time in proportion to the text:
patterns are left to Rust's regex engine, which never goes back. What only Python's can read (looking around,
referring back to a group) is left to Python's; `endless` tells of it, for who can't trust who wrote it.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError, ValidationError, best_match
from jsonschema.validators import extend
from pydantic_core import SchemaError as RegexError
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry

from localreact.errors import GrammarError
from localreact.grammar import patterns
from localreact.grammar.regexes import regex_of
from localreact.grammar.rules import Chars
from localreact.types import JsonSchema

Path = tuple[str | int, ...]

MOST_REFERENCES = 20_000
"""Followed for one value. Two that each lead to two, and so on, are more than anyone can follow."""


class _OfThread(threading.local):
    references = 0
    """That may still be followed."""


_left = _OfThread()

_OTHERWISE_IN_RUST = re.compile(r"&&|--|~~|\[[^\]]*\[")
"""Operations on sets of characters, and sets in sets, which other dialects don't have."""

_VALUES = {"const", "enum", "default", "examples"}
"""Hold values, and may so hold anything."""


class Validator:
    """Tells whether values fit a schema, which is taken to be one (`check_schema`).

    Args:
        formats: whether `format` says more than what a value is for.
    """

    def __init__(self, schema: JsonSchema, *, formats: bool = False) -> None:
        checker = Draft202012Validator.FORMAT_CHECKER if formats else None
        self._validator = _Bounded(dict(schema), format_checker=checker, registry=Registry())

    def fits(self, value: Any) -> bool:
        """
        Raises:
            GrammarError: the schema can't be followed.
        """
        return self.problem(value) is None

    def problem(self, value: Any) -> ValidationError | None:
        """What is most to blame where the value doesn't fit.

        Raises:
            GrammarError: the schema can't be followed.
        """
        _left.references = MOST_REFERENCES
        try:
            problem: ValidationError | None = best_match(self._validator.iter_errors(value))
        except Exception as error:  # nobody has checked what a reference leads to
            raise GrammarError(
                f"a schema can't be followed: {type(error).__name__}: {str(error)[:200]}",
                "Its references have to lead to schemas, not around in a circle, and not to too many.",
            ) from error
        return problem


def check_schema(schema: JsonSchema) -> None:
    """
    Raises:
        jsonschema.SchemaError: it is no JSON Schema.
    """
    try:
        Draft202012Validator.check_schema(schema)
    except (OverflowError, RecursionError) as error:
        raise SchemaError(f"a pattern can't be read: {error}") from error


def outward(schema: JsonSchema) -> tuple[Path, str] | None:
    """The first reference that leads out of the schema, and so nowhere; and its words."""
    for path, each in _objects(schema):
        for key in ("$ref", "$dynamicRef"):
            reference = each.get(key) if _VALUES.isdisjoint(path) else None
            if isinstance(reference, str) and not reference.startswith("#"):
                return (*path, key), f"the reference {reference[:100]!r} leads out of the schema"
    return None


def endless(schema: JsonSchema) -> tuple[Path, str] | None:
    """Where, and why, to check a value against the schema could take longer than anyone waits."""
    by_pattern = any("patternProperties" in each for _, each in _objects(schema))
    for path, each in _objects(schema):
        named = each.get("patternProperties")
        found = [(each.get("pattern"), (*path, "pattern"))]
        found += [(name, (*path, "patternProperties")) for name in (named if isinstance(named, dict) else ())]
        for pattern, where in found:
            if isinstance(pattern, str) and _linear(pattern) is None:
                return where, f"the pattern {pattern[:100]!r} looks around, refers back, or is too large"
        if by_pattern and "unevaluatedProperties" in each:
            return (*path, "unevaluatedProperties"), "it doesn't go with patternProperties here"
    return None


def found(pattern: str, text: str) -> bool:
    """Whether the pattern matches anywhere in the text."""
    return _search(pattern)(text)


@lru_cache(maxsize=512)
def _search(pattern: str) -> Callable[[str], bool]:
    if (search := _linear(pattern)) is not None:
        return search
    compiled = re.compile(pattern)
    return lambda text: compiled.search(text) is not None


@lru_cache(maxsize=512)
def _linear(pattern: str) -> Callable[[str], bool] | None:
    """A search in linear time; None where there is none for such a pattern."""
    if not _OTHERWISE_IN_RUST.search(pattern) and (search := _in_rust(pattern)) is not None:
        return search
    try:
        return _in_rust(f"^(?:{regex_of(patterns.written(patterns.parse(pattern), Chars))})$")
    except GrammarError:
        return None


def _in_rust(pattern: str) -> Callable[[str], bool] | None:
    try:
        schema = core_schema.str_schema(pattern=pattern, regex_engine="rust-regex", strict=True)
        return SchemaValidator(schema).isinstance_python
    except RegexError:
        return None


def _objects(value: Any, path: Path = ()) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Every object in a schema: each subschema, and what only may be one."""
    if isinstance(value, Mapping):
        yield path, value
    inside = (
        value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list) else ()
    )
    for key, each in inside:
        yield from _objects(each, (*path, key))


# --- keywords as jsonschema has them, but for how they look for patterns, and how often they look


def _reference(validator: Any, reference: str, value: Any, schema: JsonSchema) -> Iterator[ValidationError]:
    _left.references -= 1
    if _left.references < 0:
        raise OverflowError(f"more than {MOST_REFERENCES} references for one value")
    yield from Draft202012Validator.VALIDATORS["$ref"](validator, reference, value, schema)


def _pattern(validator: Any, pattern: str, value: Any, schema: JsonSchema) -> Iterator[ValidationError]:
    if isinstance(value, str) and not found(pattern, value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _pattern_properties(
    validator: Any, by_pattern: Mapping[str, Any], value: Any, schema: JsonSchema
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    for pattern, each in by_pattern.items():
        for name, member in value.items():
            if found(pattern, name):
                yield from validator.descend(member, each, path=name, schema_path=pattern)


def _additional_properties(
    validator: Any, further: Any, value: Any, schema: JsonSchema
) -> Iterator[ValidationError]:
    if not isinstance(value, dict):
        return
    declared, by_pattern = schema.get("properties", {}), schema.get("patternProperties", {})
    for name, member in value.items():
        if name in declared or any(found(pattern, name) for pattern in by_pattern):
            continue
        if further is False:
            yield ValidationError(f"Additional properties are not allowed ({name!r} was unexpected)")
        else:
            yield from validator.descend(member, further, path=name)


_Bounded = extend(  # type: ignore[no-untyped-call]  # it has no types
    Draft202012Validator,
    {
        "$ref": _reference,
        "pattern": _pattern,
        "patternProperties": _pattern_properties,
        "additionalProperties": _additional_properties,
    },
)
