"""Reads and writes a `RouterNetwork`: a folder with its sizes, weights and a card."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import CheckpointError
from ._checkpoint_folder import CONFIG, WEIGHTS, read_folder, write_new_folder
from .router_network import RouterNetwork, RouterShape

__all__ = ["LoadedRouter", "load_router", "save_router"]

#: What ``config.json`` says that it is, and the version of its layout.
_WHAT, VERSION = "router network", 1


@dataclass(frozen=True, eq=False)
class LoadedRouter:
    """A checkpoint.

    Attributes
    ----------
    network : RouterNetwork
        In float32.
    drafter : str or None
        Name of the drafter whose states it was trained on, as in the registry; None: not stated.
    """

    network: RouterNetwork
    drafter: str | None


def save_router(
    folder: str | os.PathLike[str],
    network: RouterNetwork,
    *,
    card: str,
    drafter: str | None = None,
    training: Mapping[str, Any] | None = None,
) -> None:
    """Write ``config.json``, ``model.safetensors`` (float16) and ``README.md``, all or nothing.

    Parameters
    ----------
    folder : path
        Is made; see `check_new_folder`.
    network : RouterNetwork
    card : str
        What ``README.md`` says.
    drafter : str, optional
        See `LoadedRouter`.
    training : mapping, optional
        What it was trained on, for the record: values that JSON can hold.

    Raises
    ------
    InvalidInputError
        As `check_new_folder`.
    OSError
        If a file cannot be written.
    """
    config = {
        "format": f"specfit {_WHAT}",
        "version": VERSION,
        **network.shape.to_dict(),
        "temperature": network.temperature,
        "drafter": drafter,
        "training": dict(training or {}),
    }
    weights = {name: value.half() for name, value in network.state_dict().items()}
    write_new_folder(folder, config, weights, card)


def load_router(folder: str | os.PathLike[str]) -> LoadedRouter:
    """Read what `save_router` wrote.

    Raises
    ------
    CheckpointError
        If a file is missing, truncated or something else, or a weight is not finite.
    """
    place = Path(folder)
    config, weights = read_folder(place, _WHAT, VERSION, "specfit train-router")
    network = RouterNetwork(_shape(place, config))
    network.temperature = _temperature(place, config)
    drafter = config.get("drafter")
    if drafter is not None and not isinstance(drafter, str):
        raise CheckpointError(f"{place}: {CONFIG}: drafter must be a name or null")
    _check_weights(place, weights, network)
    network.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return LoadedRouter(network.eval(), drafter)


def _shape(place: Path, config: dict[str, Any]) -> RouterShape:
    sizes = {}
    for field in fields(RouterShape):
        value = config.get(field.name)
        least = 0 if field.name == "state_size" else 1
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise CheckpointError(
                f"{place}: {CONFIG}: {field.name} must be an integer of at least {least}, got "
                f"{value!r}"
            )
        sizes[field.name] = value
    if sizes["top_k"] > sizes["n_experts"]:
        raise CheckpointError(f"{place}: {CONFIG}: top_k exceeds n_experts")
    return RouterShape(**sizes)


def _temperature(place: Path, config: dict[str, Any]) -> float:
    value = config.get("temperature")
    if not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
        raise CheckpointError(f"{place}: {CONFIG}: temperature must be positive, got {value!r}")
    return float(value)


def _check_weights(place: Path, weights: dict[str, Tensor], network: RouterNetwork) -> None:
    have = {name: tuple(weight.shape) for name, weight in weights.items()}
    need = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    for name in sorted(have.keys() | need.keys()):
        if have.get(name) != need.get(name):
            raise CheckpointError(
                f"{place}: {WEIGHTS} holds {name} of shape {have.get(name)}, {CONFIG} asks for "
                f"{need.get(name)}"
            )
    for name, weight in weights.items():
        if not weight.is_floating_point() or not bool(torch.isfinite(weight).all()):
            raise CheckpointError(f"{place}: {WEIGHTS}: {name} holds NaN, infinity or integers")
