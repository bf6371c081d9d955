"""What every operation says of its own errors: `rounding` and `spread` are honest bounds, and not absurdly wide ones."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from attntrace import ops
from attntrace.compare import SLACK
from attntrace.dtypes import dtype, epsilon, smallest
from attntrace.ops.position import Linear, Llama3

Array = np.ndarray[Any, Any]
Operands = list[Array]
EPS, TINY = float(np.finfo(np.float32).eps), float(np.finfo(np.float32).smallest_subnormal)
TRIES = 40


@dataclass(frozen=True)
class Case:
    """An operation on random operands. `fixed` operands only count or choose, and have no errors.

    `slack`: how many times wider than the worst error of all tries a bound may be. `moved` is the same for `spread`.
    """

    operation: ops.Operation
    make: Callable[[np.random.Generator], Sequence[Any]]
    fixed: tuple[int, ...] = ()
    slack: float = 100
    moved: float = 20
    sizes: tuple[float, ...] = field(default=(1e-6, 1e-2, 0.3))


def normal(*shapes: tuple[int, ...], scale: float = 2.0) -> Callable[[np.random.Generator], Operands]:
    return lambda rng: [scale * rng.normal(size=shape) for shape in shapes]


def scores(*others: tuple[int, ...]) -> Callable[[np.random.Generator], Operands]:
    """(batch 2, head 3, query 4, key 5), some keys hidden, and a query that may attend to nothing; then further operands."""

    def make(rng: np.random.Generator) -> Operands:
        s = 3 * rng.normal(size=(2, 3, 4, 5))
        s[rng.random(s.shape) < 0.2] = -np.inf
        s[0, 0, 0] = -np.inf
        return [s, *(rng.normal(size=shape) for shape in others)]

    return make


def below_their_maximum(rng: np.random.Generator) -> Operands:
    (s,) = scores()(rng)
    m = s.max(axis=-1) + rng.random(s.shape[:-1])
    m[1, 1] = -np.inf  # rows without keys so far
    s[1, 1] = -np.inf
    return [s, m]


def pairs_of_maxima(rng: np.random.Generator) -> Operands:
    old = 3 * rng.normal(size=(3, 4))
    old[0, 0] = -np.inf
    return [old, np.maximum(old, 3 * rng.normal(size=(3, 4)))]


def sums(rng: np.random.Generator, *shape: int) -> Array:
    return 1 + 4 * rng.random(shape)


def merging(rows: bool, beta: bool) -> Callable[[np.random.Generator], Operands]:
    """Partial sums, or outputs with a row for each, and factors between 0 and 1."""

    def make(rng: np.random.Generator) -> Operands:
        a, b = (rng.normal(size=(3, 4, 2)) if rows else sums(rng, 3, 4) for _ in "ab")
        return [a, rng.random((3, 4)), b, *([rng.random((3, 4))] if beta else [])]

    return make


def table_of_blocks(rng: np.random.Generator) -> Operands:
    return [rng.normal(size=(4, 2, 3, 2)), np.array([[3.0, 0.0], [1.0, 3.0]])]


def masked(rng: np.random.Generator) -> Operands:
    hidden = np.where(rng.random((2, 4, 5)) < 0.3, -np.inf, rng.normal(size=(2, 4, 5)))
    return [rng.normal(size=(2, 3, 4, 5)), hidden]


def kept(rng: np.random.Generator) -> Operands:
    return [rng.random((3, 4)), (rng.random((3, 4)) < 0.6).astype(float)]


def turning(rng: np.random.Generator) -> Operands:
    angles = 7 * rng.normal(size=(2, 4, 2))
    return [rng.normal(size=(2, 3, 4, 6)), np.cos(angles), np.sin(angles)]


CASES: dict[str, Case] = {
    "MatMul": Case(ops.MatMul(), normal((2, 3, 4, 6), (2, 3, 6, 5))),
    "MatMul, transposed": Case(ops.MatMul(transpose=True), normal((3, 4, 6), (3, 5, 6))),
    "Project": Case(ops.Project(2), normal((2, 4, 6), (6, 8), (8,))),
    "Project, columns, stored out, in": Case(ops.Project(None, (1, 3), True), normal((4, 6), (5, 6), (5,))),
    "Split": Case(ops.Split(2), normal((3, 4, 6))),
    "Merge": Case(ops.Merge(), normal((2, 3, 4, 2))),
    "Same": Case(ops.Same(), normal((3, 4))),
    "Repeat": Case(ops.Repeat(2), normal((2, 2, 3, 4))),
    "Take": Case(ops.Take(1, 3), normal((2, 4, 3))),
    "Concat": Case(ops.Concat(), normal((2, 4, 3), (2, 1, 3))),
    "Gather": Case(ops.Gather(5), table_of_blocks, fixed=(1,)),
    "LookUp": Case(ops.LookUp(), lambda rng: [rng.normal(size=(6, 2)), np.array([[0.0, 5.0], [2.0, 2.0]])], fixed=(1,)),
    "LookUp, by batch": Case(ops.LookUp(), lambda rng: [rng.normal(size=(2, 6, 2)), np.array([4.0, 1.0])], fixed=(1,)),
    "Normalise, layernorm": Case(ops.Normalise("layernorm", 1e-5, True, True), normal((3, 8), (8,), (8,)), sizes=(1e-6, 1e-2)),
    "Normalise, rmsnorm": Case(ops.Normalise("rmsnorm", 1e-6, True), normal((2, 3, 8), (8,)), sizes=(1e-6, 1e-2)),
    "Normalise, l2": Case(ops.Normalise("l2", 1e-12), normal((3, 8)), sizes=(1e-6, 1e-2)),
    "RowMax": Case(ops.RowMax(), scores()),
    "Maximum": Case(ops.Maximum(), normal((3, 4), (3, 4))),
    "ExpDifference": Case(ops.ExpDifference(), pairs_of_maxima),
    "ExpDifference, by rows": Case(ops.ExpDifference(rows=True), below_their_maximum),
    "RowSum": Case(ops.RowSum(), lambda rng: [rng.random((3, 4, 6))]),
    "Combine": Case(ops.Combine(), merging(rows=False, beta=False)),
    "Combine, rows of two": Case(ops.Combine(rows=True), merging(rows=True, beta=True)),
    "Quotient": Case(ops.Quotient(), lambda rng: [rng.normal(size=(3, 4, 2)), sums(rng, 3, 4)]),
    "AddSink": Case(ops.AddSink(), lambda rng: [sums(rng, 2, 3, 4), rng.normal(size=(2, 3, 4)), rng.normal(size=3)]),
    "Scale": Case(ops.Scale(-0.3), normal((3, 4))),
    "Divide": Case(ops.Divide(1.7), normal((3, 4))),
    "Add": Case(ops.Add(), normal((3, 4), (3, 4), (3, 4))),
    "AddMask": Case(ops.AddMask((1,)), masked),
    "Dropout": Case(ops.Dropout(0.4), kept, fixed=(1,)),
    "Multiply": Case(ops.Multiply(), normal((3, 4), (3, 4))),
    "Softcap": Case(ops.Softcap(3.0), normal((3, 40), scale=6)),
    "Cos": Case(ops.Cos(), normal((3, 4), scale=20)),
    "Sin": Case(ops.Sin(), normal((3, 4), scale=20)),
    "Activate, relu": Case(ops.Activate("relu"), normal((3, 40), scale=4)),
    "Activate, gelu": Case(ops.Activate("gelu"), normal((3, 40), scale=4)),
    "Activate, gelu_tanh": Case(ops.Activate("gelu_tanh"), normal((3, 40), scale=4)),
    "Activate, silu": Case(ops.Activate("silu"), normal((3, 40), scale=8)),
    "Angles": Case(ops.Angles(), lambda rng: [rng.integers(0, 5000, (2, 4)).astype(float), rng.random(3)]),
    "Rotate": Case(ops.Rotate("half", 4), turning),
    "Rotate, neighbours": Case(ops.Rotate("interleaved", 4), turning),
    "LinearBias": Case(ops.LinearBias(), lambda rng: [rng.random(3), rng.integers(0, 99, (4, 5)).astype(float)]),
    "LinearBias, one head": Case(ops.LinearBias(), lambda rng: [rng.random(1), rng.integers(0, 99, (4, 5)).astype(float)]),
    "Softmax": Case(ops.Softmax(), scores()),
    "Softmax with a sink": Case(ops.Softmax(), scores((3,))),
    "SinkWeight": Case(ops.SinkWeight(), scores((3,))),
}
# Given nothing, they are computed in float64 and only then rounded.
WITHOUT_OPERANDS = {
    "Frequencies": ops.Frequencies(10000.0, 8),
    "Frequencies, linear": ops.Frequencies(500.0, 6, Linear(3.0)),
    "Frequencies, llama3": ops.Frequencies(500000.0, 64, Llama3(8.0, 1.0, 4.0, 8192.0)),
    "Slopes": ops.Slopes(12),
}


def narrow(operands: Sequence[Array]) -> Operands:
    return [o.astype(np.float32) for o in operands]


def wide(operands: Sequence[Array]) -> Operands:
    return [o.astype(np.float64) for o in operands]


def apart(a: Array, b: Array) -> Array:
    """|a − b|, and 0 where both are the same infinity."""
    with np.errstate(invalid="ignore"):
        return np.where(a == b, 0.0, np.abs(a - b))


def bound(operation: ops.Operation, operands: Sequence[Array]) -> Array:
    """What one float32 result may be off by: each of the roundings counted whole, as `compare` does."""
    with np.errstate(all="ignore"):
        length, size = operation.rounding(*operands)
    return np.asarray((length + SLACK) * (EPS * size + TINY) * (length > 0))


def test_every_operation_is_here() -> None:
    cases = [*(case.operation for case in CASES.values()), *WITHOUT_OPERANDS.values()]
    there = {cls for name in ops.__all__ if issubclass(cls := getattr(ops, name), ops.Operation)}
    assert {type(operation) for operation in cases} == there - {ops.Operation, ops.Copying}


@pytest.mark.parametrize("name", CASES)
def test_a_result_in_float32_is_as_near_as_rounding_says(name: str) -> None:
    """Held against the same in float64, on operands that both have exactly; the worst of many is not far below the bound."""
    case, rng, worst, widest = CASES[name], np.random.default_rng(1), 0.0, 0.0
    for _ in range(TRIES):
        operands = narrow(case.make(rng))
        with np.errstate(all="ignore"):
            result, exact = case.operation.forward(*operands), case.operation.forward(*wide(operands))
        assert result.dtype == np.float32
        allowed, error = bound(case.operation, wide(operands)), apart(result.astype(np.float64), exact)
        assert allowed.shape == result.shape
        assert (error <= allowed).all(), float((error - allowed).max())
        worst, widest = max(worst, float(error.max())), max(widest, float(allowed.max()))
    assert widest <= case.slack * worst, widest / worst


@pytest.mark.parametrize("name", CASES)
def test_a_result_moves_no_further_than_spread_says(name: str) -> None:
    """Operands moved at random, half of them as far as they may; the farthest moves are not far below the bound."""
    case, rng = CASES[name], np.random.default_rng(2)
    for size in case.sizes:
        farthest, widest = 0.0, 0.0
        for _ in range(TRIES):
            operands = case.make(rng)
            errors = [np.zeros(o.shape) if i in case.fixed else size * rng.random(o.shape) for i, o in enumerate(operands)]
            with np.errstate(all="ignore"):
                result, allowed = case.operation.forward(*operands), case.operation.spread(errors, *operands)
                moved = [o + e * direction(rng, o.shape) for o, e in zip(operands, errors, strict=True)]
                move = apart(case.operation.forward(*moved), result)
            finite = np.isfinite(result)
            assert np.broadcast_shapes(allowed.shape, result.shape) == result.shape
            assert (move <= allowed * (1 + 1e-6) + 1e-12)[finite].all(), float((move - allowed)[finite].max())
            farthest = max(farthest, float(move[finite].max()))
            widest = max(widest, float(np.broadcast_to(allowed, result.shape)[finite].max()))
        assert widest <= case.moved * farthest, (size, widest / farthest)


def direction(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return np.where(rng.random(shape) < 0.5, rng.choice([-1.0, 1.0], shape), rng.uniform(-1, 1, shape))


@pytest.mark.parametrize("name", WITHOUT_OPERANDS)
def test_tables_computed_from_nothing(name: str) -> None:
    """They may be rounded to float32, and computed in it from the beginning; they do not move."""
    operation = WITHOUT_OPERANDS[name]
    values, allowed = operation.forward(), bound(operation, [])
    assert (np.abs(values.astype(np.float32) - values) <= allowed).all()
    assert (allowed <= 500 * EPS * np.abs(values) + 20 * TINY).all()
    assert not operation.spread([]).any()


@pytest.mark.parametrize("inner", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("kind", [ops.Softmax, ops.SinkWeight])
def test_a_softmax_in_a_dtype_of_its_own(kind: Any, inner: str) -> None:
    """Large scores that lie close together are rounded to it first, which costs most."""
    operation, plain, rng = kind(inner=dtype(inner)), kind(), np.random.default_rng(3)
    for _ in range(TRIES):
        s, z = scores((3,))(rng)
        s, z = s + 40, z + 40
        with np.errstate(all="ignore"):
            length, size = operation.rounding(s, z)
            error = np.abs(operation.forward(s, z) - plain.forward(s, z))
        allowed = (length + SLACK) * (epsilon(dtype(inner)) * size + smallest(dtype(inner)))
        assert (error <= allowed).all()
        assert allowed.max() <= 1000 * error.max()
