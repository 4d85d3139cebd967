"""An EAGLE-3 head in its plainest form: one token at a time, no masks, no trees, float64."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor


class NaiveEagle3:
    """Reads a folder and answers with the distribution after a text and a drafted path."""

    def __init__(self, folder: Path, embed: Tensor, output: Tensor | None = None) -> None:
        whole = json.loads((folder / "config.json").read_text())
        self.layer: dict[str, Any] = whole.get("transformer_layer_config", whole)
        self.options = {**whole, **whole.get("eagle_config", {})}
        tensors = load_file(folder / "model.safetensors")
        self.w = {
            name.replace("layers.0.", "midlayer."): tensor.double()
            for name, tensor in tensors.items()
            if name not in ("d2t", "t2d")
        }
        self.embed = self.w.get("embed_tokens.weight", embed.double())
        self.head = self.w.get("lm_head.weight")
        if self.head is None:
            assert output is not None
            self.head = output.double()
        offsets = tensors.get("d2t")
        count = len(self.head)
        self.target_id = torch.arange(count) + (0 if offsets is None else offsets)
        self.vocab = self.layer["vocab_size"]

    def after(self, ids: Sequence[int], features: Tensor, path: Sequence[int]) -> Tensor:
        """Return float64[vocab]: the probability of each token after ``ids`` and ``path``."""
        keys: list[Tensor] = []
        values: list[Tensor] = []
        state = torch.empty(0)
        for position, token in enumerate(ids[1:]):
            state = self.step(self.fuse(features[position].double()), token, position, keys, values)
        for position, token in enumerate(path, len(ids) - 1):
            fed = self.rms(state, "norm") if self.options.get("norm_output") else state
            state = self.step(fed, token, position, keys, values)
        assert self.head is not None
        chance = torch.softmax(self.head @ self.rms(state, "norm"), dim=-1)
        whole = torch.zeros(self.vocab, dtype=torch.float64)
        whole[self.target_id] = chance
        return whole

    def fuse(self, states: Tensor) -> Tensor:
        parts = list(states)
        if "fc_norm.0.weight" in self.w:
            parts = [self.rms(part, f"fc_norm.{i}") for i, part in enumerate(parts)]
        wide = torch.cat(parts)
        if "input_norm.weight" in self.w:
            wide = self.rms(wide, "input_norm")
        return self.linear(wide, "fc")

    def step(
        self, state: Tensor, token: int, position: int, keys: list[Tensor], values: list[Tensor]
    ) -> Tensor:
        heads, kv = self.layer["num_attention_heads"], self.layer["num_key_value_heads"]
        dim, name = self.layer["head_dim"], "midlayer.self_attn"
        normed = self.rms(state, "midlayer.hidden_norm")
        residual = normed if self.options.get("norm_before_residual") else state
        mixed = torch.cat([self.rms(self.embed[token], "midlayer.input_layernorm"), normed])
        query = self.linear(mixed, f"{name}.q_proj").view(heads, dim)
        key = self.linear(mixed, f"{name}.k_proj").view(kv, dim)
        if f"{name}.q_norm.weight" in self.w:
            query = torch.stack([self.rms(one, f"{name}.q_norm") for one in query])
            key = torch.stack([self.rms(one, f"{name}.k_norm") for one in key])
        keys.append(self.rotate(key, position))
        values.append(self.linear(mixed, f"{name}.v_proj").view(kv, dim))
        out = []
        for head, one in enumerate(self.rotate(query, position)):
            mine = head // (heads // kv)
            scores = torch.stack([one @ k[mine] for k in keys]) / math.sqrt(dim)
            weights = torch.softmax(scores, dim=0)
            out.append(sum(w * v[mine] for w, v in zip(weights, values, strict=True)))
        residual = residual + self.linear(torch.cat(out), f"{name}.o_proj")
        inner = self.rms(residual, "midlayer.post_attention_layernorm")
        gate = torch.nn.functional.silu(self.linear(inner, "midlayer.mlp.gate_proj"))
        up = self.linear(inner, "midlayer.mlp.up_proj")
        return residual + self.linear(gate * up, "midlayer.mlp.down_proj")

    def rotate(self, heads: Tensor, position: int) -> Tensor:
        frequency, scale = self.frequencies(position)
        angle = position * frequency
        cos, sin = scale * angle.cos(), scale * angle.sin()
        half = heads.shape[-1] // 2
        one, other = heads[:, :half], heads[:, half:]
        return torch.cat([one * cos - other * sin, other * cos + one * sin], dim=1)

    def frequencies(self, position: int) -> tuple[Tensor, float]:
        """Return the frequencies at a position, and what cosine and sine are multiplied with."""
        dim, base = self.layer["head_dim"], self.layer["rope_theta"]
        rope = self.layer.get("rope_scaling") or {"rope_type": "default"}
        kind = rope.get("rope_type", rope.get("type"))
        if kind == "dynamic":
            longest = self.layer["max_position_embeddings"]
            length = max(position + 1, longest)
            factor = rope["factor"]
            base = base * (factor * length / longest - (factor - 1)) ** (dim / (dim - 2))
        plain = base ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        if kind in ("default", "dynamic"):
            return plain, 1.0
        if kind == "linear":
            return plain / rope["factor"], 1.0
        if kind == "llama3":
            old = rope["original_max_position_embeddings"]
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            found = []
            for one in plain.tolist():
                turns = old * one / (2 * math.pi)
                share = min(max((turns - low) / (high - low), 0.0), 1.0)
                found.append(share * one + (1 - share) * one / rope["factor"])
            return torch.tensor(found, dtype=torch.float64), 1.0
        raise ValueError(f"no plain form of {kind!r}")

    def linear(self, states: Tensor, name: str) -> Tensor:
        out = self.w[f"{name}.weight"] @ states
        return out + self.w[f"{name}.bias"] if f"{name}.bias" in self.w else out

    def rms(self, states: Tensor, name: str) -> Tensor:
        scale = (states.square().mean() + self.layer["rms_norm_eps"]).rsqrt()
        return states * scale * self.w[f"{name}.weight"]
