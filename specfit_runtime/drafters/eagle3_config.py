"""What the ``config.json`` of an EAGLE-3 head says, in either of the layouts in use."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.activations import ACT2FN

from ..errors import CheckpointError

__all__ = ["Eagle3Config", "read_config"]

_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")


@dataclass(frozen=True)
class Eagle3Config:
    """Sizes and options of a head.

    Attributes
    ----------
    folder : Path
    hidden_size, intermediate_size, n_heads, n_kv_heads, head_dim : int
    target_hidden_size : int
        Of the states that the head reads.
    vocab_size : int
        Of the target.
    draft_vocab_size : int or None
        None: the target's vocabulary.
    eps : float
        Of the root-mean-square norms.
    activation : str
        Transformers' name of the function between the MLP's products.
    attention_bias, mlp_bias : bool or None
        Whether the products have biases; None: they do if the file has them.
    norm_before_residual : bool
        Whether the residual stream carries the normed state.
    norm_before_fc : bool or None
        Whether one norm covers the joined states of the target; None: it does if the file has it.
    fc_norm : bool or None
        Whether each state of the target has a norm of its own; None as above.
    norm_output : bool
        Whether the next draft step is fed the normed state.
    tied : bool
        Whether the embeddings are the output layer too.
    rope : mapping
        Settings of the rotary positions, as Transformers' configurations have them.
    feature_layers : tuple of int or None
        Indices into Transformers' ``hidden_states``; None where the file does not name them.
    verifier : str
        Which target the file names, or empty.
    assumption : str
        What the file left open.
    """

    folder: Path
    hidden_size: int
    intermediate_size: int
    n_heads: int
    n_kv_heads: int
    head_dim: int
    target_hidden_size: int
    vocab_size: int
    draft_vocab_size: int | None
    eps: float
    activation: str
    attention_bias: bool | None
    mlp_bias: bool | None
    norm_before_residual: bool
    norm_before_fc: bool | None
    fc_norm: bool | None
    norm_output: bool
    tied: bool
    rope: Mapping[str, Any]
    feature_layers: tuple[int, ...] | None
    verifier: str
    assumption: str


def read_config(folder: Path) -> Eagle3Config:
    """Read ``config.json`` of a head in the layout of SpecForge and SGLang, or of speculators.

    Raises
    ------
    CheckpointError
        If it is missing, is no EAGLE-3 head, or asks for something that is not supported.
    """
    path = folder / "config.json"
    try:
        whole = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"cannot read the drafter's {path}: {error}") from error
    if not isinstance(whole, dict):
        raise CheckpointError(f"{path} holds no JSON object")
    kind = whole.get("speculators_model_type")
    if kind is not None:
        if kind != "eagle3":
            raise CheckpointError(f"{path} describes a {kind!r} drafter, not an EAGLE-3 head")
        return _read(path, _Section(path, whole.get("transformer_layer_config")), whole, True)
    if not any("eagle3" in str(name).lower() for name in whole.get("architectures") or ()):
        raise CheckpointError(
            f"{path} describes {whole.get('architectures')}, not an EAGLE-3 head; a whole language "
            "model is used as a drafter with lm:DIR"
        )
    return _read(path, _Section(path, whole), whole, False)


def _read(path: Path, layer: _Section, whole: dict[str, Any], speculators: bool) -> Eagle3Config:
    eagle = whole.get("eagle_config") or {}
    options = {**whole, **eagle}
    _refuse(path, layer)
    residual = options.get("norm_before_residual")
    if residual is None and speculators:
        # Readers of this layout disagree about the default, and the wrong one fails silently.
        raise CheckpointError(
            f"{path} does not say norm_before_residual; add true or false, as it was trained"
        )
    hidden, heads = layer.size("hidden_size"), layer.size("num_attention_heads")
    if "head_dim" not in layer.values and hidden % heads:
        raise CheckpointError(
            f"{path} has no head_dim, and hidden_size {hidden} is no multiple of {heads} heads"
        )
    kv_heads = layer.size("num_key_value_heads", heads)
    if heads % kv_heads:
        raise CheckpointError(
            f"{path}: {heads} attention heads are no multiple of {kv_heads} key-value heads"
        )
    activation = str(layer.values.get("hidden_act", "silu"))
    if activation not in ACT2FN:
        raise CheckpointError(f"{path}: hidden_act {activation!r} is unknown to Transformers")
    layers, how = _feature_layers(path, options, eagle, speculators)
    return Eagle3Config(
        folder=path.parent,
        hidden_size=hidden,
        intermediate_size=layer.size("intermediate_size"),
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=layer.size("head_dim", hidden // heads),
        target_hidden_size=_Section(path, options).size("target_hidden_size", hidden),
        vocab_size=layer.size("vocab_size"),
        draft_vocab_size=_Section(path, options).size("draft_vocab_size", 0) or None,
        eps=float(layer.values.get("rms_norm_eps", 1e-6)),
        activation=activation,
        attention_bias=_flag(layer.values, "attention_bias"),
        mlp_bias=_flag(layer.values, "mlp_bias"),
        norm_before_residual=bool(residual),
        norm_before_fc=_flag(options, "norm_before_fc"),
        fc_norm=_flag(options, "fc_norm"),
        norm_output=bool(options.get("norm_output")),
        tied=bool(options.get("tie_word_embeddings")),
        rope={key: layer.values[key] for key in _ROPE_KEYS if layer.values.get(key) is not None},
        feature_layers=layers,
        verifier=_verifier(whole),
        assumption=how,
    )


@dataclass(frozen=True)
class _Section:
    """One object of the file, with the file's name for messages."""

    path: Path
    values: Any

    def __post_init__(self) -> None:
        if not isinstance(self.values, dict):
            raise CheckpointError(f"{self.path} has no transformer_layer_config")

    def size(self, key: str, default: int | None = None) -> int:
        value = self.values.get(key)
        if value is None:
            value = default
        if isinstance(value, bool) or not isinstance(value, int) or value < (default != 0):
            raise CheckpointError(f"{self.path}: {key} must be a positive integer, got {value!r}")
        return value


