"""The disk store: which bytes it reads, and what it says when a file is not as it should be."""

from __future__ import annotations

import errno
import mmap
import os
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_experts import LAYOUTS, TinyExperts, write_experts

from specfit_runtime.errors import StoreError
from specfit_runtime.stores import DiskStore, open_store

Read = tuple[int, int, int]  # descriptor, offset, bytes asked for


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Read]:
    """Every read of the test, in order."""
    seen: list[Read] = []
    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        seen.append((descriptor, offset, sum(len(b) for b in buffers)))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    return seen


def _direct(experts: TinyExperts) -> DiskStore:
    try:
        return DiskStore(experts.index, direct_io=True)
    except StoreError as error:
        if "O_DIRECT" in str(error):
            pytest.skip("the file system of the temporary files refuses O_DIRECT")
        raise


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("run", [torch.bfloat16, torch.float32])
def test_at_most_1_02_times_the_experts_bytes_are_read(
    tmp_path: Path, layout: str, run: torch.dtype
) -> None:
    experts = write_experts(tmp_path, layout=layout, run=run, hidden=256, inner=64, n_experts=16)
    wanted = [(layer, e) for layer in range(2) for e in (1, 3, 4, 8, 15)] * 8
    needed = sum(int(experts.index.stored_bytes[layer]) for layer, _ in wanted)
    slot = experts.slots(1)[0]
    with DiskStore(experts.index) as store:
        store.fetch(0, 0, slot).wait()
        counted, asked = store.counters().bytes, _bytes_read_by_this_process()
        for layer, e in wanted:
            store.fetch(layer, e, slot).wait()
        assert needed <= _bytes_read_by_this_process() - asked <= 1.02 * needed
        assert store.counters().bytes - counted == needed


def test_little_more_than_the_experts_is_read_from_the_device(tmp_path: Path) -> None:
    # What the operating system fetches ahead shows here alone: 8 of 64 experts, far apart.
    sizes = {"n_layers": 1, "n_experts": 64, "hidden": 512, "inner": 64}
    experts = write_experts(tmp_path, layout="fused", **sizes)
    for path in experts.index.files:
        with path.open("rb+") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    slot = experts.slots(1)[0]
    with DiskStore(experts.index) as store:
        before = _bytes_read_by_this_process("read_bytes")
        for e in range(0, 64, 8):
            store.fetch(0, e, slot).wait()
        from_device = _bytes_read_by_this_process("read_bytes") - before
    if from_device == 0:
        pytest.skip("the file system keeps the files in memory or does not say what it reads")
    # Each of the two ranges of an expert may touch one page or block more on either side.
    piece = max(mmap.PAGESIZE, os.statvfs(tmp_path).f_bsize)
    assert from_device <= 8 * (int(experts.index.stored_bytes[0]) + 4 * piece)


def test_adjacent_ranges_are_one_read(tmp_path: Path, reads: list[Read]) -> None:
    experts = write_experts(tmp_path, n_files=1)
    slot = experts.slots(1)[0]
    with DiskStore(experts.index) as store:
        store.fetch(1, 2, slot).wait()
    assert [n for *_, n in reads] == [experts.index.stored_bytes[1]]
    assert experts.holds(slot, 1, 2)


def test_ranges_in_two_files_are_two_reads(tmp_path: Path, reads: list[Read]) -> None:
    experts = write_experts(tmp_path, n_files=2)
    with DiskStore(experts.index) as store:
        store.fetch(0, 0, experts.slots(1)[0]).wait()
    assert len({descriptor for descriptor, *_ in reads}) == 2
    assert sum(n for *_, n in reads) == experts.index.stored_bytes[0]


def test_weights_in_the_run_dtype_go_straight_into_the_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = write_experts(tmp_path, n_files=1)
    slot = experts.slots(1)[0]
    begin, end = slot.data_ptr(), slot.data_ptr() + slot.nbytes
    addresses: list[int] = []
    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        addresses.extend(torch.frombuffer(b, dtype=torch.uint8).data_ptr() for b in buffers)
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with DiskStore(experts.index) as store:
        store.fetch(0, 3, slot).wait()
    assert len(addresses) == 3
    assert all(begin <= address < end for address in addresses)


