"""How many processors and how much memory this process may really use.

A container's limits live in its control group, not in what the machine reports: a server that
counts the host's processors starts too many threads and slows down many times over.
Reads files only; remembers nothing.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from pathlib import Path

SYSTEM_ROOT = Path("/")


def cpu_count(root: Path = SYSTEM_ROOT) -> int:
    """Threads that can run at once: the affinity mask, cut by the tightest cgroup CPU quota.

    Args:
        root: Where /proc and /sys are found; tests point it at a made-up tree.
    """
    affinity = getattr(os, "sched_getaffinity", None)
    processors = len(affinity(0)) if affinity else (os.cpu_count() or 1)
    quotas = [math.ceil(quota) for quota in _cpu_quotas(root)]
    return max(1, min([processors, *quotas]))


def available_memory(root: Path = SYSTEM_ROOT) -> int:
    """Bytes this process can still take: what the machine has free and every cgroup allows."""
    return max(0, min([_free_memory(root), *_cgroup_headrooms(root)]))


def _free_memory(root: Path) -> int:
    """What the kernel says could be given without swapping, else all physical memory."""
    meminfo = _read(root / "proc/meminfo") or ""
    for line in meminfo.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_quotas(root: Path) -> Iterator[float]:
    for group in _cgroups(root, "cpu"):
        quota, _, period = (_read(group / "cpu.max") or "max").partition(" ")
        if quota != "max":
            yield int(quota) / int(period)
        legacy = int(_read(group / "cpu.cfs_quota_us") or -1)
        if legacy > 0:
            yield legacy / int(_read(group / "cpu.cfs_period_us") or 100_000)


def _cgroup_headrooms(root: Path) -> Iterator[int]:
    for group in _cgroups(root, "memory"):
        limit = _read(group / "memory.max") or _read(group / "memory.limit_in_bytes") or "max"
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if limit == "max" or used is None:
            continue
        yield int(limit) - int(used) + _reclaimable(group)


def _reclaimable(group: Path) -> int:
    """Bytes of file cache that count as used but are given up on demand."""
    for line in (_read(group / "memory.stat") or "").splitlines():
        name, _, value = line.partition(" ")
        if name in ("inactive_file", "total_inactive_file"):
            return int(value)
    return 0


def _cgroups(root: Path, controller: str) -> Iterator[Path]:
    """Folders of this process's control group and all above it, in version 2 and in version 1.

    Inside a container the path that /proc names often does not exist; its root is then the
    container's own group.
    """
    for line in (_read(root / "proc/self/cgroup") or "").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        group = top / path.lstrip("/")
        yield from (folder for folder in (group, *group.parents) if folder.is_relative_to(top))


def _read(path: Path) -> str | None:
    """The file's text without its last newline, or None if it cannot be read."""
    try:
        return path.read_text().strip()
    except OSError:
        return None
