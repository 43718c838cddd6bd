"""The machine measurements run on: processor, instruction sets, memory, versions; and how many threads to
use."""

from __future__ import annotations

import math
import os
import platform
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from edgedistill.files import Json

FLAGS = (  # instruction sets that decide how fast a quantized graph runs
    "avx2 fma f16c avx512f avx512bw avx_vnni avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16 "
    "asimd asimdhp asimddp i8mm bf16 sve sve2 sme"
).split()
PROCESSORS = "/proc/cpuinfo"
RUNNING = ("edgedistill", "onnxruntime", "tokenizers", "numpy")  # the packages that run a bundle


def here(device: str = "cpu") -> Json:
    """Describe this machine: processor, instruction sets, cores, CPU quota, memory, system; for cuda the
    GPU."""
    return {
        **({"gpu": gpu()} if device == "cuda" else {}),
        "cpu": cpu_model(_text(PROCESSORS)) or platform.processor() or platform.machine(),
        "flags": flags(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": _usable_cores(),
        "cgroup_quota_cores": min(quotas(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")), default=None),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
    }


def flags(described: str = "") -> list[str]:
    """The instruction sets in /proc/cpuinfo, by default this machine's, that decide how fast a quantized
    graph runs."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", described or _text(PROCESSORS), re.MULTILINE)
    present = match[1].split() if match else []
    return [flag for flag in FLAGS if flag in present]


def gpu() -> dict[str, str] | None:
    """{name, memory, driver} of the NVIDIA GPU that CUDA computes on, from nvidia-smi.

    None where nvidia-smi fails, or lists GPUs of several kinds: CUDA numbers them in another order, so it is
    unknown which computes. A part of a GPU (MIG) is described as the whole.
    """
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    kinds = {tuple(line.split(", ")) for line in done.stdout.splitlines() if line.count(", ") == 2}
    if len(kinds) != 1:
        return None
    return dict(zip(("name", "memory", "driver"), kinds.pop(), strict=True))


def versions(packages: Sequence[str] = RUNNING) -> dict[str, str]:
    """The versions of Python and of packages, as these say themselves: onnxruntime-gpu puts its files where
    onnxruntime's are."""
    installed = {name: str(import_module(name).__version__) for name in packages}
    return {"python": platform.python_version(), **installed}


def peak_rss_bytes() -> int | None:
    """Peak resident memory of this process; None on Windows. Not ru_maxrss on Linux, which starts at the
    parent's."""
    match = re.search(r"^VmHWM:\s+(\d+) kB", _text("/proc/self/status"), re.MULTILINE)
    if match:
        return int(match[1]) * 1024
    if sys.platform == "win32":
        return None
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _text(path: str | Path) -> str:
    """Return what a file of the system holds; nothing where there is none."""
    try:
        return Path(path).read_text()
    except OSError:
        return ""


def cpu_model(described: str) -> str:
    """The processor's name in /proc/cpuinfo; nothing where it has none."""
    match = re.search(r"^(?:model name|Model|Hardware)\s*:\s*(.+)$", described, re.MULTILINE)
    return match[1].strip() if match else ""


def memory_bytes() -> int | None:
    """Of the whole machine; None where the system does not say."""
    if hasattr(os, "sysconf"):
        with suppress(ValueError):
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None


def default_threads() -> int:
    """$OMP_NUM_THREADS (its first level) where it is a positive integer, else `processors()`."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else processors()


def processors(cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """How many processors this process may use: its affinity, limited by the CPU quota of its control groups,
    rounded down."""
    quota = min(quotas(cgroups, membership), default=math.inf)
    return max(1, int(min(_usable_cores() or 1, quota)))


def _usable_cores() -> int | None:
    """How many processors this process is bound to; None where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def quotas(cgroups: Path, membership: Path) -> Iterator[float]:
    """The CPU quotas that apply to this process, in processors: its control group's and those of all groups
    above (version 2, at `cgroups` or, beside version 1, in `unified` there)."""
    match = re.search(r"^0::/(.*)$", _text(membership), re.MULTILINE)
    if match is None:  # not Linux, or version 1 alone
        return
    group = Path(match[1])
    for folder in (group, *group.parents):
        for root in (cgroups, cgroups / "unified"):
            limit = re.match(r"(\d+) (\d+)", _text(root / folder / "cpu.max"))
            if limit:  # not "max"
                yield int(limit[1]) / int(limit[2])


def pressure(cgroups: Path = Path("/sys/fs/cgroup"), stat: Path = Path("/proc/stat")) -> dict[str, float]:
    """What has taken processor time from this process' group so far, in seconds, as far as the system tells:
    {steal: other guests of the host, throttled: the group's CPU quota}."""
    seconds = {}
    match = re.match(r"cpu +(?:\d+ +){7}(\d+)", _text(stat))
    if match and hasattr(os, "sysconf"):
        seconds["steal"] = int(match[1]) / os.sysconf("SC_CLK_TCK")
    if match := re.search(r"^throttled_usec (\d+)$", _text(cgroups / "cpu.stat"), re.MULTILINE):
        seconds["throttled"] = int(match[1]) / 1e6
    return seconds
