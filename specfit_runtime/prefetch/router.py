"""A layer's own router, applied to states that are not yet those it will see."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


class Router:
    """What a stock router does with states, in two parts: logits on the device, scores on the host.

    Parameters
    ----------
    gate : torch.nn.Module
        The stock router; only read.
    top_k : int
    groups : tuple of int
        See `ExpertFamily.groups`.

    Attributes
    ----------
    weight : Tensor, shape (E, H)
        The gate's.
    bias : Tensor or None, shape (E,)

    Notes
    -----
    All stock routers choose the k largest of the logits or of what grows with them, but for those
    of DeepSeek-V3 and GLM-4-MoE: a sigmoid, a correction for each expert, and groups that are left
    out whole.
    """

    def __init__(self, gate: Any, top_k: int, groups: tuple[int, int]) -> None:
        self.weight: Tensor = gate.weight
        self.bias: Tensor | None = getattr(gate, "bias", None)
        correction = getattr(gate, "e_score_correction_bias", None)
        self._correction = None if correction is None else correction.float().cpu().numpy()
        self._top_k, self._groups = top_k, groups

    def logits(self, states: Tensor) -> Tensor:
        """Return the logits, float32 of shape (T, E), of normalised states, shape (T, H)."""
        states = states.to(self.weight.dtype)
        return torch.nn.functional.linear(states, self.weight, self.bias).float()

    def margins(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return how far each expert is from being left out, shape (T, E).

        Its score less that of the best expert that is not chosen; positive for the k chosen ones.
        """
        correction = self._correction
        scores = logits if correction is None else self._corrected(logits, correction)
        kth = scores.shape[1] - self._top_k - 1
        if kth < 0:  # every token uses all experts
            return np.ones_like(scores)
        left_out: NDArray[np.float32] = np.partition(scores, kth, axis=1)[:, kth, None]
        return scores - left_out

    def _corrected(
        self, logits: NDArray[np.float32], correction: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        scores = np.add(1.0 / (1.0 + np.exp(-logits)), correction, dtype=np.float32)
        n_groups, used = self._groups
        if used == n_groups:
            return scores
        grouped = scores.reshape(len(scores), n_groups, -1)
        worth = np.partition(grouped, grouped.shape[2] - 2, axis=2)[:, :, -2:].sum(axis=2)
        out = np.argpartition(worth, n_groups - used, axis=1)[:, : n_groups - used]
        np.put_along_axis(grouped, out[:, :, None], np.float32(-1e3), axis=1)
        return scores
