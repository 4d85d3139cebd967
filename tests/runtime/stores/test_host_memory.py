"""Host memory for whole layers: how much there is, what is taken, what is said if it is short."""

from __future__ import annotations

import mmap
from pathlib import Path

import psutil
import pytest
import torch
from tiny_experts import write_experts

from specfit_runtime.errors import StoreError
from specfit_runtime.stores import RamStore, _slabs, host_memory

PAGE = mmap.PAGESIZE


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with 1 GB available and no control groups, as files to be changed."""
    monkeypatch.setattr(host_memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(host_memory, "_CGROUP", tmp_path / "cgroup")
    _write(tmp_path / "proc/meminfo", "MemTotal: 4000000 kB\nMemAvailable: 1000000 kB\n")
    return tmp_path


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="ascii")


def test_available_memory_is_what_the_machine_says(system: Path) -> None:
    assert host_memory.available_bytes() == 1_024_000_000


def test_a_version_2_control_group_limits(system: Path) -> None:
    _write(system / "proc/self/cgroup", "0::/jobs/mine\n")
    _write(system / "cgroup/jobs/memory.max", "5000\n")
    _write(system / "cgroup/jobs/memory.current", "4000\n")
    _write(system / "cgroup/jobs/memory.stat", "anon 3400\ninactive_file 200\nactive_file 100\n")
    _write(system / "cgroup/jobs/mine/memory.max", "max\n")
    _write(system / "cgroup/jobs/mine/memory.current", "4000\n")
    assert host_memory.available_bytes() == 1300


def test_a_version_1_control_group_limits(system: Path) -> None:
    _write(system / "proc/self/cgroup", "9:cpu:/x\n4:memory:/mine\n0::/\n")
    _write(system / "cgroup/memory/mine/memory.limit_in_bytes", "700\n")
    _write(system / "cgroup/memory/mine/memory.usage_in_bytes", "100\n")
    assert host_memory.available_bytes() == 600


def test_the_limit_of_a_container_is_found_at_its_root(system: Path) -> None:
    # Inside, the path names a group of the machine outside, which is not to be seen.
    _write(system / "proc/self/cgroup", "0::/docker/0123\n")
    _write(system / "cgroup/memory.max", "900\n")
    _write(system / "cgroup/memory.current", "1000\n")
    assert host_memory.available_bytes() == 0


def test_a_system_that_does_not_say_is_trusted(system: Path) -> None:
    (system / "proc/meminfo").unlink()
    assert host_memory.available_bytes() is None
    host_memory.check_room(1 << 60, "ram")


def test_this_machine_agrees_with_psutil() -> None:
    available = host_memory.available_bytes()
    assert available is not None
    assert 0 < available <= psutil.virtual_memory().total


def test_too_little_memory_is_said_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = write_experts(tmp_path, run=torch.float32)
    needed = 2 * 6 * int(experts.index.record_bytes[0])
    experts.index.files[0].unlink()  # would be the next complaint
    monkeypatch.setattr(host_memory, "available_bytes", lambda: needed - 1)
    with pytest.raises(
        StoreError, match=rf'"ram" .* takes {needed:,} bytes, but {needed - 1:,} .*store="disk"'
    ):
        RamStore(experts.index)


@pytest.mark.parametrize("error", [MemoryError(), OSError(12, "Cannot allocate memory")])
def test_memory_that_is_refused_is_said(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(StoreError, match="the system gives no 4,000 bytes of memory"):
        host_memory.allocate(1000, torch.float32)


@pytest.mark.parametrize("n_elements", [1, 2048, 2049, 3 << 20])
def test_memory_is_zeroed_and_starts_at_a_page(n_elements: int) -> None:
    memory = host_memory.allocate(n_elements, torch.bfloat16)
    assert memory.shape == (n_elements,)
    assert memory.dtype == torch.bfloat16
    assert memory.data_ptr() % PAGE == 0
    assert not memory.any()
    memory.fill_(1)


def test_slabs_of_all_layers_take_at_most_1_02_times_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1.15 MB per layer: the next power of two would be 1.8 times as much.
    experts = write_experts(tmp_path, n_layers=3, n_experts=12, hidden=100, inner=160)
    mapped: list[int] = []
    real = mmap.mmap

    def map_memory(descriptor: int, length: int, **options: int) -> mmap.mmap:
        mapped.append(-(-length // PAGE) * PAGE)
        return real(descriptor, length, **options)

    monkeypatch.setattr(mmap, "mmap", map_memory)
    slabs = _slabs.load_slabs(experts.index, "ram", 2)
    needed = 12 * int(experts.index.record_bytes.sum())
    assert len(mapped) == len(slabs) == 3  # one per layer, not one per expert
    assert needed <= sum(mapped) <= 1.02 * needed


def test_reading_stops_at_the_first_error(tmp_path: Path) -> None:
    experts = write_experts(tmp_path, n_files=1)
    experts.index.files[0].write_bytes(b"")
    with pytest.raises(StoreError, match="cut off"):
        RamStore(experts.index)
