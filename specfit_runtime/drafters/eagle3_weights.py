"""The tensors of an EAGLE-3 head, read and checked against its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..alignment import aligned
from ..errors import CheckpointError, DrafterError
from .eagle3_config import Eagle3Config

__all__ = ["read_tensors", "wanted_shapes"]

#: Training leftovers that nothing reads.
_IGNORED = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")
_NORM_BEFORE_FC = "input_norm.weight"


def read_tensors(config: Eagle3Config, n_states: int) -> dict[str, Tensor]:
    """Return the head's tensors by name, ``midlayer.`` for the decoder layer.

    Parameters
    ----------
    config : Eagle3Config
    n_states : int
        States of the target that are fused.

    Raises
    ------
    CheckpointError
        If the file is missing or unreadable, or tensors are missing, unexpected or of another
        shape than the configuration says; all of them are listed.
    DrafterError
        If a weight is not finite.
    """
    tensors: dict[str, Tensor] = {}
    for path in _files(config.folder):
        try:
            with safe_open(path, "pt") as file:
                for key in file.keys():  # noqa: SIM118  (not a dictionary)
                    name = _renamed(key)
                    if not name.endswith(_IGNORED):
                        tensors[name] = aligned(file.get_tensor(key))
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"cannot read the drafter's {path}: {error}") from error
    _check(config, n_states, tensors)
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise DrafterError(f"the drafter's weight {name} in {config.folder} is not finite")
    return tensors


def wanted_shapes(
    config: Eagle3Config, n_states: int, have: Mapping[str, Tensor]
) -> tuple[dict[str, tuple[int, ...]], dict[str, tuple[int, ...]]]:
    """Return the shapes of the tensors that must be there, and of those that may be."""
    hidden, wide = config.hidden_size, config.intermediate_size
    queries, keys = config.n_heads * config.head_dim, config.n_kv_heads * config.head_dim
    draft = config.draft_vocab_size or config.vocab_size
    joined = n_states * config.target_hidden_size
    linear = {
        "midlayer.self_attn.q_proj": (queries, 2 * hidden),
        "midlayer.self_attn.k_proj": (keys, 2 * hidden),
        "midlayer.self_attn.v_proj": (keys, 2 * hidden),
        "midlayer.self_attn.o_proj": (hidden, queries),
        "midlayer.mlp.gate_proj": (wide, hidden),
        "midlayer.mlp.up_proj": (wide, hidden),
        "midlayer.mlp.down_proj": (hidden, wide),
        "fc": (hidden, joined),
    }
    must: dict[str, tuple[int, ...]] = {f"{name}.weight": s for name, s in linear.items()}
    for name in ("hidden_norm", "input_layernorm", "post_attention_layernorm"):
        must[f"midlayer.{name}.weight"] = (hidden,)
    must["norm.weight"] = (hidden,)
    may: dict[str, tuple[int, ...]] = {"fc.bias": (hidden,)}
    for part, flag in (("self_attn", config.attention_bias), ("mlp", config.mlp_bias)):
        biases = {f"{name}.bias": s[:1] for name, s in linear.items() if part in name}
        # An output bias belongs to the option in some families and not in others.
        output = "midlayer.self_attn.o_proj.bias"
        if flag and output in biases:
            may[output] = biases.pop(output)
        if flag:
            must |= biases
        elif flag is None:
            may |= biases
    may["embed_tokens.weight"] = (config.vocab_size, hidden)
    may["t2d"] = (config.vocab_size,)
    for name in ("q_norm", "k_norm"):
        may[f"midlayer.self_attn.{name}.weight"] = (config.head_dim,)
    each = {f"fc_norm.{i}.weight": (config.target_hidden_size,) for i in range(n_states)}
    for flag, shapes in (
        (config.norm_before_fc, {_NORM_BEFORE_FC: (joined,)}),
        (config.fc_norm, each),
    ):
        if flag:
            must |= shapes
        elif flag is None:
            may |= shapes
    # Some files call the norms of the single states by the other option's name.
    if config.norm_before_fc and "fc_norm.0.weight" in have and _NORM_BEFORE_FC not in have:
        del must[_NORM_BEFORE_FC]
        must |= each
    if config.draft_vocab_size not in (None, config.vocab_size):
        must["lm_head.weight"], must["d2t"] = (draft, hidden), (draft,)
    else:
        may["lm_head.weight"], may["d2t"] = (draft, hidden), (draft,)
    return must, may


def _files(folder: Path) -> list[Path]:
    whole, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if whole.exists():
        return [whole]
    if index.exists():
        try:
            places = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            names = sorted(set(places.values()))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise CheckpointError(f"cannot read the drafter's {index}: {error!r}") from error
        return [folder / name for name in names]
    pickled = sorted(folder.glob("*.bin")) + sorted(folder.glob("*.pt"))
    if pickled:
        raise CheckpointError(
            f"{folder} holds {pickled[0].name}, a pickle, which could run code when it is read; "
            "convert it where you trust it: safetensors.torch.save_file({k: v.contiguous() for "
            f"k, v in torch.load('{pickled[0].name}', weights_only=True).items()}}, "
            "'model.safetensors')"
        )
    raise CheckpointError(f"{folder} holds no model.safetensors")


def _renamed(key: str) -> str:
    name = key.removeprefix("model.")
    if name.startswith("layers.0."):
        name = "midlayer." + name.removeprefix("layers.0.")
    return name


def _check(config: Eagle3Config, n_states: int, tensors: Mapping[str, Tensor]) -> None:
    must, may = wanted_shapes(config, n_states, tensors)
    shapes = {**may, **must}
    problems = []
    missing = sorted(set(must) - set(tensors))
    unexpected = sorted(set(tensors) - set(shapes))
    if missing:
        problems.append(f"missing: {', '.join(missing)}")
    if unexpected:
        problems.append(f"unexpected: {', '.join(unexpected)}")
    problems += [
        f"{name} has shape {tuple(tensors[name].shape)}, by config.json it is {shapes[name]}"
        for name in sorted(set(tensors) & set(shapes))
        if tuple(tensors[name].shape) != shapes[name]
    ]
    if problems:
        raise CheckpointError(
            f"the drafter in {config.folder} does not fit its config.json: {'; '.join(problems)}"
        )
    _check_vocabulary(config, tensors)


def _check_vocabulary(config: Eagle3Config, tensors: Mapping[str, Tensor]) -> None:
    if "d2t" not in tensors:
        return
    offsets = tensors["d2t"]
    if offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise CheckpointError(f"d2t in {config.folder} must hold integers, not {offsets.dtype}")
    target = offsets.long() + torch.arange(len(offsets))
    fits = bool(((target >= 0) & (target < config.vocab_size)).all())
    if not fits or len(set(target.tolist())) != len(target):
        raise CheckpointError(
            f"d2t in {config.folder} must hold, per draft id, the distance to an id of the "
            f"target's {config.vocab_size}; here draft id + d2t lies outside or meets an id twice"
        )
    if "t2d" in tensors:
        allowed = tensors["t2d"].bool()
        if int(allowed.sum()) != len(target) or not bool(allowed[target].all()):
            raise CheckpointError(
                f"d2t and t2d in {config.folder} disagree about which of the target's tokens the "
                "head drafts"
            )
