"""The type of an answer: what a user asks for, as a JSON Schema and as the Python value read back.

Taken are pydantic models and everything else that pydantic knows (`Literal`, enums, `int`, `list[str]`,
dataclasses, …), compiled regexes, JSON Schemas as mappings, and outlines' types (`outlines.types.Regex`,
`JsonSchema`, `Choice`, `date`, …), which are recognised without importing outlines.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jsonschema.exceptions import SchemaError
from pydantic import TypeAdapter, ValidationError
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue

from localreact.errors import AnswerError, UsageError
from localreact.grammar.validation import Validator, check_schema, outward
from localreact.types import JsonSchema

_HINT = (
    "Give a pydantic model, a type such as Literal['yes', 'no'] or list[int], a compiled regex, "
    "a JSON Schema as a dict, or one of outlines' types."
)


@dataclass(frozen=True)
class AnswerType:
    """`schema` is what the grammar holds an answer to; `convert` makes the Python value of a JSON value."""

    schema: JsonSchema
    convert: Callable[[Any], Any]

    def read(self, value: Any) -> Any:
        """The Python value of an answer, given as a JSON value.

        Raises:
            AnswerError: it isn't of the type. A grammar holds the schema only; a model's own validators,
                and what a grammar had to leave out, are checked here. The message is for a model.
        """
        try:
            return self.convert(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_context=False)[0]
            raise AnswerError(
                f"the answer{_path(first['loc'])} is not as asked for: {first['msg']}"
            ) from error


def answer_type(kind: Any) -> AnswerType:
    """
    Raises:
        UsageError: nothing that an answer can be held to.
    """
    if isinstance(kind, AnswerType):
        return kind
    if isinstance(kind, re.Pattern):
        return _regex(kind)
    if isinstance(kind, Mapping):
        return _json_schema(kind)
    if _of_outlines(kind):
        return _outlines(kind)
    if isinstance(kind, str):
        raise UsageError(
            f"{kind!r} is no type of an answer", "For a regex give re.compile(…), for a text str."
        )
    return _python_type(kind)


def _regex(pattern: re.Pattern[Any]) -> AnswerType:
    if not isinstance(pattern.pattern, str):
        raise UsageError("the regex of an answer has to be of text, not of bytes")
    if pattern.flags & ~re.UNICODE:
        raise UsageError(
            f"the regex of an answer has flags that a grammar doesn't know: {re.RegexFlag(pattern.flags)!r}",
            "Write them out: [Yy]es for yes in any case, [^\\n] or (.|\\n) for a dot.",
        )

    def convert(value: Any) -> str:
        if not isinstance(value, str) or not pattern.fullmatch(value):
            raise AnswerError(f"the answer doesn't match {pattern.pattern!r}")
        return value

    return AnswerType({"type": "string", "pattern": _whole(pattern.pattern)}, convert)


def _json_schema(schema: JsonSchema) -> AnswerType:
    try:
        check_schema(schema)
    except SchemaError as error:
        raise UsageError(
            f"the answer's JSON Schema is broken at {error.json_path}: {error.message}"
        ) from error
    if (out := outward(schema)) is not None:
        raise UsageError(f"the answer's JSON Schema can't be checked{_path(out[0])}: {out[1]}")
    validator = Validator(schema, formats=True)

    def convert(value: Any) -> Any:
        if (error := validator.problem(value)) is not None:
            raise AnswerError(f"the answer{_path(error.path)} is not as asked for: {error.message}")
        return value

    return AnswerType(dict(schema), convert)


def _python_type(kind: Any) -> AnswerType:
    try:
        adapter = TypeAdapter(kind)
        schema = adapter.json_schema(schema_generator=_Generator)
    except PydanticUserError as error:  # no schema can be made, or none in JSON's terms
        what = getattr(kind, "__name__", None) or repr(kind)
        raise UsageError(
            f"{what} can't be the type of an answer: {error.message.splitlines()[0]}", _HINT
        ) from error
    # From JSON, so that dates, enums and tuples are read also where a model is strict.
    return AnswerType(schema, lambda value: adapter.validate_json(json.dumps(value)))


class _Generator(GenerateJsonSchema):
    """In a model, outlines writes its types as a pattern that may match anywhere in a string, but
    validates the whole: the schema should say the same."""

    def generate_inner(self, schema: Any) -> JsonSchemaValue:
        result = super().generate_inner(schema)
        functions = schema.get("metadata", {}).get("pydantic_js_functions", ())
        if any(_of_outlines(getattr(each, "__self__", None)) for each in functions) and "pattern" in result:
            return {**result, "pattern": _whole(result["pattern"])}
        return result


# --- outlines


def _of_outlines(kind: Any) -> bool:
    return any(base.__module__ == "outlines.types.dsl" for base in type(kind).__mro__)


def _outlines(term: Any) -> AnswerType:
    from outlines.types import dsl, string  # the user has imported it already

    if term == string:  # outlines' regex for it holds the quotes
        return _python_type(str)
    if isinstance(term, dsl.JsonSchema):
        return _json_schema(json.loads(term.schema))
    if isinstance(term, dsl.CFG):
        raise UsageError("an answer can't be held to a grammar of outlines (CFG)", _HINT)
    if isinstance(term, dsl.Choice) and all(_is_scalar(each) for each in term.items):
        return _json_schema({"enum": list(term.items)})
    try:
        return _regex(re.compile(dsl.to_regex(term)))
    except (TypeError, ValueError, NotImplementedError, re.error) as error:
        raise UsageError(f"outlines' {term!r} can't be the type of an answer: {error}", _HINT) from error


# --- small things


def _is_scalar(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float)


def _whole(pattern: str) -> str:
    """A pattern in JSON Schema's sense that has to match from beginning to end."""
    return f"^(?:{pattern})$"


def _path(keys: Any) -> str:
    where = "/".join(str(key) for key in keys)
    return f" at /{where}" if where else ""
