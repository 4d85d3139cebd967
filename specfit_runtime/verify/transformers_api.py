"""What differs between Transformers' versions, or may yet, is asked for here and nowhere else.

Supported are 5.12 and newer. Between 5.12 and 5.24 the argument that takes the cache changed its
name (``past_key_values``, now ``cache``), sliding layers learned to
keep what falls out of the window, single hidden states can be asked for, and `generate` leaves out
an attention mask of ones.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, EncoderDecoderCache
from transformers.utils import output_capturing

from ..errors import InvalidInputError

__all__ = [
    "Prompt",
    "attention_layers",
    "attention_of",
    "cache_argument",
    "check_cache",
    "forward",
    "keeping_past",
    "new_cache",
    "read_generate_arguments",
    "slides",
    "text_config",
]

#: What `generate` hands to a decoding method and a decoder needs nothing else for.
_UNDERSTOOD = frozenset(
    {
        "attention_mask",
        "cache",
        "cache_position",
        "logits_to_keep",
        "past_key_values",
        "position_ids",
        "use_cache",
    }
)

_WINDOWED = ("full_attention", "sliding_attention")


def text_config(model: nn.Module) -> Any:
    """Return the configuration of the model's decoder."""
    return cast(Any, model).config.get_text_config(decoder=True)


def attention_of(model: nn.Module) -> str:
    """Return the name of the model's attention implementation."""
    return str(text_config(model)._attn_implementation)


def attention_layers(config: Any) -> tuple[tuple[str, int | None], ...]:
    """Return the type of each decoder layer's attention and its window.

    Parameters
    ----------
    config : PretrainedConfig
        Of the text decoder.

    Returns
    -------
    tuple of (str, int or None)
        ``("full_attention", None)`` or ``("sliding_attention", window)`` per decoder layer.

    Raises
    ------
    InvalidInputError
        For a layer that keeps a recurrent state, or keys in another form: a tree of alternatives
        cannot be run through one recurrent chain, and what others keep cannot be rolled back.
    """
    window = getattr(config, "sliding_window", None)
    types = getattr(config, "layer_types", None)
    if types is None:
        plain = "full_attention" if window is None else "sliding_attention"
        types = [plain] * config.num_hidden_layers
    layers = []
    for i, kind in enumerate(types):
        if kind not in _WINDOWED:
            raise InvalidInputError(
                f"decoder layer {i} of this {config.model_type} model is of type {kind!r}; only "
                f"{' and '.join(_WINDOWED)} can verify a draft tree"
            )
        if kind == "sliding_attention" and (window is None or window < 2):
            raise InvalidInputError(
                f"decoder layer {i} is a sliding one but config.sliding_window is {window}; it "
                "must be at least 2"
            )
        layers.append((kind, window if kind == "sliding_attention" else None))
    return tuple(layers)


def new_cache(model: nn.Module) -> DynamicCache:
    """Return an empty cache of the kind that `generate` makes by default."""
    return DynamicCache(config=text_config(model))


def check_cache(cache: Any) -> DynamicCache:
    """Return ``cache`` if a rejected branch can be taken out of it again.

    Raises
    ------
    InvalidInputError
        For a static, quantized, offloaded or recurrent cache, one of an encoder and decoder, one
        for several sequences, or no cache object at all.
    """
    how = "use the default one: leave out cache_implementation, or pass a DynamicCache"
    if not isinstance(cache, DynamicCache) or isinstance(cache, EncoderDecoderCache):
        raise InvalidInputError(f"a {type(cache).__name__} cannot hold draft trees; {how}")
    if getattr(cache, "offloading", False):
        raise InvalidInputError(f"an offloaded cache cannot hold draft trees; {how}")
    for i, layer in enumerate(cast("list[Any]", cache.layers)):
        if type(layer) not in (DynamicLayer, DynamicSlidingWindowLayer):
            raise InvalidInputError(
                f"layer {i} of the cache is a {type(layer).__name__}, from which a rejected branch "
                f"cannot be taken out again; {how}"
            )
        if layer.get_seq_length() and layer.keys.shape[0] != 1:
            raise InvalidInputError(
                f"the cache holds {layer.keys.shape[0]} sequences; decode one at a time"
            )
    return cache


