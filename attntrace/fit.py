"""Whether the inputs and options of a layer fit together. Shapes are checked here and nowhere else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from attntrace.errors import Clash, Fault
from attntrace.ledger import Ledger, amount
from attntrace.problem import INPUTS, Options, Problem, Source

BLOCK_INPUTS = tuple(name for name in INPUTS if name.endswith(("norm1", "norm2", "_gate", "_up", "_down")))
FUSED = 1 << 20  # columns of w_qkv


Shapes = Mapping[str, tuple[int, ...]]
Axes = dict[str, tuple[str, ...]]


def pose(sources: Mapping[str, Source], options: Options, config: Mapping[str, Any] | None = None) -> Problem | list[Fault]:
    """A problem out of `sources` and `options`, or everything that keeps them from fitting together."""
    problem, faults = _pose(sources, options, frozenset())
    problem.config = dict(config or {})
    return faults or problem


def clashes(sources: Mapping[str, Source], options: Options, broken: Collection[str]) -> list[Fault]:
    """What does not fit among the keys that are sound. `broken` ones are there, but nothing is known of them: whatever
    hangs on them is left alone, so that no fault is merely a consequence of another."""
    return _pose(sources, options, frozenset(broken))[1]


def _pose(sources: Mapping[str, Source], options: Options, broken: frozenset[str]) -> tuple[Problem, list[Fault]]:
    shapes = {name: s.shape for name, s in sources.items() if name in INPUTS}
    there = dict.fromkeys(name for name in INPUTS if name in shapes or name in broken)
    faults, ledger = [*_missing(there), *_heads(options, broken), *_layouts(options, there)], Ledger()
    problem = Problem(dict(sources), options, {}, ledger.sizes, unsure=broken)
    if any(f.path[:1] == (n,) for n in ("q", "k", "v", "x") for f in faults) or not {"x", "q"} & there.keys():
        return problem, faults  # not even the kind of the layer is certain
    if broken & {"heads", "kv_heads"} or any(f.path == ("kv_heads",) for f in faults):
        ledger.loose, options = True, replace(options, heads=None, kv_heads=None)
    if "weight_layout" in broken:
        shapes = {name: shape for name, shape in shapes.items() if not name.startswith("w_")}
    problem.axes = (_direct if "q" in there else _projected)(ledger, shapes, options, broken)
    _parts(problem, ledger, shapes)
    faults += [*ledger.faults, *_asked(problem, ledger), *(() if "block" in broken else _blockless(options, shapes))]
    checked = () if "cache" in broken else (*_labels(problem, ledger), *_checks(problem, ledger))
    return problem, [*faults, *checked]


def _parts(p: Problem, ledger: Ledger, shapes: Shapes) -> None:
    """Enter the inputs of the layer's further parts; then it is known how many keys there are."""
    if not ledger.sure("d_k", "d_v", p.new_key) or ledger.loose:
        return
    if not p.headed:
        ledger.set("one", 1, "there are no heads")
    if "sinks" in shapes:
        p.axes["sinks"] = ledger.enter("sinks", shapes["sinks"], (p.per_head,))
    for part in p.options.parts.values():
        p.axes |= part.enter(ledger, p)


def _asked(p: Problem, ledger: Ledger) -> Iterable[Fault]:
    """The queries to be traced, out of all."""
    if p.options.queries is not None and ledger.sure("query"):
        total = p.queries
        if not len(range(total)[p.options.queries]):
            yield Fault(f"--queries: selects nothing from {amount(total, 'queries')}, numbered from 0")
        elif "query" in p.sizes:
            ledger.sizes["query"] = len(range(total)[p.options.queries])


def _blockless(o: Options, shapes: Shapes) -> Iterable[Fault]:
    if "block" not in o.parts:
        for name in BLOCK_INPUTS:
            if name in shapes:
                yield Fault(f"{name}: goes with block, which is not given", (name,))


def _checks(p: Problem, ledger: Ledger) -> Iterable[Fault]:
    """What masks and parts have against the lengths, unless those are in doubt themselves."""
    sure = ledger.sure("query", "key") and not ledger.loose and not ledger.disputed & {"batch", "head"}
    parts = p.options.parts.values() if not ledger.faults and ledger.sure("d_k", "d_v") else ()
    for each in (*p.options.masks, *parts) if sure else ():
        for fault in each.check(p):
            yield Clash(fault.message, fault.path, others=(*ledger.makers["query"], *ledger.makers["key"]))


