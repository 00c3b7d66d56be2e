"""The calculator: arithmetic over an AST whitelist, exact where arithmetic is. `eval` is nowhere."""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from typing import Any

from localreact.tools.decorator import tool
from localreact.types import ToolExample

MAX_CHARACTERS = 500
MAX_BITS = 4096  # of a numerator or denominator
MAX_EXPONENT = 2048

Number = Fraction | float


class CalculatorError(ValueError):
    """An expression that isn't arithmetic, or too large."""


def _power(base: Number, exponent: Number) -> Number:
    if not -MAX_EXPONENT <= exponent <= MAX_EXPONENT:
        raise CalculatorError(f"exponents above {MAX_EXPONENT} are not computed")
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        size = max(base.numerator.bit_length(), base.denominator.bit_length())
        if size * abs(exponent) > MAX_BITS:
            raise CalculatorError(f"the power is too large (over {MAX_BITS} bits)")
    result: Any = base**exponent
    if isinstance(result, complex):
        raise CalculatorError("the result is not a real number")
    return _capped(result)


def _root(x: Number) -> Number:
    if isinstance(x, Fraction) and x >= 0:  # exact where it can be
        top, bottom = math.isqrt(x.numerator), math.isqrt(x.denominator)
        if top * top == x.numerator and bottom * bottom == x.denominator:
            return Fraction(top, bottom)
    return math.sqrt(x)


def _decimal(source: str) -> Fraction:
    """A number as it was written, not as a float: 0.1 is a tenth."""
    value = Decimal(source)
    if abs(value.adjusted()) > MAX_EXPONENT // 2:
        raise CalculatorError(f"{source} is out of range")
    return Fraction(value)


def _round(x: Any, digits: Any = 0) -> Number:
    if not -100 <= digits <= 100:
        raise CalculatorError("rounding to that many digits is not computed")
    return _capped(round(x, int(digits)))


def _capped(value: Any) -> Number:
    if isinstance(value, float):
        return value
    exact = Fraction(value)
    if max(exact.numerator.bit_length(), exact.denominator.bit_length()) > MAX_BITS:
        raise CalculatorError(f"a number is too large (over {MAX_BITS} bits)")
    return exact


_BINARY: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: _power,
}
_UNARY: dict[type[ast.unaryop], Callable[[Any], Any]] = {ast.UAdd: operator.pos, ast.USub: operator.neg}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": abs,
    "ceil": math.ceil,
    "exp": math.exp,
    "floor": math.floor,
    "log": math.log,
    "log10": math.log10,
    "max": max,
    "min": min,
    "round": _round,
    "sqrt": _root,
}
_CONSTANTS = {"pi": math.pi, "e": math.e}
_SPELLINGS = str.maketrans(
    {"^": "**", "×": "*", "÷": "/", "−": "-", "·": "*", "（": "(", "）": ")", "，": ",", "＝": "="}
)


@tool(
    examples=[
        ToolExample(
            question="What is 12*4+7?",
            thought="I should use the calculator.",
            arguments={"expression": "12*4+7"},
            result="55",
            conclusion="The result is 55.",
            answer="55",
        ),
        ToolExample(
            question="A box holds 6 eggs. How many eggs are in 15 boxes?",
            thought="I should use the calculator.",
            arguments={"expression": "15*6"},
            result="90",
            conclusion="The result is 90.",
            answer="90",
        ),
    ]
)
def calculator(expression: str) -> str:
    """Evaluate arithmetic: + - * / // % ** and parentheses; sqrt, round, min, max, abs, log, exp.

    Args:
        expression: for example 3*45+2*12
    """
    return show(evaluate(expression))


def evaluate(expression: str) -> Number:
    """The value of an expression: a Fraction while exact, a float after sqrt, log and the like.

    Raises:
        CalculatorError: not arithmetic, larger than the caps, or a division by zero.
        OverflowError, ValueError: as in `math`.
    """
    text = expression.translate(_SPELLINGS).strip().removesuffix("?").rstrip(" =")
    if len(text) > MAX_CHARACTERS:
        raise CalculatorError(f"the expression is longer than {MAX_CHARACTERS} characters")
    try:
        tree = ast.parse(text, mode="eval")
    except (SyntaxError, ValueError) as error:  # ValueError: a null byte
        raise CalculatorError(f"{expression!r} is not an arithmetic expression") from error
    except (RecursionError, MemoryError) as error:
        raise CalculatorError("the expression is nested too deeply") from error
    try:
        return _value(tree.body, text)
    except ZeroDivisionError as error:
        raise CalculatorError("division by zero") from error
    except RecursionError as error:
        raise CalculatorError("the expression is nested too deeply") from error


def _value(node: ast.expr, text: str) -> Number:
    match node:
        case ast.Constant(value=bool()):
            pass
        case ast.Constant(value=int(whole)):
            return _capped(Fraction(whole))
        case ast.Constant(value=float()):
            return _decimal(ast.get_source_segment(text, node) or "")
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=op, operand=operand) if type(op) in _UNARY:
            return _capped(_UNARY[type(op)](_value(operand, text)))
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            return _capped(_BINARY[type(op)](_value(left, text), _value(right, text)))
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            return _capped(_FUNCTIONS[name](*(_value(each, text) for each in args)))
    shown = ast.get_source_segment(text, node) or type(node).__name__
    raise CalculatorError(f"{shown!r} is not arithmetic; use numbers, + - * / // % ** and parentheses")


def show(value: Number) -> str:
    """Whole numbers whole, finite decimals exactly (up to 15 digits), the rest to 12 digits."""
    if isinstance(value, Fraction):
        if value.denominator == 1:
            return str(value.numerator)
        for digits in range(1, 16):
            if (value * 10**digits).denominator == 1:
                scaled = abs(int(value * 10**digits))
                whole, part = divmod(scaled, 10**digits)
                return f"{'-' if value < 0 else ''}{whole}.{part:0{digits}d}"
        value = float(value)
    if value.is_integer() and abs(value) < 1e15:
        return str(int(value))
    return f"{value:.12g}"
