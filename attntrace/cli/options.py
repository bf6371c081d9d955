"""The options that commands share, each written once; a command takes a group of them as one argument.

Annotations are evaluated here, and not put off, since `grouped` reads them at every start.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import Enum
from functools import partial, wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, Optional

import typer


class Colour(str, Enum):
    auto = "auto"
    always = "always"
    never = "never"


class Format(str, Enum):
    rich = "rich"
    json = "json"
    csv = "csv"
    npz = "npz"
    markdown = "markdown"
    latex = "latex"


class AnswerFormat(str, Enum):
    rich = "rich"
    json = "json"


STEPS = (  # of any trace, for shell completion: asking a trace would import NumPy. Those of tiles end in their numbers
    *("x", "x_kv", "w_q", "w_k", "w_v", "w_qkv", "b_q", "b_k", "b_v", "b_qkv", "w_o", "b_o", "sinks"),
    *("w_norm1", "b_norm1", "w_norm2", "b_norm2", "w_gate", "b_gate", "w_up", "b_up", "w_down", "b_down"),
    *("normed1", "normed1_rows", "x_rows", "q_given", "q", "k", "v", "q_merged", "k_merged", "v_merged"),
    *("q_norm_weight", "q_norm", "k_norm_weight", "k_norm", "frequencies", "positions", "angles", "cos_table", "sin_table"),
    *("cos", "sin", "key_positions", "key_angles", "key_cos", "key_sin", "q_rot", "k_rot"),
    *("k_blocks", "v_blocks", "table", "k_past", "v_past", "k_all", "v_all", "k_shared", "v_shared"),
    *("scores", "scaled", "capped", "slopes", "distance", "alibi", "biased", "mask", "masked", "weights", "sink_weights"),
    *("max", "exp", "sum", "acc", "tile_max", "tile_sum", "tile_acc", "part_max", "part_sum", "part_acc"),
    *("rescale", "rescale_part", "total", "keep", "dropped", "context", "concat", "output"),
    *("residual", "residual2", "normed2", "up", "gate", "activated", "gated", "mlp", "block_output"),
)


def steps_starting(incomplete: str) -> list[str]:
    """Names of steps, for shell completion; of a list, its last name."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in STEPS if name.startswith(last)]


def examples(incomplete: str) -> list[str]:
    """Names of bundled examples, for shell completion."""
    from attntrace.config.bundled import names

    return [name for name in names() if name.startswith(incomplete)]


Config = Annotated[
    Optional[str],
    typer.Argument(
        metavar="CONFIG",
        show_default=False,
        autocompletion=examples,
        help="A YAML file, the name of a bundled example, or - for standard input. Without it: the Module 05 example.",
    ),
]
CELL: Any = partial(typer.Argument, metavar="CELL", show_default=False, autocompletion=steps_starting)
INPUT, OUTPUT, SHAPE = "Input", "Output", "Without a CONFIG"


def option(*names: str, help: str, panel: str, **more: Any) -> Any:  # noqa: A002 - Typer's own word
    return typer.Option(*names, help=help, rich_help_panel=panel, show_default=False, **more)


@dataclass
class Source:
    """What to trace."""

    config: Config = None
    seed: Annotated[Optional[int], option("--seed", min=0, help="Instead of the config's seed.", panel=INPUT)] = None
    sets: Annotated[
        Optional[list[str]],
        option("--set", metavar="KEY=VALUE", help="Change a key of the config or cells of a tensor; repeatable.", panel=INPUT),
    ] = None
    permute: Annotated[
        Optional[str], option("--permute", metavar="1,0,2", help="Reorder the tokens of x; labels go along.", panel=INPUT)
    ] = None
    queries: Annotated[
        Optional[str], option("--queries", metavar="0:4", help="Trace only these queries (rows of scores).", panel=INPUT)
    ] = None
    tokens: Annotated[Optional[int], option("--tokens", min=1, help="Number of tokens.", panel=SHAPE)] = None
    d_model: Annotated[Optional[int], option("--d-model", min=1, help="Width of x.", panel=SHAPE)] = None
    heads: Annotated[Optional[int], option("--heads", min=1, help="Number of heads.", panel=SHAPE)] = None
    kv_heads: Annotated[Optional[int], option("--kv-heads", min=1, help="Number of key/value heads.", panel=SHAPE)] = None
    causal: Annotated[bool, option("--causal", help="Mask keys after the query.", panel=SHAPE)] = False