def _missing(shapes: Mapping[str, Any]) -> list[Fault]:
    """Inputs that are lacking, or that exclude one another."""
    direct = [name for name in "qkv" if name in shapes]
    if direct:
        lacking = [name for name in "qkv" if name not in shapes]
        unused = [name for name in shapes if name not in (*direct, "w_o", "b_o", "sinks", *BLOCK_INPUTS)]
        return [
            *(Fault(f"{name}: missing: q, k and v are given directly all three, or made from x", (name,)) for name in lacking),
            *(Fault(f"{name}: not used when q, k and v are given directly; leave it out", (name,)) for name in unused),
            *_output_bias(shapes),
        ]
    if "x" not in shapes:
        return [Fault("x: missing: give x with w_q, w_k and w_v (or w_qkv), or give q, k and v directly", ("x",))]
    if "w_qkv" in shapes:
        return _beside_fused(shapes)
    return [
        *(Fault(f"{w}: missing: x needs w_q, w_k and w_v, or w_qkv", (w,)) for w in ("w_q", "w_k", "w_v") if w not in shapes),
        *(Fault("b_qkv: goes with w_qkv; here give b_q, b_k, b_v", ("b_qkv",)) for b in ("b_qkv",) if b in shapes),
        *_output_bias(shapes),
    ]


def _beside_fused(shapes: Mapping[str, Any]) -> list[Fault]:
    others = [name for name in ("w_q", "w_k", "w_v", "b_q", "b_k", "b_v") if name in shapes]
    faults = [Fault(f"{name}: w_qkv already holds it; leave one of them out", (name,)) for name in others]
    if "x_kv" in shapes:
        faults.append(Fault("x_kv: w_qkv makes everything from x; for cross-attention give w_q, w_k and w_v", ("x_kv",)))
    return faults + _output_bias(shapes)


def _output_bias(shapes: Mapping[str, Any]) -> list[Fault]:
    if "b_o" in shapes and "w_o" not in shapes:
        return [Fault("b_o: needs w_o, the output projection that it is added to", ("b_o",))]
    return []


def _layouts(options: Options, there: Collection[str]) -> Iterable[Fault]:
    """Layouts of weights that are not there, or that do not mean what they say."""
    if options.qkv_layout != "q|k|v" and "x" in there and "w_qkv" not in there:
        yield Fault("qkv_layout: goes with w_qkv, which is not given", ("qkv_layout",))
    if options.qkv_layout == "per-head" and options.kv_heads not in (None, options.heads):
        message = "qkv_layout: per-head has q, k and v for each head; with fewer kv_heads than heads say per-group"
        yield Clash(message, ("qkv_layout",), others=("heads", "kv_heads"))


def _heads(options: Options, broken: frozenset[str]) -> list[Fault]:
    heads, groups = options.heads, options.kv_heads
    if broken & {"heads", "kv_heads"}:
        return []
    if groups is not None and heads is None:
        return [Fault("kv_heads: needs heads, the number of query heads that share them", ("kv_heads",))]
    if heads is not None and groups is not None and heads % groups:
        return [Clash(f"kv_heads: {groups} does not divide heads: {heads}", ("kv_heads",), others=("heads",))]
    return []


def _projected(ledger: Ledger, shapes: Shapes, o: Options, broken: frozenset[str]) -> Axes:
    """Enter x and the weights; the lengths of d_k, d_v and the heads follow from them."""
    _enter_heads(ledger, o)
    axes: Axes = {}
    _tokens(ledger, shapes, axes, "x", ("token", "d_model"))
    cross = "x_kv" in shapes or "x_kv" in broken
    if cross:
        _tokens(ledger, shapes, axes, "x_kv", ("kv_token", "d_kv"))
    kv_in = "d_kv" if cross else "d_model"
    if "w_qkv" in shapes:
        axes |= _fused(ledger, shapes, o)
    for letter, width, source in (("q", "d_k", "d_model"), ("k", "d_k", kv_in), ("v", "d_v", kv_in)):
        axes |= _projection(ledger, shapes, o, letter, width, source)
    axes |= _output(ledger, shapes, o)
    _alias(ledger, "query", "token")
    _alias(ledger, _new_key(o), "kv_token" if cross else "token")
    return axes


def _new_key(o: Options) -> str:
    return "new_key" if "cache" in o.parts else "key"


def _tokens(ledger: Ledger, shapes: Shapes, axes: Axes, name: str, names: tuple[str, str]) -> None:
    """Enter x or x_kv; without a batch in x there is none in x_kv."""
    if name not in shapes:
        return
    shape, lead = shapes[name], axes["x"][:-2] if "x" in axes else None
    if lead is None and len(shape) not in (2, 3):
        ledger.fault(f"{name}: expected 2 axes ({', '.join(names)}) or 3 (batch, {', '.join(names)}), found {len(shape)}", name)
        return
    axes[name] = ledger.enter(name, shape, _batched(shape, *names) if lead is None else (*lead, *names))
    ledger.reasons[names[1]] = f"the width of {name}"


