"""What the ``config.json`` of an EAGLE-3 head says, in either of the layouts in use."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers.activations import ACT2FN

from specfit_opt.checks import Anything, Flag, Maybe, Real, Text, Whole, checked, shown
from specfit_opt.files.strict_json import read_json
from specfit_opt.schema import ListOf, MapOf, Record

from ..errors import CheckpointError, InvalidInputError

__all__ = ["Eagle3Config", "read_config"]

_ROPE_KEYS = ("rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings")
#: Sizes are compared with the tensors before anything is made of them.
_SIZE = Whole(least=1, most=2**40)
_LAYER = Record(
    {
        "hidden_size": _SIZE,
        "intermediate_size": _SIZE,
        "num_attention_heads": _SIZE,
        "vocab_size": _SIZE,
    },
    {
        "num_key_value_heads": Maybe(_SIZE),
        "head_dim": Maybe(_SIZE),
        "num_hidden_layers": _SIZE,
        "hidden_act": Maybe(Text()),
        "rms_norm_eps": Real(most=1.0),
        "attention_bias": Maybe(Flag()),
        "mlp_bias": Maybe(Flag()),
        "layer_types": Maybe(ListOf(Text())),
        "use_sliding_window": Maybe(Flag()),
        "partial_rotary_factor": Maybe(Real()),
        "max_position_embeddings": Maybe(_SIZE),
        "rope_theta": Maybe(Real(above=True)),
        "rope_scaling": Maybe(MapOf(Anything())),
        "rope_parameters": Maybe(MapOf(Anything())),
    },
    others=True,
)
_OPTIONS: dict[str, Any] = {
    "target_hidden_size": Maybe(_SIZE),
    "draft_vocab_size": Maybe(Whole(most=2**40)),
    "norm_before_residual": Maybe(Flag()),
    "norm_before_fc": Maybe(Flag()),
    "fc_norm": Maybe(Flag()),
    "norm_output": Maybe(Flag()),
    "tie_word_embeddings": Maybe(Flag()),
    "eagle_aux_hidden_state_layer_ids": Maybe(ListOf(Whole(-(2**31), 2**31), most=64)),
}
_VERIFIER = Record({}, {"name_or_path": Maybe(Text(empty=True))}, others=True)
_WHOLE = Record(
    {},
    {
        **_OPTIONS,
        "speculators_model_type": Maybe(Text()),
        "eagle_config": Maybe(Record({}, _OPTIONS, others=True)),
        "transformer_layer_config": Maybe(MapOf(Anything())),
        "speculators_config": Maybe(Record({}, {"verifier": Maybe(_VERIFIER)}, others=True)),
    },
    others=True,
)


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


def read_config(folder: Path, names: Collection[str]) -> Eagle3Config:
    """Read ``config.json`` of a head in the layout of SpecForge and SGLang, or of speculators.

    Parameters
    ----------
    folder : Path
    names : collection of str
        Of the head's tensors: these make it one, whatever the file says of its architecture.

    Raises
    ------
    CheckpointError
        If it is missing or malformed, is of no EAGLE-3 head, or asks for something that is not
        supported.
    """
    path = folder / "config.json"
    whole = read_json(path, _WHOLE, error=CheckpointError)
    kind = whole.get("speculators_model_type")
    if kind not in (None, "eagle3"):
        raise CheckpointError(f"{path} describes a {kind!r} drafter, not an EAGLE-3 head")
    if "fc.weight" not in names or not any(name.startswith("midlayer.") for name in names):
        raise CheckpointError(
            f"{folder} holds not an EAGLE-3 head: among its tensors there is no fc.weight, or no "
            "midlayer or layers.0; a whole language model is used as a drafter with lm:DIR"
        )
    if kind is None:
        return _read(path, _layer(path, whole, ""), whole, False)
    layer = whole.get("transformer_layer_config")
    if layer is None:
        raise CheckpointError(f"{path} has no transformer_layer_config")
    return _read(path, _layer(path, layer, "transformer_layer_config"), whole, True)


def _layer(path: Path, values: dict[str, Any], place: str) -> dict[str, Any]:
    try:
        layer: dict[str, Any] = checked(values, _LAYER, place)
    except InvalidInputError as error:
        raise CheckpointError(f"{path}: {error}") from None
    return layer


def _read(
    path: Path, layer: dict[str, Any], whole: dict[str, Any], speculators: bool
) -> Eagle3Config:
    eagle = whole.get("eagle_config") or {}
    options = {**whole, **eagle}
    _refuse(path, layer)
    residual = options.get("norm_before_residual")
    if residual is None and speculators:
        # Readers of this layout disagree about the default, and the wrong one fails silently.
        raise CheckpointError(
            f"{path} does not say norm_before_residual; add true or false, as it was trained"
        )
    hidden, heads = layer["hidden_size"], layer["num_attention_heads"]
    head_dim = layer.get("head_dim")
    if head_dim is None:
        if hidden % heads:
            raise CheckpointError(
                f"{path} has no head_dim, and hidden_size {hidden} is no multiple of {heads} heads"
            )
        head_dim = hidden // heads
    if head_dim % 2:
        raise CheckpointError(f"{path}: head_dim {head_dim} is odd; rotary positions turn pairs")
    kv_heads = layer.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise CheckpointError(
            f"{path}: {heads} attention heads are no multiple of {kv_heads} key-value heads"
        )
    activation = layer.get("hidden_act") or "silu"
    if activation not in ACT2FN:
        raise CheckpointError(
            f"{path}: hidden_act {shown(activation)} is unknown to Transformers"
        )
    layers, how = _feature_layers(options, eagle, speculators)
    return Eagle3Config(
        folder=path.parent,
        hidden_size=hidden,
        intermediate_size=layer["intermediate_size"],
        n_heads=heads,
        n_kv_heads=kv_heads,
        head_dim=head_dim,
        target_hidden_size=options.get("target_hidden_size") or hidden,
        vocab_size=layer["vocab_size"],
        draft_vocab_size=options.get("draft_vocab_size") or None,
        eps=layer.get("rms_norm_eps", 1e-6),
        activation=activation,
        attention_bias=layer.get("attention_bias"),
        mlp_bias=layer.get("mlp_bias"),
        norm_before_residual=bool(residual),
        norm_before_fc=options.get("norm_before_fc"),
        fc_norm=options.get("fc_norm"),
        norm_output=bool(options.get("norm_output")),
        tied=bool(options.get("tie_word_embeddings")),
        rope={key: layer[key] for key in _ROPE_KEYS if layer.get(key) is not None},
        feature_layers=layers,
        verifier=_verifier(whole),
        assumption=how,
    )


def _refuse(path: Path, layer: dict[str, Any]) -> None:
    if layer.get("num_hidden_layers", 1) != 1:
        raise CheckpointError(
            f"{path} has {layer['num_hidden_layers']} decoder layers; heads of one are supported"
        )
    sliding = "sliding_attention" in (layer.get("layer_types") or ())
    if sliding or layer.get("use_sliding_window"):
        raise CheckpointError(f"{path} asks for sliding-window attention, which is not supported")
    rope = {**layer, **(layer.get("rope_scaling") or {}), **(layer.get("rope_parameters") or {})}
    if rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise CheckpointError(f"{path} asks for partial rotary positions, which is not supported")
    if rope.get("mrope_section") is not None:
        raise CheckpointError(f"{path} asks for multimodal rotary positions; that is not supported")


def _feature_layers(
    options: dict[str, Any], eagle: dict[str, Any], speculators: bool
) -> tuple[tuple[int, ...] | None, str]:
    """Return the indices into ``hidden_states`` and how they were read."""
    key = "eagle_aux_hidden_state_layer_ids"
    ids = options.get(key)
    if not ids:
        return None, ""
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
    return found.get("name_or_path") or ""
