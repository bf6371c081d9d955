"""How fast, and in how much memory: one table, each line against a yardstick that is measured beside it.

    python tests/benchmarks/all.py                    every benchmark, some two minutes
    python tests/benchmarks/all.py start-up json      these; the names are those of BENCHMARKS below

The columns: what is compared (ours / theirs), the two medians, the median ratio of the pairs, the most that the ratio may be,
and whether it is. Nothing fails over a time: a table from a busy machine tells little, so run it twice before you believe it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable

import json_numbers
import memory
import printing
import start_up
import tracing
from measure import Row

BENCHMARKS: dict[str, Callable[[], Iterable[Row]]] = {
    "start-up": start_up.rows,
    "trace": tracing.rows,
    "memory": memory.rows,
    "print": printing.rows,
    "json": json_numbers.rows,
}
LINE = "{:<42} {:>8} {:>17} {:>6} {:>6}  {}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(BENCHMARKS)}; all unless given")
    names = parser.parse_args().names
    if unknown := set(names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(BENCHMARKS)}")
    print(LINE.format("what", "ours", "theirs", "ratio", "goal", "met?"))
    for name in names or BENCHMARKS:
        for row in BENCHMARKS[name]():
            ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
            print(LINE.format(row.what, row.ours, row.theirs, ratio, f"{row.goal:g}", row.verdict), flush=True)


if __name__ == "__main__":
    main()
