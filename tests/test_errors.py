"""Bad input, and what is said about it, word for word."""
# ruff: noqa: E501 - messages stand here as they are printed

from __future__ import annotations

import io
import os
import pickle
import re
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("safetensors")

# Valid configs, to be broken: of three tokens, without its x, in a batch and drawn, and given directly.
T = "x: [[1, 0], [0, 1], [1, 1]]\nw_q: [[1, 2], [0, 1]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n"
W = T.partition("\n")[2]
D = """seed: 1
x: {draw: normal, shape: [2, 3, 4]}
w_q: {draw: normal, shape: [4, 4]}
w_k: {draw: normal, shape: [4, 4]}
w_v: {draw: normal, shape: [4, 4]}
"""
Q = "q: [[1, 0], [0, 1]]\nk: [[1, 0], [0, 1], [1, 1]]\nv: [[1], [2], [3]]\n"
# And some for further parts: an odd d_k, two heads, grouped heads, many tokens, values wider than x.
D3 = D.replace("[4, 4]", "[4, 3]")
H = D + "heads: 2\n"
G = """seed: 1
heads: 4
kv_heads: 2
x: {draw: normal, shape: [2, 3, 4]}
w_q: {draw: normal, shape: [4, 8]}
w_k: {draw: normal, shape: [4, 4]}
w_v: {draw: normal, shape: [4, 4]}
"""
LONG = D.replace("[2, 3, 4]", "[200, 4]")
WIDE = T.replace("w_v: [[2, 0], [0, 3]]", "w_v: [[2, 0, 1], [0, 3, 1]]")
RUN = ("run", "c.yaml")


def npy(array: Any, **options: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, **options)
    return stream.getvalue()


def lie() -> bytes:
    """A header that promises terabytes."""
    header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000000, 2), }".ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header


def archive(**members: bytes) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in members.items():
            file.writestr(f"{name}.npy", content)
    return stream.getvalue()


class Payload:
    """Unpickling it runs a command."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("echo pwned",)


FILES = {
    "pickle.npy": pickle.dumps(Payload()),
    "objects.npy": npy(np.array([Payload()], dtype=object), allow_pickle=True),
    "text.npy": npy(np.array([["a"]])),
    "complex.npy": npy(np.ones((3, 2), dtype=complex)),
    "empty.npy": b"",
    "short.npy": npy(np.ones((3, 2)))[:-3],
    "lie.npy": lie(),
    "lie.npz": archive(a=lie()),
    "two.npz": archive(a=npy(np.ones((3, 2))), b=npy(np.ones(2))),
    "weights.pt": b"PK",
    "ragged.csv": b"1,2\n3\n",
    "broken.safetensors": b"\xff" * 20,
    "good.npy": npy(np.ones((3, 2))),
    "twos.npy": npy(np.full((3, 3), 2.0)),
}


# name: (the text of c.yaml, the command, what it says)
CASES: dict[str, tuple[str | None, tuple[str, ...], str]] = {
    "empty": (
        "",
        RUN,
        ('\nerror: c.yaml:1:1: the file is empty: expected a mapping such as "x: [[1, 0], [0, 1]]"\n  1 | \n    | ^\n'),
    ),
    "only a comment": (
        "# nothing yet\n",
        RUN,
        r"""
error: c.yaml:1:1: the file is empty: expected a mapping such as "x: [[1, 0], [0, 1]]"
  1 | # nothing yet
    | ^
""",
    ),
    "list": (
        "- 1\n- 2\n",
        RUN,
        r"""
error: c.yaml:1:1: expected a mapping such as "x: [[1, 0], [0, 1]]", found a list
  1 | - 1
    | ^
""",
    ),
    "scalar": (
        "hello\n",
        RUN,
        r"""
error: c.yaml:1:1: expected a mapping such as "x: [[1, 0], [0, 1]]", found "hello"
  1 | hello
    | ^
""",
    ),
    "two documents": (
        T + "---\nx: [[1, 0], [0, 1], [1, 1]]\nw_q: [[1, 2], [0, 1]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n",
        RUN,
        r"""
error: c.yaml:5:1: a second document starts here: expected one
  5 | ---
    | ^
""",
    ),
    "tab": (
        "mask:\n\tpadding: [3]\n",
        RUN,
        r"""
error: c.yaml:2:1: a tab cannot be used for indentation: use spaces
  2 | \tpadding: [3]
    | ^
""",
    ),
    "bell": (
        "x: \x07\n",
        RUN,
        r"""
error: c.yaml:1:4: the character U+0007 is not allowed in YAML
  1 | x: \x07
    |    ^
""",
    ),
    "unclosed quote": (
        'title: "abc\nx: 5\n',
        RUN,
        r"""
error: c.yaml:1:8: the quotes that open here are never closed
  1 | title: "abc
    |        ^
""",
    ),
    "unclosed list": (
        "x: [[1, 0], [0, 1\nw_q: 3\n",
        RUN,
        r"""
error: c.yaml:2:4: expected "," or "]" in the list that starts on line 1, found ":"
  2 | w_q: 3
    |    ^
