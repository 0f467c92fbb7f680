"""What the benchmarks share: timing in turn, peak memory, Markdown tables, and the line that names the machine."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

Side = Callable[[], Any]


def alternate(sides: dict[str, Side], repeats: int) -> dict[str, list[float]]:
    """Seconds of each side, run in turn `repeats` times, the order reversed every other round."""
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(repeats):
        for name in sides if number % 2 == 0 else reversed(sides):
            start = time.perf_counter()
            sides[name]()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def peak_bytes() -> int:
    """Peak resident memory of this process.

    Linux hands ru_maxrss on through exec, so a large parent would be counted; the kernel's own high-water mark of the
    present address space is read where there is one.
    """
    status = Path("/proc/self/status")
    if status.exists():
        for line in status.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    """A Markdown table; floats with three significant digits or decimals."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(_cell(value) for value in line) + " |" for line in lines)


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.0f}"


def gigabytes(value: float) -> str:
    """Bytes in GB, two decimals."""
    return f"{value / 1e9:.2f} GB"


def machine() -> str:
    """Processor, cores, threads and versions."""
    versions = [f"{name} {importlib.metadata.version(name)}" for name in ("torch", "scikit-learn", "numpy", "pyro-ppl")]
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    threads = f"OMP_NUM_THREADS {os.environ.get('OMP_NUM_THREADS', 'unset')}"
    facts = [cpu_model(), f"{cores} cores", f"{torch.get_num_threads()} torch threads ({threads})"]
    return ", ".join([*facts, f"Python {platform.python_version()}", *versions])


def cpu_model() -> str:
    """The processor's name."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def forget_peak() -> None:
    """Start the high-water mark again from what is held now, where Linux lets us: making the data shall not count."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def report(
    title: str, parts: Mapping[str, Callable[[Any], str]], names: Sequence[str], sizes: Any, out: Path | None
) -> str:
    """Run the parts; print each as it ends and keep `out` up to date."""
    text = f"# {title}\n\n{machine()}\n"
    print(text, flush=True)
    for name in names:
        start = time.perf_counter()
        body = parts[name](sizes)
        section = f"## {name}\n\n{parts[name].__doc__}\n\n{body}\n\nTook {time.perf_counter() - start:.0f} s.\n"
        print(section, flush=True)
        text += "\n" + section
        if out is not None:
            out.write_text(text, encoding="utf-8")
    return text
