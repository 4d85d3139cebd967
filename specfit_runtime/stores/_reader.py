"""Reads experts from the checkpoint's files, byte range by byte range."""

from __future__ import annotations

import errno
import mmap
import os
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from threading import local
from typing import TYPE_CHECKING

import torch

from ..errors import StoreError
from ._copy import as_bytes, copy_serially

if TYPE_CHECKING:
    from ..checkpoint import ByteRange, ExpertIndex

#: What offset, length and memory of an unbuffered read are multiples of. Devices ask for 512 or
#: 4,096 bytes; the larger satisfies both.
ALIGNMENT = 4096

# Bytes that are read before they are converted: large enough for a device's full speed, small
# enough to be still in the processor's cache when they are converted. A multiple of ALIGNMENT.
_CHUNK = 1 << 20


@dataclass(frozen=True)
class _Read:
    """Adjacent byte ranges of one file, in the order of the file: one read serves them all."""

    file: int
    offset: int
    n_bytes: int
    ranges: tuple[ByteRange, ...]


@dataclass(frozen=True)
class _File:
    descriptor: int
    size: int
    changed: int  # nanoseconds, as the file system has it


class RecordReader:
    """Brings experts' records from the files into host memory. Safe to use from several threads.

    Parameters
    ----------
    index : ExpertIndex
    direct_io : bool
        Read past the operating system's page cache (``O_DIRECT``), in multiples of 4,096 bytes.
    sequential : bool
        Tell the operating system to read ahead: for reading everything once.
    on_bytes : callable
        Told after each read how many bytes it returned.

    Raises
    ------
    StoreError
        If a file cannot be opened, is shorter than the index says, or its file system refuses
        ``O_DIRECT``.
    """

    def __init__(
        self,
        index: ExpertIndex,
        *,
        direct_io: bool = False,
        sequential: bool = False,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._index = index
        self._direct = direct_io
        self._on_bytes = on_bytes
        self._staging = local()
        self._files: list[_File] = []
        descriptors: list[int] = []
        #: Closes the files; called at the latest when the reader is collected.
        self.close = weakref.finalize(self, _close_all, descriptors)
        ends = self._ends()
        try:
            for number, path in enumerate(index.files):
                self._files.append(
                    _open(path, ends.get(number, 0), direct_io, sequential, descriptors)
                )
        except BaseException:
            self.close()
            raise

    def read(self, layer: int, expert: int, out: torch.Tensor) -> None:
        """Fill ``out``, a record in host memory, 1-D and contiguous.

        Raises
        ------
        StoreError
            If the file ends early, cannot be read, or was written to since it was opened. The
            message names the file, the layer and the expert.
        """
        reads = merged(self._index.ranges(layer, expert))
        for read in reads:
            file = self._files[read.file]
            try:
                if self._direct or any(r.dtype != out.dtype for r in read.ranges):
                    self._read_through_staging(file, read, out)
                else:
                    views = [as_bytes(out[r.at :][: r.n_elements]).data for r in read.ranges]
                    self._fill(file.descriptor, views, read.offset)
                status = os.fstat(file.descriptor)
                if (status.st_size, status.st_mtime_ns) != (file.size, file.changed):
                    raise _BadFileError(
                        "the file was written to since the model was loaded; load the model again"
                    )
            except (OSError, _BadFileError) as error:
                raise StoreError(
                    f"{self._index.files[read.file]}: cannot read expert {expert} of MoE layer "
                    f"{layer} ({read.n_bytes} bytes at {read.offset}): {self._reason(error)}"
                ) from error

    def read_bytes(self, layer: int, expert: int) -> int:
        """Return how many bytes :meth:`read` reads from the files for this expert."""
        total = 0
        for read in merged(self._index.ranges(layer, expert)):
            start, stop = read.offset, read.offset + read.n_bytes
            if self._direct:
                start -= start % ALIGNMENT
                stop = min(stop + -stop % ALIGNMENT, self._files[read.file].size)
            total += stop - start
        return total

    def _read_through_staging(self, file: _File, read: _Read, out: torch.Tensor) -> None:
        align = ALIGNMENT if self._direct else 1
        start = read.offset - read.offset % align
        stop = read.offset + read.n_bytes
        # Elements must not be cut in two by the end of a chunk. That would take a file whose
        # tensors start at odd offsets; such a one is read in one piece.
        whole = any((r.offset - start) % r.dtype.itemsize for r in read.ranges)
        step = stop - start if whole else _CHUNK
        for at in range(start, stop, step):
            wanted = min(step, stop - at)
            length = wanted + -wanted % align
            staging = self._staging_of(length)
            self._fill(file.descriptor, [memoryview(staging)[:length]], at, enough=wanted)
            held = torch.frombuffer(staging, dtype=torch.uint8)
            for r in read.ranges:
                first, last = max(r.offset, at), min(r.offset + r.n_bytes, at + wanted)
                if first < last:
                    piece = held[first - at : last - at]
                    if (first - at) % r.dtype.itemsize:
                        piece = piece.clone()  # torch views only memory that is aligned
                    begin = r.at + (first - r.offset) // r.dtype.itemsize
                    source = piece.view(r.dtype)
                    copy_serially(source, out[begin : begin + len(source)])

    def _fill(
        self, descriptor: int, views: list[memoryview], offset: int, enough: int | None = None
    ) -> None:
        """Read until the views are full, or hold ``enough`` bytes when the file ends."""
        missing = sum(len(view) for view in views)
        spare = 0 if enough is None else missing - enough
        while missing:
            n = os.preadv(descriptor, views, offset)
            self._on_bytes(n)
            if n == 0:
                break
            missing -= n
            offset += n
            while views and n >= len(views[0]):
                n -= len(views.pop(0))
            if n:
                views[0] = views[0][n:]
            if missing <= spare:
                break
        if missing > spare:
            raise _BadFileError(
                f"the file ends {missing - spare} bytes too early; it was cut off since the model "
                "was loaded"
            )

    def _staging_of(self, n_bytes: int) -> mmap.mmap:
        # One per reading thread. Mapped memory, because it starts at a page and so is aligned.
        held: mmap.mmap | None = getattr(self._staging, "memory", None)
        if held is None or len(held) < n_bytes:
            held = self._staging.memory = mmap.mmap(
                -1, max(n_bytes, _CHUNK), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            )
        return held

    def _reason(self, error: Exception) -> str:
        if isinstance(error, OSError):
            if self._direct and error.errno == errno.EINVAL:
                return f"{error.strerror}; {_NO_DIRECT}"
            return error.strerror or str(error)
        return str(error)

    def _ends(self) -> dict[int, int]:
        """Where the last byte range of each file ends."""
        ends: dict[int, int] = {}
        index = self._index
        for layer in range(index.n_layers):
            for expert in range(index.n_experts):
                for r in index.ranges(layer, expert):
                    ends[r.file] = max(ends.get(r.file, 0), r.offset + r.n_bytes)
        return ends


class _BadFileError(Exception):
    """A file is not what it was."""


_NO_DIRECT = "its file system may not support O_DIRECT; load with direct_io=False"


def merged(ranges: tuple[ByteRange, ...]) -> list[_Read]:
    """Return the reads that serve these ranges, adjacent ones as one."""
    groups: list[list[ByteRange]] = []
    end = (-1, 0)
    for r in sorted(ranges, key=lambda r: (r.file, r.offset)):
        if (r.file, r.offset) == end:
            groups[-1].append(r)
        else:
            groups.append([r])
        end = (r.file, r.offset + r.n_bytes)
    return [
        _Read(group[0].file, group[0].offset, sum(r.n_bytes for r in group), tuple(group))
        for group in groups
    ]


def _open(
    path: os.PathLike[str], end: int, direct_io: bool, sequential: bool, descriptors: list[int]
) -> _File:
    flags = os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct_io else 0)
    try:
        descriptor = os.open(path, flags)
        descriptors.append(descriptor)
        if not direct_io:
            # Reading ahead of a random access brings bytes that nobody asked for.
            advice = os.POSIX_FADV_SEQUENTIAL if sequential else os.POSIX_FADV_RANDOM
            os.posix_fadvise(descriptor, 0, 0, advice)
        status = os.fstat(descriptor)
    except OSError as error:
        hint = f"; {_NO_DIRECT}" if direct_io and error.errno == errno.EINVAL else ""
        raise StoreError(
            f"{os.fspath(path)}: cannot open the checkpoint file: {error.strerror}{hint}"
        ) from error
    if status.st_size < end:
        raise StoreError(
            f"{os.fspath(path)}: the file has {status.st_size} bytes, but its experts end at "
            f"{end}; it is cut off, fetch it again"
        )
    return _File(descriptor, status.st_size, status.st_mtime_ns)


def _close_all(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())


