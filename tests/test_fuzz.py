"""Whatever is wrong with the input, the program answers with a sentence and an exit code."""

from __future__ import annotations

import copy
import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

MEMORY = 16 << 20  # what a trace may take here, so that a valid but large one costs no time
EXAMPLES = 500  # of each test; there are four

CONFIGS: list[dict[str, Any]] = [
    {
        "title": "a layer",
        "tokens": ["the", "cat", "sat"],
        "x": [[1, 0], [0, 1], [1, 1]],
        "w_q": [[1, 2], [0, 1]],
        "w_k": [[1, 0], [1, 1]],
        "w_v": [[2, 0], [0, 3]],
        "mask": ["causal", {"padding": [3]}, {"keep": [[1, 0, 1]]}],
        "expect": {"weights": [[1, None, 0], None, [0, 0, 1]]},
    },
    {
        "seed": 42,
        "generator": "numpy-legacy",
        "dtype": "float16",
        "heads": 4,
        "kv_heads": 2,
        "x": {"draw": "normal", "shape": [2, 3, 8], "decimals": 2},
        "w_qkv": {"draw": "uniform", "low": -1, "high": 1, "shape": [8, 16]},
        "w_o": {"draw": "integers", "low": -2, "high": 3, "shape": [8, 4]},
        "b_o": [0, 1, 2, 3],
        "qkv_layout": "per-group",
        "dropout": {"rate": 0.5},
    },
    {
        "q": [[[1, 0], [0, 1]], [[1, 1], [2, 0]]],
        "k": [[[1, 0], [0, 1], [1, 1]], [[1, 1], [2, 0], [0, 0]]],
        "v": [[[1], [2], [3]], [[4], [5], [6]]],
        "scale": 0.5,
        "masked_row": "nan",
        "kv_tokens": ["a", "b", "c"],
        "mask": {"window": {"left": 1, "right": 0, "align": "top-left"}},
    },
    {
        "x": [[1, 0], [0, 1]],
        "x_kv": {"file": "good.csv"},
        "weight_layout": "out_in",
        "w_q": [[1, 2]],
        "w_k": [[1, 0, 1]],
        "w_v": [[2, 0, 1], [1, 1, 1]],
        "b_q": [1],
        "mask": {"add": [[0, 1, 2], [0, 0, 0]]},
    },
    {
        "seed": 3,
        "heads": 4,
        "kv_heads": 2,
        "x": {"draw": "normal", "shape": [2, 3, 8]},
        "w_q": {"draw": "normal", "shape": [8, 8]},
        "w_k": {"draw": "normal", "shape": [8, 4]},
        "w_v": {"draw": "normal", "shape": [8, 4]},
        "w_o": {"draw": "normal", "shape": [8, 8]},
        "rope": {"pairs": "half", "base": 100.0, "dims": 2, "offset": 1, "scaling": {"type": "linear", "factor": 2}},
        "alibi": {"slopes": [1, 2, 3, 4], "align": "bottom-right"},
        "qk_norm": {"norm": "rmsnorm", "eps": 0.1, "q": [1, 2], "k": [2, 1]},
        "softcap": 5,
        "sinks": [0, 1, 2, 3],
        "softmax_dtype": "float32",
        "cache": {
            "blocks": {"k": {"draw": "normal", "shape": [4, 2, 1, 2]}, "v": {"draw": "normal", "shape": [4, 2, 1, 2]}},
            "table": [[0, 1], [3, 2]],
            "lengths": [2, 1],
        },
        "block": {"norm": "rmsnorm", "mlp": "gated", "order": "parallel", "eps": 0.5},
        "w_norm1": [1, 1, 1, 1, 2, 2, 2, 2],
        "w_up": {"draw": "normal", "shape": [8, 3]},
        "w_gate": {"draw": "normal", "shape": [8, 3]},
        "b_gate": [1, 2, 3],
        "w_down": {"draw": "normal", "shape": [3, 8]},
        "mask": "causal",
    },
    {
        "q": [[1, 0], [0, 1], [1, 1]],
        "k": [[1, 0], [0, 1], [2, 1]],
        "v": [[1], [2], [3]],
        "rope": {
            "pairs": "interleaved",
            "cos": [[1], [0], [-1], [0]],
            "sin": [[0], [1], [0], [-1]],
            "positions": [3, 2, 1],
            "key_positions": [1, 2, 3],
        },
        "alibi": True,
        "qk_norm": "l2",
        "sinks": [-1],
        "cache": {"k": [[1, 0], [3, 3]], "v": [[1], [5]]},
        "core": {"tiled": {"queries": 2, "keys": 2}},
    },
    {
        "q": [[1, 0], [0, 1], [1, 1]],
        "k": [[1, 0], [0, 1], [2, 1]],
        "v": [[1], [2], [3]],
        "rope": {
            "pairs": "half",
            "scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4},
        },
        "core": {"ring": {"devices": 2}},
        "dtype": "float32",
    },
]
KEYS = sorted({key for config in CONFIGS for key in config} | {"w_k2", "W_Q", "", "0", "mask.keep", "\x1b[31m", "\u202e", "é"})

