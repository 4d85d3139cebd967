"""Reads and writes a `RouterNetwork`: a folder with its sizes, weights and a card."""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from specfit_opt.files.atomic import atomic_write

from ..errors import CheckpointError, InvalidInputError
from .router_network import RouterNetwork, RouterShape

__all__ = ["LoadedRouter", "check_new_folder", "load_router", "save_router"]

#: What ``config.json`` says that it is, and the version of its layout.
FORMAT, VERSION = "specfit router network", 1

_CONFIG, _WEIGHTS, _CARD = "config.json", "model.safetensors", "README.md"


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


def check_new_folder(folder: str | os.PathLike[str]) -> None:
    """Check, before the work, that `save_router` can write there.

    Raises
    ------
    InvalidInputError
        If ``folder`` holds something already, or the folder above is missing or cannot be written.
    """
    place = Path(folder)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise InvalidInputError(f"{place}: exists already; name a new folder")
    above = place.absolute().parent
    if not above.is_dir():
        raise InvalidInputError(f"{place}: there is no folder {above}")
    if not os.access(above, os.W_OK):
        raise InvalidInputError(f"{place}: the folder above cannot be written")


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
    check_new_folder(folder)
    place = Path(folder)
    config = {
        "format": FORMAT,
        "version": VERSION,
        **network.shape.to_dict(),
        "temperature": network.temperature,
        "drafter": drafter,
        "training": dict(training or {}),
    }
    weights = {name: value.half().contiguous() for name, value in network.state_dict().items()}
    partial = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    partial.mkdir()
    try:
        with atomic_write(partial / _WEIGHTS) as handle:
            handle.write(save(weights))
        with atomic_write(partial / _CARD, "w") as handle:
            handle.write(card)
        with atomic_write(partial / _CONFIG, "w") as handle:
            json.dump(config, handle, indent=2)
            handle.write("\n")
        if place.exists():
            place.rmdir()
        partial.rename(place)
    finally:
        # After an error or an interrupt nothing half-written may stay behind.
        shutil.rmtree(partial, ignore_errors=True)


def load_router(folder: str | os.PathLike[str]) -> LoadedRouter:
    """Read what `save_router` wrote.

    Raises
    ------
    CheckpointError
        If a file is missing, truncated or something else, or a weight is not finite.
    """
    place = Path(folder)
    try:
        config = json.loads((place / _CONFIG).read_text(encoding="utf-8"))
        weights = load_file(place / _WEIGHTS)
    except (OSError, ValueError, SafetensorError) as error:
        raise CheckpointError(f"{place}: cannot read a router network: {error}") from error
    if not isinstance(config, dict) or config.get("format") != FORMAT:
        raise CheckpointError(
            f"{place}: {_CONFIG} does not describe a {FORMAT}; specfit train-router makes one"
        )
    if config.get("version") != VERSION:
        raise CheckpointError(
            f"{place}: version {config.get('version')!r} of a {FORMAT}; this specfit reads version "
            f"{VERSION}"
        )
    network = RouterNetwork(_shape(place, config))
    network.temperature = _temperature(place, config)
    drafter = config.get("drafter")
    if drafter is not None and not isinstance(drafter, str):
        raise CheckpointError(f"{place}: {_CONFIG}: drafter must be a name or null")
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
                f"{place}: {_CONFIG}: {field.name} must be an integer of at least {least}, got "
                f"{value!r}"
            )
        sizes[field.name] = value
    if sizes["top_k"] > sizes["n_experts"]:
        raise CheckpointError(f"{place}: {_CONFIG}: top_k exceeds n_experts")
    return RouterShape(**sizes)


def _temperature(place: Path, config: dict[str, Any]) -> float:
    value = config.get("temperature")
    if not isinstance(value, (int, float)) or not 0.0 < value < math.inf:
        raise CheckpointError(f"{place}: {_CONFIG}: temperature must be positive, got {value!r}")
    return float(value)


def _check_weights(place: Path, weights: dict[str, Tensor], network: RouterNetwork) -> None:
    have = {name: tuple(weight.shape) for name, weight in weights.items()}
    need = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    for name in sorted(have.keys() | need.keys()):
        if have.get(name) != need.get(name):
            raise CheckpointError(
                f"{place}: {_WEIGHTS} holds {name} of shape {have.get(name)}, {_CONFIG} asks for "
                f"{need.get(name)}"
            )
    for name, weight in weights.items():
        if not weight.is_floating_point() or not bool(torch.isfinite(weight).all()):
            raise CheckpointError(f"{place}: {_WEIGHTS}: {name} holds NaN, infinity or integers")
