"""`@tool`: a Python function as a tool, its schema taken from type hints and docstring."""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, overload

import docstring_parser
from pydantic import BaseModel, ConfigDict, Field, create_model
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema

from localreact.errors import ToolDefinitionError
from localreact.tools.trimming import Trim
from localreact.types import ToolExample, ToolSpec


@dataclass(frozen=True)
class Tool:
    """A function and what a model is told of it. Calling the tool calls the function.

    The other fields say how an agent treats its calls; `tool` explains them.

    Raises:
        ToolDefinitionError: numbers that make no sense.
    """

    spec: ToolSpec
    function: Callable[..., Any]
    _model: type[BaseModel] | None = None
    timeout: float | None = None
    effects: bool = False
    approve: bool | None = None
    cost: float = 0.0
    trim: Trim = field(default_factory=Trim)

    def __post_init__(self) -> None:
        if self.timeout is not None and not self.timeout > 0:
            raise ToolDefinitionError(f"tool {self.name!r}: a timeout is above 0 seconds, not {self.timeout}")
        if not 0 <= self.cost < inf:
            raise ToolDefinitionError(f"tool {self.name!r}: a cost is a number from 0, not {self.cost}")

    @property
    def name(self) -> str:
        return self.spec.name

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)

    def invoke(self, arguments: Mapping[str, Any]) -> Any:
        """Call the function with JSON arguments, turned into the types of its hints."""
        if self._model is None:
            return self.function(**arguments)
        values = self._model.model_validate(arguments)
        fields = self._model.model_fields
        return self.function(**{str(field.alias): getattr(values, name) for name, field in fields.items()})


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    examples: Sequence[ToolExample] = (),
    timeout: float | None = None,
    effects: bool = False,
    approve: bool | None = None,
    cost: float = 0.0,
    rows: int | None = None,
    fields: Sequence[str] = (),
    render: str | Callable[[Any], str] | None = None,
    max_chars: int | None = None,
    tail: int = 0,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    examples: Sequence[ToolExample] = (),
    timeout: float | None = None,
    effects: bool = False,
    approve: bool | None = None,
    cost: float = 0.0,
    rows: int | None = None,
    fields: Sequence[str] = (),
    render: str | Callable[[Any], str] | None = None,
    max_chars: int | None = None,
    tail: int = 0,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a tool of a function, plain or async.

    Every parameter needs a type hint: it becomes the JSON Schema that the grammar enforces. The
    docstring (Google, NumPy or reST style) says what the tool does and what its parameters mean; it is
    all that the model has to choose the tool by. A call runs on a thread of the agent's, an async one on
    an event loop of its own.

    Args:
        examples: worked uses that the prompt may show; without any, plain ones are made up.
        timeout: seconds that a call is waited for; by default as the agent says.
        effects: the tool changes something outside the run. A call that was cut off is then reported as
            of unknown outcome and not made again; `current_call().key` is its idempotency key.
        approve: whether a person has to allow each call (`Agent(approval=…)`); by default those with
            effects, where there is somebody to ask. True also means: nobody to ask, no call.
        cost: what a call costs, in the unit of `Agent(max_cost=…)`.
        rows, fields, render, max_chars, tail: what of a result the model is shown (see `Trim`).

    Raises:
        ToolDefinitionError: a hint is missing, or a parameter can't be expressed as JSON.
    """

    namespace = sys._getframe(1).f_locals  # hints may name what is local to where the tool is defined
    trim = Trim(rows, fields if isinstance(fields, str) else tuple(fields), render, max_chars, tail)

    def make(f: Callable[..., Any]) -> Tool:
        made = _from_function(f, name, description, examples, namespace)
        return replace(made, timeout=timeout, effects=effects, approve=approve, cost=cost, trim=trim)

    return make if function is None else make(function)


class _NoTitles(GenerateJsonSchema):
    """pydantic's schema without a `title` on everything."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def _update_class_schema(self, json_schema: Any, cls: Any, config: Any) -> None:
        super()._update_class_schema(json_schema, cls, config)
        json_schema.pop("title", None)


def _from_function(
    function: Callable[..., Any],
    name: str | None,
    description: str | None,
    examples: Sequence[ToolExample],
    namespace: Mapping[str, Any],
) -> Tool:
    name = name or str(getattr(function, "__name__", ""))
    documentation = docstring_parser.parse(inspect.getdoc(function) or "")
    described = {p.arg_name: p.description for p in documentation.params}
    try:
        hints = typing.get_type_hints(function, localns=dict(namespace), include_extras=True)
    except (NameError, TypeError) as error:
        raise ToolDefinitionError(
            f"tool {name!r}: its type hints can't be read: {error}",
            "Define it before the tool, where the tool can see it.",
        ) from error
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        where = f"tool {name!r}, parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise ToolDefinitionError(
                f"{where}: *args, **kwargs and positional-only can't be offered to a model"
            )
        if parameter.name not in hints:
            raise ToolDefinitionError(
                f"{where} has no type hint", f"Write it, for example: def {name}({parameter.name}: str)."
            )
        default = ... if parameter.default is parameter.empty else parameter.default
        said = described.get(parameter.name)
        more: dict[str, Any] = {"description": said} if said else {}  # what the hint says stands otherwise
        # A name of its own for each field: a parameter may be called `copy` or `model_validate`.
        fields[f"p{len(fields)}"] = (
            hints[parameter.name],
            Field(default=default, alias=parameter.name, **more),
        )
    try:
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        schema = model.model_json_schema(schema_generator=_NoTitles)
    except (PydanticUserError, NameError) as error:
        raise ToolDefinitionError(
            f"tool {name!r}: a parameter can't be expressed as JSON Schema: {str(error).splitlines()[0]}",
            "Use str, int, float, bool, lists, dicts, Literal, dataclasses or pydantic models.",
        ) from error
    schema.pop("description", None)
    text = description or " ".join(
        part for part in (documentation.short_description, documentation.long_description) if part
    )
    spec = ToolSpec(name, " ".join(text.split()) or name.replace("_", " "), schema, tuple(examples))
    return Tool(spec, function, model)
