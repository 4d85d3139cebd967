"""Runs the parts one after the other."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import transformers

from specfit_runtime.stores.host_memory import available_bytes

from . import copies, decode, equality, forward, overlap
from .table import Table


class Missing(Exception):
    """The device is not there."""


@dataclass(frozen=True)
class Machine:
    """Where the checks run.

    Attributes
    ----------
    device : torch.device
    small : bool
        Small shapes.
    folder : Path
        For checkpoints; removed at the end.
    """

    device: torch.device
    small: bool
    folder: Path

    @property
    def cuda(self) -> bool:
        return self.device.type == "cuda"

    @property
    def memory_store(self) -> str:
        """The store that keeps experts in host memory for this device."""
        return "pinned" if self.cuda else "ram"

    def synchronize(self) -> None:
        if self.cuda:
            torch.cuda.synchronize(self.device)


_RUN = {
    "equality": equality.check,
    "forward": forward.check,
    "copies": copies.check,
    "overlap": overlap.check,
    "decode": decode.check,
}


def run(device: str, *, small: bool, seconds: float, parts: Sequence[str]) -> int:
    """Print the table; return 1 if something failed, else 0.

    Raises
    ------
    Missing
        If the device is not there.
    """
    table = Table(seconds)
    where = _device(device)
    # The float32 figures are about float32.
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    with TemporaryDirectory(prefix="specfit-gpu-check-") as folder:
        machine = Machine(where, small, Path(folder))
        for part in parts:
            _RUN[part](machine, table)
    print(_facts(where, small))
    print(table.text())
    missed = sum(row.verdict == "not reached" for row in table.rows)
    if missed:
        print(f"{missed} rows were not reached in {seconds / 60:g} minutes; give more --minutes")
    return int(table.failed)


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
    except RuntimeError:
        raise Missing(f"{name!r} is no device; give cuda, cuda:1 or cpu") from None
    if device.type == "cpu":
        return device
    if device.type != "cuda":
        raise Missing(f"this checks CUDA devices, not {name!r}")
    if not torch.cuda.is_available():
        raise Missing(
            "torch sees no CUDA device; --device cpu runs the same code without one, on small "
            "shapes, for testing it"
        )
    number = torch.cuda.current_device() if device.index is None else device.index
    if number >= torch.cuda.device_count():
        raise Missing(f"{name} is not there: torch sees {torch.cuda.device_count()} device(s)")
    torch.cuda.set_device(number)
    return torch.device("cuda", number)


def _facts(device: torch.device, small: bool) -> str:
    free = available_bytes()
    lines = [
        f"torch {torch.__version__}, transformers {transformers.__version__}, "
        f"{os.cpu_count()} processors, "
        + ("host memory unknown" if free is None else f"{free / 1e9:.0f} GB of host memory free")
    ]
    if device.type == "cuda":
        props = torch.cuda.get_device_properties(device)
        lines.append(
            f"{props.name}, {props.total_memory / 1e9:.0f} GB, compute capability "
            f"{props.major}.{props.minor}, CUDA {torch.version.cuda}"
        )
    else:
        lines.append("no GPU: the script runs on the processor, and its figures mean nothing")
    if small:
        lines.append("small shapes: figures of transfers and speed say little")
    return "\n".join(lines)
