"""How long a text a model was made for, whatever its configuration calls that."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["context_length"]

#: Where configurations say it, in the order in which they are asked.
_NAMES = (
    "max_position_embeddings",
    "n_positions",
    "n_ctx",
    "max_sequence_length",
    "max_seq_len",
    "max_seq_length",
    "seq_length",
    "max_target_positions",
)


def context_length(config: Any) -> int | None:
    """Return how many positions a model was made for, None if it does not say.

    Rotary positions that are scaled reach further than the positions of the training: a factor
    multiplies ``original_max_position_embeddings``, or without that key the number of positions.
    Some configurations name the longer number already; the largest one counts.

    This is no limit: rotary positions can be computed for any place, and Transformers decodes on.

    Parameters
    ----------
    config : PretrainedConfig
        Of the text decoder.
    """
    found = (_count(getattr(config, name, None)) for name in _NAMES)
    length = next((value for value in found if value is not None), None)
    if length is None:
        return None
    trained = _count(getattr(config, "original_max_position_embeddings", None))
    lengths = [length]
    for rope in _scalings(config):
        factor = rope.get("factor")
        scaled = rope.get("rope_type", rope.get("type", "default")) not in (None, "default")
        if scaled and isinstance(factor, (int, float)) and 1 <= factor < float("inf"):
            original = _count(rope.get("original_max_position_embeddings")) or trained or length
            lengths.append(int(original * factor))
    return max(lengths)


def _scalings(config: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the settings of rotary positions: one, or one per type of layer."""
    for name in ("rope_parameters", "rope_scaling"):
        rope = getattr(config, name, None)
        if isinstance(rope, Mapping):
            yield rope
            yield from (value for value in rope.values() if isinstance(value, Mapping))


def _count(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 0
    return value if whole else None
