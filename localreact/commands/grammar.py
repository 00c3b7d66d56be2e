"""`localreact grammar`: look at what a turn may be, and try texts on it. Needs no model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from localreact.commands.files import read_json
from localreact.engines import gbnf_text
from localreact.engines.llguidance import LLGuidanceEngine
from localreact.engines.outlines import OutlinesEngine
from localreact.errors import UsageError
from localreact.grammar.schema import Relaxation, enforceable
from localreact.protocols import PROTOCOLS, protocol
from localreact.terminal import print_json, printable
from localreact.tools import Tool, Toolbox
from localreact.tools.builtin import load_tools
from localreact.types import ToolSpec, TurnGrammar, TurnSpec

grammar = typer.Typer(help="Look at the grammar of a turn, and try texts on it.", no_args_is_help=True)

ToolOption = Annotated[
    list[str] | None,
    typer.Option(
        "-T",
        "--tool",
        help="A tool: a built-in name, FILE.py, FILE.py:NAME, or a JSON file with tool definitions as the "
        "OpenAI API has them. May be repeated. Default: calculator.",
    ),
]
SchemaOption = Annotated[
    Path | None, typer.Option(help="A JSON Schema: the parameters of one tool, named 'tool'.")
]
LANGUAGES = {"llguidance": "lark", "gbnf": "gbnf", "outlines": "slots"}
"""Of the engines that a grammar can be looked at for."""

EngineOption = Annotated[str, typer.Option(help=f"The engine to write it for: {', '.join(LANGUAGES)}.")]
ProtocolOption = Annotated[str, typer.Option(help=f"Format of a turn: {', '.join(PROTOCOLS)}.")]


@dataclass(frozen=True)
class _Loaded:
    grammar: TurnGrammar
    specs: tuple[ToolSpec, ...]
    relaxations: tuple[Relaxation, ...]


@grammar.command()
def show(
    tool: ToolOption = None,
    schema: SchemaOption = None,
    protocol: ProtocolOption = "json",
    engine: EngineOption = "llguidance",
) -> None:
    """Print the grammar of a turn, with the tools given and every ending legal."""
    print(_load(tool, schema, protocol, engine).grammar.text)


@grammar.command()
def check(
    tool: ToolOption = None,
    schema: SchemaOption = None,
    protocol: ProtocolOption = "json",
    engine: EngineOption = "llguidance",
    accepts: Annotated[
        str | None, typer.Option(help="A text: exit code 0 if it is exactly one legal turn, 1 if it isn't.")
    ] = None,
    as_document: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Compile the grammar of a turn, or for gbnf read it as llama.cpp would; say what of the schemas it can't
    hold.

    Exit code 0: it compiles (and accepts the text); 1: it doesn't accept the text; 2: an error.
    """
    loaded = _load(tool, schema, protocol, engine)
    accepted = _try(loaded.grammar, accepts)
    if as_document:
        print_json(
            {
                "tools": [spec.name for spec in loaded.specs],
                "relaxations": [
                    {"tool": each.tool, "pointer": each.pointer, "keyword": each.keyword}
                    for each in loaded.relaxations
                ],
                "accepted": accepted,
            }
        )
    else:
        for each in loaded.relaxations:
            print(printable(str(each)))
        if accepted is None:
            print(f"the grammar compiles: {', '.join(spec.name for spec in loaded.specs)}")
        else:
            print("one legal turn" if accepted else "not a legal turn")
    raise typer.Exit(1 if accepted is False else 0)


def _try(grammar: TurnGrammar, text: str | None) -> bool | None:
    """Whether the text is a turn; None where there is none. Compiles the grammar either way."""
    if grammar.language == "gbnf":
        gbnf_text.check(grammar)
        return None if text is None else gbnf_text.accepts(grammar, text)
    if grammar.language == "slots":
        outlines = OutlinesEngine.over_bytes()
        outlines.check(grammar)
        return None if text is None else outlines.accepts(grammar, text)
    engine = LLGuidanceEngine.over_bytes()
    engine.start(grammar)
    return None if text is None else engine.accepts(grammar, text)


def _load(names: list[str] | None, schema: Path | None, protocol_name: str, engine: str) -> _Loaded:
    if engine not in LANGUAGES:
        raise UsageError(f"there is no grammar for engine {engine!r}", f"Engines: {', '.join(LANGUAGES)}.")
    language = LANGUAGES[engine]
    tools: list[Tool] = []
    if schema is not None:
        tools.append(_described({"name": "tool", "parameters": read_json(schema)}, schema))
    for name in names or ([] if schema else ["calculator"]):
        tools += _from_json(Path(name)) if name.endswith(".json") else load_tools([name], None)
    specs, relaxations = [], []
    for spec in Toolbox(tools).specs:
        enforced, left_out = enforceable(spec, language)
        specs.append(enforced)
        relaxations += left_out
    turn = TurnSpec(tuple(specs), answer=True, insufficient=True)
    grammar = protocol(protocol_name).grammar(turn, language)
    return _Loaded(grammar, turn.tools, tuple(relaxations))


def _from_json(path: Path) -> list[Tool]:
    document = read_json(path)
    return [_described(each, path) for each in (document if isinstance(document, list) else [document])]


def _described(definition: Any, path: Path) -> Tool:
    """A tool without code, from its definition (with or without OpenAI's `function` around it)."""
    if isinstance(definition, dict):
        definition = definition.get("function", definition)
    if not isinstance(definition, dict) or not isinstance(definition.get("name"), str):
        raise UsageError(
            f"{path} holds no tool definition", 'It needs a name, and "parameters" as a JSON Schema.'
        )
    parameters = definition.get("parameters", {})
    if not isinstance(parameters, dict):
        raise UsageError(f"{path}: the parameters of {definition['name']!r} are no JSON Schema object")
    spec = ToolSpec(definition["name"], str(definition.get("description", "")), parameters)
    return Tool(spec, lambda **arguments: arguments)
