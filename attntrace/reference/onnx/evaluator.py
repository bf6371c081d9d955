"""One operator of ONNX on some arrays, through onnx's reference evaluator."""

from __future__ import annotations

import warnings
from functools import lru_cache
from typing import Any

import numpy as np
from onnx import TypeProto, helper
from onnx.reference import ReferenceEvaluator

from attntrace.tape import Array

OPSET = 25  # the first in which Attention has windows


def run(operator: str, *inputs: Array | None, outputs: int = 1, **attributes: Any) -> list[Array]:
    """The outputs of a model of one node; None is an input that is left out."""
    shapes = tuple(None if a is None else (a.dtype, a.ndim) for a in inputs)
    model = evaluator(operator, shapes, outputs, tuple(sorted(attributes.items())))
    feeds = {f"in{i}": a for i, a in enumerate(inputs) if a is not None}
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # rows of −∞
        return [np.asarray(a) for a in model.run(None, feeds)]


@lru_cache(maxsize=256)
def evaluator(operator: str, inputs: tuple[Any, ...], outputs: int, attributes: tuple[tuple[str, Any], ...]) -> Any:
    names = ["" if kind is None else f"in{i}" for i, kind in enumerate(inputs)]
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kind[0]), [None] * kind[1])
        for name, kind in zip(names, inputs, strict=True)
        if kind is not None
    ]
    results = [f"out{i}" for i in range(outputs)]
    node = helper.make_node(operator, names, results, **dict(attributes))
    graph = helper.make_graph([node], operator, infos, [helper.make_value_info(name, TypeProto()) for name in results])
    return ReferenceEvaluator(helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)]))


def op(operator: str, *inputs: Array | None, **attributes: Any) -> Array:
    """The first output of an operator."""
    return run(operator, *inputs, **attributes)[0]


def transpose(a: Array, *axes: int) -> Array:
    """Axes in another order; with two of them, only these are exchanged."""
    if len(axes) == 2:
        order = list(range(a.ndim))
        order[axes[0]], order[axes[1]] = order[axes[1]], order[axes[0]]
        axes = tuple(order)
    return op("Transpose", a, perm=axes)


def reshape(a: Array, *shape: int) -> Array:
    return op("Reshape", a, np.array(shape, np.int64))


def concat(*parts: Array, axis: int) -> Array:
    return op("Concat", *parts, axis=axis)


def cut(a: Array, start: int, stop: int, axis: int) -> Array:
    return op("Slice", a, *(np.array([n], np.int64) for n in (start, stop, axis)))


def gather(a: Array, at: Array, axis: int) -> Array:
    return op("Gather", a, at.astype(np.int64), axis=axis)


def number(value: float, like: Array) -> Array:
    """A constant in the dtype of an array."""
    return np.array(value, like.dtype)