def _alias(ledger: Ledger, axis: str, of: str) -> None:
    if of in ledger.sizes:
        ledger.set(axis, ledger.sizes[of], ledger.reasons[of], *ledger.makers[of])
    if of in ledger.disputed:
        ledger.disputed.add(axis)


def _enter_heads(ledger: Ledger, o: Options) -> None:
    if o.heads is not None:
        ledger.set("head", o.heads, "heads", "heads")
        if o.kv_heads not in (None, o.heads):
            ledger.set("kv_head", o.kv_heads or 1, "kv_heads", "kv_heads")


def _batched(shape: Sequence[int], *axes: str) -> tuple[str, ...]:
    return ("batch", *axes) if len(shape) == len(axes) + 1 else axes


def _projection(ledger: Ledger, shapes: Shapes, o: Options, letter: str, width: str, source: str) -> Axes:
    """Enter w_q, w_k or w_v and its bias; w's outputs are `heads` times `width`."""
    name, bias = f"w_{letter}", f"b_{letter}"
    head = "kv_head" if letter != "q" and "kv_head" in ledger.sizes else "head"
    outputs = width if o.heads is None else f"{head}*{width}"
    if width in ledger.sizes and outputs not in ledger.sizes:  # w_q told d_k; grouped keys have as many for each head
        size = ledger.sizes[width] * ledger.sizes[head]
        reason = f"{head}s {ledger.sizes[head]} × {width} {ledger.sizes[width]}"
        ledger.set(outputs, size, reason, *ledger.makers[head], *ledger.makers[width])
    axes = {}
    if name in shapes:
        axes[name] = ledger.enter(name, shapes[name], _stored(o, source, outputs))
    if o.heads is not None and outputs in ledger.sizes and width not in ledger.sizes:
        _divide(ledger, o, name, head, outputs, width)
    if bias in shapes:
        axes[bias] = ledger.enter(bias, shapes[bias], (outputs,))
    return axes


