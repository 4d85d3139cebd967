"""The arithmetic of an EAGLE-3 head: one decoder layer over embeddings and states."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn import functional
from transformers.activations import ACT2FN

from .eagle3_config import Eagle3Config
from .eagle3_rotary import RotaryTables

__all__ = ["Eagle3Head"]


class Eagle3Head:
    """One head on one device, with the keys and values of the text and of the tree.

    Rows of the cache are the pairs (state of token t, embedding of token t + 1), at position t, and
    behind them the tree's nodes in order of creation.

    Parameters
    ----------
    config : Eagle3Config
    tensors : mapping
        From `HeadFiles.read`; the output layer is among them.
    device, dtype
        What it computes in. Scores are float32 in any case.
    """

    def __init__(
        self,
        config: Eagle3Config,
        tensors: Mapping[str, Tensor],
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        self.config, self.device, self.dtype = config, device, dtype

        def get(name: str) -> Tensor | None:
            found = tensors.get(name)
            return None if found is None else found.to(device=device, dtype=dtype).contiguous()

        def need(name: str) -> Tensor:
            found = get(name)
            assert found is not None
            return found

        def joined(stem: str, parts: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
            weights = [need(f"{stem}.{part}_proj.weight") for part in parts]
            biases = [get(f"{stem}.{part}_proj.bias") for part in parts]
            if all(bias is None for bias in biases):
                return torch.cat(weights), None
            whole = [
                weight.new_zeros(len(weight)) if bias is None else bias
                for weight, bias in zip(weights, biases, strict=True)
            ]
            return torch.cat(weights), torch.cat(whole)

        attention, mlp = "midlayer.self_attn", "midlayer.mlp"
        self._fc = need("fc.weight"), get("fc.bias")
        self._qkv = joined(attention, ("q", "k", "v"))
        self._out = joined(attention, ("o",))
        self._gate_up = joined(mlp, ("gate", "up"))
        self._down = joined(mlp, ("down",))
        self._hidden_norm = need("midlayer.hidden_norm.weight")
        self._input_norm = need("midlayer.input_layernorm.weight")
        self._post_norm = need("midlayer.post_attention_layernorm.weight")
        self._norm = need("norm.weight")
        self._head = need("lm_head.weight")
        self._query_norm = get(f"{attention}.q_norm.weight")
        self._key_norm = get(f"{attention}.k_norm.weight")
        self._joined_norm = get("input_norm.weight")
        state_norms = sorted(name for name in tensors if name.startswith("fc_norm."))
        self._state_norms = torch.stack([need(n) for n in state_norms]) if state_norms else None
        self._activation = ACT2FN[config.activation]
        self._rotary = RotaryTables(config.rope, config.n_heads, config.head_dim, device, dtype)
        #: Positions that the head was made for. What lies further back is not seen.
        self.context = self._rotary.context
        shape = (config.n_kv_heads, 0, config.head_dim)
        self._keys = torch.empty(shape, device=device, dtype=dtype)
        self._values = torch.empty(shape, device=device, dtype=dtype)

    def fuse(self, features: Tensor) -> Tensor:
        """Return the states [n, hidden] that stand for the target's, [n, F, target hidden]."""
        features = features.to(device=self.device, dtype=self.dtype)
        if self._state_norms is not None:
            features = self._rms(features, None) * self._state_norms
        wide = features.flatten(1)
        if self._joined_norm is not None:
            wide = self._rms(wide, self._joined_norm)
        return functional.linear(wide, *self._fc)

    def step(
        self, embedded: Tensor, states: Tensor, begin: int, position: int, seen: Tensor | None
    ) -> Tensor:
        """Take one draft step at n rows; return the new states, [n, hidden].

        Parameters
        ----------
        embedded, states : Tensor
            [n, hidden]: embedding of each row's token, and the state it goes on from.
        begin : int
            Row of the cache where keys and values of the first of them go.
        position : int
            Of the rows: all of one level share it; without a tree (``seen`` is None) it is the
            first one's, and each row sees what lies before it and itself.
        seen : Tensor of bool, shape (n, begin + n), optional
            Which rows of the cache each row attends to.
        """
        n, end = len(embedded), begin + len(embedded)
        normed = self._rms(states, self._hidden_norm)
        if self.config.norm_before_residual:
            states = normed
        mixed = torch.cat([self._rms(embedded, self._input_norm), normed], dim=-1)
        last = position + (1 if seen is not None else n)
        query, key, value = self._projected(mixed, position, last)
        self._reserve(end)
        self._keys[:, begin:end] = key.transpose(0, 1)
        self._values[:, begin:end] = value.transpose(0, 1)
        if seen is None and n > 1:
            seen = torch.ones(n, end, dtype=torch.bool, device=self.device).tril(begin)
        low = 0
        if self.context is not None and last > self.context:
            # Of the text alone: a tree lies behind it.
            low = min(max(position + 1 - self.context, 0), position)
            if seen is not None and last - position > 1:
                seen = seen.triu(position + 1 - self.context)
            seen = None if seen is None else seen[:, low:]
        states = states + functional.linear(self._attended(query, low, end, seen), *self._out)
        gate, up = functional.linear(
            self._rms(states, self._post_norm), *self._gate_up
        ).chunk(2, dim=-1)
        return states + functional.linear(self._activation(gate) * up, *self._down)

    def _projected(self, mixed: Tensor, position: int, last: int) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys, both turned to their positions, and values, [n, heads, d] each."""
        n_heads, kv, dim = self.config.n_heads, self.config.n_kv_heads, self.config.head_dim
        split = functional.linear(mixed, *self._qkv).view(len(mixed), n_heads + 2 * kv, dim)
        turned, value = split[:, :-kv], split[:, -kv:]
        if self._query_norm is not None and self._key_norm is not None:
            query = self._rms(turned[:, :n_heads], self._query_norm)
            key = self._rms(turned[:, n_heads:], self._key_norm)
            turned = torch.cat([query, key], dim=1)
        cos, sin = (table.unsqueeze(1) for table in self._rotary.rows(position, last))
        half = dim // 2
        swapped = torch.cat([-turned[..., half:], turned[..., :half]], dim=-1)
        turned = turned * cos + swapped * sin
        return turned[:, :n_heads], turned[:, n_heads:], value

    def _attended(self, query: Tensor, low: int, end: int, seen: Tensor | None) -> Tensor:
        """Return what queries, [n, heads, d], make of the rows of the cache, [n, heads * d]."""
        n, kv, dim = len(query), self.config.n_kv_heads, self.config.head_dim
        # The query heads that share a key head become rows of one product.
        groups = self.config.n_heads // kv
        grouped = query.view(n, kv, groups, dim).permute(1, 2, 0, 3)
        mixed = functional.scaled_dot_product_attention(
            grouped.reshape(1, kv, groups * n, dim),
            self._keys[None, :, low:end],
            self._values[None, :, low:end],
            attn_mask=None if seen is None else seen.repeat(groups, 1),
        )
        return mixed.view(kv, groups, n, dim).permute(2, 0, 1, 3).reshape(n, -1)

    def normed(self, states: Tensor) -> Tensor:
        """Return states [n, hidden] after the final norm, as the output layer reads them."""
        return self._rms(states, self._norm)

    def scores(self, states: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return what a level needs of states [n, hidden].

        Returns
        -------
        log_prob, draft : Tensor
            float32 and int64, [n, top_k]: the most probable draft ids, best first.
        states : Tensor
            [n, hidden]: what the next step goes on from.
        normed : Tensor
            [n, hidden]: what the output layer read.
        """
        normed = self.normed(states)
        logits = functional.linear(normed, self._head)
        every = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        log_prob, draft = every.topk(min(top_k, every.shape[-1]), dim=-1)
        return log_prob, draft, normed if self.config.norm_output else states, normed

    def _rms(self, states: Tensor, weight: Tensor | None) -> Tensor:
        return functional.rms_norm(states, states.shape[-1:], weight, self.config.eps)

    def _reserve(self, rows: int) -> None:
        have = self._keys.shape[1]
        if rows <= have:
            return
        size = max(rows, 2 * have, 256)
        for name in ("_keys", "_values"):
            old = getattr(self, name)
            new = old.new_zeros(old.shape[0], size, old.shape[2])
            new[:, :have] = old
            setattr(self, name, new)
