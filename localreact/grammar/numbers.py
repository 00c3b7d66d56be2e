"""Numbers between bounds, digit by digit, in plain notation (no exponent). Without bounds an exponent is
below 300: what no float holds is no number to the parser.

Bounds are exact: integers of any size, and decimals as they are written.
"""

from __future__ import annotations

from decimal import Decimal

from localreact.grammar.nodes import EMPTY, NOTHING, alt, maybe, repeat, seq
from localreact.grammar.rules import Chars, Node, Repeat, Text

DIGIT = Chars(((48, 57),))
_ZERO = Chars(((48, 48),))
INTEGER: Node = seq(maybe(Text("-")), alt([Text("0"), seq(Chars(((49, 57),)), Repeat(DIGIT))]))
_EXPONENT = alt(
    [
        seq(Text("-"), Repeat(DIGIT, 1, 3)),
        seq(maybe(Text("+")), alt([Repeat(DIGIT, 1, 2), seq(Chars(((48, 50),)), DIGIT, DIGIT)])),
    ]
)
NUMBER: Node = seq(
    INTEGER,
    maybe(seq(Text("."), Repeat(DIGIT, 1))),
    maybe(seq(Chars(((69, 69), (101, 101))), _EXPONENT)),
)


def integers(least: int | None, most: int | None) -> Node:
    """Integers from `least` to `most`, both included; None for no bound."""
    if least is None and most is None:
        return INTEGER
    options: list[Node] = []
    if least is None or least < 0:
        low = 1 if most is None or most >= 0 else -most
        options.append(seq(Text("-"), _naturals(low, None if least is None else -least)))
    if most is None or most >= 0:
        options.append(_naturals(max(least or 0, 0), most))
    return alt(options)


def numbers(least: Decimal | None, most: Decimal | None, above: bool = False, below: bool = False) -> Node:
    """Numbers from `least` to `most`; `above` and `below` exclude the bounds themselves."""
    if least is None and most is None:
        return NUMBER
    zero = Decimal(0)
    options: list[Node] = []
    if least is None or least < 0:
        if most is None or most >= 0:
            magnitude = _decimals(zero, None if least is None else -least, True, above)
        else:
            magnitude = _decimals(-most, None if least is None else -least, below, above)
        options.append(seq(Text("-"), magnitude))
    if most is None or most >= 0:
        positive = least is not None and least >= 0
        low = least if positive and least is not None else zero
        options.append(_decimals(low, most, above and positive, below))
    return alt(options)


def _naturals(least: int, most: int | None) -> Node:
    """Integers from 0 on, without leading zeros."""
    if most is not None and least > most:
        return NOTHING
    low = str(least)
    if most is None:
        longer = seq(Chars(((49, 57),)), Repeat(DIGIT, len(low)))
        return alt([_same_length(low, "9" * len(low)), longer])
    high = str(most)
    if len(low) == len(high):
        return _same_length(low, high)
    options = [_same_length(low, "9" * len(low))]
    if len(high) - len(low) > 1:
        options.append(seq(Chars(((49, 57),)), repeat(DIGIT, len(low), len(high) - 2)))
    return alt([*options, _same_length("1" + "0" * (len(high) - 1), high)])


def _same_length(low: str, high: str) -> Node:
    """Digit strings of one length, from `low` to `high`."""
    if not low:
        return EMPTY
    if set(low) == {"0"} and set(high) == {"9"}:
        return repeat(DIGIT, len(low), len(low))
    if low[0] == high[0]:
        return seq(Text(low[0]), _same_length(low[1:], high[1:]))
    rest = len(low) - 1
    first, last = ord(low[0]), ord(high[0])
    options: list[Node] = []
    if set(low[1:]) <= {"0"}:
        first -= 1
    else:
        options.append(seq(Text(low[0]), _same_length(low[1:], "9" * rest)))
    if set(high[1:]) <= {"9"}:
        last += 1
    else:
        options.append(seq(Text(high[0]), _same_length("0" * rest, high[1:])))
    if first + 1 <= last - 1:
        options.append(seq(Chars(((first + 1, last - 1),)), repeat(DIGIT, rest, rest)))
    return alt(options)


def _decimals(least: Decimal, most: Decimal | None, above: bool, below: bool) -> Node:
    """Numbers from `least` (0 or more) to `most`: integer parts in between with any fraction, those at the
    ends with what their bound leaves of it."""
    if most is not None and least > most:
        return NOTHING
    whole, low = _split(least)
    if most is None:
        inner = seq(_naturals(whole + 1, None), maybe(_fraction("", None, False, False)))
        return alt([_at(whole, low, None, above, False), inner])
    last, high = _split(most)
    if whole == last:
        return _at(whole, low, high, above, below)
    inner = seq(_naturals(whole + 1, last - 1), maybe(_fraction("", None, False, False)))
    return alt([_at(whole, low, None, above, False), inner, _at(last, "", high, False, below)])


def _split(value: Decimal) -> tuple[int, str]:
    whole, _, fraction = f"{value:f}".partition(".")
    return int(whole), fraction.rstrip("0")


def _at(whole: int, low: str, high: str | None, above: bool, below: bool) -> Node:
    """Numbers with one integer part, and a fraction between two."""
    node = seq(Text(str(whole)), _fraction(low, high, above, below))
    bare = not low and not above and not (below and high == "")
    return alt([node, Text(str(whole))]) if bare else node


def _fraction(low: str, high: str | None, above: bool, below: bool) -> Node:
    """A point and at least one digit, between two fractions; `high` None for no bound."""
    return seq(Text("."), _digits(low, high, above, below, first=True))


def _digits(low: str, high: str | None, above: bool, below: bool, first: bool = False) -> Node:
    """Digits of a fraction, after a beginning that both bounds share. Trailing zeros change nothing."""
    if not low and high is None:
        if above:  # anything but zeros, which would be the bound itself
            return seq(Repeat(_ZERO), Chars(((49, 57),)), Repeat(DIGIT))
        return Repeat(DIGIT, 1 if first else 0)
    if high == "":  # zeros only
        return NOTHING if low or above or below else Repeat(_ZERO, 1 if first else 0)
    options: list[Node] = [] if first or low or above else [EMPTY]
    lowest = int(low[:1] or "0")
    highest = 9 if high is None else int(high[:1])
    between = [lowest + 1, highest - (high is not None)]
    for digit in sorted({lowest, highest} if high is not None else {lowest}):
        if lowest <= digit <= highest:
            rest_low, rest_above = (low[1:], above) if digit == lowest else ("", False)
            rest_high, rest_below = (high[1:], below) if high and digit == highest else (None, False)
            options.append(seq(Text(str(digit)), _digits(rest_low, rest_high, rest_above, rest_below)))
    if between[0] <= between[1]:
        options.append(seq(Chars(((48 + between[0], 48 + between[1]),)), Repeat(DIGIT)))
    return alt(options)
