"""Rotary positions of a head, computed by Transformers and kept as tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ..errors import CheckpointError

__all__ = ["RotaryTables"]

#: Kinds whose frequencies depend on the length of the text so far.
_GROWING = ("dynamic", "longrope")


class RotaryTables:
    """Cosines and sines of every position up to the longest asked for.

    Where the frequencies depend on the length of the text, those of a position are the ones that
    decoding token by token would use there, so that a key never depends on what was drafted.

    Parameters
    ----------
    settings : mapping
        ``rope_theta``, ``rope_scaling`` or ``rope_parameters`` and ``max_position_embeddings``.
    n_heads, head_dim : int
    device, dtype
        Of the tables; the angles are computed in float32.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        n_heads: int,
        head_dim: int,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        try:
            config = LlamaConfig(
                hidden_size=n_heads * head_dim,
                num_attention_heads=n_heads,
                head_dim=head_dim,
                **settings,
            )
            self._rotary = LlamaRotaryEmbedding(config)
        except (KeyError, ValueError, TypeError) as error:
            raise CheckpointError(
                f"the drafter's rotary settings {dict(settings)} cannot be used: {error!r}"
            ) from error
        self._grows = self._rotary.rope_type in _GROWING
        self._cos = torch.empty(0, head_dim, device=device, dtype=dtype)
        self._sin = self._cos.clone()

    def rows(self, begin: int, end: int) -> tuple[Tensor, Tensor]:
        """Return cosines and sines of positions ``begin`` to ``end``, each [end - begin, d]."""
        if end > len(self._cos):
            self._extend(end)
        return self._cos[begin:end], self._sin[begin:end]

    def _extend(self, end: int) -> None:
        have = len(self._cos)
        end = max(end, have + 256) if self._grows else max(end, 2 * have, 1024)
        step = 1 if self._grows else end - have
        found = [
            self._rotary(torch.empty(0), torch.arange(at, at + step).unsqueeze(0))
            for at in range(have, end, step)
        ]
        for name, part in (("_cos", 0), ("_sin", 1)):
            table = getattr(self, name)
            new = torch.cat([pair[part][0] for pair in found]).to(table)
            setattr(self, name, torch.cat([table, new]))
