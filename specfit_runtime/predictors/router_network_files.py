"""Reads and writes a `RouterNetwork`: a folder with its sizes, weights and a card."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from specfit_opt.checks import Kind, Maybe, Real, Text, Whole

from ..errors import CheckpointError
from ._checkpoint_folder import CONFIG, read_folder, read_weights, write_new_folder
from .router_network import RouterNetwork, RouterShape

__all__ = ["LoadedRouter", "load_router", "save_router"]

#: What ``config.json`` says that it is, and the version of its layout.
_WHAT, VERSION = "router network", 1
#: Compared with the weights before anything is made of them; these bounds keep products in range.
_SIZE, _COUNT = Whole(least=1, most=2**24), Whole(least=1, most=2**16)
_FIELDS: dict[str, Kind] = {
    "n_layers": _COUNT,
    "n_experts": _COUNT,
    "top_k": _COUNT,
    "vocab_size": _SIZE,
    "state_size": Whole(most=2**24),
    "embedding_size": _SIZE,
    "hidden_size": _SIZE,
    "max_depth": _SIZE,
    "temperature": Real(above=True),
    "drafter": Maybe(Text()),
}


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
    # At once: the working directory may be another one when it is used.
    place = Path(os.path.abspath(os.path.expanduser(folder)))
    config, stored = read_folder(place, _WHAT, VERSION, "specfit train-router", _FIELDS)
    shape = RouterShape(**{field.name: config[field.name] for field in fields(RouterShape)})
    if shape.top_k > shape.n_experts:
        raise CheckpointError(f"{place}: {CONFIG}: top_k exceeds n_experts")
    network = RouterNetwork(shape, device="meta")
    wanted = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    network.load_state_dict(read_weights(place, stored, wanted), assign=True)
    network.temperature = config["temperature"]
    return LoadedRouter(network.eval(), config.get("drafter"))
