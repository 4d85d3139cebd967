"""Rotary positions of a head, computed by Transformers and kept as tables."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from ..errors import CheckpointError
from ..verify.context import context_length

__all__ = ["RotaryTables"]

#: What the angles are computed like.
_LIKE = torch.empty(0, dtype=torch.float32, device="cpu")
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

    Attributes
    ----------
    context : int or None
        Positions that the settings were made for; None if they do not say.

    Raises
    ------
    CheckpointError
        If the settings cannot be used.
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
                **copy.deepcopy(dict(settings)),
            )
            with torch.device("cpu"):
                self._rotary = LlamaRotaryEmbedding(config)
            stated = settings.get("max_position_embeddings") is not None
            self.context: int | None = context_length(config) if stated else None
            # Beyond any context too, where some kinds change their frequencies.
            longest = torch.tensor([[2 * (self.context or 1)]], device="cpu")
            finite = bool(self._rotary(_LIKE, longest)[0].isfinite().all())
        except Exception as error:
            raise CheckpointError(
                f"the drafter's rotary settings cannot be used: {type(error).__name__}: "
                f"{' '.join(str(error).split())[:300]}"
            ) from error
        if not finite:
            raise CheckpointError("the drafter's rotary settings give no finite positions")
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
        found = []
        for at in range(have, end, step):
            places = torch.arange(at, at + step, device="cpu").unsqueeze(0)
            found.append(self._rotary(_LIKE, places))
        for name, part in (("_cos", 0), ("_sin", 1)):
            table = getattr(self, name)
            new = torch.cat([pair[part][0] for pair in found]).to(table)
            setattr(self, name, torch.cat([table, new]))
