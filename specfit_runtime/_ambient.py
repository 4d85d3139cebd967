"""Defaults that a caller may have changed for code of his own, as they are where nobody did."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np


@contextmanager
def usual_float_errors() -> Iterator[None]:
    """Let NumPy treat floating-point errors as usual: an underflow is no error here."""
    with np.errstate(divide="warn", over="warn", under="ignore", invalid="warn"):
        yield


@contextmanager
def on_the_cpu() -> Iterator[None]:
    """Make tensors on the CPU where no device is named, whatever torch's default device is.

    Also in code of others. Every call of torch takes longer meanwhile, so not for decoding.
    """
    import torch

    with torch.device("cpu"):
        yield
