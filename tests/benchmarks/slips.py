"""Attention written out in NumPy, with mistakes that can be made in it: what `check` is held against.

Nothing here comes from attntrace but the keys of its mistakes, which are the names of the slips. `layer(config, slips)` gives
the steps that somebody has who makes them; steps that such a person would not have are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray
Config = dict[str, Any]
LARGE = -1e9
FILLS = {f"{v:g}": v for v in (-1.0, -10.0, -100.0, -1e3, -1e4, -1e5, -1e9, -1e-9)}


class Layer:
    """One layer, computed with slips. All arrays have the axes (batch, head, token, width) inside."""

    def __init__(self, config: Config, slips: Iterable[str] = ()) -> None:
        self.c, self.slips = config, set(slips)
        self.decimals = next((int(s.split("-")[1]) for s in self.slips if s.startswith("rounded-")), None)
        self.kind = next((s.removeprefix("dtype-") for s in self.slips if s.startswith("dtype-")), "float64")
        self.steps: dict[str, Array] = {}

    def made(self, slip: str) -> bool:
        return slip in self.slips

    def made_with(self, prefix: str) -> str | None:
        """What follows the prefix in a slip that begins so."""
        return next((s.removeprefix(prefix) for s in sorted(self.slips) if s.startswith(prefix)), None)

    # -------------------------------------------------------------- numbers

    def cast(self, a: Array) -> Array:
        if self.kind == "bfloat16":
            return np.asarray(a, np.float32).astype(ml_dtypes.bfloat16).astype(np.float32)
        return np.asarray(a).astype(self.kind)

    def note(self, name: str, a: Array) -> Array:
        """Write a step down, and go on with it: rounded, if that is the slip; but not what is given."""
        self.steps[name] = a
        if self.decimals is None or name in self.c:
            return a
        done = np.round(a, self.decimals)
        if any(s.endswith("-too") for s in self.slips):
            self.steps[name] = done
        return done

    def given(self, name: str) -> Array | None:
        if name not in self.c:
            return None
        a = np.asarray(self.c[name], float)
        return self.cast(np.round(a, self.decimals) if self.made("copied") and self.decimals is not None else a)

    # -------------------------------------------------------------- sizes

    @property
    def heads(self) -> int:
        other = self.made_with("heads-")
        return int(other) if other and other.isdigit() else self.c.get("heads", 1)

    @property
    def groups(self) -> int:
        return self.c.get("kv_heads", self.c.get("heads", 1)) * self.heads // self.c.get("heads", 1)

    # -------------------------------------------------------------- projections

    def run(self) -> dict[str, Array]:
        q, k, v = self.projected() if "x" in self.c else self.direct()
        q, k, v = self.positions(q, k, v)
        q, k, v = (self.note(n, a) for n, a in (("q", q), ("k", k), ("v", v)))
        plain = q, k
        q, k = self.turned(q, k)
        k, v = self.cached(k, v)
        k, v = self.shared(k, v)
        a = self.weights(q, k)
        c = self.averaged(a, q, k, v, plain)
        self.merged(c)
        return self.finished()

    def projected(self) -> tuple[Array, Array, Array]:
        x, y = self.given("x"), self.given("x_kv")
        assert x is not None
        y = x if y is None else y
        if self.made("swapped-x-x_kv"):
            x, y = y, x
        x, y = (a[None] if a.ndim == 2 else a for a in (x, y))
        w, b = self.matrices(), self.biases()
        out = []
        for letter, tokens, heads in (("q", x, self.heads), ("k", y, self.groups), ("v", y, self.groups)):
            flat = tokens @ w[letter]
            if b[letter] is not None:
                flat = flat + b[letter]
            out.append(self.split(self.cast(flat), heads))
        return tuple(out)  # type: ignore[return-value]

    def split(self, flat: Array, heads: int) -> Array:
        n, t, width = flat.shape
        if self.made("split-without-transpose"):
            return flat.reshape(n, heads, t, width // heads)
        return np.stack([flat[:, :, h * (width // heads) : (h + 1) * (width // heads)] for h in range(heads)], axis=1)

    def matrices(self) -> dict[str, Array]:
        if "w_qkv" in self.c:
            w = self.given("w_qkv")
            assert w is not None
            w = w.T if self.c.get("weight_layout") == "out_in" else w
            w = w.T if self.made("transposed-w_qkv") else w
            parts = self.parts(w.shape[-1])
            return {letter: w[:, parts[letter]] for letter in "qkv"}
        w = {letter: self.given(f"w_{letter}") for letter in "qkv"}
        turned = self.made_with("transposed-") or ""
        for letter in "qkv":
            w[letter] = w[letter].T if self.c.get("weight_layout") == "out_in" else w[letter]
            w[letter] = w[letter].T if f"w_{letter}" in turned.split("-") else w[letter]
        for a, b in ("qk", "kv", "qv"):
            if any(s.startswith(f"swapped-w_{a}-w_{b}") for s in self.slips):
                w[a], w[b] = w[b], w[a]
        return w  # type: ignore[return-value]

    def biases(self) -> dict[str, Array | None]:
        forgotten = (self.made_with("without-") or "").split("-")
        if "b_qkv" in self.c and "b_qkv" not in forgotten:
            b = self.given("b_qkv")
            assert b is not None
            parts = self.parts(b.shape[-1])
            return {letter: b[parts[letter]] for letter in "qkv"}
        found = {letter: None if f"b_{letter}" in forgotten else self.given(f"b_{letter}") for letter in "qkv"}
        for a, b in ("qk", "kv", "qv"):
            if self.made(f"swapped-w_{a}-w_{b}-b_{a}-b_{b}"):
                found[a], found[b] = found[b], found[a]
        return found

    def parts(self, total: int) -> dict[str, list[int]]:
        """The columns of a fused matrix, counted out head by head."""
        h, g = self.heads, self.groups
        d = total // (h + 2 * g)
        layout = self.made_with("layout-") or self.c.get("qkv_layout", "q|k|v")
        columns: dict[str, list[int]] = {"q": [], "k": [], "v": []}
        order = ["q"] * h + ["k"] * g + ["v"] * g if layout == "q|k|v" else (["q"] * (h // g) + ["k", "v"]) * g
        for i, letter in enumerate(order):
            columns[letter] += range(i * d, (i + 1) * d)
        for a, b in ("qk", "kv", "qv"):
            if self.made(f"swapped-parts-{a}-{b}"):
                columns[a], columns[b] = columns[b], columns[a]
        return columns

    def direct(self) -> tuple[Array, Array, Array]:
        q, k, v = (self.lifted(self.given(n)) for n in "qkv")
        if self.made("swapped-k-v"):
            k, v = v, k
        if self.made("swapped-q-k"):
            q, k = k, q
        return q, k, v

    def lifted(self, a: Array | None) -> Array:
        assert a is not None
        if a.ndim == 3 and "heads" not in self.c:
            a = a[:, None]
        return a[(None,) * (4 - a.ndim)]

    # -------------------------------------------------------------- positions

    def angles(self, side: str, count: int) -> tuple[Array, Array]:
        rope = self.c["rope"]
        start = rope.get("offset", 0) + (0 if self.made("rope-from-zero") else self.past)
        late = {"later": 1, "earlier": -1}.get((self.made_with("rope-all-") or self.made_with(f"rope-{side}-") or ""), 0)
        base = float(self.made_with("rope-base-") or rope.get("base", 10000))
        d = self.width
        table = [[(start + t + late) * base ** (-2 * i / d) for i in range(d // 2)] for t in range(count)]
        return np.cos(table), np.sin(table)

    def positions(self, q: Array, k: Array, v: Array) -> tuple[Array, Array, Array]:
        self.width = q.shape[-1]
        if "rope" in self.c and self.made("rope-on-values"):
            v = self.turn(v, "keys")
        return q, k, v

    def turn(self, a: Array, side: str) -> Array:
        cos, sin = (self.cast(t) for t in self.angles(side, a.shape[-2]))
        sin = -sin if self.made("rope-backwards") else sin
        pairs = self.c["rope"]["pairs"]
        if self.made("rope-pairs"):
            pairs = {"half": "interleaved", "interleaved": "half"}[pairs]
        d, out = a.shape[-1], a.copy()
        for i in range(d // 2):
            one, two = (i, i + d // 2) if pairs == "half" else (2 * i, 2 * i + 1)
            out[..., one] = a[..., one] * cos[:, i] - a[..., two] * sin[:, i]
            out[..., two] = a[..., one] * sin[:, i] + a[..., two] * cos[:, i]
        return self.cast(out)

    def turned(self, q: Array, k: Array) -> tuple[Array, Array]:
        if "rope" not in self.c or self.made("rope-none"):
            return q, k
        if not self.made("rope-not-on-q"):
            q = self.note("q_rot", self.turn(q, "queries"))
        if not self.made("rope-not-on-k"):
            k = self.note("k_rot", self.turn(k, "keys"))
        return q, k

    # -------------------------------------------------------------- caches and groups

    @property
    def past(self) -> int:
        return int(np.shape(self.c["cache"]["k"])[-2]) if "cache" in self.c else 0

    def cached(self, k: Array, v: Array) -> tuple[Array, Array]:
        if "cache" not in self.c or self.made("cache-unused"):
            return k, v
        pk, pv = (self.lifted(self.cast(np.asarray(self.c["cache"][n], float))) for n in "kv")
        if self.made("cache-without-new"):
            return pk, pv
        order = slice(None, None, -1 if self.made("cache-order") else 1)
        k = self.note("k_all", np.concatenate([pk, k][order], axis=-2))
        return k, self.note("v_all", np.concatenate([pv, v][order], axis=-2))

    def shared(self, k: Array, v: Array) -> tuple[Array, Array]:
        if self.groups == self.heads:
            return k, v
        n = self.heads // self.groups
        reads = [h % self.groups if self.made("groups-tiled") else h // n for h in range(self.heads)]
        return self.note("k_shared", k[:, reads]), self.note("v_shared", v[:, reads])

    # -------------------------------------------------------------- scores

    def scale(self, d: int) -> float:
        right = self.c.get("scale", "auto")
        right = 1 / math.sqrt(d) if right == "auto" else right
        slip, h = self.made_with("scale-"), self.heads
        wide = np.shape(self.c["x"])[-1] if "x" in self.c else h * d
        others = {
            "none": 1.0, "d_model": wide**-0.5, "heads-d_k": (h * d) ** -0.5, "no-root": 1 / d, "no-root-d_model": 1 / wide,
            "multiplied": d**0.5, "multiplied-no-root": d, "twice": right * right, "auto": d**-0.5,
            "d_v": self.d_v**-0.5, "keys": self.keys**-0.5, "heads": h**-0.5, "2d_k": (2 * d) ** -0.5,
        }  # fmt: skip
        return right if slip is None else others[slip]

    def weights(self, q: Array, k: Array) -> Array:
        self.keys, self.queries, self.new = k.shape[-2], q.shape[-2], self.steps["k"].shape[-2]
        self.d_v = (np.shape(self.c["v"]) if "v" in self.c else (self.steps["v"].shape))[-1]
        a, b = q, k
        if self.made("cosine"):
            a, b = (z / np.sqrt((z * z).sum(-1, keepdims=True)) for z in (q, k))
        s = self.cast(a @ b.swapaxes(-1, -2))
        s = s.swapaxes(-1, -2) if self.made("scores-transposed") else s
        s = self.note("scores", s)
        cap = self.c.get("softcap")
        capped = lambda z: self.cast(cap * np.tanh(z / cap))  # noqa: E731
        if cap and self.made("softcap-before-scale"):
            s = capped(s)
        s = self.note("scaled", self.cast(s * s.dtype.type(self.scale(q.shape[-1]))))
        if cap and not {"softcap-none", "softcap-after-mask", "softcap-before-scale"} & self.slips:
            s = self.note("capped", capped(s))
        if "alibi" in self.c and not self.made("alibi-none"):
            s = self.note("biased", self.cast(s + self.cast(self.bias())))
        before = s
        self.masks()
        if self.masked and not {"mask-none", "mask-after-softmax"} & self.slips:
            s = self.mask(s)
            s = self.note("masked", capped(s) if self.made("softcap-after-mask") else s)
        if self.made("dropout-before-softmax"):
            s = np.where(np.isneginf(s), s, s * self.keep() / (1 - self.c["dropout"]["rate"]))
        a = self.cast(self.softmax(before if self.made("mask-after-softmax") else s))
        if self.made("mask-after-softmax"):
            a = a * self.allowed
        return self.dropped(self.note("weights", a))

    def bias(self) -> Array:
        n = self.heads
        power = 2 ** math.floor(math.log2(n))
        right = [2 ** (-8 * (h + 1) / power) for h in range(power)]
        right += [2 ** (-8 * (2 * h + 1) / (2 * power)) for h in range(n - power)]
        if self.c["alibi"] is not True and "slopes" in self.c["alibi"]:
            paper, right = right, list(self.c["alibi"]["slopes"])
        else:
            paper = right
        up = 2 ** math.ceil(math.log2(n))
        other = {
            "halves": [2.0 ** -(h + 1) for h in range(n)], "from-one": [2 ** (-8 * h / n) for h in range(n)],
            "formula": [2 ** (-8 * (h + 1) / n) for h in range(n)], "paper": paper, "reversed": right[::-1],
            "next-power": [2 ** (-8 * (h + 1) / up) for h in range(n)], "alike": [right[0]] * n, "one": [1.0] * n,
        }  # fmt: skip
        m = np.array(other.get(self.made_with("alibi-slopes-") or "", right))[:, None, None]
        start = self.past if self.made("cache-unused") else 0
        apart = np.array([[self.place(i) - start - j for j in range(self.keys)] for i in range(self.queries)], float)
        apart = apart if self.made("alibi-signed") else np.abs(apart)
        return (m if self.made("alibi-sign") else -m) * apart

    def place(self, i: int, align: str | None = None) -> int:
        align = align or self.align()
        if align == "top-left":
            return i
        return i + self.keys - self.queries if align == "bottom-right" else i + self.past

    def align(self) -> str | None:
        for m in self.listed():
            for kind in ("causal", "window"):
                if isinstance(m, dict) and kind in m:
                    return m["causal"] if kind == "causal" else m["window"].get("align")
        return None

    # -------------------------------------------------------------- masks

    def listed(self) -> list[Any]:
        m = self.c.get("mask")
        return [] if m is None else m if isinstance(m, list) else [m]

    def masks(self) -> None:
        """Which keys each query may attend to, and what is added; of the keys that are there, where a cache is not whole."""
        there = self.there = slice(self.past, None) if self.made("cache-unused") else slice(self.keys)
        self.keys += self.past if self.made("cache-unused") else self.new if self.made("cache-without-new") else 0
        self.all_masks()
        self.allowed, self.extra = self.allowed[..., there], self.extra[..., there]

    def all_masks(self) -> None:
        shape = (len(self.steps["q"]), self.heads, self.queries, self.keys)
        self.allowed, self.extra = np.ones(shape, bool), np.zeros(shape)
        self.masked = bool(self.listed())
        left_out = self.made_with("mask-without-")
        for n, m in enumerate(self.listed()):
            if left_out is None or int(left_out.split("-")[0]) != n:
                self.one_mask(m)

    def one_mask(self, m: Any) -> None:
        grid = [(i, j) for i in range(self.queries) for j in range(self.keys)]
        if m == "causal" or "causal" in m:
            align = self.realigned() or (None if m == "causal" else m["causal"])
            late = {"late": 1, "early": -1}.get(self.form("mask-off-by-one-"), 0)
            for i, j in grid:
                self.allowed[:, :, i, j] &= j <= self.place(i, align) + late
        elif "window" in m:
            wide = self.form("mask-window-")
            left, right = m["window"].get("left"), m["window"].get("right")
            more = (1 if wide.endswith("wider") else -1) if wide else 0
            left = left if left is None or wide.startswith("right") else max(0, left + more)
            right = right if right is None or wide.startswith("left") else max(-1, right + more)
            for i, j in grid:
                at = self.place(i, self.realigned())
                self.allowed[:, :, i, j] &= (left is None or j >= at - left) and (right is None or j <= at + right)
        elif "padding" in m:
            for b, length in enumerate(m["padding"]):
                for i, j in grid:
                    self.allowed[b, :, i, j] &= (
                        i if self.form("mask-on-queries") is not None and self.hides_rows() else j
                    ) < length
        elif "add" in m:
            extra = np.broadcast_to(self.lifted_mask(m["add"]), self.allowed.shape)
            self.allowed &= ~np.isneginf(extra)
            self.extra = self.extra + np.where(np.isneginf(extra), 0, extra)
        else:
            sense = "keep" if "keep" in m else "ignore"
            keep = np.broadcast_to((self.lifted_mask(m[sense]) == 1) == (sense == "keep"), self.allowed.shape).copy()
            late = self.form("mask-off-by-one-")
            if late == "late":
                keep[..., 1:] = keep[..., :-1].copy()
            elif late == "early":
                keep[..., :-1] = keep[..., 1:].copy()
                keep[..., -1] = False
            if self.hides_rows():
                for j in np.argwhere(~keep[0, 0].any(axis=0)).ravel():
                    keep[..., j] = True
                    keep[..., j, :] = False
            self.allowed &= keep

    def lifted_mask(self, m: Any) -> Array:
        a = np.asarray(m, float)
        if a.ndim == 3 and "heads" not in self.c:
            a = a[:, None]
        return a[(None,) * (4 - a.ndim)]

    def form(self, prefix: str) -> str:
        """The rest of a slip that hides keys, without what rows that are left without keys look like."""
        found = self.made_with(prefix)
        return "" if found is None else found.removesuffix("-nan").removesuffix("-even")

    def hides_rows(self) -> bool:
        return self.made_with("mask-on-queries") is not None

    def realigned(self) -> str | None:
        return next((a for a in ("top-left", "bottom-right") if self.made_with(f"mask-{a}") is not None), None)

    def mask(self, s: Array) -> Array:
        if self.made_with("mask-inverted") is not None:
            self.allowed = ~self.allowed
            self.extra = self.extra * 0
        if self.made_with("mask-transposed") is not None:
            self.allowed, self.extra = self.allowed.swapaxes(-1, -2), self.extra.swapaxes(-1, -2)
        s, seen = s + self.extra, self.allowed
        if self.made("mask-zero"):
            return np.where(seen, s, 0)
        if self.made("mask-added-01"):
            return s - self.extra + seen
        if self.made("mask-added-10"):
            return s - self.extra + ~seen
        if (fill := self.made_with("mask-fill")) is not None:
            return np.where(seen, s, FILLS[fill])
        if (fill := self.made_with("mask-plus")) is not None:
            return np.where(seen, s, s + FILLS[fill])
        if any(slip.startswith("mask-") and slip.endswith("-even") for slip in self.slips):
            return np.where(seen, s, LARGE)
        return np.where(seen, s, s.dtype.type(-np.inf))

    # -------------------------------------------------------------- softmax and dropout

    def softmax(self, s: Array) -> Array:
        slip = self.made_with("softmax-")
        z = None if self.made("sink-none") else self.given("sinks")
        if z is not None:
            s = np.concatenate([s, np.broadcast_to(z[None, :, None, None], (*s.shape[:3], 1)).astype(s.dtype)], axis=-1)
        a = self.weighed(s, slip)
        if slip == "twice":
            a = self.weighed(a, None)
        return a if z is None else a[..., :-1]

    def weighed(self, s: Array, slip: str | None) -> Array:
        s = s * s.dtype.type(math.log(2)) if slip == "base-2" else s
        if slip == "no-exp":
            s = np.where(np.isneginf(s), 0, s)
            return s / s.sum(-1, keepdims=True)
        if slip == "not-divided":
            return np.exp(s)
        if slip in ("matrix-max", "global-max", "matrix-max-float32"):
            top = s.max() if slip == "global-max" else s.max(axis=(-2, -1), keepdims=True)
            e = np.exp((s - top).astype(np.float32 if slip.endswith("32") else s.dtype))
            return (e / e.sum(-1, keepdims=True)).astype(s.dtype)
        axis = {"over-queries": -2, "over-everything": (-2, -1), "over-heads": 1, "over-batch": 0}.get(slip or "", -1)
        top = s.max(axis=axis, keepdims=True)
        e = self.cast(np.exp(self.cast(s - np.where(np.isneginf(top), 0, top))))
        if slip == "not-divided-shifted":
            return e
        total = self.cast(e.sum(axis=axis, keepdims=True))
        nan = any(slip.startswith("mask-") and slip.endswith("-nan") for slip in self.slips)
        return e / (total if nan else np.where(total == 0, 1, total))

    def keep(self) -> Array:
        keep = np.asarray(self.c["--keep"], float).reshape(len(self.steps["q"]), self.heads, self.queries, -1)
        return keep[..., self.there]

    def dropped(self, a: Array) -> Array:
        if "dropout" not in self.c or {"dropout-off", "dropout-before-softmax"} & self.slips:
            return a
        rate, keep = self.c["dropout"]["rate"], self.cast(self.keep())
        if self.made("dropout-inverted"):
            keep = 1 - keep
        by = {"not-rescaled": 1.0, "rescaled-by-rate": 1 / rate, "multiplied": 1 - rate}
        factor = by.get(self.made_with("dropout-") or "", 1 / (1 - rate))
        return self.note("dropped", self.cast(a * keep * a.dtype.type(factor)))

    # -------------------------------------------------------------- values and output

    def averaged(self, a: Array, q: Array, k: Array, v: Array, plain: tuple[Array, Array]) -> Array:
        found = self.made_with("average-")
        what = {None: v, "q": q, "k": k, "plain-q": plain[0], "plain-k": plain[1], "by-columns": v}.get(found)
        if found == "x":
            x = self.given("x_kv" if "x_kv" in self.c else "x")
            assert x is not None
            what = self.split(x if x.ndim == 3 else x[None], self.heads)
        a = a.swapaxes(-1, -2) if found == "by-columns" else a
        return self.cast(a @ what)

    def merged(self, c: Array) -> None:
        if "heads" not in self.c and "w_o" not in self.c and not self.made_with("heads-"):
            self.note("output", c)
            return
        c = self.note("context", c)
        n, heads, t, d = c.shape
        if self.made("merge-without-transpose"):
            h = c.reshape(n, t, heads * d)
        elif self.made("heads-averaged"):
            h = np.concatenate([sum(c[:, i] for i in range(heads)) / heads] * heads, axis=-1)
        else:
            h = np.concatenate([c[:, i] for i in range(heads)], axis=-1)
        h = self.note("concat", h)
        w, b = self.given("w_o"), self.given("b_o")
        forgotten = (self.made_with("without-") or "").split("-")
        if w is None or self.made("without-w_o"):
            y = h
        elif self.made("without-w_o-alone"):
            y = h + b
        else:
            w = w.T if self.c.get("weight_layout") == "out_in" else w
            w = w.T if "w_o" in (self.made_with("transposed-") or "").split("-") else w
            y = h @ w / (heads if self.made("heads-averaged-outputs") else 1)
            y = y if b is None or "b_o" in forgotten else y + b
        self.note("output", self.cast(y))

    # -------------------------------------------------------------- what there is of it

    def finished(self) -> dict[str, Array]:
        """Every step with the axes that the layer has."""
        out = {}
        for name, a in self.steps.items():
            if a.ndim == 4 and "heads" not in self.c:
                if a.shape[1] != 1:
                    continue
                a = a[:, 0]
            elif a.ndim == 4 and self.heads != self.c["heads"]:
                continue
            batched = np.ndim(self.c["x"]) == 3 if "x" in self.c else np.ndim(self.c["q"]) == 3 + ("heads" in self.c)
            out[name] = np.asarray(a if batched else a[0], np.float64)
        for name in [n for n, gone in self.absent().items() if gone]:
            out.pop(name, None)
        return out

    def absent(self) -> dict[str, bool]:
        """Steps that somebody who makes these slips has not, or has in another shape."""
        keys = self.made("cache-without-new") or self.made("cache-unused")
        steps = (
            "scores",
            "scaled",
            "capped",
            "biased",
            "masked",
            "weights",
            "dropped",
            "k_shared",
            "v_shared",
            "k_all",
            "v_all",
        )
        return dict.fromkeys(steps, keys)


def layer(config: Config, slips: Iterable[str] = ()) -> dict[str, Array]:
    with np.errstate(all="ignore"):
        return Layer(config, slips).run()


# ------------------------------------------------------------------ which slips can be made


def possible(c: Config) -> list[str]:
    """The slips that can be made in a layer, by its config alone."""
    found: list[str] = []
    h, g = c.get("heads", 1), c.get("kv_heads", c.get("heads", 1))
    projected, square = "x" in c, lambda n: n in c and len(set(np.shape(c[n]))) == 1
    weights = [w for w in ("w_q", "w_k", "w_v") if square(w)]
    found += [
        f"transposed-{w}" for w in (*weights, *(["w_o"] if square("w_o") else []), *(["w_qkv"] if square("w_qkv") else []))
    ]
    if len(weights) == 3:
        found += ["transposed-w_q-w_k-w_v"] + (["transposed-w_q-w_k-w_v-w_o"] if square("w_o") else [])
    for a, b in ("qk", "kv", "qv"):
        if f"w_{a}" in c and np.shape(c[f"w_{a}"]) == np.shape(c[f"w_{b}"]):
            found.append(f"swapped-w_{a}-w_{b}")
            if f"b_{a}" in c and f"b_{b}" in c:
                found.append(f"swapped-w_{a}-w_{b}-b_{a}-b_{b}")
        if "w_qkv" in c and g == h:
            found.append(f"swapped-parts-{a}-{b}")
    if "k" in c and np.shape(c["k"]) == np.shape(c["v"]):
        found.append("swapped-k-v")
    if "q" in c and np.shape(c["q"]) == np.shape(c["k"]):
        found.append("swapped-q-k")
    if "x_kv" in c and np.shape(c["x_kv"]) == np.shape(c["x"]):
        found.append("swapped-x-x_kv")
    biases = [b for b in ("b_q", "b_k", "b_v", "b_qkv", "b_o") if b in c]
    found += [f"without-{b}" for b in biases] + ([f"without-{'-'.join(biases)}"] if len(biases) > 1 else [])
    if "w_qkv" in c and h > 1:
        right = c.get("qkv_layout", "q|k|v")
        found += ["layout-q|k|v"] if right != "q|k|v" else [f"layout-{'per-head' if g == h else 'per-group'}"]
    if h > 1 and (projected):
        found.append("split-without-transpose")
    if h > 1:
        found += ["merge-without-transpose", "heads-averaged"] + (["heads-averaged-outputs"] if "w_o" in c else [])
    q, _, v = sizes(c)
    if projected and not ("sinks" in c or "dropout" in c or (c.get("alibi") not in (None, True))):
        per_head_mask = any(isinstance(m, dict) and np.ndim(next(iter(m.values()))) > 2 for m in listed(c))
        whole = [n for n in (1, 2, 3, 4, 6, 8) if n != h and q % n == 0 and v % n == 0 and (g * n) % h == 0 and g * n >= h]
        even = [n for n in whole if "rope" not in c or q // n % 2 == 0]
        found += [] if per_head_mask or "cache" in c else [f"heads-{n}" for n in even if h > 1 or n > 1]
    if h != g and g > 1:
        found.append("groups-tiled")
    if "w_o" in c and square("w_o"):
        found += ["without-w_o"] + (["without-w_o-alone"] if "b_o" in c else [])
    found += ropes(c) + alibis(c, h) + scales(c) + masks(c) + softmaxes(c, h) + dropouts(c) + values(c)
    found += ["cosine"] + (["scores-transposed"] if lengths(c)[0] == lengths(c)[1] else [])
    if "softcap" in c:
        found += ["softcap-none", "softcap-before-scale"] + (["softcap-after-mask"] if listed(c) else [])
    if "cache" in c:
        found += ["cache-order", "cache-without-new", "cache-unused"]
    return found + ["dtype-float32", "dtype-float16", "dtype-bfloat16"] + [f"rounded-{n}" for n in range(4)]


def sizes(c: Config) -> tuple[int, int, int]:
    """The widths of q, k and v, all heads together (of k and v times what heads share)."""
    h, g = c.get("heads", 1), c.get("kv_heads", c.get("heads", 1))
    if "w_qkv" in c:
        shape = np.shape(c["w_qkv"])
        d = shape[0 if c.get("weight_layout") == "out_in" else 1] // (h + 2 * g)
        return h * d, h * d, h * d
    if "x" in c:
        at = 0 if c.get("weight_layout") == "out_in" else 1
        q, k, v = (np.shape(c[f"w_{n}"])[at] for n in "qkv")
        return q, k * h // g, v * h // g
    return tuple(np.shape(c[n])[-1] * h for n in "qkv")  # type: ignore[return-value]


def lengths(c: Config) -> tuple[int, int]:
    queries = np.shape(c["x"] if "x" in c else c["q"])[-2]
    keys = np.shape(c["k"])[-2] if "k" in c else np.shape(c.get("x_kv", c.get("x")))[-2]
    return queries, keys + (np.shape(c["cache"]["k"])[-2] if "cache" in c else 0)


def listed(c: Config) -> list[Any]:
    m = c.get("mask")
    return [] if m is None else m if isinstance(m, list) else [m]


def ropes(c: Config) -> list[str]:
    if "rope" not in c:
        return []
    found = ["rope-pairs", "rope-none", "rope-not-on-q", "rope-not-on-k", "rope-backwards"]
    found += [f"rope-{side}-{late}" for side in ("all", "queries", "keys") for late in ("later", "earlier")]
    found += [f"rope-base-{b}" for b in ("100", "1000", "500000", "1e+06") if float(b) != c["rope"].get("base", 10000)]
    _, k, v = sizes(c)
    return found + (["rope-on-values"] if v == k else []) + (["rope-from-zero"] if "cache" in c else [])


def alibis(c: Config, h: int) -> list[str]:
    if "alibi" not in c:
        return []
    slopes = ["halves", "from-one", "formula", "next-power", "reversed", "alike", "one"]
    slopes += ["paper"] if c["alibi"] is not True and "slopes" in c["alibi"] else []
    return ["alibi-none", "alibi-sign", "alibi-signed", *(f"alibi-slopes-{s}" for s in slopes)]


def scales(c: Config) -> list[str]:
    names = ["none", "d_model", "heads-d_k", "no-root", "no-root-d_model", "multiplied", "multiplied-no-root", "twice"]
    names += ["d_v", "keys", "heads", "2d_k"] + (["auto"] if c.get("scale", "auto") != "auto" else [])
    return [f"scale-{n}" for n in names]


def masks(c: Config) -> list[str]:
    given, (queries, keys) = listed(c), lengths(c)
    if not given:
        return []
    hiding = ["inverted"] + (["transposed"] if queries == keys else [])
    kinds = [m if isinstance(m, str) else next(iter(m)) for m in given]
    if "causal" in kinds or {"keep", "ignore"} & set(kinds):
        hiding += ["off-by-one-early", "off-by-one-late"]
    if "causal" in kinds and ({"keep", "ignore", "add"} & set(kinds)):
        hiding = [h for h in hiding if not h.startswith("off")]
    if {"causal", "window"} & set(kinds) and queries != keys:
        align = Layer(c)
        align.keys, align.queries = keys, queries
        bottom = "bottom-right-padded" if "padding" in kinds else "bottom-right"
        hiding += [a for a in ("top-left", bottom) if align.place(0) != align.place(0, a.removesuffix("-padded"))]
    if "window" in kinds:
        hiding += [f"window-{w}" for w in ("left-wider", "left-narrower", "right-wider", "right-narrower", "wider", "narrower")]
    if "padding" in kinds or ({"keep", "ignore"} & set(kinds) and queries == keys):
        hiding += ["on-queries"]
    found = [f"mask-{h}{form}" for h in hiding for form in ("", "-nan", "-even") if not (form == "-nan" and "sinks" in c)]
    found += ["mask-none", "mask-zero", "mask-added-01", "mask-added-10", "mask-after-softmax"]
    found += [f"mask-{how}{fill}" for fill in FILLS for how in ("fill", "plus")]
    names = {"causal": "causal", "window": "window", "padding": "padding"}
    return found + [f"mask-without-{i}-{names.get(k, 'given')}" for i, k in enumerate(kinds) if len(kinds) > 1]


def softmaxes(c: Config, h: int) -> list[str]:
    names = ["over-queries", "over-everything", "twice", "not-divided", "not-divided-shifted", "no-exp", "base-2"]
    names += ["matrix-max", "matrix-max-float32", "global-max"] + (["over-heads"] if h > 1 else [])
    batch = np.shape(c["x"]) if "x" in c else np.shape(c["q"])
    batched = len(batch) == (3 if "x" in c else 3 + ("heads" in c)) and batch[0] > 1
    found = [f"softmax-{n}" for n in names + (["over-batch"] if batched else [])]
    return found + (["sink-none"] if "sinks" in c else [])


def dropouts(c: Config) -> list[str]:
    if "dropout" not in c:
        return []
    names = ["not-rescaled", "rescaled-by-rate", "multiplied", "inverted", "off", "before-softmax"]
    return [f"dropout-{n}" for n in names]


def values(c: Config) -> list[str]:
    (q, k, v), (queries, keys) = sizes(c), lengths(c)
    found = ["average-by-columns"] if queries == keys else []
    found += ["average-k"] if k == v else []
    found += ["average-q"] if q == v and queries == keys else []
    tokens = c.get("x_kv", c.get("x"))
    if tokens is not None and np.shape(tokens)[-1] == v and "cache" not in c:
        found.append("average-x")
    plain = "rope" in c and "cache" not in c and c.get("heads", 1) == c.get("kv_heads", c.get("heads", 1))
    return found + (["average-plain-k"] if plain and k == v else [])
