"""Evaluates constant expressions of PTX: C's operators on integers. PTX ISA, chapter 4.6."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(
    r"\s*(0[xX][\da-fA-F]+U?|0[bB][01]+U?|\d+U?|WARP_SZ|<<|>>|[<>=!]=|&&|\|\||[-+*/%&|^~!<>?:()])"
)


def _quotient(a: int, b: int) -> int:
    """The quotient, rounded towards zero. Raises ValueError for a division by zero."""
    if not b:
        raise ValueError("a division by zero")
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


_BINARY: tuple[dict[str, Callable[[int, int], int]], ...] = (  # the lowest precedence first
    {"||": lambda a, b: int(bool(a or b))},
    {"&&": lambda a, b: int(bool(a and b))},
    {"|": lambda a, b: a | b},
    {"^": lambda a, b: a ^ b},
    {"&": lambda a, b: a & b},
    {"==": lambda a, b: int(a == b), "!=": lambda a, b: int(a != b)},
    {
        "<": lambda a, b: int(a < b),
        ">": lambda a, b: int(a > b),
        "<=": lambda a, b: int(a <= b),
        ">=": lambda a, b: int(a >= b),
    },
    {"<<": lambda a, b: a << (b & 63), ">>": lambda a, b: a >> (b & 63)},
    {"+": lambda a, b: a + b, "-": lambda a, b: a - b},
    {"*": lambda a, b: a * b, "/": _quotient, "%": lambda a, b: a - b * _quotient(a, b)},
)
_UNARY: dict[str, Callable[[int], int]] = {
    "+": lambda a: a,
    "-": lambda a: -a,
    "~": lambda a: ~a,
    "!": lambda a: int(not a),
}


def number(digits: str) -> int:
    """The value of a literal without a sign. Raises ValueError."""
    digits = digits.lower().rstrip("u")
    base = 16 if digits.startswith("0x") else 2 if digits.startswith("0b") else 10
    if base == 10 and len(digits) > 1 and digits.startswith("0"):
        base = 8
    return int(digits, base)


def evaluate(text: str) -> int:
    """The value, whose lowest 64 bits are used. Raises ValueError for anything else."""
    tokens, offset = [], 0
    while text[offset:].strip():
        match = _TOKEN.match(text, offset)
        if not match:
            raise ValueError(f"no constant: {text!r}")
        tokens.append(match[1])
        offset = match.end()
    value = _choice(tokens)
    if tokens:
        raise ValueError(f"no constant: {text!r}")
    return value


def _take(tokens: list[str], wanted: str = "") -> str:
    if not tokens or (wanted and tokens[0] != wanted):
        raise ValueError(f"a constant lacks {wanted or 'a value'}")
    return tokens.pop(0)


def _choice(tokens: list[str]) -> int:
    value = _level(tokens, 0)
    if tokens[:1] != ["?"]:
        return value
    _take(tokens)
    first = _choice(tokens)
    _take(tokens, ":")
    second = _choice(tokens)
    return first if value else second


def _level(tokens: list[str], level: int) -> int:
    if level == len(_BINARY):
        return _primary(tokens)
    value = _level(tokens, level + 1)
    while tokens and tokens[0] in _BINARY[level]:
        operator = _BINARY[level][_take(tokens)]
        value = operator(value, _level(tokens, level + 1))
    return value


def _primary(tokens: list[str]) -> int:
    token = _take(tokens)
    if token in _UNARY:
        return _UNARY[token](_primary(tokens))
    if token == "(":
        value = _choice(tokens)
        _take(tokens, ")")
        return value
    return 32 if token == "WARP_SZ" else number(token)