""",
    ),
    "tag that would run code": (
        "x: !!python/object/apply:os.system ['echo pwned']\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: the tag !!python/object/apply:os.system is refused and nothing is executed: expected !!seq or none, or quotes if it is text
  1 | x: !!python/object/apply:os.system
    |    ^
""",
    ),
    "two tags in a line": (
        "x: [!!python/a 'pwned', !!python/b 'pwned']\n" + W,
        RUN,
        r"""
error: c.yaml:1:5: the tag !!python/a is refused and nothing is executed: expected !!int, !!float, !!bool, !!null, !!str or none, or quotes if it is text
  1 | x: [!!python/a
    |     ^
error: c.yaml:1:25: the tag !!python/b is refused and nothing is executed: expected !!int, !!float, !!bool, !!null, !!str or none, or quotes if it is text
  1 | x: [!!python/a…………………………!!python/b
    |                         ^
""",
    ),
    "unknown alias": (
        W + "x: *there\n",
        RUN,
        r"""
error: c.yaml:4:4: the alias *there cannot be expanded: nothing above it is named &there; put it in quotes if it is text
  4 | x: *there
    |    ^
""",
    ),
    "alias of itself": (
        W + "x: &a [*a]\n",
        RUN,
        r"""
error: c.yaml:4:8: the alias *a cannot be expanded: it is a part of &a itself
  4 | x: &a [*a]
    |        ^
""",
    ),
    "too deep": (
        "x: " + "[" * 70 + "]" * 70 + "\n",
        RUN,
        r"""
error: c.yaml:1:67: lists and mappings nested more than 64 deep
  1 | …[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]…
    |                                        ^
""",
    ),
    "alias bomb": (
        "a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1]\nb: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a]\nc: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b]\nd: &d [*c, *c, *c, *c, *c, *c, *c, *c, *c]\ne: &e [*d, *d, *d, *d, *d, *d, *d, *d, *d]\nf: &f [*e, *e, *e, *e, *e, *e, *e, *e, *e]\ng: &g [*f, *f, *f, *f, *f, *f, *f, *f, *f]\nh: &h [*g, *g, *g, *g, *g, *g, *g, *g, *g]\n",
        RUN,
        r"""
error: c.yaml:8:8: aliases expand the 89 values written here to more than 100000: write them out
  8 | h: &h [*g, *g, *g, *g, *g, *g, *g, *g, *g]
    |        ^
""",
    ),
    "duplicate key": (
        T + "w_q: [[1, 0], [0, 1]]\nheds: 2\n",
        RUN,
        r"""
error: c.yaml:5:1: duplicate key "w_q" (first on line 2)
  5 | w_q: [[1, 0], [0, 1]]
    | ^
error: c.yaml:6:1: unknown key 'heds'; did you mean "heads"?
  6 | heds: 2
    | ^
""",
    ),
    "list as key": (
        T + "? [a, b]\n: 1\n",
        RUN,
        r"""
error: c.yaml:5:3: a key must be a word, found a list or a mapping
  5 | ? [a, b]
    |   ^
""",
    ),
    "second anchor line": (
        "x: [[1, 0], [0, 1], [1, 1]]\nw_q: !!float [[1, 2], [0, 1]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n",
        RUN,
        r"""
error: c.yaml:2:6: the tag !!float is refused and nothing is executed: expected !!seq or none, or quotes if it is text
  2 | w_q: !!float
    |      ^
""",
    ),
    "carriage returns": (
        "x: [[1, 0], [0, 1], [1, 1]]\r\nw_q: [[1, 2], [0, 1]]\r\nw_k: [[1, 0], [1, 1]]\r\nw_v: [[2, 0], [0, 3]]\r\nfoo: 1\r\n",
        RUN,
        r"""
error: c.yaml:5:1: unknown key 'foo'
  5 | foo: 1
    | ^
""",
    ),
    "byte-order mark": (
        "\ufeffx: [[1, 0], [0, 1], [1, 1]]\nw_q: [[1, 2], [0, 1]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\nfoo: 1\n",
        RUN,
        r"""
error: c.yaml:5:1: unknown key 'foo'
  5 | foo: 1
    | ^
""",
    ),
    "wide characters": (
        T + "日本: 1\n",
        RUN,
        r"""
error: c.yaml:5:1: unknown key '日本'
  5 | 日本: 1
    | ^
""",
    ),
    "escape in a key": (
        T + '"\\e[31mred\\u202e": 1\n',
        RUN,
        r"""
error: c.yaml:5:1: unknown key '\x1b[31mred\u202e'
  5 | "\e[31mred\u202e": 1
    | ^
""",
    ),
    "long line": (
        T
        + "x_kv: [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a]\n",
        RUN,
        r"""
error: c.yaml:5:188: x_kv[60]: expected a number, found 'a'
  5 | …, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, a]
    |                                                                            ^
""",
    ),
    "unknown key": (
        T + "headz: 2\n",
        RUN,
        r"""
error: c.yaml:5:1: unknown key 'headz'; did you mean "heads"?
  5 | headz: 2
    | ^
""",
    ),
    "unknown key in capitals": (
        "x: [[1, 0], [0, 1], [1, 1]]\nW_Q: [[1, 2], [0, 1]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n",
        RUN,
        r"""
error: c.yaml:2:1: unknown key 'W_Q'; did you mean "w_q"?
  2 | W_Q: [[1, 2], [0, 1]]
    | ^
""",
    ),
    "unknown key, like none": (
        T + "colour: red\n",
        RUN,
        r"""
error: c.yaml:5:1: unknown key 'colour'
  5 | colour: red
    | ^
""",
    ),
    "no value": (
        "x: [[1, 0], [0, 1], [1, 1]]\nw_q:\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n",
        RUN,
        r"""
error: c.yaml:2:5: w_q: expected numbers in lists, {file: …} or {draw: …}, found nothing
  2 | w_q:
    |     ^
""",
    ),
    "null input": (
        "x: [[1, 0], [0, 1], [1, 1]]\nw_q: null\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n",
        RUN,
        r"""
error: c.yaml:2:6: w_q: expected numbers in lists, {file: …} or {draw: …}, found nothing
  2 | w_q: null
    |      ^
""",
    ),
    "nothing given": (
        "title: nothing\n",
        RUN,
        r"""
error: c.yaml: x: missing: give x with w_q, w_k and w_v (or w_qkv), or give q, k and v directly
""",
    ),
    "only x": (
        "x: [[1]]\n",
        RUN,
        r"""
error: c.yaml: w_q: missing: x needs w_q, w_k and w_v, or w_qkv
error: c.yaml: w_k: missing: x needs w_q, w_k and w_v, or w_qkv
error: c.yaml: w_v: missing: x needs w_q, w_k and w_v, or w_qkv
""",
    ),
    "only q": (
        "q: [[1]]\n",
        RUN,
        r"""
error: c.yaml: k: missing: q, k and v are given directly all three, or made from x
error: c.yaml: v: missing: q, k and v are given directly all three, or made from x
""",
    ),
    "direct and projected": (
        Q + "x: [[1]]\n",
        RUN,
        r"""
error: c.yaml:4:4: x: not used when q, k and v are given directly; leave it out
  4 | x: [[1]]
    |    ^
""",
    ),
    "fused and separate": (
        "x: [[1, 0]]\nw_qkv: [[1, 2, 3], [4, 5, 6]]\nw_q: [[1], [2]]\n",
        RUN,
        r"""
error: c.yaml:3:6: w_q: w_qkv already holds it; leave one of them out
  3 | w_q: [[1], [2]]
    |      ^
""",
    ),
    "bias without w_o": (
        Q + "b_o: [1]\n",
        RUN,
        r"""
error: c.yaml:4:6: b_o: needs w_o, the output projection that it is added to
  4 | b_o: [1]
    |      ^
""",
    ),
    "fused bias": (
        T + "b_qkv: [1, 2]\n",
        RUN,
        r"""
error: c.yaml:5:8: b_qkv: goes with w_qkv; here give b_q, b_k, b_v
  5 | b_qkv: [1, 2]
    |        ^
""",
    ),
    "dtype": (
        T + "dtype: float46\n",
        RUN,
        r"""
error: c.yaml:5:8: dtype: expected float64, float32, float16 or bfloat16, found 'float46'; did you mean "float64"?
  5 | dtype: float46
    |        ^
""",
    ),
    "scale": (
        T + "scale: Auto\n",
        RUN,
        r"""
error: c.yaml:5:8: scale: expected auto or a finite number, found 'Auto'
  5 | scale: Auto
    |        ^
""",
    ),
    "scale is not a number": (
        T + "scale: .nan\n",
        RUN,
        r"""
error: c.yaml:5:8: scale: expected auto or a finite number, found .nan
  5 | scale: .nan
    |        ^
""",
    ),
    "title": (
        T + "title: [a, b]\n",
        RUN,
        r"""
error: c.yaml:5:8: title: expected text, found a list of 2
  5 | title: [a, b]
    |        ^
""",
    ),
    "tokens": (
        T + "tokens: the cat\n",
        RUN,
        r"""
error: c.yaml:5:9: tokens: expected a list of labels, found 'the cat'
  5 | tokens: the cat
    |         ^
""",
    ),
    "tokens, a mapping": (
        T + "tokens: {}\n",
        RUN,
        r"""
error: c.yaml:5:9: tokens: expected a list of labels, found a mapping
  5 | tokens: {}
    |         ^
""",
    ),
    "too few tokens": (
        T + "tokens: [the, cat]\n",
        RUN,
        r"""
error: c.yaml:5:9: tokens: expected 3 labels (one for each of the tokens of x), found 2
  5 | tokens: [the, cat]
    |         ^
""",
    ),
    "masked_row": (
        T + "masked_row: one\n",
        RUN,
        r"""
error: c.yaml:5:13: masked_row: expected zero or nan, found 'one'
  5 | masked_row: one
    |             ^
""",
    ),
    "layout": (
        T + "weight_layout: out-in\n",
        RUN,
        r"""
error: c.yaml:5:16: weight_layout: expected in_out or out_in, found 'out-in'; did you mean "out_in"?
  5 | weight_layout: out-in
    |                ^
""",
    ),
    "qkv_layout": (
        T + "qkv_layout: per_head\n",
        RUN,
        r"""
error: c.yaml:5:13: qkv_layout: expected q|k|v, per-head or per-group, found 'per_head'; did you mean "per-head"?
  5 | qkv_layout: per_head
    |             ^
""",
    ),
    "qkv_layout without w_qkv": (
        T + "qkv_layout: per-head\n",
        RUN,
        r"""
error: c.yaml:5:13: qkv_layout: goes with w_qkv, which is not given
  5 | qkv_layout: per-head
    |             ^
""",
    ),
    "per-head with grouped heads": (
        "x: [[1, 2]]\nw_qkv: [[1, 0, 1, 0], [0, 1, 0, 1]]\nheads: 2\nkv_heads: 1\nqkv_layout: per-head\n",
        RUN,
        r"""
error: c.yaml:5:13: qkv_layout: per-head has q, k and v for each head; with fewer kv_heads than heads say per-group
  5 | qkv_layout: per-head
    |             ^
""",
    ),
    "seed below zero": (
        T + "seed: -1\n",
        RUN,
        r"""
error: c.yaml:5:7: seed: expected at least 0, found -1
  5 | seed: -1
    |       ^
""",
    ),
    "seed beyond": (
        T + "seed: 18446744073709551616\n",
        RUN,
        r"""
error: c.yaml:5:7: seed: expected less than 18446744073709551616, found 18446744073709551616
  5 | seed: 18446744073709551616
    |       ^
""",
    ),
    "seed not whole": (
        T + "seed: 1.5\n",
        RUN,
        r"""
error: c.yaml:5:7: seed: expected a whole number, found 1.5
  5 | seed: 1.5
    |       ^
""",
    ),
    "generator": (
        T + "generator: numpi\n",
        RUN,
        r"""
error: c.yaml:5:12: generator: expected numpy, numpy-legacy or torch, found 'numpi'; did you mean "numpy"?
  5 | generator: numpi
    |            ^
""",
    ),
    "number for a tensor": (
        "x: 5\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: expected numbers in lists, {file: …} or {draw: …}, found 5
  1 | x: 5
    |    ^
""",
    ),
    "text in a cell": (
        "x: [[1, 0], [0, 1], [1, 1]]\nw_q: [[1, two], [0, 1]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n",
        RUN,
        r"""
error: c.yaml:2:11: w_q[0][1]: expected a number, found 'two'
  2 | w_q: [[1, two], [0, 1]]
    |           ^
""",
    ),
    "many bad cells": (
        "x: [[a, b], [true, null], [c, d]]\n" + W,
        RUN,
        r"""
error: c.yaml:1:6: x[0][0]: expected a number, found 'a'
  1 | x: [[a, b], [true, null], [c, d]]
    |      ^
error: c.yaml:1:9: x[0][1]: expected a number, found 'b'
  1 | x: [[a, b], [true, null], [c, d]]
    |         ^
error: c.yaml:1:14: x[1][0]: expected a number, found true
  1 | x: [[a, b], [true, null], [c, d]]
    |              ^
error: c.yaml:1:20: x: and 3 more like these
  1 | x: [[a, b], [true, null], [c, d]]
    |                    ^
""",
    ),
    "ragged": (
        "x: [[1, 0], [0, 1], [1]]\n" + W,
        RUN,
        r"""
error: c.yaml:1:21: x: row 2 has 1 number; expected 2, as the rows before it
  1 | x: [[1, 0], [0, 1], [1]]
    |                     ^
""",
    ),
    "number for a row": (
        "x: [[1, 0], [0, 1], 1]\n" + W,
        RUN,
        r"""
error: c.yaml:1:21: x: row 2 is 1; expected a list of 2, as before it
  1 | x: [[1, 0], [0, 1], 1]
    |                     ^
""",
    ),
    "row for a number": (
        "x: [1, [2, 3]]\n" + W,
        RUN,
        r"""
error: c.yaml:1:8: x: entry 1 is a list; expected a number, as before it
  1 | x: [1, [2, 3]]
    |        ^
""",
    ),
    "empty list": (
        "x: []\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: holds an empty list; every axis needs at least one entry
  1 | x: []
    |    ^
""",
    ),
    "five axes": (
        "x: [[[[[1]]]]]\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: has 5 axes; expected at most 4
  1 | x: [[[[[1]]]]]
    |    ^
""",
    ),
    "one axis": (
        "x: [1, 2]\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: expected 2 axes (token, d_model) or 3 (batch, token, d_model), found 1
  1 | x: [1, 2]
    |    ^
""",
    ),
    "beyond float64": (
        "x: [[1, 1" + "0" * 309 + "]]\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: holds a whole number beyond 1.8e308, the largest of float64
  1 | x: [[1, 10000000000000000000000000000000000000000000000000000000000000000000…
    |    ^
""",
    ),
    "beyond reading": (
        "x: [[1, 1" + "0" * 700 + "]]\n" + W,
        RUN,
        r"""
error: c.yaml:1:9: an integer of 701 digits: at most 640 are read
  1 | x: [[1, 10000000000000000000000000000000000000000000000000000000000000000000…
    |         ^
""",
    ),
    "empty mapping": (
        "x: {}\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: expected numbers in lists, {file: …} or {draw: …}, found an empty mapping
  1 | x: {}
    |    ^
""",
    ),
    "misspelt kind": (
        "x: {fil: a.npy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:5: x: unknown key 'fil'; did you mean "file"?
  1 | x: {fil: a.npy}
    |     ^
""",
    ),
    "file and draw": (
        "x: {file: a.npy, draw: normal}\n" + W,
        RUN,
        r"""
error: c.yaml:1:5: x: file does not go with draw; leave one of them out
  1 | x: {file: a.npy, draw: normal}
    |     ^
""",
    ),
    "draw without shape": (
        "x: {draw: normal, seed: 1}\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: shape is missing: say shape: [3, 4]
  1 | x: {draw: normal, seed: 1}
    |    ^
""",
    ),
    "draw without seed": (
        "x: {draw: normal, shape: [3, 2]}\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: draws random numbers, but there is no seed: give seed: 42 at the top
  1 | x: {draw: normal, shape: [3, 2]}
    |    ^
""",
    ),
    "many draws without seed": (
        "x: {draw: normal, shape: [2, 3, 4]}\nw_q: {draw: normal, shape: [4, 4]}\nw_k: {draw: normal, shape: [4, 4]}\nw_v: {draw: normal, shape: [4, 4]}\n",
        RUN,
        r"""
error: c.yaml:1:4: x: draws random numbers, and so do w_q, w_k and w_v, but there is no seed: give seed: 42 at the top
  1 | x: {draw: normal, shape: [2, 3, 4]}
    |    ^
""",
    ),
    "unknown distribution": (
        "x: {draw: norml, shape: [3, 2], seed: 1}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x.draw: expected normal, uniform or integers, found 'norml'; did you mean "normal"?
  1 | x: {draw: norml, shape: [3, 2], seed: 1}
    |           ^
""",
    ),
    "shape of zero": (
        "x: {draw: normal, shape: [3, 0], seed: 1}\n" + W,
        RUN,
        r"""
error: c.yaml:1:30: x.shape[1]: expected at least 1, found 0
  1 | x: {draw: normal, shape: [3, 0], seed: 1}
    |                              ^
""",
    ),
    "shape is a number": (
        "x: {draw: normal, shape: 3, seed: 1}\n" + W,
        RUN,
        r"""
error: c.yaml:1:26: x.shape: expected a list such as [3, 4], found 3
  1 | x: {draw: normal, shape: 3, seed: 1}
    |                          ^
""",
    ),
    "shape of five axes": (
        "x: {draw: normal, shape: [1, 1, 1, 3, 2], seed: 1}\n" + W,
        RUN,
        r"""
error: c.yaml:1:26: x.shape: expected at most 4 entries, found a list of 5
  1 | x: {draw: normal, shape: [1, 1, 1, 3, 2], seed: 1}
    |                          ^
""",
    ),
    "absurd shape": (
        "x: {draw: normal, shape: [99999999999, 2], seed: 1}\n" + W,
        RUN,
        r"""
error: c.yaml:1:27: x.shape[0]: expected less than 2147483648, found 99999999999
  1 | x: {draw: normal, shape: [99999999999, 2], seed: 1}
    |                           ^
""",
    ),
    "low of normal": (
        "x: {draw: normal, shape: [3, 2], seed: 1, low: 0}\n" + W,
        RUN,
        r"""
error: c.yaml:1:48: x: low does not go with draw: normal, which takes mean and std
  1 | x: {draw: normal, shape: [3, 2], seed: 1, low: 0}
    |                                                ^
""",
    ),
    "std below zero": (
        "x: {draw: normal, shape: [3, 2], seed: 1, std: -1}\n" + W,
        RUN,
        r"""
error: c.yaml:1:48: x.std: expected at least 0, found -1
  1 | x: {draw: normal, shape: [3, 2], seed: 1, std: -1}
    |                                                ^
""",
    ),
    "mean not finite": (
        "x: {draw: normal, shape: [3, 2], seed: 1, mean: .inf}\n" + W,
        RUN,
        r"""
error: c.yaml:1:49: x.mean: expected a finite number, found .inf
  1 | x: {draw: normal, shape: [3, 2], seed: 1, mean: .inf}
    |                                                 ^
""",
    ),
    "low above high": (
        "x: {draw: uniform, shape: [3, 2], seed: 1, low: 1, high: 0}\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: expected low below high, found low 1 and high 0
  1 | x: {draw: uniform, shape: [3, 2], seed: 1, low: 1, high: 0}
    |    ^
""",
    ),
    "range not finite": (
        "x: {draw: uniform, shape: [3, 2], seed: 1, low: -1e308, high: 1e308}\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: expected low below high and no more than 1.8e+308 apart, found low -1e+308 and high 1e+308
  1 | x: {draw: uniform, shape: [3, 2], seed: 1, low: -1e308, high: 1e308}
    |    ^
""",
    ),
    "range beyond float32": (
        "x: {draw: uniform, shape: [3, 2], seed: 1, high: 1e300, generator: torch}\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: expected low below high and no more than 3.4e+38 apart, found low 0.0 and high 1e+300
  1 | x: {draw: uniform, shape: [3, 2], seed: 1, high: 1e300, generator: torch}
    |    ^
""",
    ),
    "integers without high": (
        "x: {draw: integers, shape: [3, 2], seed: 1}\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: high is missing, the first whole number that draw: integers does not draw
  1 | x: {draw: integers, shape: [3, 2], seed: 1}
    |    ^
""",
    ),
    "integers not whole": (
        "x: {draw: integers, shape: [3, 2], seed: 1, high: 2.5}\n" + W,
        RUN,
        r"""
error: c.yaml:1:4: x: expected whole numbers below 2⁶² for draw: integers, found low 0 and high 2.5
  1 | x: {draw: integers, shape: [3, 2], seed: 1, high: 2.5}
    |    ^
""",
    ),
    "seed of numpy-legacy": (
        "x: {draw: normal, shape: [3, 2], seed: 4294967296, generator: numpy-legacy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:40: x.seed: expected less than 4294967296 for numpy-legacy, found 4294967296
  1 | x: {draw: normal, shape: [3, 2], seed: 4294967296, generator: numpy-legacy}
    |                                        ^
""",
    ),
    "decimals": (
        "x: {draw: normal, shape: [3, 2], seed: 1, decimals: 18}\n" + W,
        RUN,
        r"""
error: c.yaml:1:53: x.decimals: expected at most 17, found 18
  1 | x: {draw: normal, shape: [3, 2], seed: 1, decimals: 18}
    |                                                     ^
""",
    ),
    "rows": (
        "x: [[1, 0], [0, 1], [1, 1]]\nw_q: [[1, 2], [0, 1]]\nw_k: [[1, 0]]\nw_v: [[2, 0], [0, 3]]\n",
        RUN,
        r"""
error: c.yaml:3:6: w_k: expected 2 rows (the width of x), found 1
  3 | w_k: [[1, 0]]
    |      ^
""",
    ),
    "columns": (
        "x: [[1, 0], [0, 1], [1, 1]]\nw_q: [[1, 2], [0, 1]]\nw_k: [[1], [1]]\nw_v: [[2, 0], [0, 3]]\n",
        RUN,
        r"""
error: c.yaml:3:6: w_k: expected 2 columns (the columns of w_q), found 1
  3 | w_k: [[1], [1]]
    |      ^
""",
    ),
    "bias": (
        T + "b_q: [1]\nb_k: [[1, 2]]\n",
        RUN,
        r"""
error: c.yaml:5:6: b_q: expected 2 numbers (the columns of w_q), found 1
  5 | b_q: [1]
    |      ^
error: c.yaml:6:6: b_k: expected 1 axis (d_k), found 2
  6 | b_k: [[1, 2]]
    |      ^
""",
    ),
    "w_o": (
        T + "w_o: [[1, 2]]\n",
        RUN,
        r"""
error: c.yaml:5:6: w_o: expected 2 rows (the columns of w_v), found 1
  5 | w_o: [[1, 2]]
    |      ^
""",
    ),
    "heads": (
        D + "heads: 3\n",
        RUN,
        r"""
error: c.yaml:6:8: heads: 3 does not divide the 4 columns of w_q
  6 | heads: 3
    |        ^
""",
    ),
    "kv_heads": (
        D + "heads: 4\nkv_heads: 3\n",
        RUN,
        r"""
error: c.yaml:7:11: kv_heads: 3 does not divide heads: 4
  7 | kv_heads: 3
    |           ^
""",
    ),
    "kv_heads alone": (
        D + "kv_heads: 2\n",
        RUN,
        r"""
error: c.yaml:6:11: kv_heads: needs heads, the number of query heads that share them
  6 | kv_heads: 2
    |           ^
""",
    ),
    "grouped columns": (
        D + "heads: 4\nkv_heads: 2\n",
        RUN,
        r"""
error: c.yaml:4:6: w_k: expected 2 columns (kv_heads 2 × d_k 1), found 4
  4 | w_k: {draw: normal, shape: [4, 4]}
    |      ^
""",
    ),
    "heads are not whole": (
        D + "heads: 2.0\n",
        RUN,
        r"""
error: c.yaml:6:8: heads: expected a whole number, found 2.0
  6 | heads: 2.0
    |        ^
""",
    ),
    "fused columns": (
        "x: [[1, 0]]\nw_qkv: [[1, 2, 3, 4], [5, 6, 7, 8]]\n",
        RUN,
        r"""
error: c.yaml:2:8: w_qkv: expected columns that divide into 3 parts (q, k and v of equal width), found 4
  2 | w_qkv: [[1, 2, 3, 4], [5, 6, 7, 8]]
    |        ^
""",
    ),
    "fused columns of heads": (
        "heads: 2\nx: [[1]]\nw_qkv: [[1, 2, 3, 4, 5, 6, 7, 8, 9]]\n",
        RUN,
        r"""
error: c.yaml:3:8: w_qkv: expected columns that divide into 6 parts (q, k and v of equal width for heads: 2), found 9
  3 | w_qkv: [[1, 2, 3, 4, 5, 6, 7, 8, 9]]
    |        ^
""",
    ),
    "fused, too wide": (
        "seed: 1\nx: [[1]]\nw_qkv: {draw: normal, shape: [1, 2147483646]}\n",
        RUN,
        r"""
error: c.yaml:3:8: w_qkv: expected at most 1048576 columns, found 2147483646
  3 | w_qkv: {draw: normal, shape: [1, 2147483646]}
    |        ^
""",
    ),
    "batch of x_kv": (
        D + "x_kv: {draw: normal, shape: [3, 5, 4]}\n",
        RUN,
        r"""
error: c.yaml:6:7: x_kv: expected 2 batch items (the batch items of x), found 3
  6 | x_kv: {draw: normal, shape: [3, 5, 4]}
    |       ^
""",
    ),
    "width of x_kv": (
        D + "x_kv: {draw: normal, shape: [2, 5, 3]}\n",
        RUN,
        r"""
error: c.yaml:4:6: w_k: expected 3 rows (the width of x_kv), found 4
  4 | w_k: {draw: normal, shape: [4, 4]}
    |      ^
error: c.yaml:5:6: w_v: expected 3 rows (the width of x_kv), found 4
  5 | w_v: {draw: normal, shape: [4, 4]}
    |      ^
""",
    ),
    "direct heads": (
        "q: [[[1, 2]], [[3, 4]]]\nk: [[[1, 2]]]\nv: [[[1, 2]]]\n",
        RUN,
        r"""
error: c.yaml:2:4: k: expected 2 heads (the heads of q), found 1; for grouped heads say heads: 2 and kv_heads: 1
  2 | k: [[[1, 2]]]
    |    ^
error: c.yaml:3:4: v: expected 2 heads (the heads of q), found 1; for grouped heads say heads: 2 and kv_heads: 1
  3 | v: [[[1, 2]]]
    |    ^
""",
    ),
    "direct axes": (
        "q: [1]\nk: [1]\nv: [1]\n",
        RUN,
        r"""
error: c.yaml:1:4: q: expected 2 axes (token, d), 3 (head, token, d) or 4 (batch, head, token, d), found 1
  1 | q: [1]
    |    ^
""",
    ),
    "direct columns": (
        Q + "heads: 2\n",
        RUN,
        r"""
error: c.yaml:3:4: v: expected columns that divide into 2 heads, found 1
  3 | v: [[1], [2], [3]]
    |    ^
""",
    ),
    "direct lengths": (
        "q: [[1, 0], [0, 1]]\nk: [[1, 0], [0, 1]]\nv: [[1], [2], [3]]\n",
        RUN,
        r"""
error: c.yaml:3:4: v: expected 2 keys (the keys of k), found 3
  3 | v: [[1], [2], [3]]
    |    ^
""",
    ),
    "misspelt mask": (
        T + "mask: causl\n",
        RUN,
        r"""
error: c.yaml:5:7: mask: expected causal, or one of {causal: …}, {keep: …}, {ignore: …}, {add: …}, {padding: …}, {window: …}, found 'causl'; did you mean "causal"?
  5 | mask: causl
    |       ^
""",
    ),
    "misspelt kind of mask": (
        T + "mask: [causal, {paddin: [2]}]\n",
        RUN,
        r"""
error: c.yaml:5:17: mask[1]: unknown key 'paddin'; did you mean "padding"?
  5 | mask: [causal, {paddin: [2]}]
    |                 ^
""",
    ),
    "two kinds in one": (
        T + "mask: {causal: top-left, padding: [3]}\n",
        RUN,
        r"""
error: c.yaml:5:26: mask: expected one kind of mask, found causal and padding; for both write a list: [{causal: …}, {padding: …}]
  5 | mask: {causal: top-left, padding: [3]}
    |                          ^
""",
    ),
    "mask without kind": (
        T + "mask: {}\n",
        RUN,
        r"""
error: c.yaml:5:7: mask: expected one of {causal: …}, {keep: …}, {ignore: …}, {add: …}, {padding: …}, {window: …}, found an empty mapping
  5 | mask: {}
    |       ^
""",
    ),
    "mask is null in a list": (
        T + "mask: [causal, null]\n",
        RUN,
        r"""
error: c.yaml:5:16: mask[1]: expected causal, or one of {causal: …}, {keep: …}, {ignore: …}, {add: …}, {padding: …}, {window: …}, found nothing
  5 | mask: [causal, null]
    |                ^
""",
    ),
    "alignment": (
        T + "mask: {causal: top}\n",
        RUN,
        r"""
error: c.yaml:5:16: mask.causal: expected top-left or bottom-right, found 'top'; did you mean "top-left"?
  5 | mask: {causal: top}
    |                ^
""",
    ),
    "causal, other lengths": (
        Q + "mask: causal\n",
        RUN,
        r"""
error: c.yaml:4:7: mask: causal is ambiguous with 2 queries and 3 keys: say {causal: top-left} (the first query stands at the first key) or {causal: bottom-right} (the last at the last)
  4 | mask: causal
    |       ^
""",
    ),
    "window, other lengths": (
        Q + "mask: {window: {left: 1}}\n",
        RUN,
        r"""
error: c.yaml:4:16: mask.window: a window is ambiguous with 2 queries and 3 keys: say align: top-left (the first query stands at the first key) or align: bottom-right (the last at the last)
  4 | mask: {window: {left: 1}}
    |                ^
""",
    ),
    "shape of keep": (
        T + "mask: {keep: [[1, 0], [1, 1]]}\n",
        RUN,
        r"""
error: c.yaml:5:14: mask.keep: expected query 3 × key 3 (any of them may be 1, leading ones left out), found 2 × 2
  5 | mask: {keep: [[1, 0], [1, 1]]}
    |              ^
""",
    ),
    "keep of two": (
        T + "mask: {keep: [[1, 0, 2], [1, 1, 0], [1, 1, 1]]}\n",
        RUN,
        r"""
error: c.yaml:5:22: mask.keep[0][2]: expected 0 or 1 (or false or true), found 2; to add numbers to the scores say add
  5 | mask: {keep: [[1, 0, 2], [1, 1, 0], [1, 1, 1]]}
    |                      ^
""",
    ),
    "keep of text": (
        T + "mask: {keep: [[1, 0, a], [1, 1, 0], [1, 1, 1]]}\n",
        RUN,
        r"""
error: c.yaml:5:22: mask.keep[0][2]: expected a number, found 'a'
  5 | mask: {keep: [[1, 0, a], [1, 1, 0], [1, 1, 1]]}
    |                      ^
""",
    ),
    "drawn keep": (
        T + "mask: {keep: {draw: normal, shape: [3, 3], seed: 1}}\n",
        RUN,
        r"""
error: c.yaml:5:14: mask.keep: expected 0 or 1 (or false or true), found 0.345584; to add numbers to the scores say add
  5 | mask: {keep: {draw: normal, shape: [3, 3], seed: 1}}
    |              ^
""",
    ),
    "axes of ignore": (
        T + "mask: {ignore: [[[[1, 0, 0]]]]}\n",
        RUN,
        r"""
error: c.yaml:5:16: mask.ignore: expected query 3 × key 3 (any of them may be 1, leading ones left out), found 1 × 1 × 1 × 3
  5 | mask: {ignore: [[[[1, 0, 0]]]]}
    |                ^
""",
    ),
    "booleans to add": (
        T + "mask: {add: [[0, true, 0]]}\n",
        RUN,
        r"""
error: c.yaml:5:18: mask.add[0][1]: expected a number, found true
  5 | mask: {add: [[0, true, 0]]}
    |                  ^
""",
    ),
    "padding is a number": (
        T + "mask: {padding: 2}\n",
        RUN,
        r"""
error: c.yaml:5:17: mask.padding: expected a list such as [4, 2], a length for each batch item, found 2
  5 | mask: {padding: 2}
    |                 ^
""",
    ),
    "padding of no batch": (
        T + "mask: {padding: [2, 1]}\n",
        RUN,
        r"""
error: c.yaml:5:17: mask.padding: expected 1 length (there is no batch axis), found 2
  5 | mask: {padding: [2, 1]}
    |                 ^
""",
    ),
    "padding beyond the keys": (
        T + "mask: {padding: [4]}\n",
        RUN,
        r"""
error: c.yaml:5:18: mask.padding[0]: expected a length from 0 to 3 (the keys), found 4
  5 | mask: {padding: [4]}
    |                  ^
""",
    ),
    "padding of a batch": (
        D + "mask: {padding: [1]}\n",
        RUN,
        r"""
error: c.yaml:6:17: mask.padding: expected 2 lengths (one for each batch item), found 1
  6 | mask: {padding: [1]}
    |                 ^
""",
    ),
    "window is a number": (
        T + "mask: {window: 2}\n",
        RUN,
        r"""
error: c.yaml:5:16: mask.window: expected a mapping such as {left: 2, right: 0}, found 2
  5 | mask: {window: 2}
    |                ^
""",
    ),
    "window misspelt": (
        T + "mask: {window: {rigt: 1}}\n",
        RUN,
        r"""
error: c.yaml:5:17: mask.window: unknown key 'rigt'; did you mean "right"?
  5 | mask: {window: {rigt: 1}}
    |                 ^
""",
    ),
    "window beyond": (
        T + "mask: {window: {left: 99999999999999999999}}\n",
        RUN,
        r"""
error: c.yaml:5:23: mask.window.left: expected less than 2147483648, found 99999999999999999999
  5 | mask: {window: {left: 99999999999999999999}}
    |                       ^
""",
    ),
    "sound and faulty masks": (
        T + "mask: [{padding: [4]}, {keep: [[1, 1]]}, {add: [[1, a, 2]]}]\n",
        RUN,
        r"""
error: c.yaml:5:19: mask[0].padding[0]: expected a length from 0 to 3 (the keys), found 4
  5 | mask: [{padding: [4]}, {keep: [[1, 1]]}, {add: [[1, a, 2]]}]
    |                   ^
error: c.yaml:5:31: mask[1].keep: expected query 3 × key 3 (any of them may be 1, leading ones left out), found 1 × 2
  5 | mask: [{padding: [4]}, {keep: [[1, 1]]}, {add: [[1, a, 2]]}]
    |                               ^
error: c.yaml:5:53: mask[2].add[0][1]: expected a number, found 'a'
  5 | mask: [{padding: [4]}, {keep: [[1, 1]]}, {add: [[1, a, 2]]}]
    |                                                     ^
""",
    ),
    "dropout": (
        T + "dropout: 0.5\n",
        RUN,
        r"""
error: c.yaml:5:10: dropout: expected a mapping such as {rate: 0.1}, found 0.5
  5 | dropout: 0.5
    |          ^
""",
    ),
    "dropout without rate": (
        T + "dropout: {seed: 1}\n",
        RUN,
        r"""
error: c.yaml:5:10: dropout: rate is missing: say rate: 0.1
  5 | dropout: {seed: 1}
    |          ^
""",
    ),
    "rate of one": (
        T + "dropout: {rate: 1, seed: 1}\n",
        RUN,
        r"""
error: c.yaml:5:17: dropout.rate: expected less than 1, found 1
  5 | dropout: {rate: 1, seed: 1}
    |                 ^
""",
    ),
    "dropout without seed": (
        T + "dropout: {rate: 0.5}\n",
        RUN,
        r"""
error: c.yaml:5:10: dropout: draws random numbers, but there is no seed: give seed: 42 at the top
  5 | dropout: {rate: 0.5}
    |          ^
""",
    ),
    "expect": (
        T + "expect: [[1]]\n",
        RUN,
        r"""
error: c.yaml:5:9: expect: expected a mapping of step names to numbers in lists, found a list of 1
  5 | expect: [[1]]
    |         ^
""",
    ),
    "expect of text": (
        T + "expect: {weights: [[0.5, half, null]]}\n",
        RUN,
        r"""
error: c.yaml:5:26: expect.weights[0][1]: expected a number, found 'half'
  5 | expect: {weights: [[0.5, half, null]]}
    |                          ^
""",
    ),
    "expect, ragged": (
        T + "expect:\n  weights: [[1, null], null, [1]]\n  scores: 5\n",
        RUN,
        r"""
error: c.yaml:6:30: expect.weights: row 2 has 1 number; expected 2, as the rows before it
  6 |   weights: [[1, null], null, [1]]
    |                              ^
error: c.yaml:7:11: expect.scores: expected numbers in lists, found 5
  7 |   scores: 5
    |           ^
""",
    ),
    "independent faults": (
        "x: [[1, 2], [3, 4]]\nw_q: [[1]]\nw_k: [[1, 2], [3, 4]]\nw_v: [[1], [2], [3]]\ntitel: three\nmask: {padding: [9]}\ntokens: [a]\n",
        RUN,
        r"""
error: c.yaml:2:6: w_q: expected 2 rows (the width of x), found 1
  2 | w_q: [[1]]
    |      ^
error: c.yaml:3:6: w_k: expected 1 column (the columns of w_q), found 2
  3 | w_k: [[1, 2], [3, 4]]
    |      ^
error: c.yaml:4:6: w_v: expected 2 rows (the width of x), found 3
  4 | w_v: [[1], [2], [3]]
    |      ^
error: c.yaml:5:1: unknown key 'titel'; did you mean "title"?
  5 | titel: three
    | ^
error: c.yaml:6:18: mask.padding[0]: expected a length from 0 to 2 (the keys), found 9
  6 | mask: {padding: [9]}
    |                  ^
error: c.yaml:7:9: tokens: expected 2 labels (one for each of the tokens of x), found 1
  7 | tokens: [a]
    |         ^
""",
    ),
    "no follow-ups of a ragged x": (
        "x: [[1, 2], [3]]\nw_q: [[1, a]]\nw_k: [[1, 2], [3, 4]]\nw_v: [[1], [2], [3]]\nmask: {padding: [9]}\ntokens: [a]\n",
        RUN,
        r"""
error: c.yaml:1:13: x: row 1 has 1 number; expected 2, as the rows before it
  1 | x: [[1, 2], [3]]
    |             ^
error: c.yaml:2:11: w_q[0][1]: expected a number, found 'a'
  2 | w_q: [[1, a]]
    |           ^
error: c.yaml:4:6: w_v: expected 2 rows (the rows of w_k), found 3
  4 | w_v: [[1], [2], [3]]
    |      ^
""",
    ),
    "no follow-ups of heads": (
        D + "heads: two\nkv_heads: 2\nw_o: {draw: normal, shape: [9, 4]}\n",
        RUN,
        r"""
error: c.yaml:6:8: heads: expected a whole number, found 'two'
  6 | heads: two
    |        ^
""",
    ),
    "no follow-ups of a seed": (
        "seed: one\nx: {draw: normal, shape: [2, 3, 4]}\nw_q: {draw: normal, shape: [4, 4]}\nw_k: {draw: normal, shape: [4, 4]}\nw_v: {draw: normal, shape: [4, 4]}\n",
        RUN,
        r"""
error: c.yaml:1:7: seed: expected a whole number, found 'one'
  1 | seed: one
    |       ^
""",
    ),
    "no follow-ups of a misspelt input": (
        "x: [[1, 0], [0, 1], [1, 1]]\nwq: [[1, 2], [0, 1]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n",
        RUN,
        r"""
error: c.yaml:2:1: unknown key 'wq'; did you mean "w_q"?
  2 | wq: [[1, 2], [0, 1]]
    | ^
""",
    ),
    "no follow-ups of a layout": (
        "x: [[1, 0], [0, 1], [1, 1]]\nw_q: [[1, 2, 3]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\nweight_layout: out\n",
        RUN,
        r"""
error: c.yaml:5:16: weight_layout: expected in_out or out_in, found 'out'; did you mean "out_in"?
  5 | weight_layout: out
    |                ^
""",
    ),
    "no follow-ups of x_kv": (
        "x_kv: [[1, b]]\nx: [[1, 0], [0, 1], [1, 1]]\nw_q: [[1, 2], [0, 1]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\nmask: {padding: [9]}\n",
        RUN,
        r"""
error: c.yaml:1:12: x_kv[0][1]: expected a number, found 'b'
  1 | x_kv: [[1, b]]
    |            ^
""",
    ),
    "set without =": (
        T,
        (*RUN, "--set", "scale"),
        r"""
error: --set scale: expected KEY=VALUE, such as --set scale=1 or --set 'x[0]=[5,5,5,5]'
""",
    ),
    "set without key": (
        T,
        (*RUN, "--set", "=5"),
        r"""
error: --set =5: expected a key before the =, such as scale, mask.padding or tokens[1], found nothing
""",
    ),
    "set without value": (
        T,
        (*RUN, "--set", "scale="),
        r"""
error: --set scale=: scale: expected auto or a finite number, found nothing
""",
    ),
    "set an unknown key": (
        T,
        (*RUN, "--set", "scal=1"),
        r"""
error: --set scal=1: unknown key 'scal'; did you mean "scale"?
""",
    ),
    "set a tensor": (
        T,
        (*RUN, "--set", "x=5"),
        r"""
error: --set x=5: x: expected numbers in lists, {file: …} or {draw: …}, found 5
""",
    ),
    "set too many cells": (
        T,
        (*RUN, "--set", "x[0]=[1,2,3]"),
        r"""
error: --set x[0]=[1,2,3]: x[0]: expected 2 numbers, found 3
""",
    ),
    "set beyond the cells": (
        T,
        (*RUN, "--set", "x[9]=1"),
        r"""
error: --set x[9]=1: x[9]: index 9 is out of range: axis 0 has 3 entries, numbered 0 to 2
""",
    ),
    "set a cell to text": (
        T,
        (*RUN, "--set", "x[0]=a"),
        r"""
error: --set x[0]=a: x[0]: expected a number, or numbers in lists, found 'a'
""",
    ),
    "set a cell beyond float64": (
        T,
        (*RUN, "--set", "x[0]=1" + "0" * 309),
        r"""
error: --set x[0]=1000000000000000000000000000000000000000000000000000000…: x: holds a whole number beyond 1.8e308, the largest of float64
""",
    ),
    "set a broken index": (
        T,
        (*RUN, "--set", "x[a]=1"),
        r"""
error: --set x[a]=1: 'x[a]': expected an index such as 0, -1, 1:3 or ..., found 'a'
""",
    ),
    "set an absent tensor": (
        T,
        (*RUN, "--set", "b_q[0]=1"),
        r"""
error: --set b_q[0]=1: there is no b_q here to change
""",
    ),
    "set below a list": (
        T,
        (*RUN, "--set", "x.foo=1"),
        r"""
error: --set x.foo=1: there is no x.foo: x is a list of 3, numbered from 0
""",
    ),
    "set a token of none": (
        T,
        (*RUN, "--set", "tokens[1]=b"),
        r"""
error: --set tokens[1]=b: there is no tokens[1]: tokens is not set
""",
    ),
    "set broken YAML": (
        T,
        (*RUN, "--set", "x=[[1,2],[3"),
        r"""
error: --set x:1:10: expected "," or "]" in the list that starts on line 1, found the end of the text
  1 | [[1,2],[3
    |          ^
""",
    ),
    "set a tag": (
        T,
        (*RUN, "--set", "x=!!python/object/apply:os.system ['echo pwned']"),
        r"""
error: --set x:1:1: the tag !!python/object/apply:os.system is refused and nothing is executed: expected !!seq or none, or quotes if it is text
  1 | !!python/object/apply:os.system
    | ^
""",
    ),
    "set null": (
        T,
        (*RUN, "--set", "w_q=null"),
        r"""
error: --set w_q=null: w_q: missing: x needs w_q, w_k and w_v, or w_qkv
""",
    ),
    "set two, both wrong": (
        T,
        (*RUN, "--set", "heads=true", "--set", "hed=1"),
        r"""
error: --set hed=1: unknown key 'hed'; did you mean "heads"?
error: --set heads=true: heads: expected a whole number, found true
""",
    ),
    "set a tensor that others do not fit": (
        T,
        (*RUN, "--set", "x=[[1,2,3]]"),
        r"""
error: c.yaml:2:6: w_q: expected 3 rows (the width of x), found 2, after --set x=[[1,2,3]]
  2 | w_q: [[1, 2], [0, 1]]
    |      ^
error: c.yaml:3:6: w_k: expected 3 rows (the width of x), found 2, after --set x=[[1,2,3]]
  3 | w_k: [[1, 0], [1, 1]]
    |      ^
error: c.yaml:4:6: w_v: expected 3 rows (the width of x), found 2, after --set x=[[1,2,3]]
  4 | w_v: [[2, 0], [0, 3]]
    |      ^
""",
    ),
    "set an escape": (
        T,
        (*RUN, "--set", "\x1b[31m=1"),
        r"""
error: --set \x1b[31m=1: expected a key before the =, such as scale, mask.padding or tokens[1], found '\x1b[31m'
""",
    ),
    "set at length": (
        T,
        (*RUN, "--set", "scale=" + "a" * 500),
        r"""
error: --set scale=aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…: scale: expected auto or a finite number, found 'aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa…'
""",
    ),
    "set deep": (
        T,
        (*RUN, "--set", "x=" + "[" * 100),
        r"""
error: --set x:1:65: lists and mappings nested more than 64 deep
  1 | …[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[
    |                                          ^
""",
    ),
    "permute too few": (
        T,
        (*RUN, "--permute", "0,1"),
        r"""
error: --permute 0,1: expected each of 0 to 2 once, such as 1,0,2
""",
    ),
    "permute text": (
        T,
        (*RUN, "--permute", "a,b,c"),
        r"""
error: --permute a,b,c: expected each of 0 to 2 once, such as 1,0,2
""",
    ),
    "permute twice": (
        T,
        (*RUN, "--permute", "0,0,1"),
        r"""
error: --permute 0,0,1: expected each of 0 to 2 once, such as 1,0,2
""",
    ),
    "unknown step": (
        T,
        (*RUN, "--steps", "wieghts"),
        r"""
error: there is no step 'wieghts' in this trace; did you mean "weights"?
""",
    ),
    "no steps": (
        T,
        (*RUN, "--steps", ","),
        r"""
error: --steps: expected names of steps, such as --steps scores,weights
""",
    ),
    "no batch": (
        T,
        (*RUN, "--batch", "0"),
        r"""
error: --batch 0: this trace has no batch axis
""",
    ),
    "no head": (
        T,
        (*RUN, "--head", "9"),
        r"""
error: --head 9: this trace has no head axis
""",
    ),
    "tokens with a config": (
        T,
        (*RUN, "--tokens", "3"),
        r"""
error: --tokens shapes the default example and goes without a CONFIG; change a config with --set
""",
    ),
    "a bundled example, changed": (
        None,
        ("run", "module05", "--set", "x.shape=[3,5]"),
        r"""
error: module05.yaml:24:6: w_q: expected 5 rows (the width of x), found 4, after --set x.shape=[3,5]
  24 | w_q: {draw: normal, shape: [4, 4], decimals: 2}
     |      ^
error: module05.yaml:25:6: w_k: expected 5 rows (the width of x), found 4, after --set x.shape=[3,5]
  25 | w_k: {draw: normal, shape: [4, 4], decimals: 2}
     |      ^
error: module05.yaml:26:6: w_v: expected 5 rows (the width of x), found 4, after --set x.shape=[3,5]
  26 | w_v: {draw: normal, shape: [4, 4], decimals: 2}
     |      ^
""",
    ),
    "a bundled example, broken": (
        None,
        ("run", "toy", "--set", "w_q=[[1]]", "--set", "hed=1"),
        r"""
error: --set hed=1: unknown key 'hed'; did you mean "heads"?
error: --set w_q=[[1]]: w_q: expected 3 rows (the width of x), found 1
""",
    ),
    "a bundled example without seed": (
        None,
        ("run", "module05", "--set", "seed=null"),
        r"""
error: module05.yaml:23:4: x: draws random numbers, and so do w_q, w_k and w_v, but there is no seed: give seed: 42 at the top
  23 | x: {draw: normal, shape: [3, 4], decimals: 2}
     |    ^
""",
    ),
    "a bundled example, seed of text": (
        None,
        ("run", "module05", "--set", "seed=a"),
        r"""
error: --set seed=a: seed: expected a whole number, found 'a'
""",
    ),
    "seed beyond the generator": (
        None,
        ("run", "--seed", "4294967296"),
        r"""
error: --seed 4294967296: seed: expected less than 4294967296 for numpy-legacy, found 4294967296
""",
    ),
    "seed beyond all": (
        None,
        ("run", "--seed", "99999999999999999999"),
        r"""
error: --seed 99999999999999999999: seed: expected less than 18446744073709551616, found 99999999999999999999
""",
    ),
    "heads of the default": (
        None,
        ("run", "--heads", "3"),
        r"""
error: --heads 3: heads: 3 does not divide the 4 columns of w_q
""",
    ),
    "kv_heads of the default": (
        None,
        ("run", "--heads", "4", "--kv-heads", "3"),
        r"""
error: --kv-heads 3: kv_heads: 3 does not divide heads: 4
""",
    ),
    "absurd tokens": (
        None,
        ("run", "--tokens", "99999999999"),
        r"""
error: --tokens 99999999999: expected less than 2147483648
""",
    ),
    "no such example": (
        None,
        ("run", "toi"),
        r"""
error: toi: there is no such file, and no bundled example of that name; did you mean "toy"? (attntrace examples lists them)
""",
    ),
    "no such file": (
        None,
        ("run", "nowhere.yaml"),
        r"""
error: nowhere.yaml does not exist
""",
    ),
    "a folder": (
        None,
        ("run", "."),
        r"""
error: . is a directory, expected a file
""",
    ),
    "nothing for a name": (
        None,
        ("run", ""),
        r"""
error: CONFIG: expected a file or the name of an example, found nothing
""",
    ),
    "a long name": (
        None,
        ("run", "x" * 5000),
        r"""
error: xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx: there is no such file, and no bundled example of that name (attntrace examples lists them)
""",
    ),
    "a NUL in a name": (
        None,
        ("run", "7\x00z"),
        r"""
error: 7\x00z: there is no such file, and no bundled example of that name (attntrace examples lists them)
""",
    ),
    "cell, empty": (
        T,
        ("get", "", "c.yaml"),
        r"""
error: '': expected a name with an index, such as weights, weights[0,1] or x[:,3:]
""",
    ),
    "cell, open": (
        T,
        ("get", "weights[0", "c.yaml"),
        r"""
error: 'weights[0': expected a name with an index, such as weights, weights[0,1] or x[:,3:]
""",
    ),
    "cell, out of range": (
        T,
        ("get", "weights[3]", "c.yaml"),
        r"""
error: weights[3]: index 3 is out of range: axis query has 3 entries, numbered 0 to 2
""",
    ),
    "cell, far out of range": (
        T,
        ("get", "weights[-99999999999999999999]", "c.yaml"),
        r"""
error: weights[-99999999999999999999]: index -99999999999999999999 is out of range: axis query has 3 entries, numbered 0 to 2
""",
    ),
    "cell, too many": (
        T,
        ("get", "weights[0,0,0]", "c.yaml"),
        r"""
error: weights[0, 0, 0]: weights takes one index for each axis: expected at most 2 (query, key), found 3
""",
    ),
    "cell, text": (
        T,
        ("get", "weights[a]", "c.yaml"),
        r"""
error: 'weights[a]': expected an index such as 0, -1, 1:3 or ..., found 'a'
""",
    ),
    "cell, no index": (
        T,
        ("get", "weights[]", "c.yaml"),
        r"""
error: 'weights[]': expected an index such as 0, -1, 1:3 or ..., found nothing
""",
    ),
    "cell, empty slice": (
        T,
        ("get", "weights[2:1]", "c.yaml"),
        r"""
error: weights[2:1]: selects nothing from shape 3 × 3
""",
    ),
    "cell, step of zero": (
        T,
        ("get", "weights[::0]", "c.yaml"),
        r"""
error: 'weights[::0]': the step of a slice cannot be 0
""",
    ),
    "cell, unknown": (
        T,
        ("get", "wieghts[0]", "c.yaml"),
        r"""
error: there is no step 'wieghts' in this trace; did you mean "weights"?
""",
    ),
    "cell, dots": (
        T,
        ("get", "weights[...,...]", "c.yaml"),
        r"""
error: weights[..., ...]: expected at most one ..., found 2
""",
    ),
    "cell, escape": (
        T,
        ("get", "weights[\x1b]", "c.yaml"),
        r"""
error: 'weights[\x1b]': expected an index such as 0, -1, 1:3 or ..., found '\x1b'
""",
    ),
    "file, missing": (
        "x: {file: nowhere.npy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: nowhere.npy does not exist
  1 | x: {file: nowhere.npy}
    |           ^
""",
    ),
    "file, no extension": (
        "x: {file: folder}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: folder has no extension, expected .npy, .npz, .csv or .safetensors
  1 | x: {file: folder}
    |           ^
""",
    ),
    "file, a folder": (
        "x: {file: folder.npy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: folder.npy is a directory, expected a file
  1 | x: {file: folder.npy}
    |           ^
""",
    ),
    "file, a pickle": (
        "x: {file: pickle.npy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: pickle.npy holds pickled Python objects, which can execute code; save plain numbers
  1 | x: {file: pickle.npy}
    |           ^
""",
    ),
    "file, of objects": (
        "x: {file: objects.npy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: objects.npy holds pickled Python objects, which can execute code; save plain numbers
  1 | x: {file: objects.npy}
    |           ^
""",
    ),
    "file, of text": (
        "x: {file: text.npy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: text.npy holds text, expected numbers
  1 | x: {file: text.npy}
    |           ^
""",
    ),
    "file, complex": (
        "x: {file: complex.npy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: complex.npy holds complex numbers, expected real ones
  1 | x: {file: complex.npy}
    |           ^
""",
    ),
    "file, empty": (
        "x: {file: empty.npy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: empty.npy is empty, expected a .npy file
  1 | x: {file: empty.npy}
    |           ^
""",
    ),
    "file, cut short": (
        "x: {file: short.npy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: short.npy holds 45 bytes of numbers, expected 48 for shape (3, 2) of float64
  1 | x: {file: short.npy}
    |           ^
""",
    ),
    "file, a lie": (
        "x: {file: lie.npy}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: lie.npy holds 0 bytes of numbers, expected 16000000000000 for shape (1000000000000, 2) of float64
  1 | x: {file: lie.npy}
    |           ^
""",
    ),
    "file, a lie in a zip": (
        "x: {file: lie.npz}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: "a" in lie.npz holds 0 bytes of numbers, expected 16000000000000 for shape (1000000000000, 2) of float64
  1 | x: {file: lie.npz}
    |           ^
""",
    ),
    "file, several arrays": (
        "x: {file: two.npz}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: two.npz holds 2 arrays, expected a key to choose one: "a", "b"
  1 | x: {file: two.npz}
    |           ^
""",
    ),
    "file, another extension": (
        "x: {file: weights.pt}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: weights.pt has the extension ".pt", expected .npy, .npz, .csv or .safetensors
  1 | x: {file: weights.pt}
    |           ^
""",
    ),
    "file, ragged": (
        "x: {file: ragged.csv}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: line 2 of ragged.csv holds 1 cell, expected 2 as in line 1
  1 | x: {file: ragged.csv}
    |           ^
""",
    ),
    "file, broken archive": (
        "x: {file: broken.safetensors}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: broken.safetensors holds bytes of another format, expected a safetensors archive
  1 | x: {file: broken.safetensors}
    |           ^
""",
    ),
    "file, wrong shape": (
        "x: {file: good.npy}\nw_q: [[1, 2, 3]]\nw_k: [[1, 0], [1, 1]]\nw_v: [[2, 0], [0, 3]]\n",
        RUN,
        r"""
error: c.yaml:2:6: w_q: expected 2 rows (the width of x), found 1
  2 | w_q: [[1, 2, 3]]
    |      ^
error: c.yaml:3:6: w_k: expected 3 columns (the columns of w_q), found 2
  3 | w_k: [[1, 0], [1, 1]]
    |      ^
""",
    ),
    "file, an escape": (
        'x: {file: "\\u001b[31m.npy"}\n' + W,
        RUN,
        r"""
error: c.yaml:1:11: x: \x1b[31m.npy does not exist
  1 | x: {file: "\u001b[31m.npy"}
    |           ^
""",
    ),
    "file, which of them": (
        "x: {file: two.npz, key: c}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: two.npz holds no array "c"; it holds "a", "b"
  1 | x: {file: two.npz, key: c}
    |           ^
""",
    ),
    "file, no name": (
        "x: {file: ''}\n" + W,
        RUN,
        r"""
error: c.yaml:1:11: x: expected the name of a file, found ''
  1 | x: {file: ''}
    |           ^
""",
    ),
    "file, a mask of two": (
        T + "mask: {keep: {file: twos.npy}}\n",
        RUN,
        r"""
error: c.yaml:5:14: mask.keep: expected 0 or 1 (or false or true), found 2; to add numbers to the scores say add
  5 | mask: {keep: {file: twos.npy}}
    |              ^
""",
    ),
    "rope, without pairs": (
        T + "rope: {}\n",
        RUN,
        r"""
error: c.yaml:5:7: rope: pairs is missing: say pairs: half, or pairs: interleaved
  5 | rope: {}
    |       ^
""",
    ),
    "rope, a word": (
        T + "rope: half\n",
        RUN,
        r"""
error: c.yaml:5:7: rope: expected a mapping such as {pairs: half}, found 'half'
  5 | rope: half
    |       ^
""",
    ),
    "rope, a list": (
        T + "rope: [half]\n",
        RUN,
        r"""
error: c.yaml:5:7: rope: expected a mapping such as {pairs: half}, found a list of 1
  5 | rope: [half]
    |       ^
""",
    ),
    "rope, true": (
        T + "rope: true\n",
        RUN,
        r"""
error: c.yaml:5:7: rope: expected a mapping such as {pairs: half}, found true
  5 | rope: true
    |       ^
""",
    ),
    "rope, an unknown kind of pairs": (
        T + "rope: {pairs: halves}\n",
        RUN,
        r"""
error: c.yaml:5:15: rope.pairs: expected interleaved or half, found 'halves'; did you mean "half"?
  5 | rope: {pairs: halves}
    |               ^
""",
    ),
    "rope, an unknown key": (
        T + "rope: {pairs: half, position: [0, 1, 2]}\n",
        RUN,
        r"""
error: c.yaml:5:21: rope: unknown key 'position'; did you mean "positions"?
  5 | rope: {pairs: half, position: [0, 1, 2]}
    |                     ^
""",
    ),
    "rope, more dims than there are": (
        T + "rope: {pairs: half, dims: 4}\n",
        RUN,
        r"""
error: c.yaml:5:27: rope.dims: expected at most 2 (d_k), found 4
  5 | rope: {pairs: half, dims: 4}
    |                           ^
""",
    ),
    "rope, odd dims": (
        D + "heads: 1\nrope: {pairs: half, dims: 3}\n",
        RUN,
        r"""
error: c.yaml:7:27: rope.dims: expected an even number, since entries turn in pairs, found 3
  7 | rope: {pairs: half, dims: 3}
    |                           ^
""",
    ),
    "rope, an odd d_k": (
        D3 + "rope: {pairs: interleaved}\n",
        RUN,
        r"""
error: c.yaml:6:7: rope: entries turn in pairs, and d_k is 3; say dims: 2
  6 | rope: {pairs: interleaved}
    |       ^
""",
    ),
    "rope, dims of another kind": (
        T + "rope: {pairs: half, dims: 1.5}\n",
        RUN,
        r"""
error: c.yaml:5:27: rope.dims: expected a whole number, found 1.5
  5 | rope: {pairs: half, dims: 1.5}
    |                           ^
""",
    ),
    "rope, no dims": (
        T + "rope: {pairs: half, dims: 0}\n",
        RUN,
        r"""
error: c.yaml:5:27: rope.dims: expected at least 1, found 0
  5 | rope: {pairs: half, dims: 0}
    |                           ^
""",
    ),
    "rope, base 0": (
        T + "rope: {pairs: half, base: 0}\n",
        RUN,
        r"""
error: c.yaml:5:27: rope.base: expected more than 0, found 0
  5 | rope: {pairs: half, base: 0}
    |                           ^
""",
    ),
    "rope, base of text": (
        T + "rope: {pairs: half, base: ten thousand}\n",
        RUN,
        r"""
error: c.yaml:5:27: rope.base: expected a number, found 'ten thousand'
  5 | rope: {pairs: half, base: ten thousand}
    |                           ^
""",
    ),
    "rope, base NaN": (
        T + "rope: {pairs: half, base: .nan}\n",
        RUN,
        r"""
error: c.yaml:5:27: rope.base: expected a finite number, found .nan
  5 | rope: {pairs: half, base: .nan}
    |                           ^
""",
    ),
    "rope, positions of another length": (
        T + "rope: {pairs: half, positions: [0, 1]}\n",
        RUN,
        r"""
error: c.yaml:5:32: rope.positions: expected 3 positions (one for each of the queries), found 2
  5 | rope: {pairs: half, positions: [0, 1]}
    |                                ^
""",
    ),
    "rope, positions in a batch that is not there": (
        T + "rope: {pairs: half, positions: [[0, 1, 2]]}\n",
        RUN,
        r"""
error: c.yaml:5:32: rope.positions: expected 1 axis (token), found 2
  5 | rope: {pairs: half, positions: [[0, 1, 2]]}
    |                                ^
""",
    ),
    "rope, positions of another batch": (
        D + "rope: {pairs: half, positions: [[0, 1, 2]]}\n",
        RUN,
        r"""
error: c.yaml:6:32: rope.positions: expected 2 batch items (the batch items of x), found 1
  6 | rope: {pairs: half, positions: [[0, 1, 2]]}
    |                                ^
""",
    ),
    "rope, a single position": (
        T + "rope: {pairs: half, positions: 3}\n",
        RUN,
        r"""
error: c.yaml:5:32: rope.positions: expected numbers in lists, {file: …} or {draw: …}, found 3
  5 | rope: {pairs: half, positions: 3}
    |                                ^
""",
    ),
    "rope, null positions": (
        T + "rope: {pairs: half, positions: null}\n",
        RUN,
        r"""
error: c.yaml:5:32: rope.positions: expected numbers in lists, {file: …} or {draw: …}, found nothing
  5 | rope: {pairs: half, positions: null}
    |                                ^
""",
    ),
    "rope, positions of text": (
        T + "rope: {pairs: half, positions: [0, one, 2]}\n",
        RUN,
        r"""
error: c.yaml:5:36: rope.positions[1]: expected a number, found 'one'
  5 | rope: {pairs: half, positions: [0, one, 2]}
    |                                    ^
""",
    ),
    "rope, positions drawn": (
        T + "rope: {pairs: half, positions: {draw: integers, high: 9, shape: [3], seed: 1}}\n",
        RUN,
        r"""
error: c.yaml:5:32: rope.positions: expected numbers in lists or {file: …}, found a draw
  5 | rope: {pairs: half, positions: {draw: integers, high: 9, shape: [3], seed: 1…
    |                                ^
""",
    ),
    "rope, positions and offset": (
        T + "rope: {pairs: half, offset: 3, positions: [0, 1, 2]}\n",
        RUN,
        r"""
error: c.yaml:5:29: rope.offset: positions say already where the tokens stand; leave one of them out
  5 | rope: {pairs: half, offset: 3, positions: [0, 1, 2]}
    |                             ^
""",
    ),
    "rope, key positions of another length": (
        T + "rope: {pairs: half, key_positions: [0, 1]}\n",
        RUN,
        r"""
error: c.yaml:5:36: rope.key_positions: expected 3 positions (one for each of the keys), found 2
  5 | rope: {pairs: half, key_positions: [0, 1]}
    |                                    ^
""",
    ),
    "rope, unequal lengths": (
        Q + "rope: {pairs: half}\n",
        RUN,
        r"""
error: c.yaml:4:7: rope: with 2 queries and 3 keys say where the queries stand: positions: [0, 1, …]
  4 | rope: {pairs: half}
    |       ^
""",
    ),
    "rope, an offset that is no whole number": (
        T + "rope: {pairs: half, offset: 1.5}\n",
        RUN,
        r"""
error: c.yaml:5:29: rope.offset: expected a whole number, found 1.5
  5 | rope: {pairs: half, offset: 1.5}
    |                             ^
""",
    ),
    "rope, a huge offset": (
        T + "rope: {pairs: half, offset: 10000000000}\n",
        RUN,
        r"""
error: c.yaml:5:29: rope.offset: expected less than 2147483648, found 10000000000
  5 | rope: {pairs: half, offset: 10000000000}
    |                             ^
""",
    ),
    "rope, cos without sin": (
        T + "rope: {pairs: half, cos: [[1], [0], [1]]}\n",
        RUN,
        r"""
error: c.yaml:5:26: rope: cos is given and sin is not; give both tables, or neither
  5 | rope: {pairs: half, cos: [[1], [0], [1]]}
    |                          ^
""",
    ),
    "rope, sin without cos": (
        T + "rope: {pairs: half, sin: [[1], [0], [1]]}\n",
        RUN,
        r"""
error: c.yaml:5:26: rope: sin is given and cos is not; give both tables, or neither
  5 | rope: {pairs: half, sin: [[1], [0], [1]]}
    |                          ^
""",
    ),
    "rope, tables of unequal lengths": (
        T + "rope: {pairs: half, cos: [[1], [0], [1]], sin: [[1], [0]]}\n",
        RUN,
        r"""
error: c.yaml:5:48: rope.sin: expected 3 rows (the rows of rope.cos), found 2
  5 | rope: {pairs: half, cos: [[1], [0], [1]], sin: [[1], [0]]}
    |                                                ^
""",
    ),
    "rope, tables of one axis": (
        T + "rope: {pairs: half, cos: [1, 0, 1], sin: [0, 1, 0]}\n",
        RUN,
        r"""
error: c.yaml:5:26: rope.cos: expected 2 axes (position, pair), found 1
  5 | rope: {pairs: half, cos: [1, 0, 1], sin: [0, 1, 0]}
    |                          ^
error: c.yaml:5:42: rope.sin: expected 2 axes (position, pair), found 1
  5 | rope: {pairs: half, cos: [1, 0, 1], sin: [0, 1, 0]}
    |                                          ^
""",
    ),
    "rope, tables too short": (
        T + "rope: {pairs: half, cos: [[1], [0]], sin: [[0], [1]]}\n",
        RUN,
        r"""
error: c.yaml:5:26: rope.cos: expected at least 3 rows (positions 0 to 2), found 2
  5 | rope: {pairs: half, cos: [[1], [0]], sin: [[0], [1]]}
    |                          ^
""",
    ),
    "rope, tables too short after an offset": (
        T + "rope: {pairs: half, offset: 7, cos: [[1], [0], [1]], sin: [[0], [1], [0]]}\n",
        RUN,
        r"""
error: c.yaml:5:37: rope.cos: expected at least 10 rows (positions 0 to 9), found 3
  5 | rope: {pairs: half, offset: 7, cos: [[1], [0], [1]], sin: [[0], [1], [0]]}
    |                                     ^
""",
    ),
    "rope, tables too short after a cache": (
        D
        + "rope: {pairs: half, cos: [[1, 1], [0, 1], [1, 0]], sin: [[0, 0], [1, 0], [0, 1]]}\ncache: {k: {draw: normal, shape: [2, 3, 4]}, v: {draw: normal, shape: [2, 3, 4]}}\n",
        RUN,
        r"""
error: c.yaml:6:26: rope.cos: expected at least 6 rows (positions 0 to 5), found 3
  6 | rope: {pairs: half, cos: [[1, 1], [0, 1], [1, 0]], sin: [[0, 0], [1, 0], [0,…
    |                          ^
""",
    ),
    "rope, an offset before the tables": (
        T + "rope: {pairs: half, offset: -1, cos: [[1], [0], [1]], sin: [[0], [1], [0]]}\n",
        RUN,
        r"""
error: c.yaml:5:29: rope.offset: expected at least 0, since the tables begin at position 0; found -1
  5 | rope: {pairs: half, offset: -1, cos: [[1], [0], [1]], sin: [[0], [1], [0]]}
    |                             ^
""",
    ),
    "rope, tables too wide": (
        T + "rope: {pairs: half, cos: [[1, 1], [0, 1], [1, 0]], sin: [[0, 0], [1, 0], [0, 1]]}\n",
        RUN,
        r"""
error: c.yaml:5:26: rope.cos: expected at most 1 column (d_k is 2), one for each pair; found 2
  5 | rope: {pairs: half, cos: [[1, 1], [0, 1], [1, 0]], sin: [[0, 0], [1, 0], [0,…
    |                          ^
""",
    ),
    "rope, tables that do not fit dims": (
        D + "rope: {pairs: half, dims: 4, cos: [[1], [0], [1]], sin: [[0], [1], [0]]}\n",
        RUN,
        r"""
error: c.yaml:6:35: rope.cos: expected 2 columns (dims: 4), one for each pair; found 1
  6 | rope: {pairs: half, dims: 4, cos: [[1], [0], [1]], sin: [[0], [1], [0]]}
    |                                   ^
""",
    ),
    "rope, a position beyond the tables": (
        T + "rope: {pairs: half, positions: [0, 1, 3], cos: [[1], [0], [1]], sin: [[0], [1], [0]]}\n",
        RUN,
        r"""
error: c.yaml:5:39: rope.positions[2]: expected a row of the tables, 0 to 2, found 3
  5 | rope: {pairs: half, positions: [0, 1, 3], cos: [[1], [0], [1]], sin: [[0], […
    |                                       ^
""",
    ),
    "rope, positions that are no rows of tables": (
        T + "rope: {pairs: half, positions: [-1, 0.5, .nan], cos: [[1], [0], [1]], sin: [[0], [1], [0]]}\n",
        RUN,
        r"""
error: c.yaml:5:33: rope.positions[0]: expected a row of the tables, 0 to 2, found -1
  5 | rope: {pairs: half, positions: [-1, 0.5, .nan], cos: [[1], [0], [1]], sin: […
    |                                 ^
error: c.yaml:5:37: rope.positions[1]: expected a row of the tables, 0 to 2, found 0.5
  5 | rope: {pairs: half, positions: [-1, 0.5, .nan], cos: [[1], [0], [1]], sin: […
    |                                     ^
error: c.yaml:5:42: rope.positions[2]: expected a row of the tables, 0 to 2, found nan
  5 | …e: {pairs: half, positions: [-1, 0.5, .nan], cos: [[1], [0], [1]], sin: [[0]…
    |                                        ^
""",
    ),
    "rope, a key position beyond the tables": (
        T + "rope: {pairs: half, key_positions: [0, 1, 3], cos: [[1], [0], [1]], sin: [[0], [1], [0]]}\n",
        RUN,
        r"""
error: c.yaml:5:43: rope.key_positions[2]: expected a row of the tables, 0 to 2, found 3
  5 | …: {pairs: half, key_positions: [0, 1, 3], cos: [[1], [0], [1]], sin: [[0], […
    |                                        ^
""",
    ),
    "rope, base with tables": (
        T + "rope: {pairs: half, base: 5, cos: [[1], [0], [1]], sin: [[0], [1], [0]]}\n",
        RUN,
        r"""
error: c.yaml:5:27: rope.base: changes nothing where cos and sin are given; leave one of them out
  5 | rope: {pairs: half, base: 5, cos: [[1], [0], [1]], sin: [[0], [1], [0]]}
    |                           ^
""",
    ),
    "rope, scaling with tables": (
        T + "rope: {pairs: half, scaling: {type: linear, factor: 2}, cos: [[1], [0], [1]], sin: [[0], [1], [0]]}\n",
        RUN,
        r"""
error: c.yaml:5:30: rope.scaling: changes nothing where cos and sin are given; leave one of them out
  5 | rope: {pairs: half, scaling: {type: linear, factor: 2}, cos: [[1], [0], [1]]…
    |                              ^
""",
    ),
    "rope, scaling a word": (
        T + "rope: {pairs: half, scaling: linear}\n",
        RUN,
        r"""
error: c.yaml:5:30: rope.scaling: expected a mapping such as {type: linear, factor: 4}, found 'linear'
  5 | rope: {pairs: half, scaling: linear}
    |                              ^
""",
    ),
    "rope, scaling without anything": (
        T + "rope: {pairs: half, scaling: {}}\n",
        RUN,
        r"""
error: c.yaml:5:30: rope.scaling: type is missing: say type: linear, or type: llama3
  5 | rope: {pairs: half, scaling: {}}
    |                              ^
error: c.yaml:5:30: rope.scaling: factor is missing: say factor: 4
  5 | rope: {pairs: half, scaling: {}}
    |                              ^
""",
    ),
    "rope, an unknown scaling": (
        T + "rope: {pairs: half, scaling: {type: yarn, factor: 2}}\n",
        RUN,
        r"""
error: c.yaml:5:37: rope.scaling.type: expected linear or llama3, found 'yarn'
  5 | rope: {pairs: half, scaling: {type: yarn, factor: 2}}
    |                                     ^
""",
    ),
    "rope, a factor of 0": (
        T + "rope: {pairs: half, scaling: {type: linear, factor: 0}}\n",
        RUN,
        r"""
error: c.yaml:5:53: rope.scaling.factor: expected more than 0, found 0
  5 | rope: {pairs: half, scaling: {type: linear, factor: 0}}
    |                                                     ^
""",
    ),
    "rope, linear with a key of llama3": (
        T + "rope: {pairs: half, scaling: {type: linear, factor: 2, low_freq_factor: 1}}\n",
        RUN,
        r"""
error: c.yaml:5:73: rope.scaling.low_freq_factor: goes with type: llama3, not with linear
  5 | rope: {pairs: half, scaling: {type: linear, factor: 2, low_freq_factor: 1}}
    |                                                                         ^
""",
    ),
    "rope, llama3 low above high": (
        T + "rope: {pairs: half, scaling: {type: llama3, factor: 8, low_freq_factor: 4, high_freq_factor: 1}}\n",
        RUN,
        r"""
error: c.yaml:5:94: rope.scaling.high_freq_factor: expected more than low_freq_factor (4), found 1
  5 | …scaling: {type: llama3, factor: 8, low_freq_factor: 4, high_freq_factor: 1}}
    |                                                                           ^
""",
    ),
    "rope, llama3 low as high as the default": (
        T + "rope: {pairs: half, scaling: {type: llama3, factor: 8, low_freq_factor: 4}}\n",
        RUN,
        r"""
error: c.yaml:5:73: rope.scaling.low_freq_factor: expected less than high_freq_factor (4), found 4
  5 | rope: {pairs: half, scaling: {type: llama3, factor: 8, low_freq_factor: 4}}
    |                                                                         ^
""",
    ),
    "alibi, a number": (
        T + "alibi: 1\n",
        RUN,
        r"""
error: c.yaml:5:8: alibi: expected true, false or a mapping such as {slopes: [0.5, 0.25]}, found 1
  5 | alibi: 1
    |        ^
""",
    ),
    "alibi, a word": (
        T + "alibi: on please\n",
        RUN,
        r"""
error: c.yaml:5:8: alibi: expected true, false or a mapping such as {slopes: [0.5, 0.25]}, found 'on please'
  5 | alibi: on please
    |        ^
""",
    ),
    "alibi, slopes of another length": (
        H + "alibi: {slopes: [0.5, 0.25, 0.125]}\n",
        RUN,
        r"""
error: c.yaml:7:17: alibi.slopes: expected 2 heads (heads), found 3
  7 | alibi: {slopes: [0.5, 0.25, 0.125]}
    |                 ^
""",
    ),
    "alibi, slopes without heads": (
        T + "alibi: {slopes: [0.5, 0.25]}\n",
        RUN,
        r"""
error: c.yaml:5:17: alibi.slopes: expected 1 number (there are no heads), found 2
  5 | alibi: {slopes: [0.5, 0.25]}
    |                 ^
""",
    ),
    "alibi, slopes of two axes": (
        T + "alibi: {slopes: [[0.5]]}\n",
        RUN,
        r"""
error: c.yaml:5:17: alibi.slopes: expected 1 axis (head), found 2
  5 | alibi: {slopes: [[0.5]]}
    |                 ^
""",
    ),
    "alibi, a single slope": (
        T + "alibi: {slopes: 0.5}\n",
        RUN,
        r"""
error: c.yaml:5:17: alibi.slopes: expected numbers in lists, {file: …} or {draw: …}, found 0.5
  5 | alibi: {slopes: 0.5}
    |                 ^
""",
    ),
    "alibi, an unknown key": (
        T + "alibi: {slope: [0.5]}\n",
        RUN,
        r"""
error: c.yaml:5:9: alibi: unknown key 'slope'; did you mean "slopes"?
  5 | alibi: {slope: [0.5]}
    |         ^
""",
    ),
    "alibi, an unknown alignment": (
        T + "alibi: {align: left}\n",
        RUN,
        r"""
error: c.yaml:5:16: alibi.align: expected top-left or bottom-right, found 'left'; did you mean "top-left"?
  5 | alibi: {align: left}
    |                ^
""",
    ),
    "alibi, unequal lengths": (
        Q + "alibi: true\n",
        RUN,
        r"""
error: c.yaml:4:8: alibi: the distance is ambiguous with 2 queries and 3 keys: say {align: top-left} (the first query stands at the first key) or {align: bottom-right} (the last at the last)
  4 | alibi: true
    |        ^
""",
    ),
    "alibi, unequal lengths, as its mask": (
        Q + "mask: causal\nalibi: true\n",
        RUN,
        r"""
error: c.yaml:4:7: mask: causal is ambiguous with 2 queries and 3 keys: say {causal: top-left} (the first query stands at the first key) or {causal: bottom-right} (the last at the last)
  4 | mask: causal
    |       ^
""",
    ),
    "softcap 0": (
        T + "softcap: 0\n",
        RUN,
        r"""
error: c.yaml:5:10: softcap: expected more than 0, found 0
  5 | softcap: 0
    |          ^
""",
    ),
    "softcap, negative": (
        T + "softcap: -30\n",
        RUN,
        r"""
error: c.yaml:5:10: softcap: expected more than 0, found -30
  5 | softcap: -30
    |          ^
""",
    ),
    "softcap, infinite": (
        T + "softcap: .inf\n",
        RUN,
        r"""
error: c.yaml:5:10: softcap: expected a finite number, found .inf
  5 | softcap: .inf
    |          ^
""",
    ),
    "softcap, true": (
        T + "softcap: true\n",
        RUN,
        r"""
error: c.yaml:5:10: softcap: expected a number, found true
  5 | softcap: true
    |          ^
""",
    ),
    "softcap, a list": (
        T + "softcap: [30]\n",
        RUN,
        r"""
error: c.yaml:5:10: softcap: expected a number, found a list of 1
  5 | softcap: [30]
    |          ^
""",
    ),
    "softmax_dtype, unknown": (
        T + "softmax_dtype: float8\n",
        RUN,
        r"""
error: c.yaml:5:16: softmax_dtype: expected float64, float32, float16 or bfloat16, found 'float8'; did you mean "float64"?
  5 | softmax_dtype: float8
    |                ^
""",
    ),
    "softmax_dtype, a number": (
        T + "softmax_dtype: 32\n",
        RUN,
        r"""
error: c.yaml:5:16: softmax_dtype: expected float64, float32, float16 or bfloat16, found 32
  5 | softmax_dtype: 32
    |                ^
""",
    ),
    "softmax_dtype with tiles": (
        T + "softmax_dtype: float32\ncore: {tiled: {queries: 1, keys: 1}}\n",
        RUN,
        r"""
error: c.yaml:5:16: softmax_dtype: goes with core: direct; tiles are summed in the dtype of the trace
  5 | softmax_dtype: float32
    |                ^
""",
    ),
    "softmax_dtype with a ring": (
        T + "softmax_dtype: float32\ncore: {ring: {devices: 2}}\n",
        RUN,
        r"""
error: c.yaml:5:16: softmax_dtype: goes with core: direct; tiles are summed in the dtype of the trace
  5 | softmax_dtype: float32
    |                ^
""",
    ),
    "sinks, another length": (
        H + "sinks: [0.5]\n",
        RUN,
        r"""
error: c.yaml:7:8: sinks: expected 2 heads (heads), found 1
  7 | sinks: [0.5]
    |        ^
""",
    ),
    "sinks, without heads": (
        T + "sinks: [0.5, 0.25]\n",
        RUN,
        r"""
error: c.yaml:5:8: sinks: expected 1 number (there are no heads), found 2
  5 | sinks: [0.5, 0.25]
    |        ^
""",
    ),
    "sinks, of two axes": (
        T + "sinks: [[0.5]]\n",
        RUN,
        r"""
error: c.yaml:5:8: sinks: expected 1 axis (head), found 2
  5 | sinks: [[0.5]]
    |        ^
""",
    ),
    "sinks, a number": (
        T + "sinks: 0.5\n",
        RUN,
        r"""
error: c.yaml:5:8: sinks: expected numbers in lists, {file: …} or {draw: …}, found 0.5
  5 | sinks: 0.5
    |        ^
""",
    ),
    "sinks, nothing": (
        T + "sinks:\n",
        RUN,
        r"""
error: c.yaml:5:7: sinks: expected numbers in lists, {file: …} or {draw: …}, found nothing
  5 | sinks:
    |       ^
""",
    ),
    "sinks, empty": (
        T + "sinks: []\n",
        RUN,
        r"""
error: c.yaml:5:8: sinks: holds an empty list; every axis needs at least one entry
  5 | sinks: []
    |        ^
""",
    ),
    "qk_norm, unknown": (
        T + "qk_norm: l1\n",
        RUN,
        r"""
error: c.yaml:5:10: qk_norm: expected rmsnorm, layernorm, l2 or a mapping such as {norm: rmsnorm}, found 'l1'; did you mean "l2"?
  5 | qk_norm: l1
    |          ^
""",
    ),
    "qk_norm, true": (
        T + "qk_norm: true\n",
        RUN,
        r"""
error: c.yaml:5:10: qk_norm: expected rmsnorm, layernorm, l2 or a mapping such as {norm: rmsnorm}, found true
  5 | qk_norm: true
    |          ^
""",
    ),
    "qk_norm, without a norm": (
        T + "qk_norm: {q: [1, 1]}\n",
        RUN,
        r"""
error: c.yaml:5:10: qk_norm: norm is missing: say norm: rmsnorm, or norm: layernorm
  5 | qk_norm: {q: [1, 1]}
    |          ^
""",
    ),
    "qk_norm, weights of another length": (
        T + "qk_norm: {norm: rmsnorm, q: [1], k: [1, 2, 3]}\n",
        RUN,
        r"""
error: c.yaml:5:29: qk_norm.q: expected 2 numbers (the columns of w_q), found 1
  5 | qk_norm: {norm: rmsnorm, q: [1], k: [1, 2, 3]}
    |                             ^
error: c.yaml:5:37: qk_norm.k: expected 2 numbers (the columns of w_q), found 3
  5 | qk_norm: {norm: rmsnorm, q: [1], k: [1, 2, 3]}
    |                                     ^
""",
    ),
    "qk_norm, a negative eps": (
        T + "qk_norm: {norm: l2, eps: -1}\n",
        RUN,
        r"""
error: c.yaml:5:26: qk_norm.eps: expected at least 0, found -1
  5 | qk_norm: {norm: l2, eps: -1}
    |                          ^
""",
    ),
    "cache, nothing in it": (
        T + "cache: {}\n",
        RUN,
        r"""
error: c.yaml:5:8: cache: k is missing: k and v go together
  5 | cache: {}
    |        ^
error: c.yaml:5:8: cache: v is missing: k and v go together
  5 | cache: {}
    |        ^
""",
    ),
    "cache, a list": (
        T + "cache: [[1, 2]]\n",
        RUN,
        r"""
error: c.yaml:5:8: cache: expected a mapping such as {k: …, v: …}, found a list of 1
  5 | cache: [[1, 2]]
    |        ^
""",
    ),
    "cache, only k": (
        T + "cache: {k: [[1, 2]]}\n",
        RUN,
        r"""
error: c.yaml:5:8: cache: v is missing: k and v go together
  5 | cache: {k: [[1, 2]]}
    |        ^
""",
    ),
    "cache, another d": (
        T + "cache: {k: [[1, 2, 3]], v: [[1]]}\n",
        RUN,
        r"""
error: c.yaml:5:12: cache.k: expected 2 columns (the columns of w_q), found 3
  5 | cache: {k: [[1, 2, 3]], v: [[1]]}
    |            ^
error: c.yaml:5:28: cache.v: expected 2 columns (the columns of w_v), found 1
  5 | cache: {k: [[1, 2, 3]], v: [[1]]}
    |                            ^
""",
    ),
    "cache, k and v of unequal lengths": (
        T + "cache: {k: [[1, 2]], v: [[1, 2], [3, 4]]}\n",
        RUN,
        r"""
error: c.yaml:5:25: cache.v: expected 1 past key (the past keys of cache.k), found 2
  5 | cache: {k: [[1, 2]], v: [[1, 2], [3, 4]]}
    |                         ^
""",
    ),
    "cache, other heads, and a mask that hangs on it": (
        G
        + "cache: {k: {draw: normal, shape: [2, 4, 3, 2]}, v: {draw: normal, shape: [2, 2, 3, 2]}}\nmask: {keep: [[1, 1, 1]]}\n",
        RUN,
        r"""
error: c.yaml:8:12: cache.k: expected 2 key/value heads (kv_heads), found 4
  8 | cache: {k: {draw: normal, shape: [2, 4, 3, 2]}, v: {draw: normal, shape: [2,…
    |            ^
""",
    ),
    "cache, another batch": (
        G + "cache: {k: {draw: normal, shape: [3, 2, 3, 2]}, v: {draw: normal, shape: [2, 2, 3, 2]}}\n",
        RUN,
        r"""
error: c.yaml:8:12: cache.k: expected 2 batch items (the batch items of x), found 3
  8 | cache: {k: {draw: normal, shape: [3, 2, 3, 2]}, v: {draw: normal, shape: [2,…
    |            ^
""",
    ),
    "cache, a batch that is not there": (
        T + "cache: {k: [[[1, 2]]], v: [[[1, 2]]]}\n",
        RUN,
        r"""
error: c.yaml:5:12: cache.k: expected 2 axes (past, d_k), found 3
  5 | cache: {k: [[[1, 2]]], v: [[[1, 2]]]}
    |            ^
error: c.yaml:5:27: cache.v: expected 2 axes (past, d_v), found 3
  5 | cache: {k: [[[1, 2]]], v: [[[1, 2]]]}
    |                           ^
""",
    ),
    "cache, a mask without its keys": (
        G
        + "cache: {k: {draw: normal, shape: [2, 2, 3, 2]}, v: {draw: normal, shape: [2, 2, 3, 2]}}\nmask: {keep: [[1, 1, 1]]}\n",
        RUN,
        r"""
error: c.yaml:9:14: mask.keep: expected batch 2 × head 4 × query 3 × key 6 (any of them may be 1, leading ones left out), found 1 × 3
  9 | mask: {keep: [[1, 1, 1]]}
    |              ^
""",
    ),
    "cache, plain and paged": (
        T + "cache: {k: [[1, 2]], v: [[1, 2]], table: [0]}\n",
        RUN,
        r"""
error: c.yaml:5:8: cache: give k and v, or blocks and table, not both
  5 | cache: {k: [[1, 2]], v: [[1, 2]], table: [0]}
    |        ^
""",
    ),
    "cache, blocks without a table": (
        T + "cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}}\n",
        RUN,
        r"""
error: c.yaml:5:8: cache: table is missing: blocks and table go together
  5 | cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}}
    |        ^
""",
    ),
    "cache, a table without blocks": (
        T + "cache: {table: [0]}\n",
        RUN,
        r"""
error: c.yaml:5:8: cache: blocks is missing: blocks and table go together
  5 | cache: {table: [0]}
    |        ^
""",
    ),
    "cache, lengths without blocks and a table": (
        T + "cache: {lengths: [1]}\n",
        RUN,
        r"""
error: c.yaml:5:8: cache: blocks is missing: blocks and table go together
  5 | cache: {lengths: [1]}
    |        ^
error: c.yaml:5:8: cache: table is missing: blocks and table go together
  5 | cache: {lengths: [1]}
    |        ^
""",
    ),
    "cache, blocks of k alone": (
        T + "cache: {blocks: {k: [[[1, 2]]]}, table: [0]}\n",
        RUN,
        r"""
error: c.yaml:5:17: cache.blocks: v is missing: k and v go together
  5 | cache: {blocks: {k: [[[1, 2]]]}, table: [0]}
    |                 ^
""",
    ),
    "cache, blocks a list": (
        T + "cache: {blocks: [[[1, 2]]], table: [0]}\n",
        RUN,
        r"""
error: c.yaml:5:17: cache.blocks: expected a mapping such as {k: …, v: …}, found a list of 1
  5 | cache: {blocks: [[[1, 2]]], table: [0]}
    |                 ^
""",
    ),
    "cache, a table of blocks that are not there": (
        T + "cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [1]}\n",
        RUN,
        r"""
error: c.yaml:5:57: cache.table[0]: expected a block from 0 to 0, found 1
  5 | cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [1]}
    |                                                         ^
""",
    ),
    "cache, table entries that are no blocks": (
        T + "cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [-1, 0.5, .nan]}\n",
        RUN,
        r"""
error: c.yaml:5:57: cache.table[0]: expected a block from 0 to 0, found -1
  5 | cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [-1, 0.5, .nan]}
    |                                                         ^
error: c.yaml:5:61: cache.table[1]: expected a block from 0 to 0, found 0.5
  5 | cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [-1, 0.5, .nan]}
    |                                                             ^
error: c.yaml:5:66: cache.table[2]: expected a block from 0 to 0, found nan
  5 | cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [-1, 0.5, .nan]}
    |                                                                  ^
""",
    ),
    "cache, a table drawn": (
        T + "cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: {draw: integers, high: 1, shape: [1], seed: 1}}\n",
        RUN,
        r"""
error: c.yaml:5:56: cache.table: expected numbers in lists or {file: …}, found a draw
  5 | …k: [[[1, 2]]], v: [[[1, 2]]]}, table: {draw: integers, high: 1, shape: [1], …
    |                                        ^
""",
    ),
    "cache, a table of two axes without a batch": (
        T + "cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [[0]]}\n",
        RUN,
        r"""
error: c.yaml:5:56: cache.table: expected 1 axis (page), found 2
  5 | cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [[0]]}
    |                                                        ^
""",
    ),
    "cache, a table of another batch, and a mask that hangs on it": (
        G
        + "cache: {blocks: {k: {draw: normal, shape: [5, 2, 2, 2]}, v: {draw: normal, shape: [5, 2, 2, 2]}}, table: [[0, 1]]}\nmask: {keep: [[1, 1, 1]]}\n",
        RUN,
        r"""
error: c.yaml:8:106: cache.table: expected 2 batch items (the batch items of x), found 1
  8 | …pe: [5, 2, 2, 2]}, v: {draw: normal, shape: [5, 2, 2, 2]}}, table: [[0, 1]]}
    |                                                                     ^
""",
    ),
    "cache, lengths beyond the slots, and a mask that hangs on them": (
        G
        + "cache: {blocks: {k: {draw: normal, shape: [5, 2, 2, 2]}, v: {draw: normal, shape: [5, 2, 2, 2]}}, table: [[0, 1], [2, 3]], lengths: [5, 1]}\nmask: {padding: [99, 1]}\n",
        RUN,
        r"""
error: c.yaml:8:134: cache.lengths[0]: expected at most 4 (2 pages of 2 slots), found 5
  8 | …aw: normal, shape: [5, 2, 2, 2]}}, table: [[0, 1], [2, 3]], lengths: [5, 1]}
    |                                                                        ^
""",
    ),
    "cache, fewer lengths than batch items": (
        G
        + "cache: {blocks: {k: {draw: normal, shape: [5, 2, 2, 2]}, v: {draw: normal, shape: [5, 2, 2, 2]}}, table: [[0, 1], [2, 3]], lengths: [3]}\n",
        RUN,
        r"""
error: c.yaml:8:133: cache.lengths: expected 2 lengths (one for each batch item), found 1
  8 | …{draw: normal, shape: [5, 2, 2, 2]}}, table: [[0, 1], [2, 3]], lengths: [3]}
    |                                                                          ^
""",
    ),
    "cache, lengths without a batch": (
        T + "cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [0], lengths: [1, 1]}\n",
        RUN,
        r"""
error: c.yaml:5:70: cache.lengths: expected 1 length (there is no batch axis), found 2
  5 | cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [0], lengths: [1, 1]}
    |                                                                      ^
""",
    ),
    "cache, no slot filled": (
        T + "cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [0], lengths: [0]}\n",
        RUN,
        r"""
error: c.yaml:5:70: cache.lengths: no slot is filled; give one at least, or leave the cache out
  5 | cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [0], lengths: [0]}
    |                                                                      ^
""",
    ),
    "cache, a negative length": (
        T + "cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [0], lengths: [-1]}\n",
        RUN,
        r"""
error: c.yaml:5:71: cache.lengths[0]: expected at least 0, found -1
  5 | cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [0], lengths: [-1]}
    |                                                                       ^
""",
    ),
    "cache, a length and not a list": (
        T + "cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [0], lengths: 1}\n",
        RUN,
        r"""
error: c.yaml:5:70: cache.lengths: expected a list such as [4, 2], a length for each batch item, found 1
  5 | cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [0], lengths: 1}
    |                                                                      ^
""",
    ),
    "cache, a huge length": (
        T
        + "cache: {blocks: {k: [[[1, 2]]], v: [[[1, 2]]]}, table: [0], lengths: [99999999999999999999999999999999999999999999999999]}\n",
        RUN,
        r"""
error: c.yaml:5:71: cache.lengths[0]: expected at most 1 (1 page of 1 slot), found a huge number
  5 | …v: [[[1, 2]]]}, table: [0], lengths: [99999999999999999999999999999999999999…
    |                                        ^
""",
    ),
    "cache, a file that is not there, and a mask that hangs on it": (
        T + "cache: {k: {file: no.npy}, v: [[1, 2]]}\nmask: {keep: [[1, 1, 1, 1]]}\n",
        RUN,
        r"""
error: c.yaml:5:19: cache.k: no.npy does not exist
  5 | cache: {k: {file: no.npy}, v: [[1, 2]]}
    |                   ^
""",
    ),
    "core, unknown": (
        T + "core: flash\n",
        RUN,
        r"""
error: c.yaml:5:7: core: expected direct, {tiled: {queries: 2, keys: 2}} or {ring: {devices: 2}}, found 'flash'
  5 | core: flash
    |       ^
""",
    ),
    "core, nothing": (
        T + "core:\n",
        RUN,
        r"""
error: c.yaml:5:6: core: expected direct, {tiled: {queries: 2, keys: 2}} or {ring: {devices: 2}}, found nothing
  5 | core:
    |      ^
""",
    ),
    "core, an unknown key": (
        T + "core: {flash: {}}\n",
        RUN,
        r"""
error: c.yaml:5:8: core: unknown key 'flash'; expected direct, {tiled: {queries: 2, keys: 2}} or {ring: {devices: 2}}
  5 | core: {flash: {}}
    |        ^
""",
    ),
    "core, nothing in it": (
        T + "core: {}\n",
        RUN,
        r"""
error: c.yaml:5:7: core: expected direct, {tiled: {queries: 2, keys: 2}} or {ring: {devices: 2}}, found an empty mapping
  5 | core: {}
    |       ^
""",
    ),
    "core, two of them": (
        T + "core: {tiled: {queries: 1, keys: 1}, ring: {devices: 2}}\n",
        RUN,
        r"""
error: c.yaml:5:38: core: expected one core, found tiled and ring; leave one of them out
  5 | core: {tiled: {queries: 1, keys: 1}, ring: {devices: 2}}
    |                                      ^
""",
    ),
    "core, tiles without sizes": (
        T + "core: {tiled: {}}\n",
        RUN,
        r"""
error: c.yaml:5:15: core.tiled: queries is missing: say queries: 2
  5 | core: {tiled: {}}
    |               ^
error: c.yaml:5:15: core.tiled: keys is missing: say keys: 2
  5 | core: {tiled: {}}
    |               ^
""",
    ),
    "core, tiles of 0": (
        T + "core: {tiled: {queries: 0, keys: 0}}\n",
        RUN,
        r"""
error: c.yaml:5:25: core.tiled.queries: expected at least 1, found 0
  5 | core: {tiled: {queries: 0, keys: 0}}
    |                         ^
error: c.yaml:5:34: core.tiled.keys: expected at least 1, found 0
  5 | core: {tiled: {queries: 0, keys: 0}}
    |                                  ^
""",
    ),
    "core, tiles of one number": (
        T + "core: {tiled: 2}\n",
        RUN,
        r"""
error: c.yaml:5:15: core.tiled: expected a mapping such as {queries: 2, keys: 2}, found 2
  5 | core: {tiled: 2}
    |               ^
""",
    ),
    "core, tiles of fractions": (
        T + "core: {tiled: {queries: 1.5, keys: 1}}\n",
        RUN,
        r"""
error: c.yaml:5:25: core.tiled.queries: expected a whole number, found 1.5
  5 | core: {tiled: {queries: 1.5, keys: 1}}
    |                         ^
""",
    ),
    "core, too many tiles": (
        LONG + "core: {tiled: {queries: 1, keys: 1}}\n",
        RUN,
        r"""
error: c.yaml:6:15: core.tiled: would make 40000 tiles, more than 20000; use larger tiles
  6 | core: {tiled: {queries: 1, keys: 1}}
    |               ^
""",
    ),
    "core, a ring of 0": (
        T + "core: {ring: {devices: 0}}\n",
        RUN,
        r"""
error: c.yaml:5:24: core.ring.devices: expected at least 1, found 0
  5 | core: {ring: {devices: 0}}
    |                        ^
""",
    ),
    "core, more devices than keys": (
        T + "core: {ring: {devices: 4}}\n",
        RUN,
        r"""
error: c.yaml:5:24: core.ring.devices: expected at most 3 devices (one for each key), found 4
  5 | core: {ring: {devices: 4}}
    |                        ^
""",
    ),
    "core, too many devices": (
        LONG + "core: {ring: {devices: 150}}\n",
        RUN,
        r"""
error: c.yaml:6:14: core.ring: would make 22500 tiles, more than 20000; use fewer devices
  6 | core: {ring: {devices: 150}}
    |              ^
""",
    ),
    "block, without norm and mlp": (
        T + "block: {}\n",
        RUN,
        r"""
error: c.yaml:5:8: block: norm is missing: say norm: rmsnorm, or norm: layernorm
  5 | block: {}
    |        ^
error: c.yaml:5:8: block: mlp is missing: say mlp: gelu, or mlp: gated
  5 | block: {}
    |        ^
""",
    ),
    "block, a word": (
        T + "block: gpt2\n",
        RUN,
        r"""
error: c.yaml:5:8: block: expected a mapping such as {norm: rmsnorm, mlp: gated, order: pre}, found 'gpt2'
  5 | block: gpt2
    |        ^
""",
    ),
    "block, unknown parts": (
        T + "block: {norm: layer, mlp: gelus, order: middle}\n",
        RUN,
        r"""
error: c.yaml:5:15: block.norm: expected layernorm or rmsnorm, found 'layer'; did you mean "layernorm"?
  5 | block: {norm: layer, mlp: gelus, order: middle}
    |               ^
error: c.yaml:5:27: block.mlp: expected gelu, gelu_tanh, silu, relu, gated or gated_gelu, found 'gelus'; did you mean "gelu"?
  5 | block: {norm: layer, mlp: gelus, order: middle}
    |                           ^
error: c.yaml:5:41: block.order: expected pre, post or parallel, found 'middle'
  5 | block: {norm: layer, mlp: gelus, order: middle}
    |                                         ^
""",
    ),
    "block, without its weights": (
        T + "block: {norm: rmsnorm, mlp: gelu}\n",
        RUN,
        r"""
error: c.yaml: w_up: missing: block.mlp: gelu needs w_up and w_down
error: c.yaml: w_down: missing: block.mlp: gelu needs w_up and w_down
""",
    ),
    "block, without a gate": (
        T + "block: {norm: rmsnorm, mlp: gated}\nw_up: [[1, 2, 3], [4, 5, 6]]\nw_down: [[1, 2], [3, 4], [5, 6]]\n",
        RUN,
        r"""
error: c.yaml: w_gate: missing: block.mlp: gated needs w_up, w_down and w_gate
""",
    ),
    "block, a gate that nothing reads": (
        T
        + "block: {norm: rmsnorm, mlp: gelu}\nw_gate: [[1, 2, 3], [4, 5, 6]]\nb_gate: [1, 2, 3]\nw_up: [[1, 2, 3], [4, 5, 6]]\nw_down: [[1, 2], [3, 4], [5, 6]]\n",
        RUN,
        r"""
error: c.yaml:6:9: w_gate: not used by block.mlp: gelu; say mlp: gated, or leave it out
  6 | w_gate: [[1, 2, 3], [4, 5, 6]]
    |         ^
error: c.yaml:7:9: b_gate: not used by block.mlp: gelu; say mlp: gated, or leave it out
  7 | b_gate: [1, 2, 3]
    |         ^
""",
    ),
    "block, rmsnorm with a bias": (
        T
        + "block: {norm: rmsnorm, mlp: gelu}\nb_norm1: [1, 2]\nw_up: [[1, 2, 3], [4, 5, 6]]\nw_down: [[1, 2], [3, 4], [5, 6]]\n",
        RUN,
        r"""
error: c.yaml:6:10: b_norm1: rmsnorm has no bias; leave it out, or say block.norm: layernorm
  6 | b_norm1: [1, 2]
    |          ^
""",
    ),
    "block, weights of other shapes": (
        T
        + "block: {norm: rmsnorm, mlp: gelu}\nw_norm1: [1, 2, 3]\nw_up: [[1, 2, 3], [4, 5, 6]]\nw_down: [[1, 2], [3, 4]]\nb_up: [1]\n",
        RUN,
        r"""
error: c.yaml:6:10: w_norm1: expected 2 numbers (the width of x), found 3
  6 | w_norm1: [1, 2, 3]
    |          ^
error: c.yaml:8:9: w_down: expected 3 rows (the columns of w_up), found 2
  8 | w_down: [[1, 2], [3, 4]]
    |         ^
error: c.yaml:9:7: b_up: expected 3 numbers (the columns of w_up), found 1
  9 | b_up: [1]
    |       ^
""",
    ),
    "block, an output of another width": (
        WIDE + "block: {norm: rmsnorm, mlp: gelu}\nw_up: [[1, 2, 3], [4, 5, 6]]\nw_down: [[1, 2], [3, 4], [5, 6]]\n",
        RUN,
        r"""
error: c.yaml:5:8: block: expected an attention output as wide as x (2), since it is added to x; found 3: give w_o with 2 columns
  5 | block: {norm: rmsnorm, mlp: gelu}
    |        ^
""",
    ),
    "block, with faulty w_o and w_up, which are not missing": (
        WIDE
        + "block: {norm: rmsnorm, mlp: gelu}\nw_o: {draw: norml, shape: [3, 2]}\nw_up: [[1, 2, 3], [4, 5]]\nw_down: [[1, 2], [3, 4], [5, 6]]\n",
        RUN,
        r"""
error: c.yaml:6:13: w_o.draw: expected normal, uniform or integers, found 'norml'; did you mean "normal"?
  6 | w_o: {draw: norml, shape: [3, 2]}
    |             ^
error: c.yaml:7:19: w_up: row 1 has 2 numbers; expected 3, as the rows before it
  7 | w_up: [[1, 2, 3], [4, 5]]
    |                   ^
""",
    ),
    "block, around q, k and v": (
        Q + "block: {norm: rmsnorm, mlp: gelu}\nw_up: [[1, 2, 3], [4, 5, 6]]\nw_down: [[1, 2], [3, 4], [5, 6]]\n",
        RUN,
        r"""
error: c.yaml:4:8: block: goes around a layer that begins at x; here q, k and v are given directly: leave it out, and its weights with it
  4 | block: {norm: rmsnorm, mlp: gelu}
    |        ^
""",
    ),
    "block, weights without it": (
        T + "w_norm1: [1, 2]\nw_up: [[1, 2, 3], [4, 5, 6]]\n",
        RUN,
        r"""
error: c.yaml:5:10: w_norm1: goes with block, which is not given
  5 | w_norm1: [1, 2]
    |          ^
error: c.yaml:6:7: w_up: goes with block, which is not given
  6 | w_up: [[1, 2, 3], [4, 5, 6]]
    |       ^
""",
    ),
    "block, weights without it, of q, k and v": (
        Q + "w_norm1: [1, 2]\n",
        RUN,
        r"""
error: c.yaml:4:10: w_norm1: goes with block, which is not given
  4 | w_norm1: [1, 2]
    |          ^
""",
    ),
    "masked_row, another word": (
        T + "masked_row: zeros\n",
        RUN,
        r"""
error: c.yaml:5:13: masked_row: expected zero or nan, found 'zeros'; did you mean "zero"?
  5 | masked_row: zeros
    |             ^
""",
    ),
    "window, unequal lengths": (
        Q + "mask: {window: {left: 1}}\n",
        RUN,
        r"""
error: c.yaml:4:16: mask.window: a window is ambiguous with 2 queries and 3 keys: say align: top-left (the first query stands at the first key) or align: bottom-right (the last at the last)
  4 | mask: {window: {left: 1}}
    |                ^
""",
    ),
    "faulty heads, and what hangs on them": (
        H.replace("heads: 2", "heads: two")
        + "sinks: [1]\nalibi: {slopes: [1]}\nqk_norm: {norm: l2, q: [1]}\ncache: {k: [[1]], v: [[1]]}\n",
        RUN,
        r"""
error: c.yaml:6:8: heads: expected a whole number, found 'two'
  6 | heads: two
    |        ^
""",
    ),
    "a faulty x, and what hangs on it": (
        T.replace("x: [[1, 0], [0, 1], [1, 1]]", "x: [[1, 0], [0, 1], [1]]")
        + "rope: {pairs: half, positions: [0]}\ncache: {k: [[1]], v: [[1]]}\nmask: {keep: [[1]]}\n",
        RUN,
        r"""
error: c.yaml:1:21: x: row 2 has 1 number; expected 2, as the rows before it
  1 | x: [[1, 0], [0, 1], [1]]
    |                     ^
""",
    ),
    "queries, none of them": (
        T,
        (*RUN, "--queries", "5:"),
        r"""
error: --queries: selects nothing from 3 queries, numbered from 0
""",
    ),
    "queries, a number too large": (
        T,
        (*RUN, "--queries", "3"),
        r"""
error: --queries: selects nothing from 3 queries, numbered from 0
""",
    ),
    "queries, backwards": (
        T,
        (*RUN, "--queries", "2:1"),
        r"""
error: --queries: selects nothing from 3 queries, numbered from 0
""",
    ),
    "queries, with a step": (
        T,
        (*RUN, "--queries", "0:3:2"),
        r"""
error: --queries 0:3:2: expected a run of queries, such as 0:4, -1: or 3
""",
    ),
    "queries, a list": (
        T,
        (*RUN, "--queries", "0,1"),
        r"""
error: --queries 0,1: expected a run of queries, such as 0:4, -1: or 3
""",
    ),
    "queries, of text": (
        T,
        (*RUN, "--queries", "first"),
        r"""
error: --queries first: expected a run of queries, such as 0:4, -1: or 3
""",
    ),
    "queries, empty": (
        T,
        (*RUN, "--queries", ""),
        r"""
error: --queries : expected a run of queries, such as 0:4, -1: or 3
""",
    ),
    "queries, in the order of permute": (
        T,
        (*RUN, "--queries", "3", "--permute", "2,0,1"),
        r"""
error: --queries: selects nothing from 3 queries, numbered from 0
""",
    ),
}


def run(*argv: str, stdin: bytes = b"") -> tuple[int, str, str]:
    """What the command `attntrace` does with these arguments: exit code, standard output, standard error."""
    from attntrace.cli import app

    out, err = io.BytesIO(), io.BytesIO()
    streams = io.TextIOWrapper(out, "utf-8"), io.TextIOWrapper(err, "utf-8"), io.TextIOWrapper(io.BytesIO(stdin), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in zip(("stdout", "stderr", "stdin"), streams, strict=True):
            patch.setattr(sys, name, stream)
        patch.setattr(sys, "argv", ["attntrace", *argv])
        with pytest.raises(SystemExit) as ended:
            app.main()
        for stream in streams[:2]:
            stream.flush()
    return int(ended.value.code or 0), out.getvalue().decode(), err.getvalue().decode()


def run_for_real(*argv: str) -> tuple[int, str, str]:
    command = [sys.executable, "-c", "from attntrace.cli.app import main; main()", *argv]
    done = subprocess.run(command, capture_output=True, timeout=120, env={**os.environ, "PYTHONIOENCODING": "utf-8"})
    return done.returncode, done.stdout.decode(), done.stderr.decode().replace("\r\n", "\n")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, so that messages name files alike everywhere."""
    monkeypatch.chdir(tmp_path)
    for name, content in FILES.items():
        Path(name).write_bytes(content)
    Path("folder").mkdir()
    Path("folder.npy").mkdir()
    return tmp_path


def written(text: str | None) -> None:
    if text is not None:
        Path("c.yaml").write_bytes(text.encode())


@pytest.mark.parametrize("name", CASES)
def test_message(name: str) -> None:
    text, argv, message = CASES[name]
    written(text)
    assert run(*argv) == (2, "", message.removeprefix("\n"))


REAL = [
    "empty",
    "tag that would run code",
    "alias bomb",
    "unknown key",
    "no value",
    "rows",
    "independent faults",
    "set a tag",
    "a bundled example, seed of text",
    "cell, out of range",
    "file, of objects",
    "file, a lie in a zip",
]


@pytest.mark.parametrize("name", REAL)
def test_message_in_a_process_of_its_own(name: str) -> None:
    text, argv, message = CASES[name]
    written(text)
    assert run_for_real(*argv) == (2, "", message.removeprefix("\n"))


@pytest.mark.parametrize("name", CASES)
def test_a_message_is_well_formed(name: str) -> None:
    """A sentence after `error: `; a place comes with its line and a caret; no two faults alike; nothing of a payload."""
    message = CASES[name][2].removeprefix("\n")
    lines = message.splitlines()
    sentences = [line for line in lines if line.startswith("error: ")]
    assert len(set(sentences)) == len(sentences)
    assert "pwned" not in message
    for line, source, caret in zip(lines, lines[1:], lines[2:], strict=False):
        if place := re.match(r"error: (?:c|toy|module05)\.yaml:(\d+):\d+: ", line):
            assert source.startswith(f"  {place[1]} | ")
            assert re.fullmatch(r" +\| +\^", caret)
    assert all(re.match(r"error: |  +\d* \|", line) for line in lines)


def test_valid_configs_are_valid() -> None:
    """The cases above break them; it must be that, and nothing else, which is complained about."""
    for text in (T, D, Q, D3, H, G, LONG, WIDE):
        written(text)
        assert run("get", "output", "c.yaml")[0] == 0


# ------------------------------------------------------------------ no fault is merely a consequence of another

NORMAL = {"draw": "normal", "std": 0.3}


def drawn(*shape: int) -> dict[str, Any]:
    return {**NORMAL, "shape": list(shape)}


RICH: dict[str, dict[str, Any]] = {
    "a block": {
        "seed": 1,
        "tokens": ["a", "b", "c"],
        "dtype": "float32",
        "heads": 4,
        "kv_heads": 2,
        "x": drawn(2, 3, 8),
        "w_q": drawn(8, 8),
        "w_k": drawn(8, 4),
        "w_v": drawn(8, 4),
        "b_k": drawn(4),
        "w_o": drawn(8, 8),
        "mask": ["causal", {"padding": [5, 4]}, {"keep": [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]}],
        "rope": {"pairs": "half", "dims": 2, "scaling": {"type": "linear", "factor": 2}},
        "alibi": {"slopes": [1, 2, 3, 4]},
        "qk_norm": {"norm": "rmsnorm", "q": [1, 2], "k": [2, 1]},
        "sinks": [1, 2, 3, 4],
        "softcap": 5,
        "cache": {"blocks": {"k": drawn(5, 2, 1, 2), "v": drawn(5, 2, 1, 2)}, "table": [[0, 1], [4, 3]], "lengths": [2, 1]},
        "core": {"tiled": {"queries": 2, "keys": 2}},
        "dropout": {"rate": 0.1},
        "block": {"norm": "rmsnorm", "mlp": "gated"},
        "w_norm1": drawn(8),
        "w_up": drawn(8, 6),
        "b_up": drawn(6),
        "w_gate": drawn(8, 6),
        "w_down": drawn(6, 8),
    },
    "given directly": {
        "seed": 1,
        "heads": 2,
        "q": drawn(2, 2, 3, 4),
        "k": drawn(2, 2, 4, 4),
        "v": drawn(2, 2, 4, 2),
        "rope": {
            "pairs": "interleaved",
            "cos": [[1, 1]] * 9,
            "sin": [[0, 0]] * 9,
            "positions": [[4, 5, 6], [5, 6, 7]],
            "key_positions": [3, 4, 5, 6],
        },
        "mask": {"window": {"left": 2, "align": "bottom-right"}},
        "alibi": True,
        "sinks": [0, 1],
        "cache": {"k": drawn(2, 2, 3, 4), "v": drawn(2, 2, 3, 2)},
        "core": {"ring": {"devices": 2}},
        "w_o": drawn(4, 3),
        "b_o": drawn(3),
    },
}
# What makes nothing of a key, and what makes it another length, or more than there is.
NONSENSE: list[Any] = [{"nonsense": 1}, "nonsense", [[1, 2], [3]], float("nan")]


def complaints(config: dict[str, Any]) -> list[tuple[str | int, ...]]:
    """The paths of all faults of a config."""
    from attntrace.config.load import Request, load
    from attntrace.errors import AttnTraceError

    try:
        load(Request(config))
    except AttnTraceError as error:
        return [fault.path for fault in error.faults]
    return []


BREAKABLE = [(name, key) for name, config in RICH.items() for key in config if key not in ("seed", "tokens")]


def test_rich_configs_are_valid() -> None:
    assert [complaints(config) for config in RICH.values()] == [[], []]


@pytest.mark.parametrize("value", NONSENSE, ids=map(str, NONSENSE))
@pytest.mark.parametrize(("name", "key"), BREAKABLE)
def test_a_broken_key_is_the_only_one_complained_about(name: str, key: str, value: Any) -> None:
    faults = complaints({**RICH[name], key: value})
    assert faults
    assert {path[:1] for path in faults} == {(key,)}


@pytest.mark.parametrize(("name", "key"), BREAKABLE)
def test_a_key_broken_beside_a_broken_one(name: str, key: str) -> None:
    """Each of two is complained about, and nothing else."""
    others = [other for other in ("cache", "heads", "mask", "w_o", "x", "q", "rope") if other in RICH[name] and other != key]
    for other in others:
        faults = complaints({**RICH[name], key: {"nonsense": 1}, other: {"nonsense": 1}})
        assert {path[:1] for path in faults} == {(key,), (other,)}, other


@pytest.mark.parametrize(("name", "part"), [("a block", part) for part in ("k", "v")])
def test_a_cache_of_other_heads_brings_no_faults_of_masks(name: str, part: str) -> None:
    """Nor do blocks of other slots, and lengths beyond them: how many keys there are is not known then."""
    cache = RICH[name]["cache"]
    for shape in ((5, 3, 1, 2), (5, 2, 3, 2), (5, 2, 1, 3), (5, 2, 2)):
        faults = complaints({**RICH[name], "cache": {**cache, "blocks": {**cache["blocks"], part: drawn(*shape)}}})
        assert faults
        assert {path[:1] for path in faults} == {("cache",)}
    for lengths in ([3, 1], [1], [0, 0], [1, 2, 2]):
        faults = complaints({**RICH[name], "cache": {**cache, "lengths": lengths}})
        assert {path[:1] for path in faults} == {("cache",)}


# ------------------------------------------------------------------ more than a table can hold


@contextmanager
def memory_below(most: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


GREEDY = {
    "absurd tokens": ("seed: 1\nx: {draw: normal, shape: [2147483647, 2]}\n" + W, "run", "c.yaml"),
    "absurd in three axes": ("seed: 1\nx: {draw: normal, shape: [2147483647, 2147483647, 2]}\n" + W, "run", "c.yaml"),
    "one cell of it": ("seed: 1\nx: {draw: normal, shape: [2147483647, 2147483647, 2]}\n" + W, "get", "x[0,0]", "c.yaml"),
    "a cell changed": ("seed: 1\nx: {draw: normal, shape: [2147483647, 2147483647, 2]}\n" + W, *RUN, "--set", "x[1,1]=[1,2]"),
    "permuted": ("seed: 1\nx: {draw: normal, shape: [2147483647, 2]}\n" + W, *RUN, "--permute", "1,0"),
    "wide weights": ("seed: 1\nx: [[1]]\nw_qkv: {draw: normal, shape: [1, 2147483646]}\n", *RUN),
    "a mask": (T + "mask: {keep: {draw: integers, high: 2, shape: [2147483647, 2147483647], seed: 1}}\n", *RUN),
    "tokens of the default": (None, "run", "--tokens", "100000000"),
    "tokens after a cache": (
        "seed: 1\nx: {draw: normal, shape: [2147483647, 2]}\n" + W + "cache: {k: [[1, 2]], v: [[1, 2]]}\n",
        *RUN,
    ),
    "a cache": (
        T + "seed: 1\ncache: {k: {draw: normal, shape: [2147483647, 2]}, v: {draw: normal, shape: [2147483647, 2]}}\n",
        *RUN,
    ),
    "a paged cache": (
        T
        + "cache: {blocks: {k: {draw: normal, shape: [2, 2147483647, 2], seed: 1}, v: {draw: normal, shape: [2, 2147483647, 2], seed: 2}}, table: [0, 1]}\n",
        *RUN,
    ),
    "rotated tokens": ("seed: 1\nx: {draw: normal, shape: [2147483647, 2]}\n" + W + "rope: {pairs: half}\nalibi: true\n", *RUN),
    "a lie": ("x: {file: lie.npy}\n" + W, *RUN),
    "a lie in a zip": ("x: {file: lie.npz}\n" + W, *RUN),
    "a bomb": (CASES["alias bomb"][0], *RUN),
}


@pytest.mark.parametrize("name", GREEDY)
def test_nothing_is_allocated_before_it_is_checked(name: str) -> None:
    text, *argv = GREEDY[name]
    written(text)
    run("steps")  # imports what there is to import
    with memory_below(8 << 20):
        code, out, err = run(*map(str, argv))
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert "itself failed" not in err


def test_what_does_not_fit_says_how_much_it_takes() -> None:
    written("seed: 1\nx: {draw: normal, shape: [2147483647, 2]}\n" + W)
    code, out, err = run("run", "c.yaml")
    assert (code, out) == (2, "")
    what = r"its largest step, scores, has shape \(2147483647, 2147483647\) and takes 32768 PiB"
    assert re.match(rf"error: this trace needs 98304 PiB of memory and [\d.]+ \w+ are free: {what}; use fewer tokens", err)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no pipes among the files of this system")
def test_a_pipe_does_not_hang() -> None:
    os.mkfifo("pipe.yaml")
    assert run("run", "pipe.yaml") == (2, "", "error: pipe.yaml is a pipe, expected a file\n")


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (T.encode("utf-16"), "UTF-16 text"),
        (T.encode("utf-16-le"), "a NUL byte at offset 1 (line 1)"),
        (b"title: caf\xe9\n", "the byte 0xe9 at offset 10 (line 1)"),
        (pickle.dumps(Payload()), "a pickle"),
    ],
)
def test_what_is_not_text(content: bytes, found: str) -> None:
    Path("c.yaml").write_bytes(content)
    assert run("run", "c.yaml") == (2, "", f"error: c.yaml holds {found}, expected UTF-8 text\n")


def test_standard_input() -> None:
    assert run("run", "-", stdin=b"x: \xff") == (
        2,
        "",
        "error: standard input holds the byte 0xff at offset 3 (line 1), expected UTF-8 text\n",
    )
    assert run("get", "output[0,0]", "-", stdin=T.encode())[0] == 0
    code, out, err = run("run", "-", stdin=b"x: \a\n")
    assert (code, out) == (2, "")
    assert err.startswith("error: standard input:1:4: the character U+0007 is not allowed in YAML\n  1 | x: \\x07\n")


@pytest.mark.parametrize(
    ("package", "text", "message"),
    [
        (
            "ml_dtypes",
            T + "dtype: bfloat16\n",
            "dtype: bfloat16 needs ml-dtypes, which is not installed: pip install 'attntrace[bfloat16]'",
        ),
        (
            "torch",
            "x: {draw: normal, shape: [3, 2], seed: 1, generator: torch}\n" + W,
            "the generator torch needs torch, which is not installed: pip install 'attntrace[torch]'",
        ),
    ],
)
def test_a_missing_package_is_named(package: str, text: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    written(text)
    assert run("run", "c.yaml") == (3, "", f"error: {message}\n")


def test_a_file_that_changes_before_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault comes up long after the config was read, and has its place all the same."""
    from attntrace.config.load import Request, load
    from attntrace.errors import AttnTraceError

    written("x: {file: good.npy}\n" + W)
    problem = load(Request("c.yaml"))
    Path("good.npy").write_bytes(npy(np.zeros((3, 3))))
    with pytest.raises(AttnTraceError) as error:
        problem.arrays  # noqa: B018 - reading is what fails
    assert str(error.value).startswith("error: c.yaml:1:4: x: good.npy has changed since it was first looked at\n")


def test_many_faults_are_counted() -> None:
    written("".join(f"key_{i}: 1\n" for i in range(1000)) + T)
    code, _, err = run("run", "c.yaml")
    assert code == 2
    assert err.count("unknown key '") == 20
    assert "error: c.yaml:21:1: and 980 more unknown keys\n" in err


@pytest.mark.parametrize("value", ["null", "a", "1.5", "true", "[1]"])
def test_a_seed_of_another_kind_is_no_reason_to_hang(value: str) -> None:
    code, out, _ = run("run", "module05", "--set", f"seed={value}")
    assert (code, out) == (2, "")


def test_null_leaves_an_optional_input_out() -> None:
    written(T + "w_o: [[1, 0], [0, 1]]\nmask: causal\n")
    _, out, _ = run("steps", "c.yaml", "--set", "w_o=null", "--set", "mask=null")
    assert "w_o" not in out
    assert "mask" not in out


def test_what_may_be_blank() -> None:
    """A claim may have blank cells and rows; options may be null; whatever an input holds is traced."""
    written(
        T.replace("[1, 0], [0, 1]", "[.nan, 0], [.inf, 1]")
        + "expect: {weights: [[1, null, 0], null, [0, 0, 1]]}\nmask:\nheads: null\n"
    )
    assert run("get", "weights", "c.yaml")[0] == 0