# Numbers are small or absurd: neither takes long.
NUMBERS = [0, 1, 2, 3, -1, 2**31 - 1, 2**31, 2**63, 2**64, 10**400, 0.5, -0.0, 1e308, 1e-320, float("inf"), float("nan")]
WORDS = ["causal", "auto", "numpy", "torch?", "float32", "normal", "per-head", "zero", "yes", "null", "", " ", "a" * 200]
WORDS += ["\x1b[2J", "[bold]", "\u202e", "\0", "日本", "../../x.npy", "good.csv", "bad.npy", "folder", "1e-3", "0x1F", "1_000"]
scalars = st.sampled_from([None, True, False, *NUMBERS, *WORDS])
inner = """file key draw shape seed keep ignore add padding window left causal rate weights pairs cos sin positions scaling type
    slopes norm q k v blocks table lengths tiled ring queries devices mlp""".split()  # noqa: SIM905
values = st.recursive(
    scalars,
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.sampled_from(inner), part, max_size=3),
    max_leaves=6,
)


def spots(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of all values below `value`."""
    for key, part in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        yield (*path, key)
        yield from spots(part, (*path, key))


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for step in path:
        value = value[step]
    return value


@st.composite
def broken(draw: st.DrawFn) -> str:
    """The text of a config with up to three values replaced, left out or added."""
    config = copy.deepcopy(draw(st.sampled_from(CONFIGS)))
    for _ in range(draw(st.integers(1, 3))):
        paths = list(spots(config))
        path = draw(st.sampled_from(paths)) if paths else None
        change = draw(st.sampled_from(["nudge", "nudge", "nudge", "replace", "replace", "leave out", "add"]))
        if change == "add" or path is None:
            config[draw(st.sampled_from(KEYS))] = draw(values)
        elif change == "nudge" and isinstance(at(config, path), (int, float)):
            at(config, path[:-1])[path[-1]] = draw(st.sampled_from(NUMBERS))
        elif change == "leave out":
            del at(config, path[:-1])[path[-1]]
        else:
            at(config, path[:-1])[path[-1]] = draw(values)
    lines = [f"{json.dumps(key)}: {written(value)}\n" for key, value in config.items()]
    lines += draw(st.lists(st.sampled_from(lines or [""]), max_size=1))  # a duplicate key
    return "".join(draw(st.permutations(lines)))


def written(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False).replace("Infinity", ".inf").replace("NaN", ".nan")
    return "".join(c if ord(c) >= 32 else f"\\x{ord(c):02x}" for c in text)


TEXTS = [("".join(f"{key}: {written(value)}\n" for key, value in config.items())).encode() for config in CONFIGS]
TEXTS += [b"x: &a [[1, 0], [0, 1]]\nw_q: *a\nw_k: *a\nw_v: [*a, !!str 'b', \"\\t\"]\ntitle: |\n  text\n  more # of it\n"]
SPLICES = [bytes([sign]) for sign in b"[]{}:-?|>#%&*!@`'\"\n\r\t\0"]
SPLICES += [b": ", b"- ", b"---\n", b"...\n", b"&a ", b"*a", b"<<: *a\n", b"!!python/name:x ", b"\x1b[31m"]
SPLICES += [b"\xef\xbb\xbf", b"\xff\xfe", b"\xe9", b"\xed\xa0\x80", b"\xe2\x80\xa8", b"\xc2\x85"]
SPLICES += [b"9" * 700, b"[" * 100, b".nan", b"1e999", b"null", b" " * 80]
ENCODINGS = ["utf-16", "utf-16-le", "utf-32", "utf-7", "utf-8-sig"]
pieces = st.sampled_from(SPLICES) | st.binary(max_size=8)


@st.composite
def mangled(draw: st.DrawFn) -> bytes:
    """The bytes of a config, cut short, with others spliced in, or in another encoding."""
    content = draw(st.sampled_from(TEXTS))
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(content)))
        end = draw(st.integers(start, min(len(content), start + 20)))
        content = content[:start] + draw(pieces) + content[end:]
    if draw(st.booleans()):
        content = content[: draw(st.integers(0, len(content)))]
    if draw(st.integers(0, 9)) == 0:
        content = content.decode(errors="replace").encode(
            draw(st.sampled_from(["utf-16", "utf-16-le", "utf-32", "utf-7", "utf-8-sig"]))
        )
    return content


TARGETS = """x x[0] x[0][1] x[-1,:] x[::2] x[...,0] x[0 x.y x.shape x.shape[0] x[99999999999999999999] w_q b_q q[0,0,0] heads
    kv_heads mask mask[0] mask[1].padding mask.keep mask.window.left tokens tokens[0] title scale dtype seed generator
    weight_layout expect expect.weights dropout dropout.rate rope rope.pairs rope.positions rope.cos rope.dims rope.offset
    rope.scaling.type alibi alibi.slopes qk_norm qk_norm.q softcap softmax_dtype sinks sinks[0] cache cache.k cache.table
    cache.lengths[0] cache.blocks.k core core.tiled core.tiled.keys core.ring.devices
    block block.mlp w_up w_norm1 . [0] a.b.c é \x1b""".split()  # noqa: SIM905
GIVEN = ["", "=", "null", "5", "-1", "1e400", ".nan", "true", "'", "a: b", "\0", "\x85", "9" * 700, "[" * 100, "auto", "causal"]
GIVEN += ["[[1, 2], [3", "{", "[5, 5]", "[[1]]", "[a, b, c]", "{draw: normal, shape: [3, 2], seed: 1}", "{padding: [1]}"]
GIVEN += ["&a [*a]", "!!python/object/apply:os.system ['echo pwned']", "float16"]
LIKELY = [
    "scale=0.25",
    "mask=null",
    "title=x",
    "tokens=[a, b, c]",
    "seed=7",
    "heads=1",
    "dtype=float32",
    "x[0]=5",
    "expect=null",
]
keyed = st.builds("{}={}".format, st.sampled_from(TARGETS), st.sampled_from(GIVEN) | values.map(written))
sets = st.sampled_from(LIKELY) | keyed | st.text(max_size=12)

INDEXES = ["0", "-1", "1:", "::2", "::-1", "...", ":", "", "a", "9", "-99999999999999999999", "0:0", "1.5", "٣", " 1 "]
indexes = st.lists(st.sampled_from(INDEXES), max_size=4)
cells = st.builds(
    lambda name, groups: name + "".join(f"[{','.join(items)}]" for items in groups),
    st.sampled_from(["weights", "output", "x", "q", "scores", "wieghts", "", "é", "weights ", "[", "\x1b"]),
    st.lists(indexes, max_size=2),
)
picks = st.sampled_from(["0", "-1", "1", "9", "x", "", "99999999999999999999", "1.5"])
ORDERS = ["0,1,2", "2,1,0", "1,0", "0,0,1", "", ",", "a", "-1,0,1", "0,1,2,", "٣,1,0", "9" * 5000]
orders = st.sampled_from(ORDERS) | st.text("0123, -", max_size=8)
runs = st.sampled_from(["0", "0:2", "-1", "2:1", "5:", "", ":", "1:2:3", "a", "9" * 50, "٣", "-9:"]) | st.text(
    "01:- ", max_size=5
)
names = st.sampled_from(["weights", "weights,output", "", ",", "wieghts", "x,x", "scores, weights", "\x1b", "mask"])


class Slate:
    """A folder with configs, in which the command is run."""

    def __init__(self, folder: Path) -> None:
        self.config = folder / "c.yaml"
        (folder / "good.csv").write_text("1,2,3\n4,5,6\n7,8,9\n")
        (folder / "bad.npy").write_bytes(b"\x80\x04K\x01.")
        (folder / "folder").mkdir()

    def judge(self, content: bytes, *argv: str) -> None:
        """Run the command on a config of this content: it must end in an exit code and no more than a sentence."""
        self.config.write_bytes(content)
        code, out, err = run(*argv)
        assert code in {0, 1, 2, 3}, err
        assert "Traceback" not in err
        assert "itself failed" not in err
        assert "pwned" not in out
        if code >= 2:
            assert out == ""
            assert err
        assert "\x1b" not in err


def run(*argv: str) -> tuple[int, str, str]:
    from attntrace.cli import app

    out, err, given_in = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(3))
    with pytest.MonkeyPatch.context() as patch:
        for name, stream in (("stdout", out), ("stderr", err), ("stdin", given_in)):
            patch.setattr(sys, name, stream)
        patch.setattr(sys, "argv", ["attntrace", *argv])
        with pytest.raises(SystemExit) as ended:
            app.main()
        return int(ended.value.code or 0), contents(out), contents(err)


def contents(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


@pytest.fixture(scope="module")
def slate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slate]:
    from attntrace.layer import Trace

    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("fuzz")
        patch.chdir(folder)
        patch.setenv("NO_COLOR", "1")
        patch.setattr(sys.modules[Trace.__module__], "available", lambda: MEMORY)
        yield Slate(folder)


often = settings(max_examples=EXAMPLES, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
COMMANDS = [("steps",), ("get", "output"), ("get", "weights"), ("run", "--format", "json"), ("run", "--format", "csv")]
commands = st.sampled_from(COMMANDS)


@often
@given(broken(), commands)
def test_broken_configs(slate: Slate, text: str, command: tuple[str, ...]) -> None:
    slate.judge(text.encode("utf-8", "surrogatepass"), *command, "c.yaml")


@often
@given(mangled(), commands)
def test_mangled_bytes(slate: Slate, content: bytes, command: tuple[str, ...]) -> None:
    slate.judge(content, *command, "c.yaml")


@often
@given(st.sampled_from(TEXTS), st.lists(sets, min_size=1, max_size=2), commands)
def test_changes(slate: Slate, content: bytes, changes: list[str], command: tuple[str, ...]) -> None:
    options = [word for change in changes for word in ("--set", change)]
    slate.judge(content, *command, "c.yaml", *options)


@often
@given(
    st.sampled_from(TEXTS),
    st.one_of(
        cells.map(lambda cell: ["get", cell]),
        st.text(max_size=12).filter(lambda text: not text.startswith("--d")).map(lambda cell: ["get", cell]),  # no --debug
        orders.map(lambda order: ["get", "output", "--permute", order]),
        names.map(lambda steps: ["steps", "--steps", steps]),
        runs.map(lambda run: ["run", "--queries", run]),
        st.tuples(st.sampled_from(["--batch", "--head"]), picks).map(lambda option: ["steps", *option]),
    ),
)
def test_cells_and_choices(slate: Slate, content: bytes, words: list[str]) -> None:
    slate.judge(content, *words, "c.yaml")


def test_the_configs_are_valid(slate: Slate) -> None:
    """What is broken above was whole before."""
    for content in TEXTS[:-1]:
        slate.config.write_bytes(content)
        assert run("get", "output", "c.yaml")[::2] == (0, "")