Steps = Annotated[
    Optional[str], option("--steps", metavar="a,b", help="Only these steps.", panel=OUTPUT, autocompletion=steps_starting)
]
Precision = Annotated[
    Optional[int], option("--precision", min=0, max=17, help="Decimals shown (4); JSON, CSV and NPZ are exact.", panel=OUTPUT)
]


@dataclass
class Choice:
    """Which part of the trace."""

    steps: Steps = None
    batch: Annotated[Optional[int], option("--batch", metavar="N", help="Only this batch item.", panel=OUTPUT)] = None
    head: Annotated[Optional[int], option("--head", metavar="N", help="Only this head.", panel=OUTPUT)] = None


@dataclass
class Target:
    """Where to write it."""

    output: Annotated[
        Optional[str], option("--output", "-o", metavar="FILE", help="Write to FILE, whole or not at all.", panel=OUTPUT)
    ] = None
    color: Annotated[Colour, option("--color", help="auto obeys NO_COLOR and FORCE_COLOR.", panel=OUTPUT)] = Colour.auto
    quiet: Annotated[bool, option("--quiet", "-q", help="Exit code and errors only.", panel=OUTPUT)] = False
    debug: Annotated[bool, option("--debug", help="Show the traceback of an error.", panel=OUTPUT)] = False


@dataclass
class Answer(Target):
    """How and where to write a text that is not a trace."""

    format: Annotated[
        Optional[AnswerFormat], option("--format", help="Default: by the extension of --output, or rich.", panel=OUTPUT)
    ] = None


@dataclass
class Output(Target):
    """How and where to write a trace."""

    format: Annotated[
        Optional[Format], option("--format", help="Default: by the extension of --output, or rich.", panel=OUTPUT)
    ] = None
    precision: Precision = None
    full: Annotated[bool, option("--full", help="Print large tensors whole.", panel=OUTPUT)] = False


GROUPS = (Source, Choice, Target, Answer, Output)


def grouped(function: Callable[..., Any]) -> Callable[..., Any]:
    """A command whose arguments of a type in GROUPS appear to Typer as the options that they are made of."""
    # not get_type_hints: before Python 3.11 it hides what is annotated behind an Optional where the default is None
    parameters = signature(function, eval_str=True).parameters
    kinds = {name: parameter.annotation for name, parameter in parameters.items()}
    given_as = {name: options_of(parameter, kinds[name]) for name, parameter in parameters.items()}

    def argument(name: str, given: dict[str, Any]) -> Any:
        kind = kinds[name]
        return kind(**{option.name: given[option.name] for option in given_as[name]}) if kind in GROUPS else given[name]

    @wraps(function)
    def command(**given: Any) -> Any:
        return function(**{name: argument(name, given) for name in given_as})

    flat = [option for options in given_as.values() for option in options]
    command.__signature__ = Signature(flat)  # type: ignore[attr-defined]
    command.__annotations__ = {option.name: option.annotation for option in flat}
    del command.__wrapped__
    return command


def options_of(parameter: Parameter, kind: Any) -> list[Parameter]:
    """The options that make up an argument: the fields of a group, or the argument itself."""
    if kind in GROUPS:
        return [Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=f.type) for f in fields(kind)]
    return [parameter.replace(annotation=kind, kind=Parameter.KEYWORD_ONLY)]
