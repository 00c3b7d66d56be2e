"""How much of JSON Schema do the grammars hold, and is what they don't hold said?

    python benchmarks/json_schema_suite.py PATH/draft2020-12 [--expected EXPECTED.json] [--json FILE]

PATH holds the JSON-Schema-Test-Suite (https://github.com/json-schema-org/JSON-Schema-Test-Suite, MIT), which
isn't part of this project. Every instance is tried on the grammar alone, and then with the validation
that follows each turn. An instance counts as

    right            the grammar decides as the suite does
    left to validation   invalid, accepted by the grammar, of a schema with a reported relaxation
    too strict       valid, refused by the grammar (a narrower language is safe, and costs expression)
    wrong            invalid, accepted by the grammar, and nothing was reported
    refused          the schema is an error that names the pointer

The arms: ours over llguidance, ours over llama.cpp's grammars (gbnf), and for comparison llama.cpp's own
converter as llama-cpp-python has it, which reports nothing. The last two run in llama.cpp itself, on the
vocabulary of smollm2. `--expected` is llguidance's own record of the same suite.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator
from referencing import Registry
from rich.console import Console
from rich.table import Table

from localreact.decoding.model import Model
from localreact.endpoints.cards import cards as model_cards
from localreact.engines.gbnf import GbnfEngine
from localreact.engines.llguidance import LLGuidanceEngine
from localreact.errors import GrammarError
from localreact.grammar import gbnf
from localreact.grammar.lark import json_rule
from localreact.grammar.schema import enforceable
from localreact.grammar.schema_rules import SchemaRules
from localreact.types import Segment, ToolSpec, TurnGrammar

COLUMNS = ["right", "left to validation", "too strict", "wrong", "refused"]


@dataclass(frozen=True)
class Arm:
    """`compile` gives what accepts a text, and whether relaxations were reported."""

    name: str
    compile: Callable[[Any], tuple[Callable[[str], bool], bool]]


def arms() -> Iterator[Arm]:
    over_bytes = LLGuidanceEngine.over_bytes()

    def llguidance(schema: Any) -> tuple[Callable[[str], bool], bool]:
        spec, left_out = enforceable(ToolSpec("t", "", schema))
        grammar = TurnGrammar("lark", f"start: value\nvalue: {json_rule(spec.parameters)}\n")
        over_bytes.start(grammar)
        return lambda text: over_bytes.accepts(grammar, text), bool(left_out)

    yield Arm("ours, llguidance underneath", llguidance)
    engine = GbnfEngine(Model(model_cards()["smollm2"].path()).vocab)

    def takes(text: str) -> Callable[[str], bool]:
        grammar = TurnGrammar("gbnf", text)
        engine.start(grammar)

        def accepts(instance: str) -> bool:
            matcher = engine.start(grammar)
            for token in engine.vocab.encode([Segment(instance)]):
                if not matcher.allows(token):
                    return False
                matcher.accept([token])
            return any(matcher.allows(token) for token in engine.vocab.eog)

        return accepts

    def ours(schema: Any) -> tuple[Callable[[str], bool], bool]:
        spec, left_out = enforceable(ToolSpec("t", "", schema), "gbnf")
        rules = SchemaRules(most_counted=gbnf.MOST_COUNTED)
        start = rules.add(spec.parameters)
        return takes(gbnf.definitions(gbnf.named({"root": start, **rules.book.rules}))), bool(left_out)

    yield Arm("ours, gbnf underneath", ours)

    def converter(schema: Any) -> tuple[Callable[[str], bool], bool]:
        from llama_cpp.llama_grammar import json_schema_to_gbnf

        try:
            text = json_schema_to_gbnf(json.dumps(schema))
        except Exception as error:  # it raises whatever comes up
            raise GrammarError(f"{type(error).__name__}: {error}") from error
        return takes(text), False

    yield Arm("llama.cpp's converter", converter)


def cases(folder: Path) -> Iterator[tuple[str, Any, list[dict[str, Any]]]]:
    for path in sorted(folder.glob("*.json")):
        for case in json.loads(path.read_text("utf-8")):
            yield path.stem, case["schema"], case["tests"]


def judge(arm: Arm, schema: Any, tests: list[dict[str, Any]]) -> Iterator[tuple[str, bool]]:
    """For each instance a verdict on the grammar, and whether the whole decision is right."""
    if isinstance(schema, bool):
        schema = {} if schema else {"allOf": [False]}
    try:
        accepts, reported = arm.compile(schema)
    except GrammarError:
        yield from (("refused", False) for _ in tests)
        return
    validator = Draft202012Validator(
        schema, registry=Registry(), format_checker=Draft202012Validator.FORMAT_CHECKER
    )
    for test in tests:
        accepted = accepts(json.dumps(test["data"], ensure_ascii=False))
        try:
            passed = accepted and validator.is_valid(test["data"])
        except Exception:  # a remote reference: nothing is fetched, and the call is refused
            passed = False
        if accepted == test["valid"]:
            verdict = "right"
        elif test["valid"]:
            verdict = "too strict"
        else:
            verdict = "left to validation" if reported else "wrong"
        yield verdict, passed == test["valid"]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--expected", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    document: dict[str, Any] = {}
    for arm in arms():
        verdicts: dict[str, Counter[str]] = {}
        decided: Counter[str] = Counter()
        for name, schema, tests in cases(options.folder):
            for verdict, right in judge(arm, schema, tests):
                verdicts.setdefault(name, Counter())[verdict] += 1
                decided[name] += right
        table = Table("keyword", "instances", *COLUMNS, "right with validation", title=arm.name)
        for name, counts in verdicts.items():
            table.add_row(
                name, str(counts.total()), *(str(counts[c] or "") for c in COLUMNS), str(decided[name])
            )
        total: Counter[str] = sum(verdicts.values(), Counter())
        table.add_section()
        table.add_row("all", str(total.total()), *(str(total[c]) for c in COLUMNS), str(decided.total()))
        Console().print(table)
        document[arm.name] = {
            "total": dict(total),
            "right_with_validation": decided.total(),
            "by_keyword": {name: dict(counts) for name, counts in verdicts.items()},
        }
    if options.expected:
        theirs = json.loads(options.expected.read_text("utf-8"))
        files = {path.stem for path in options.folder.glob("*.json")}
        same = Counter(
            verdict
            for suite in theirs.values()
            for name, cases_of in suite.items()
            if name.removesuffix(".json") in files
            for verdict in _leaves(cases_of)
        )
        print(f"llguidance's own record of {same.total()} instances of these files: {dict(same)}")
    if options.json:
        options.json.write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def _leaves(node: Any) -> Iterator[str]:
    if isinstance(node, dict):
        for each in node.values():
            yield from _leaves(each)
    else:
        yield str(node)


if __name__ == "__main__":
    main()
