"""What a client holds a plain text to (a schema, a regex, texts to choose from, a grammar), in a language
that the endpoint enforces."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from llguidance.gbnf_to_lark import GbnfToLarkError, gbnf_to_lark

from localreact.errors import GrammarError
from localreact.grammar import gbnf, lark, patterns
from localreact.grammar.nodes import alt
from localreact.grammar.regexes import regex_of
from localreact.grammar.rules import Chars, Rules, Text
from localreact.grammar.schema import enforceable
from localreact.grammar.schema_rules import schema_rules
from localreact.serve.ask import ClientError, Held
from localreact.serve.schemas import closed_schema
from localreact.types import JsonSchema, ToolSpec, TurnGrammar

MOST_CHARACTERS = 64 << 10
MOST_RULES = 500
DEEPEST = 200
"""Compilers of grammars recurse, without a limit of their own: llguidance's takes the process down at a chain
of some 3,000 rules, llama.cpp's at as many thousand parentheses."""

_RULE = re.compile(r"^[ \t]*[?!]?[\w-]+[^:\n]*:", re.M)


def check_text(text: str) -> None:
    """
    Raises:
        ClientError: 422, more than a grammar of a client's may hold.
    """
    if len(text) > MOST_CHARACTERS:
        raise ClientError(422, f"a grammar of more than {MOST_CHARACTERS} characters", "grammar", "too_many")
    if len(_RULE.findall(text)) > MOST_RULES:
        raise ClientError(422, f"a grammar of more than {MOST_RULES} rules", "grammar", "too_many")
    depth = deepest = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        deepest = max(deepest, depth)
    if deepest > DEEPEST:
        raise ClientError(422, f"a grammar nested deeper than {DEEPEST} levels", "grammar", "too_many")


def of(held: Held, languages: Sequence[str]) -> tuple[TurnGrammar, tuple[str, ...]]:
    """The grammar, and what it doesn't hold.

    Raises:
        ClientError: the endpoint takes no such thing, or it is none.
    """
    try:
        match held.kind:
            case "json":
                return of_schema(held.value, languages)
            case "regex":
                return of_regex(held.value, languages), ()
            case "choice":
                return of_choice(held.value, languages), ()
        return of_text(held.value, languages, held.language), ()
    except GrammarError as error:
        raise ClientError(400, str(error), held.param, "not_enforceable") from error


def of_schema(schema: JsonSchema, languages: Sequence[str]) -> tuple[TurnGrammar, tuple[str, ...]]:
    """JSON values with one space after colon and comma, and what the grammar doesn't hold of the schema.

    Raises:
        ClientError: the endpoint takes no such thing.
        GrammarError: the schema can't be held.
    """
    language = _first(languages, ("lark", "gbnf", "json_schema"), "a JSON schema")
    # A schema needn't be an object's; this checker knows tools.
    spec, left_out = enforceable(ToolSpec("the schema", "", closed_schema(schema)), language)
    return _json(spec.parameters, language), tuple(map(str, left_out))


def of_regex(regex: str, languages: Sequence[str]) -> TurnGrammar:
    """A text that the regex matches as a whole.

    Raises:
        ClientError: the endpoint takes no such thing.
        GrammarError: it is no regex, or goes beyond regular languages.
    """
    language = _first(languages, ("lark", "regex", "gbnf"), "a regex")
    check_text(regex)
    # Read here, so that it means the same whatever enforces it.
    node = patterns.written(patterns.parse(f"^(?:{regex})$"), Chars)
    if language == "gbnf":
        return _gbnf(Rules(node))
    text = regex_of(node)
    return TurnGrammar(language, text if language == "regex" else f"start: /{text}/")


def of_choice(choices: Sequence[str], languages: Sequence[str]) -> TurnGrammar:
    """One of the texts.

    Raises:
        ClientError: the endpoint takes no such thing.
    """
    language = _first(languages, ("lark", "gbnf", "regex"), "a choice")
    if language == "gbnf":
        return _gbnf(Rules(alt(map(Text, choices))))
    if language == "regex":
        return TurnGrammar(language, "|".join(map(re.escape, choices)))
    return TurnGrammar(language, "start: " + " | ".join(map(lark.literal, choices)))


def of_text(text: str, languages: Sequence[str], language: str = "") -> TurnGrammar:
    """A grammar in the language it is said to be in; else in GBNF (its rules are defined by `::=`), or in
    llguidance's Lark. GBNF is translated where only Lark is enforced.

    Raises:
        ClientError: the endpoint takes no such thing, or it is none.
    """
    check_text(text)
    language = language or ("gbnf" if "::=" in text else "lark")
    if language != "gbnf":
        return TurnGrammar(_first(languages, (language,), f"a grammar in {language!r}"), text)
    if _first(languages, ("gbnf", "lark"), "a grammar in 'gbnf'") == "gbnf":
        return TurnGrammar("gbnf", text)
    try:
        return TurnGrammar("lark", gbnf_to_lark(_BEYOND_16_BITS.sub(_plain, text)))
    except (GbnfToLarkError, RecursionError, ValueError) as error:
        raise ClientError(400, f"the grammar isn't GBNF: {str(error)[:200]}", "grammar") from error


# llguidance's translation takes the zeros off these, which its regexes then can't read.
_BEYOND_16_BITS = re.compile(r"(?<!\\)((?:\\\\)*)\\U(000[1-9A-Fa-f]|0010)([0-9A-Fa-f]{4})")


def _plain(escape: re.Match[str]) -> str:
    """The character itself: none of these means anything in a grammar."""
    return escape[1] + chr(int(escape[2] + escape[3], 16))


def _json(schema: JsonSchema, language: str) -> TurnGrammar:
    if language == "lark":
        return TurnGrammar(language, f"start: {lark.json_rule(schema)}")
    if language == "gbnf":
        return _gbnf(schema_rules(schema, most_counted=gbnf.MOST_COUNTED)[0])
    return TurnGrammar(language, json.dumps(schema, ensure_ascii=False))


def _gbnf(rules: Rules) -> TurnGrammar:
    named = gbnf.named({"root": rules.start, **rules.rules})
    return TurnGrammar("gbnf", gbnf.definitions(named))


def _first(languages: Sequence[str], taken: Sequence[str], what: str) -> str:
    """The endpoint's preferred language among those."""
    found = next((each for each in languages if each in taken), None)
    if found is None:
        enforced = ", ".join(languages) or "nothing"
        raise ClientError(
            400,
            f"{what} can't be enforced here: the endpoint takes grammars in {enforced}",
            code="not_enforceable",
        )
    return found