def _refuse(path: Path, layer: _Section) -> None:
    values = layer.values
    if layer.size("num_hidden_layers", 1) != 1:
        raise CheckpointError(
            f"{path} has {values['num_hidden_layers']} decoder layers; heads of one are supported"
        )
    sliding = "sliding_attention" in (values.get("layer_types") or ())
    if sliding or values.get("use_sliding_window"):
        raise CheckpointError(f"{path} asks for sliding-window attention, which is not supported")
    rope = {**values, **(values.get("rope_scaling") or {}), **(values.get("rope_parameters") or {})}
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(f"{path} asks for partial rotary positions, which is not supported")
    if rope.get("mrope_section") is not None:
        raise CheckpointError(f"{path} asks for multimodal rotary positions; that is not supported")


def _flag(options: Mapping[str, Any], key: str) -> bool | None:
    value = options.get(key)
    return None if value is None else bool(value)


def _feature_layers(
    path: Path, options: dict[str, Any], eagle: dict[str, Any], speculators: bool
) -> tuple[tuple[int, ...] | None, str]:
    """Return the indices into ``hidden_states`` and how they were read."""
    key = "eagle_aux_hidden_state_layer_ids"
    ids = options.get(key)
    if not ids:
        return None, ""
    if not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
        raise CheckpointError(f"{path}: {key} must hold integers, got {ids}")
    if speculators and not eagle.get(key):
        how = f"{key} {list(ids)} is read as indices into hidden_states, as speculators writes it"
        return tuple(ids), how
    layers = tuple(i + 1 for i in ids)
    how = (
        f"{key} {list(ids)} is read as 0-based layers whose outputs are fused, "
        f"so hidden_states{list(layers)}"
    )
    return layers, how


def _verifier(whole: dict[str, Any]) -> str:
    found = (whole.get("speculators_config") or {}).get("verifier") or {}
    return str(found.get("name_or_path") or "")
