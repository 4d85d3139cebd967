"""The tensors of an EAGLE-3 head, read and checked against its configuration."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

import torch
from torch import Tensor

from ..checkpoint import Checkpoint
from ..errors import CheckpointError, DrafterError
from .eagle3_config import Eagle3Config

__all__ = ["HeadFiles", "wanted_shapes"]

#: Training leftovers that nothing reads.
_IGNORED = ("verifier_norm.weight", "verifier_lm_head.weight", "rotary_emb.inv_freq")
#: Tables of ids, not weights.
_WHOLE_NUMBERS = ("d2t", "t2d")
_NORM_BEFORE_FC = "input_norm.weight"


class HeadFiles:
    """The tensors of a head's folder, found but not read.

    Parameters
    ----------
    folder : Path

    Raises
    ------
    CheckpointError
        If its files are missing, damaged or pickled.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._checkpoint = Checkpoint(folder)
        #: The files' name of each tensor by that of SpecForge.
        self._keys = {
            name: key
            for name, key in ((_renamed(key), key) for key in self._checkpoint.tensors)
            if not name.endswith(_IGNORED)
        }

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of each tensor, by its name in SpecForge."""
        return {name: self._checkpoint.tensors[key].shape for name, key in self._keys.items()}

    def check(self, config: Eagle3Config, n_states: int) -> None:
        """Check the tensors' names and shapes.

        Parameters
        ----------
        config : Eagle3Config
        n_states : int
            States of the target that are fused.

        Raises
        ------
        CheckpointError
            If tensors are missing, unexpected or of another shape than the configuration says; all
            of them are listed.
        """
        _check(config, n_states, self.shapes)

    def read(self, config: Eagle3Config, n_states: int) -> dict[str, Tensor]:
        """Return the tensors by name, ``midlayer.`` for the decoder layer.

        The memory is the caller's own, aligned.

        Raises
        ------
        CheckpointError
            As `check`; and if a file cannot be read or ``d2t`` does not fit the vocabulary.
        DrafterError
            If a weight is not finite.
        """
        self.check(config, n_states)
        names = {key: name for name, key in self._keys.items()}
        tensors = {names[key]: tensor for key, tensor in self._checkpoint.read(names)}
        _check_vocabulary(config, tensors)
        for name, tensor in tensors.items():
            if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
                raise DrafterError(f"the drafter's weight {name} in {self.folder} is not finite")
            if not tensor.is_floating_point() and name not in _WHOLE_NUMBERS:
                raise CheckpointError(
                    f"the drafter's weight {name} in {self.folder} must hold floating-point "
                    f"numbers, not {tensor.dtype}"
                )
        return tensors


def wanted_shapes(
    config: Eagle3Config, n_states: int, have: Collection[str]
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


def _renamed(key: str) -> str:
    name = key.removeprefix("model.")
    if name.startswith("layers.0."):
        name = "midlayer." + name.removeprefix("layers.0.")
    return name


def _check(config: Eagle3Config, n_states: int, have: Mapping[str, tuple[int, ...]]) -> None:
    must, may = wanted_shapes(config, n_states, have)
    shapes = {**may, **must}
    problems = []
    missing = sorted(set(must) - set(have))
    unexpected = sorted(set(have) - set(shapes))
    if missing:
        problems.append(f"missing: {', '.join(missing)}")
    if unexpected:
        problems.append(f"unexpected: {', '.join(unexpected)}")
    problems += [
        f"{name} has shape {have[name]}, by config.json it is {shapes[name]}"
        for name in sorted(set(have) & set(shapes))
        if have[name] != shapes[name]
    ]
    if problems:
        raise CheckpointError(
            f"the drafter in {config.folder} does not fit its config.json: {'; '.join(problems)}"
        )


def _check_vocabulary(config: Eagle3Config, tensors: Mapping[str, Tensor]) -> None:
    if "d2t" not in tensors:
        return
    offsets = tensors["d2t"]
    if offsets.is_floating_point() or offsets.dtype == torch.bool:
        raise CheckpointError(f"d2t in {config.folder} must hold integers, not {offsets.dtype}")
    target = offsets.long() + torch.arange(len(offsets), device=offsets.device)
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
