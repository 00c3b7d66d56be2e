from __future__ import annotations

import ast
import operator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import localreact
from localreact.tools.calculator import CalculatorError, calculator, evaluate, show


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("3*45+2*12", "159"),
        ("0.1+0.2", "0.3"),
        ("1/3", "0.333333333333"),
        ("10/4", "2.5"),
        ("-1/8", "-0.125"),
        ("2^10", "1024"),
        ("3*2^2", "12"),
        ("-2^2", "-4"),
        ("-7//2", "-4"),
        ("7 % 3", "1"),
        ("12 × 3 − 6 ÷ 2 =", "33"),
        ("sqrt(16)", "4"),
        ("sqrt(2)", "1.41421356237"),
        ("round(3.14159, 2)", "3.14"),
        ("max(1, 2, 3)", "3"),
        ("2**200", str(2**200)),
        ("123456789012345678901234567890+1", "123456789012345678901234567891"),
        ("1_000*2", "2000"),
        ("pi", "3.14159265359"),
        ("1e3", "1000"),
    ],
)
def test_arithmetic(expression: str, value: str) -> None:
    assert calculator(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os').system('true')",
        "().__class__",
        "a + 1",
        "'a' * 3",
        "[1, 2]",
        "lambda: 1",
        "True",
        "1 if 1 else 2",
        "(x := 5)",
        "sqrt.__self__",
        "max(*[1, 2])",
        "round(number=2)",
        "1; 2",
        "",
        "9**9**9",
        "2**2**20",
        "10**3000",
        "1e999999999",
        "1e-999999999",
        "round(1/3, 10**9)",
        "1/0",
        "(-8)**(1/3)",
        "1" * 501,
        "(" * 400,
        "-" * 499 + "1" + "+" * 5,
        "\x00",
    ],
)
def test_what_is_no_arithmetic_or_too_large_is_refused_at_once(expression: str) -> None:
    with pytest.raises(CalculatorError):
        evaluate(expression)


@given(
    st.recursive(
        st.integers(0, 10**6).map(str),
        lambda inner: st.builds("({}{}{})".format, inner, st.sampled_from("+-*"), inner),
        max_leaves=12,
    )
)
def test_integers_are_exact(expression: str) -> None:
    operators = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}

    def plain(node: ast.expr) -> int:
        if isinstance(node, ast.BinOp):
            return int(operators[type(node.op)](plain(node.left), plain(node.right)))
        assert isinstance(node, ast.Constant)
        assert isinstance(node.value, int)
        return node.value

    assert show(evaluate(expression)) == str(plain(ast.parse(expression, mode="eval").body))


def test_eval_is_nowhere_but_in_the_process_that_is_made_for_it() -> None:
    for path in Path(localreact.__file__).parent.rglob("*.py"):
        if path.name == "python_child.py":
            continue
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec", "compile"), path