def _divide(ledger: Ledger, o: Options, name: str, head: str, outputs: str, width: str) -> None:
    """The width of one head, from the outputs of all."""
    total, heads, key = ledger.sizes[outputs], ledger.sizes[head], f"{head}s"
    if total % heads == 0:
        ledger.set(width, total // heads, f"{outputs} over {head}s", key, *ledger.makers[outputs])
    elif not any(f.path == (key,) for f in ledger.faults):  # once, and not for each of w_q, w_k and w_v
        whole = amount(total, "rows" if o.transposed else "columns")
        ledger.fault(f"{key}: {heads} does not divide the {whole} of {name}", key, name)


def _stored(o: Options, inputs: str, outputs: str) -> tuple[str, str]:
    return (outputs, inputs) if o.transposed else (inputs, outputs)


def _fused(ledger: Ledger, shapes: Shapes, o: Options) -> Axes:
    axes: Axes = {"w_qkv": ledger.enter("w_qkv", shapes["w_qkv"], _stored(o, "d_model", "qkv"))}
    if "b_qkv" in shapes:
        axes["b_qkv"] = ledger.enter("b_qkv", shapes["b_qkv"], ("qkv",))
    total = ledger.sizes.get("qkv")
    if total is not None and not ledger.loose:
        _divide_fused(ledger, o, total, "rows" if o.transposed else "columns")
    return axes


def _divide_fused(ledger: Ledger, o: Options, total: int, side: str) -> None:
    """The width of one head of q, k and v, from all outputs of w_qkv."""
    heads = o.heads or 1
    parts = heads + 2 * (o.kv_heads or heads)
    if total > FUSED:  # each is listed by number, before anybody asks what the trace takes
        ledger.fault(f"w_qkv: expected at most {FUSED} {side}, found {total}", "w_qkv")
    elif total % parts:
        what = "q, k and v of equal width" + (f" for heads: {heads}" if heads > 1 else "")
        message = f"w_qkv: expected {side} that divide into {parts} parts ({what}), found {total}"
        ledger.fault(message, "w_qkv", "heads", "kv_heads")
    else:
        _set_fused(ledger, o, total // parts, f"the {side} of w_qkv over {parts} parts")


def _set_fused(ledger: Ledger, o: Options, size: int, reason: str) -> None:
    for width in ("d_k", "d_v"):
        ledger.set(width, size, reason, "w_qkv", "heads")
        if o.heads is not None:
            ledger.set(f"head*{width}", o.heads * size, f"heads {o.heads} × {width} {size}", "w_qkv", "heads")


def _output(ledger: Ledger, shapes: Shapes, o: Options) -> Axes:
    """Enter w_o and b_o, and the width of the heads side by side."""
    axes: Axes = {}
    merged = "d_v" if "head" not in ledger.sizes else "head*d_v"
    if merged not in ledger.sizes and "d_v" in ledger.sizes:
        heads = ledger.sizes["head"]
        reason = f"{amount(heads, 'heads')} × d_v {ledger.sizes['d_v']}"
        ledger.set(merged, heads * ledger.sizes["d_v"], reason, "heads", *ledger.makers["d_v"])
    if "w_o" in shapes:
        axes["w_o"] = ledger.enter("w_o", shapes["w_o"], _stored(o, merged, "d_out"))
    if "b_o" in shapes:
        axes["b_o"] = ledger.enter("b_o", shapes["b_o"], ("d_out",))
    return axes


def _direct(ledger: Ledger, shapes: Shapes, o: Options, broken: frozenset[str]) -> Axes:
    """Enter q, k and v given directly: (token, d), (head, token, d) or (batch, head, token, d), all three alike."""
    first = next((name for name in "qkv" if name in shapes), None)
    if first is None:
        return {}
    rank = len(shapes[first])
    if rank not in (2, 3, 4):
        forms = "2 axes (token, d), 3 (head, token, d) or 4 (batch, head, token, d)"
        ledger.fault(f"{first}: expected {forms}, found {rank}", first)
        return {}
    _enter_heads(ledger, o)
    groups = "kv_head" if "kv_head" in ledger.sizes else "head"
    axes = {}
    query, key = "query" if o.queries is None else "all_query", _new_key(o)
    for name, head, token, width in (("q", "head", query, "d_k"), ("k", groups, key, "d_k"), ("v", groups, key, "d_v")):
        names = (token, width) if o.heads is None or rank > 2 else (token, f"{head}*{width}")
        if name in shapes:
            axes[name] = ledger.enter(name, shapes[name], (*("batch", head)[4 - rank :], *names))
    if groups == "head" and rank > 2 and {"q", "k"} <= shapes.keys():
        _hint_groups(ledger, shapes)
    if rank == 2 and o.heads is not None and not ledger.faults and {"q", "k", "v"} <= shapes.keys():
        _divide_heads(ledger, groups)
    if query == "all_query":
        _alias(ledger, "query", query)
    return axes | _output(ledger, shapes, o)


def _hint_groups(ledger: Ledger, shapes: Shapes) -> None:
    """Fewer heads in k than in q is what grouped heads look like: say how to ask for them."""
    q, k = shapes["q"][-3], shapes["k"][-3] if len(shapes["k"]) > 2 else 0
    if k and k < q and q % k == 0:
        hint = f"; for grouped heads say heads: {q} and kv_heads: {k}"
        ledger.faults = [replace(f, message=f.message + hint) if " heads (" in f.message else f for f in ledger.faults]


def _divide_heads(ledger: Ledger, groups: str) -> None:
    for name, head, width in (("q", "head", "d_k"), ("k", groups, "d_k"), ("v", groups, "d_v")):
        total, heads = ledger.sizes[f"{head}*{width}"], ledger.sizes[head]
        if total % heads:
            ledger.fault(f"{name}: expected columns that divide into {heads} heads, found {total}", name, f"{head}s")
        elif width not in ledger.sizes:
            ledger.set(width, total // heads, f"the columns of {name} over {heads} heads", name, f"{head}s")
        elif ledger.sizes[width] != total // heads:
            wanted = amount(ledger.sizes[width], "columns")
            ledger.fault(f"{name}: expected heads of {wanted} (as q has), found {total // heads}", name, *ledger.makers[width])


def _labels(p: Problem, ledger: Ledger) -> Iterable[Fault]:
    for key, labels, axis in (("tokens", p.options.tokens, "query"), ("kv_tokens", p.options.kv_tokens, "key")):
        if labels is None or not ledger.sure(axis):
            continue
        count = p.queries if key == "tokens" else p.sizes[axis]
        if len(labels) != count and not (key == "kv_tokens" and len(labels) == p.sizes[p.new_key]):
            what = {"tokens": "tokens of x" if p.projected else "queries", "kv_tokens": "keys"}[key]
            wanted = amount(count, "labels")
            message = f"{key}: expected {wanted} (one for each of the {what}), found {len(labels)}"
            yield Clash(message, (key,), others=ledger.makers[axis])
