"""Batches of training windows, a pure function of the seed and the step."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Batches", "windows"]


class Batches:
    """Cut a run of ids into windows; every epoch shifts the cuts and shuffles the windows.

    Parameters
    ----------
    path
        ``.npy`` with the ids.
    batch, sequence
        Windows per step and their length; a window has one id more, the last target.
    seed
        Epoch e draws its shift and its order from ``(seed, e)``.
    """

    def __init__(self, path: Path, batch: int, sequence: int, seed: int) -> None:
        self._ids: NDArray[np.uint16] = np.load(path, mmap_mode="r")
        self._batch, self._sequence, self._seed = batch, sequence, seed
        self.per_epoch = (len(self._ids) - 2 * sequence) // sequence // batch
        if self.per_epoch < 1:
            raise ValueError(f"{path} holds {len(self._ids)} ids: too few for one batch")
        self._epoch = -1
        self._starts: NDArray[np.int64] = np.empty(0, np.int64)

    def at(self, step: int) -> Tensor:
        """Return int64[batch, sequence + 1] of a step."""
        epoch, place = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            rng = np.random.default_rng((self._seed, epoch))
            shift = int(rng.integers(self._sequence))
            count = self.per_epoch * self._batch
            self._starts = shift + self._sequence * rng.permutation(count)
            self._epoch = epoch
        starts = self._starts[place * self._batch : (place + 1) * self._batch]
        return windows(self._ids, starts, self._sequence + 1)


def windows(ids: NDArray[np.uint16], starts: NDArray[np.int64], length: int) -> Tensor:
    """Return int64[len(starts), length]."""
    return torch.from_numpy(np.stack([ids[s : s + length] for s in starts]).astype(np.int64))
