"""The clock by which passes, fetches and drafts are timed."""

from __future__ import annotations

from time import perf_counter

import torch


def now(device: torch.device) -> float:
    """Return the time in seconds, once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return perf_counter()