def slides(layer: Any) -> bool:
    """Return whether a layer of a cache keeps only what a sliding window shows."""
    return isinstance(layer, DynamicSlidingWindowLayer)


@contextmanager
def keeping_past(cache: DynamicCache, n: int) -> Iterator[None]:
    """Let sliding layers keep all they hold while ``n`` tokens are appended to the cache.

    Otherwise the appended tokens push older ones out for good, and once the tokens are rejected the
    window has a hole. For passes with a mask of their own only: Transformers' own masks would be
    made for other sizes in old versions.
    """
    layers: list[Any] = [layer for layer in cache.layers if slides(layer)]
    # Versions that cannot record trim to the window after each update; a window that shows
    # everything comes to the same.
    name = "record_past" if all(hasattr(layer, "record_past") for layer in layers) else ""
    name = name or "sliding_window"
    before = [getattr(layer, name) for layer in layers]
    try:
        for layer in layers:
            wide = True if name == "record_past" else layer.get_seq_length() + n + 1
            setattr(layer, name, wide)
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            setattr(layer, name, value)


@contextmanager
def without_windows(cache: DynamicCache) -> Iterator[None]:
    """Let sliding layers keep and show all they hold, over any number of passes.

    As `keeping_past`, where a tree grows by several passes: layers that only record their past show
    each pass no more than a window behind its first token, counting the tokens of all branches.
    """
    layers = [layer for layer in cache.layers if isinstance(layer, DynamicSlidingWindowLayer)]
    before = [layer.sliding_window for layer in layers]
    try:
        for layer in layers:
            layer.sliding_window = 2**62
        yield
    finally:
        for layer, window in zip(layers, before, strict=True):
            layer.sliding_window = window


def cache_argument(model: nn.Module) -> str:
    """Return the name of the argument of the model's ``forward`` that takes the cache.

    Raises
    ------
    InvalidInputError
        If there is none: the class keeps its state in another way.
    """
    for name in ("cache", "past_key_values"):
        if name in _arguments(cast(Any, type(model))):
            return name
    raise InvalidInputError(
        f"{type(model).__name__}.forward takes neither cache nor past_key_values "
        f"(Transformers {transformers.__version__}); a causal language model of Transformers does"
    )


@lru_cache(maxsize=64)
def _arguments(model_class: Any) -> frozenset[str]:
    return frozenset(inspect.signature(model_class.forward).parameters)


def forward(
    model: nn.Module,
    input_ids: Tensor,
    *,
    position_ids: Tensor,
    cache: DynamicCache,
    attention_mask: Tensor | dict[str, Tensor] | None = None,
    logits_to_keep: int,
    feature_layers: Sequence[int] = (),
) -> tuple[Tensor, Tensor | None]:
    """Run the model once over ``input_ids``, which are appended to the cache.

    Parameters
    ----------
    model : PreTrainedModel
    input_ids, position_ids : Tensor of int64, shape [1, n]
    cache : DynamicCache
    attention_mask : Tensor of shape [1, 1, n, keys], dict of them by layer type, or None
        None: causal, as the model makes it itself.
    logits_to_keep : int
        Positions at the end for which logits are computed.
    feature_layers : sequence of int
        Indices into Transformers' ``hidden_states``, of which 0 is the embedding.

    Returns
    -------
    logits : Tensor, shape [logits_to_keep, V]
        In the model's dtype.
    features : Tensor, shape [n, F, H], or None
        The hidden states asked for, in the order asked for.
    """
    arguments: dict[str, Any] = {cache_argument(model): cache}
    if "output_router_logits" in _arguments(cast(Any, type(model))):
        # The routers' loss is of no use here, and computing it fails on a mask of four dimensions.
        arguments["output_router_logits"] = False
    if feature_layers:
        # Versions that cannot select return all of them, at the same indices.
        selects = hasattr(output_capturing, "selected_hidden_states")
        arguments["output_hidden_states"] = sorted(set(feature_layers)) if selects else True
    outputs = model(
        input_ids=input_ids,
        attention_mask=attention_mask,
        position_ids=position_ids,
        use_cache=True,
        logits_to_keep=logits_to_keep,
        return_dict=True,
        **arguments,
    )
    features = None
    if feature_layers:
        features = torch.stack([outputs.hidden_states[i][0] for i in feature_layers], dim=1)
    return outputs.logits[0], features


