"""Host memory for whole layers of experts, and how much of it there is."""

from __future__ import annotations

import mmap
from pathlib import Path

import torch

from ..errors import StoreError

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")


def allocate(n_elements: int, dtype: torch.dtype) -> torch.Tensor:
    """Return zeroed host memory, 1-D, that starts at a page and takes no more than whole pages.

    Notes
    -----
    torch's own page-locked memory is rounded up to a power of two, which can double it. This memory
    is mapped and can be page-locked as it is; no two allocations share a page, so that each can be
    locked for itself.

    Raises
    ------
    StoreError
        If the system does not give it.
    """
    n_bytes = n_elements * dtype.itemsize
    try:
        memory = mmap.mmap(-1, n_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except (OSError, MemoryError, OverflowError) as error:
        raise StoreError(f"the system gives no {n_bytes:,} bytes of memory: {error}") from error
    return torch.frombuffer(memory, dtype=dtype)


def check_room(n_bytes: int, store: str) -> None:
    """Check that ``n_bytes`` of host memory are free before they are filled.

    Raises
    ------
    StoreError
        If they are not; the message states both figures.
    """
    free = available_bytes()
    if free is not None and n_bytes > free:
        raise StoreError(
            f'store "{store}" keeps all experts in memory: that takes {n_bytes:,} bytes, but '
            f'{free:,} are available; use store="disk", or a machine with more memory'
        )


def available_bytes() -> int | None:
    """Return the host memory that can be taken without swapping, None if the system does not say.

    The least of what the machine has and what the process's control group leaves.
    """
    rooms = [room for room in (_machine_room(), *_group_rooms()) if room is not None]
    return max(0, min(rooms)) if rooms else None


def _machine_room() -> int | None:
    for line in _lines(_PROC / "meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _group_rooms() -> list[int]:
    """Return what each control group above the process leaves, version 2 and version 1."""
    rooms = []
    for line in _lines(_PROC / "self" / "cgroup"):
        number, controllers, path = line.split(":", 2)
        if number == "0":
            root, limit, usage = _CGROUP, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            root, limit = _CGROUP / "memory", "memory.limit_in_bytes"
            usage = "memory.usage_in_bytes"
        else:
            continue
        group = root / path.lstrip("/")
        # In a container the path may name a group that is not visible; its limit is at the root.
        for folder in (group, *group.parents):
            room = _room(folder, limit, usage)
            if room is not None:
                rooms.append(room)
            if folder == root:
                break
    return rooms


def _room(folder: Path, limit: str, usage: str) -> int | None:
    most, used = _lines(folder / limit), _lines(folder / usage)
    if not most or not used or not most[0].isdigit():  # "max": no limit
        return None
    # Cached files count as used, but give way.
    cached = 0
    for line in _lines(folder / "memory.stat"):
        key, _, value = line.partition(" ")
        if key in ("inactive_file", "active_file"):
            cached += int(value)
    return int(most[0]) - int(used[0]) + cached


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
