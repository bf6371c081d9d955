"""How much memory there is, so that a trace which would not fit is refused before it begins."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

FALLBACK = 4 << 30  # bytes; assumed where the system does not tell


def available() -> int:
    """Bytes that can be taken without swapping: the least of what the system, its container and this process are allowed."""
    return min(_limits(), default=FALLBACK)


def _limits() -> Iterator[int]:
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield int(line.split()[1]) * 1024
    with contextlib.suppress(OSError, ValueError):  # a container's limit (control groups v2); "max" is none
        root = Path("/sys/fs/cgroup")
        yield int((root / "memory.max").read_text()) - int((root / "memory.current").read_text())
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            yield limit
    with contextlib.suppress(AttributeError, OSError, ValueError):  # macOS and other Unixes: what is installed
        yield os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def human(size: int) -> str:
    """`size` bytes in the unit that leaves one to four digits: 134217728 gives "128 MiB"."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB", "TiB", "PiB"]
    while value >= 1024 and len(units) > 1:
        value, units = value / 1024, units[1:]
    return f"{value:.3g} {units[0]}" if value < 1000 else f"{value:.0f} {units[0]}"