@dataclass(frozen=True, eq=False)
class Prompt:
    """What `generate` asks to be continued.

    Attributes
    ----------
    new_ids : Tensor of int64, shape [1, m]
        The tokens that are not in the cache yet, at least one.
    cache : DynamicCache
        The one that `generate` made, or the user's.
    chunk : int or None
        Tokens per pass of the prefill, from ``generation_config.prefill_chunk_size``.
    """

    new_ids: Tensor
    cache: DynamicCache
    chunk: int | None


def read_generate_arguments(
    input_ids: Tensor, generation_config: Any, model_kwargs: Mapping[str, Any]
) -> Prompt:
    """Read what `generate` hands to a decoding method.

    Parameters
    ----------
    input_ids : Tensor of int64, shape [1, t]
        The text; or, with a cache and an attention mask over both, only what is new.
    generation_config : GenerationConfig
    model_kwargs : mapping
        The remaining keyword arguments.

    Raises
    ------
    InvalidInputError
        For what a decoder of one sequence with draft trees does not do: several sequences, beams,
        padding, embeddings instead of tokens, no cache or another kind of cache, positions of the
        user's own, an argument it does not know; and for an empty prompt or nothing new in it.
    """
    given = _understood(input_ids, generation_config, model_kwargs)
    found = given.get("cache", given.get("past_key_values"))
    if found is None:
        raise InvalidInputError(
            "generate prepared no cache for this model; draft trees need one that can be rolled "
            "back, such as a DynamicCache"
        )
    cache = check_cache(found)
    mask = given.get("attention_mask")
    if mask is not None and not bool((mask == 1).all()):
        raise InvalidInputError(
            "the attention mask hides tokens: padding, or pad_token_id occurring in the prompt; "
            "give the prompt without padding and attention_mask=torch.ones_like(input_ids)"
        )
    past, t = int(cache.get_seq_length()), input_ids.shape[1]
    # Newer versions drop a mask of ones and leave its length here.
    covered = (
        mask.shape[1] if mask is not None else getattr(generation_config, "_mask_length", t) or t
    )
    # A mask as long as the text says that the text is all of it; else only what is new was given.
    new_ids = input_ids[:, past:] if covered == t else input_ids
    if new_ids.shape[1] == 0 or past + new_ids.shape[1] != covered:
        raise InvalidInputError(
            f"the cache holds {past} tokens, input_ids {t} and the attention mask {covered}; give "
            "the whole text, longer than what the cache holds, or only the new tokens with an "
            "attention mask over both"
        )
    _check_positions(given.get("position_ids"), past, covered)
    chunk = getattr(generation_config, "prefill_chunk_size", None)
    return Prompt(new_ids, cache, None if chunk is None else int(chunk))


def _understood(
    input_ids: Tensor, generation_config: Any, model_kwargs: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the arguments that were given, if one sequence with draft trees can heed them all."""
    beams = max(
        getattr(generation_config, "num_beams", None) or 1,
        getattr(generation_config, "num_return_sequences", None) or 1,
    )
    if beams > 1 or input_ids.ndim != 2 or input_ids.shape[0] != 1:
        raise InvalidInputError(
            f"one sequence is decoded at a time, got input_ids of shape {tuple(input_ids.shape)}, "
            f"num_beams or num_return_sequences of {beams}; call generate once per sequence"
        )
    given = {key: value for key, value in model_kwargs.items() if value is not None}
    if given.get("use_cache") is False:
        raise InvalidInputError("use_cache=False: draft trees need the cache; leave it on")
    unknown = sorted(set(given) - _UNDERSTOOD)
    if unknown:
        raise InvalidInputError(
            f"generate was given {', '.join(unknown)}, which draft trees cannot take into account; "
            "leave it out"
        )
    if input_ids.shape[1] == 0:
        raise InvalidInputError("the prompt is empty; give at least one token")
    return given


def _check_positions(position_ids: Tensor | None, past: int, total: int) -> None:
    if position_ids is None:
        return
    for first in (0, past):
        plain = torch.arange(first, total, device=position_ids.device)
        if position_ids.shape == (1, len(plain)) and bool((position_ids[0] == plain).all()):
            return
    raise InvalidInputError(
        "position_ids are not those of consecutive tokens; draft trees set positions themselves, "
        "so leave position_ids out"
    )
