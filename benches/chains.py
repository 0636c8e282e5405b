"""Chains of pointwise operations for bench_pipeline.py: one list of steps, written out as a nested
expression in each library's words.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import cycle, islice
from typing import Any

import numba_loops
import numpy as np

import keyfold as kf

# The operand of a step is an input, a number of these, or nothing.
NUMBERS = {"quarter": 0.25, "half": 0.5, "low": -0.75}
INPUTS = ("x", "a", "b")

# Of inputs from -1 to 1 all results stay within 5, however long the chain is, and `sqrt` is of
# numbers above 0.3: the libraries' roundings stay as small as they are.
STEPS = {
    "arithmetic": (
        *(("mul", "a"), ("add", "quarter"), ("sub", "b"), ("at_least", "low")),
        *(("mul", "half"), ("add", "a"), ("maximum", "b"), ("sub", "half")),
    ),
    "functions": (
        *(("tanh", ""), ("mul", "a"), ("exp", ""), ("sub", "b")),
        *(("sigmoid", ""), ("sqrt", ""), ("add", "a"), ("abs", "")),
    ),
}

# Each operation in Python.
PLAIN = {
    "mul": "({x} * {y})",
    "add": "({x} + {y})",
    "sub": "({x} - {y})",
    "maximum": "maximum({x}, {y})",
    "at_least": "at_least({x}, {y})",
    "tanh": "tanh({x})",
    "exp": "exp({x})",
    "sigmoid": "sigmoid({x})",
    "sqrt": "sqrt({x})",
    "abs": "abs({x})",
}
EXPRESSION = PLAIN | {"at_least": PLAIN["maximum"]}
BY_EXP = "(one / (one + exp(-{x})))"
# numexpr's own `maximum` is float64's alone.
NUMEXPR = PLAIN | dict.fromkeys(("maximum", "at_least"), "where({x} > {y}, {x}, {y})")
NUMEXPR |= {"sigmoid": BY_EXP}
NUMBA = PLAIN | dict.fromkeys(("maximum", "at_least"), "max({x}, {y})")
NUMBA |= {name: f"math.{PLAIN[name]}" for name in ("tanh", "exp", "sqrt")}
NUMBA |= {"sigmoid": BY_EXP.replace("exp", "math.exp")}

# Beside float64 numbers numexpr and numba compute in float64.
FLOAT32 = {name: np.float32(value) for name, value in NUMBERS.items()} | {"one": np.float32(1)}

Function = Callable[..., Any]


def write(kind: str, length: int, forms: Mapping[str, str], names: Mapping[str, str]) -> str:
    """A chain as one nested expression.

    Args:
        kind: of `STEPS`, which are repeated.
        length: steps.
        forms: what each operation is, of `{x}`, the last result, and `{y}`, the operand.
        names: what inputs and numbers are called where that isn't their name.
    """
    text = names.get("x", "x")
    for operation, operand in islice(cycle(STEPS[kind]), length):
        text = forms[operation].format(x=text, y=names.get(operand, operand))
    return text


def python(kind: str, length: int, functions: Mapping[str, Any]) -> Function:
    """A chain in Python, `f(x, a, b)`, of a library's functions; operators are its arrays' own."""
    text = write(kind, length, PLAIN, {})
    return eval(f"lambda x, a, b: {text}", {**functions, **NUMBERS})


def expression(kind: str, length: int) -> Function:
    """A chain as an expression of keyfold, `f(x, a, b)`."""
    numbers = {name: repr(value) for name, value in NUMBERS.items()}
    made = kf.Expression(write(kind, length, EXPRESSION, numbers))
    assert sorted(made.inputs) == sorted(INPUTS)
    order = [INPUTS.index(name) for name in made.inputs]
    if order == [0, 1, 2]:
        return made
    return lambda *arrays: made(*(arrays[place] for place in order))


def numexpr(module: Any, kind: str, length: int, around: str = "{}") -> Function:
    """A chain compiled by numexpr, `f(x, a, b)`; `around` is what is done with its result."""
    text = write(kind, length, NUMEXPR, {})
    used = {name: value for name, value in FLOAT32.items() if name in text}
    # In a signature `float` is float32.
    signature = [(name, float) for name in (*INPUTS, *used)]
    compiled, numbers = module.NumExpr(around.format(text), signature), tuple(used.values())
    return lambda *arrays: compiled(*arrays, *numbers)


def numba(module: Any, kind: str, length: int) -> Function:
    """A chain as numba's loop over flat arrays, `f(x, a, b)`."""
    elements = {name: f"{name}_" for name in INPUTS}
    text = write(kind, length, NUMBA, elements)
    loop = numba_loops.pointwise(module, text, ", ".join(INPUTS), FLOAT32)

    def call(*arrays: Any) -> Any:
        out = np.empty_like(arrays[0])
        loop(*arrays, out)
        return out

    return call
