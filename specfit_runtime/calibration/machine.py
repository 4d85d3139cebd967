"""The machine that is measured."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from importlib import metadata

import torch

from specfit_opt.checks import Maybe, Text, Whole
from specfit_opt.schema import settle

_PACKAGES = ("specfit", "torch", "transformers")


@dataclass(frozen=True)
class MeasuredMachine:
    """The machine that was measured, without anything that names its owner.

    Attributes
    ----------
    processor : str
        The processor's model.
    cores : int
        Logical processors that the process may use.
    threads : int
        Threads that one operator may use.
    system : str
        Operating system and architecture.
    accelerator : str or None
        The device's name; None when the model runs on the processor.
    """

    processor: str
    cores: int
    threads: int
    system: str
    accelerator: str | None

    def __post_init__(self) -> None:
        kinds = {
            "processor": Text(),
            "cores": Whole(1),
            "threads": Whole(1),
            "system": Text(),
            "accelerator": Maybe(Text()),
        }
        settle(self, kinds, "machine.")


def this_machine(device: torch.device) -> MeasuredMachine:
    """Return the machine at hand, by its make and not by its name.

    Parameters
    ----------
    device : torch.device
        Where the model runs.
    """
    # What the process may use, which in a container is less than what there is.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return MeasuredMachine(
        processor=_processor(),
        cores=cores or 1,
        threads=torch.get_num_threads(),
        system=f"{platform.system()} {platform.machine()}",
        accelerator=torch.cuda.get_device_name(device) if device.type == "cuda" else None,
    )


def software_versions() -> dict[str, str]:
    """Return the versions of the packages whose speed was measured."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:  # a source tree that was never installed
            found[package] = "unknown"
    return found


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
            for line in lines:
                key, _, value = line.partition(":")
                if key.strip() == "model name" and value.strip():
                    return value.strip()
    except OSError:
        pass  # not Linux
    return platform.processor() or platform.machine() or "unknown"
