"""Every step of the layer, and how torch computes it from the steps before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from attntrace.problem import Problem
from attntrace.reference.torch import block, online, place, project, scores
from attntrace.reference.torch.tensors import Arrays, Tensor, array, kind, parted
from attntrace.tape import Array

Compute = Callable[[Problem, Arrays], Tensor | None]  # None: the step is given


def steps(p: Problem, have: Mapping[str, Array]) -> Iterator[tuple[str, str, Array]]:
    """(step, what torch calls it, its values) for every step of the trace `have` that is not given."""
    for name, values in have.items():
        base, suffix = parted(name)
        table = TILES if suffix else STEPS
        if base in table:
            what, compute = table[base]
            got = compute(p, Arrays(have, suffix))
            if got is not None:
                yield name, what, array(got.to(kind(values.dtype)))


def of(letter: str, compute: Callable[[Problem, Arrays, str], Tensor | None]) -> Compute:
    """A computation that is the same for queries, keys and values."""
    return lambda p, a: compute(p, a, letter)


SCORES: dict[str, tuple[str, Compute]] = {  # of all queries and keys at once, or of a tile
    "scores": ("matmul", scores.scores),
    "scaled": ("div, mul", scores.scaled),
    "capped": ("tanh", scores.capped),
    "distance": ("sub, abs", place.distance),
    "alibi": ("mul", place.alibi),
    "biased": ("add", scores.biased),
    "mask": ("masked_fill", place.mask),
    "masked": ("add", scores.masked),
    "dropped": ("mul, div", scores.dropped),
}
STEPS: dict[str, tuple[str, Compute]] = {
    "normed1": ("layer_norm, rms_norm", block.first),
    "normed1_rows": ("index_select", of("normed1", project.picked)),
    "x_rows": ("index_select", of("x", project.picked)),
    "q_given": ("unflatten, transpose", project.q_given),
    "q": ("linear", of("q", project.project)),
    "k": ("linear", of("k", project.project)),
    "v": ("linear", of("v", project.project)),
    "q_norm": ("rms_norm, layer_norm, normalize", of("q", project.qk_norm)),
    "k_norm": ("rms_norm, layer_norm, normalize", of("k", project.qk_norm)),
    "positions": ("arange", place.positions),
    "key_positions": ("arange", place.key_positions),
    "frequencies": ("pow, reciprocal", project.frequencies),
    "angles": ("einsum", of("", project.angles)),
    "key_angles": ("einsum", of("key_", project.angles)),
    "cos": ("polar, embedding", lambda p, a: project.circular(p, a, "", "cos")),
    "sin": ("polar, embedding", lambda p, a: project.circular(p, a, "", "sin")),
    "key_cos": ("polar, embedding", lambda p, a: project.circular(p, a, "key_", "cos")),
    "key_sin": ("polar, embedding", lambda p, a: project.circular(p, a, "key_", "sin")),
    "q_rot": ("complex, mul", of("q", project.rotated)),
    "k_rot": ("complex, mul", of("k", project.rotated)),
    "k_past": ("index_select", of("k", project.from_blocks)),
    "v_past": ("index_select", of("v", project.from_blocks)),
    "k_all": ("cat", of("k", project.joined)),
    "v_all": ("cat", of("v", project.joined)),
    "k_shared": ("repeat_interleave", lambda p, a: project.shared(p, a, *project.KEYS)),
    "v_shared": ("repeat_interleave", lambda p, a: project.shared(p, a, *project.VALUES)),
    "slopes": ("logspace", place.slopes),
    **SCORES,
    "weights": ("softmax", scores.weights),
    "sink_weights": ("softmax", scores.sink_weights),
    "context": ("matmul, cat", scores.attended),
    "concat": ("transpose, flatten", scores.concat),
    "output": ("linear, matmul", scores.output),
    "residual": ("add", block.residual),
    "normed2": ("layer_norm, rms_norm", block.second),
    "up": ("linear", block.up),
    "gate": ("linear", block.gate),
    "activated": ("gelu, silu, relu", block.activated),
    "gated": ("mul", block.gated),
    "mlp": ("linear", block.mlp),
    "residual2": ("add", block.after_mlp),
    "block_output": ("add, layer_norm, rms_norm", block.output),
}
TILES: dict[str, tuple[str, Compute]] = {  # steps of the tiled and the ring core, without the numbers of the tile
    "q": ("split, tensor_split", scores.query_tile),
    "k": ("split, tensor_split", scores.key_tile),
    "v": ("split, tensor_split", scores.value_tile),
    **SCORES,
    "max": ("amax, maximum", online.running_max),
    "tile_max": ("amax", online.largest),
    "part_max": ("amax", online.largest),
    "exp": ("exp", online.exp),
    "sum": ("sum, addcmul", online.running_sum),
    "tile_sum": ("sum", online.total),
    "part_sum": ("sum", online.total),
    "keep": ("index_select", online.keep),
    "rescale": ("exp", online.rescale),
    "rescale_part": ("exp", online.rescale_part),
    "acc": ("matmul, addcmul", online.running_acc),
    "tile_acc": ("matmul", online.weighed),
    "part_acc": ("matmul", online.weighed),
    "total": ("add, exp", online.with_sink),
    "context": ("div", online.context),
}
