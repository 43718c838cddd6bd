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
from typing import Any

FLAGS = (  # instruction sets that decide how fast a quantized graph runs
    "avx2 fma f16c avx512f avx512bw avx_vnni avx512_vnni avx512_bf16 avx512_fp16 amx_tile amx_int8 amx_bf16 "
    "asimd asimdhp asimddp i8mm bf16 sve sve2 sme"
).split()
MEGAHERTZ = r"^cpu MHz\s*:\s*([\d.]+)"
RUNNING = ("edgedistill", "onnxruntime", "tokenizers", "numpy")  # the packages that run a bundle


def here(device: str = "cpu") -> dict[str, Any]:
    """Describe this machine: processor, instruction sets, cores, CPU quota, frequency and its governor,
    container, memory, system; for cuda the GPU."""
    return {
        **({"gpu": gpu()} if device == "cuda" else {}),
        "cpu": _cpu_model(),
        "flags": flags(),
        "architecture": platform.machine(),
        "cores": os.cpu_count(),
        "usable_cores": _usable_cores(),
        "cgroup_quota_cores": min(quotas(Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")), default=None),
        "governor": _text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").strip() or None,
        "megahertz": [float(each) for each in re.findall(MEGAHERTZ, _text("/proc/cpuinfo"), re.MULTILINE)],
        "container": _container(),
        "memory_bytes": memory_bytes(),
        "system": f"{platform.system()} {platform.release()}",
    }


def flags() -> list[str]:
    """The instruction sets of this processor that decide how fast a quantized graph runs."""
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", _text("/proc/cpuinfo"), re.MULTILINE)
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
    found = {name: str(import_module(name).__version__) for name in packages}
    return {"python": platform.python_version(), **found}


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


def _cpu_model() -> str:
    info = _text("/proc/cpuinfo")
    for key in ("model name", "Model", "Hardware"):
        if match := re.search(rf"^{key}\s*:\s*(.+)$", info, re.MULTILINE):
            return match[1].strip()
    if sys.platform == "darwin":
        done = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() or platform.machine()
    part = re.search(r"^CPU part\s*:\s*(\S+)", info, re.MULTILINE)
    return f"{platform.machine()} part {part[1]}" if part else platform.processor() or platform.machine()


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


def processors(cgroups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """How many processors this process may use: its affinity, limited by the CPU quota of its control groups
    (v1 and v2), rounded down."""
    quota = min(quotas(cgroups, own), default=math.inf)
    return max(1, int(min(_usable_cores() or 1, quota)))


def _usable_cores() -> int | None:
    """Return how many processors this process is bound to; None where the system does not say."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()


def quotas(cgroups: Path, own: Path) -> Iterator[float]:
    """The CPU quotas that apply to this process, in processors: its control group's and those of all groups
    above."""
    for line in _text(own).splitlines():  # none where this is not Linux
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # v2
            roots, names = [cgroups, cgroups / "unified"], ["cpu.max"]
        elif "cpu" in controllers.split(","):  # v1
            roots, names = [cgroups / controllers, cgroups / "cpu"], ["cpu.cfs_quota_us", "cpu.cfs_period_us"]
        else:
            continue
        group = Path(path.lstrip("/"))
        for folder in [root / part for root in roots for part in (group, *group.parents)]:
            limit = " ".join(
                _text(folder / name) for name in names
            ).split()  # "max" and "-1": without a limit
            if len(limit) == 2 and limit[0].isdecimal() and int(limit[0]) > 0:  # not "max", nor -1
                yield int(limit[0]) / int(limit[1])


def pressure(cgroups: Path = Path("/sys/fs/cgroup"), stat: Path = Path("/proc/stat")) -> dict[str, float]:
    """What has taken processor time from this process' group so far, in seconds, as far as the system tells:
    {steal: other guests of the host, throttled: the group's CPU quota}."""
    found = dict[str, float]()
    ticks = _text(stat).partition("\n")[0].split()
    if len(ticks) > 8 and ticks[0] == "cpu" and hasattr(os, "sysconf"):
        found["steal"] = int(ticks[8]) / os.sysconf("SC_CLK_TCK")
    if match := re.search(r"^throttled_usec (\d+)$", _text(cgroups / "cpu.stat"), re.MULTILINE):
        found["throttled"] = int(match[1]) / 1e6
    return found


def _container() -> str | None:
    """What kind of container this process runs in; None where there is no sign of one."""
    signs = {"/.dockerenv": "docker", "/run/.containerenv": "podman", "/run/systemd/container": "other"}
    return next((name for sign, name in signs.items() if Path(sign).exists()), None)