def test_the_files_are_declared_to_be_read_at_random(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advised: list[tuple[int, int, int]] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda fd, *advice: advised.append(advice))
    with DiskStore(write_experts(tmp_path, n_files=3).index):
        assert advised == [(0, 0, os.POSIX_FADV_RANDOM)] * 3


@pytest.mark.parametrize("run", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("most", [1, 7, 64])
def test_short_reads_are_continued(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, run: torch.dtype, most: int
) -> None:
    experts = write_experts(tmp_path, run=run, n_files=1)
    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        return real(descriptor, [buffers[0][:most]], offset)

    monkeypatch.setattr(os, "preadv", preadv)
    slot = experts.slots(1)[0]
    with DiskStore(experts.index) as store:
        store.fetch(1, 5, slot).wait()
        assert experts.holds(slot, 1, 5)
        assert store.counters().bytes == experts.index.stored_bytes[1]


@pytest.mark.parametrize("run", [torch.bfloat16, torch.float32])
def test_direct_reads_are_aligned_and_counted_as_read(
    tmp_path: Path, reads: list[Read], run: torch.dtype
) -> None:
    experts = write_experts(tmp_path, run=run, hidden=200, inner=60, n_files=1, shift=5)
    slot = experts.slots(1)[0]
    size = experts.index.files[0].stat().st_size
    with _direct(experts) as store:
        for layer in range(2):
            reads.clear()
            before = store.counters().bytes
            returned = 0
            for e in range(6):
                store.fetch(layer, e, slot).wait()
                assert experts.holds(slot, layer, e)
            for _, offset, n in reads:
                assert offset % 4096 == 0
                assert n % 4096 == 0
                returned += min(n, size - offset)
            assert store.counters().bytes - before == returned
            assert store.moved_bytes[layer] == -(-returned // 6)
            assert returned <= 6 * (int(experts.index.stored_bytes[layer]) + 2 * 4095)
        assert "direct" in store.description


@pytest.mark.parametrize("direct_io", [False, True])
@pytest.mark.parametrize("run", [torch.bfloat16, torch.float32])
def test_large_experts_are_converted_in_chunks(
    tmp_path: Path, reads: list[Read], run: torch.dtype, direct_io: bool
) -> None:
    # 2.4 MB each, so that three chunks of 1 MiB are converted one after the other.
    experts = write_experts(tmp_path, run=run, hidden=500, inner=800, n_experts=2, n_layers=1)
    slot = experts.slots(1)[0]
    with _direct(experts) if direct_io else DiskStore(experts.index) as store:
        for e in range(2):
            store.fetch(0, e, slot).wait()
            assert experts.holds(slot, 0, e)
    if direct_io or run != torch.bfloat16:
        assert max(n for *_, n in reads) <= 1 << 20


def test_a_file_system_that_refuses_direct_reads_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = write_experts(tmp_path)
    descriptors = len(os.listdir("/proc/self/fd"))
    real = os.open

    def refuse(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), path)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(StoreError, match=r"experts-0.*O_DIRECT; load with direct_io=False"):
        DiskStore(experts.index, direct_io=True)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_direct_read_that_is_refused_later_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = write_experts(tmp_path)
    with _direct(experts) as store:
        monkeypatch.setattr(os, "preadv", _raising(OSError(errno.EINVAL, "Invalid argument")))
        with pytest.raises(StoreError, match="load with direct_io=False"):
            store.fetch(0, 0, experts.slots(1)[0]).wait()


@pytest.mark.parametrize("run", [torch.bfloat16, torch.float32])
def test_a_file_cut_off_while_open_is_named(tmp_path: Path, run: torch.dtype) -> None:
    experts = write_experts(tmp_path, run=run, n_files=1)
    last = max(experts.index.ranges(1, 5), key=lambda r: r.offset)
    with DiskStore(experts.index) as store:
        os.truncate(experts.index.files[0], last.offset + last.n_bytes - 10)
        ticket = store.fetch(1, 5, experts.slots(1)[0])
        with pytest.raises(
            StoreError,
            match=r"experts-0\.safetensors: cannot read expert 5 of MoE layer 1 .*10 bytes too",
        ):
            ticket.wait()


def test_a_file_written_to_while_open_is_named(tmp_path: Path) -> None:
    experts = write_experts(tmp_path, n_files=1)
    slot = experts.slots(1)[0]
    path = experts.index.files[0]
    with DiskStore(experts.index) as store:
        store.fetch(0, 0, slot).wait()
        changed = path.stat().st_mtime_ns
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            file.write(b"x")
        os.utime(path, ns=(changed, changed + 1))  # clocks of file systems are coarse
        with pytest.raises(StoreError, match=r"expert 0 of MoE layer 0.*written to since"):
            store.fetch(0, 0, slot).wait()


def test_a_file_replaced_under_its_name_does_not_matter(tmp_path: Path) -> None:
    # The tensors that were loaded already come from the first file; so must the experts.
    experts = write_experts(tmp_path, n_files=1)
    slot = experts.slots(1)[0]
    with DiskStore(experts.index) as store:
        other = tmp_path / "other"
        other.write_bytes(bytes(experts.index.files[0].stat().st_size))
        os.replace(other, experts.index.files[0])
        store.fetch(1, 4, slot).wait()
        assert experts.holds(slot, 1, 4)
        shutil.rmtree(tmp_path)
        store.fetch(0, 2, slot).wait()
        assert experts.holds(slot, 0, 2)


def test_an_error_of_the_device_is_named_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    experts = write_experts(tmp_path, n_files=1)
    slots = experts.slots(2)
    bad = min(r.offset for r in experts.index.ranges(0, 1))
    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        if offset == bad:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with DiskStore(experts.index) as store:
        tickets = [store.fetch(0, e + 1, slots[e]) for e in range(2)]
        with pytest.raises(StoreError, match=r"experts-0.*expert 1 of MoE layer 0.*output error"):
            tickets[0].wait()
        tickets[1].wait()
        assert experts.holds(slots[1], 0, 2)


def test_a_file_too_short_is_refused_at_once(tmp_path: Path) -> None:
    experts = write_experts(tmp_path, n_files=2)
    path = experts.index.files[1]
    os.truncate(path, path.stat().st_size - 1)
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(StoreError, match=r"experts-1\.safetensors: the file has .* cut off"):
        DiskStore(experts.index)
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    experts = write_experts(tmp_path, n_files=2)
    experts.index.files[1].unlink()
    for store in ("disk", "ram"):
        with pytest.raises(StoreError, match=r"experts-1.*cannot open.*No such file"):
            open_store(store, experts.index)


def test_a_folder_in_place_of_a_file_is_named(tmp_path: Path) -> None:
    experts = write_experts(tmp_path, n_files=1)
    index = replace(experts.index, files=(tmp_path,))
    with pytest.raises(StoreError, match=r"cut off|cannot open"), DiskStore(index) as store:
        store.fetch(0, 0, experts.slots(1)[0]).wait()


def test_reads_overlap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Two reads that each wait for the other to have begun: one after the other they never end.
    from threading import Barrier

    experts = write_experts(tmp_path, n_files=1)
    slots = experts.slots(2)
    both = Barrier(2, timeout=30)
    real = os.preadv

    def preadv(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        both.wait()
        return real(descriptor, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with DiskStore(experts.index, io_threads=2) as store:
        for ticket in [store.fetch(0, e, slots[e]) for e in range(2)]:
            ticket.wait()


def _bytes_read_by_this_process(what: str = "rchar") -> int:
    # Counted in bytes that reads returned (rchar) or that the device gave (read_bytes).
    try:
        lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    except OSError as error:
        pytest.skip(f"the system does not count what a process reads: {error}")
    return int(dict(line.split(": ") for line in lines)[what])


def _raising(error: Exception) -> Callable[..., int]:
    def fail(*args: object) -> int:
        raise error

    return fail
