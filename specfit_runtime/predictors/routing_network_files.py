"""Reads and writes a `RoutingNetwork`: a folder with its sizes, weights and a card."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from safetensors.torch import save
from torch import Tensor

from specfit_opt.checks import Kind, Maybe, Text, Whole, checked, shown
from specfit_opt.files.atomic import named_in_errors
from specfit_opt.files.strict_json import read_json
from specfit_opt.schema import Record

from ..checkpoint import Checkpoint
from ..errors import CheckpointError, InvalidInputError
from .routing_network import NetworkShape, RoutingNetwork

__all__ = ["check_new_folder", "load_network", "save_network"]

#: The files of a folder.
_CONFIG, _WEIGHTS, _CARD = "config.json", "model.safetensors", "README.md"
#: What ``config.json`` says that it is, and the version of its layout.
_FORMAT, _VERSION = "specfit routing network", 1
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
    "drafter": Maybe(Text()),
}


def check_new_folder(folder: str | os.PathLike[str]) -> None:
    """Check, before the work, that `save_network` can write there.

    Parameters
    ----------
    folder : path

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


def save_network(
    folder: str | os.PathLike[str],
    network: RoutingNetwork,
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
    network : RoutingNetwork
    card : str
        What ``README.md`` says.
    drafter : str, optional
        Name of the drafter whose states it was trained on, as in the registry.
    training : mapping, optional
        What it was trained on, for the record: values that JSON can hold.

    Raises
    ------
    InvalidInputError
        As `check_new_folder`.
    OSError
        If a file cannot be written; it names the file.
    """
    check_new_folder(folder)
    config = {
        "format": _FORMAT,
        "version": _VERSION,
        **asdict(network.shape),
        "drafter": drafter,
        "training": dict(training or {}),
    }
    weights = {k: w.half().contiguous().cpu() for k, w in network.state_dict().items()}
    contents = {
        _WEIGHTS: save(weights),
        _CARD: card.encode(),
        _CONFIG: f"{json.dumps(config, indent=2)}\n".encode(),
    }
    place = Path(folder)
    partial = place.with_name(f".{place.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        partial.mkdir()
        for name, content in contents.items():
            with named_in_errors(place / name, os.fspath(partial / name)):
                (partial / name).write_bytes(content)
        if place.exists():
            place.rmdir()
        partial.rename(place)
    finally:
        # After an error or an interrupt nothing half-written may stay behind.
        shutil.rmtree(partial, ignore_errors=True)


def load_network(folder: str | os.PathLike[str]) -> tuple[RoutingNetwork, str | None]:
    """Read what `save_network` wrote.

    Parameters
    ----------
    folder : path

    Returns
    -------
    network : RoutingNetwork
        In float32.
    drafter : str or None
        Name of the drafter whose states it was trained on; None: not stated.

    Raises
    ------
    CheckpointError
        If a file is missing, truncated or something else, or a weight is not finite.
    """
    # At once: the working directory may be another one when it is used.
    place = Path(os.path.abspath(os.path.expanduser(folder)))
    config, stored = _read_folder(place)
    shape = NetworkShape(**{field.name: config[field.name] for field in fields(NetworkShape)})
    if shape.top_k > shape.n_experts:
        raise CheckpointError(f"{place}: {_CONFIG}: top_k exceeds n_experts")
    network = RoutingNetwork(shape, device="meta")
    network.load_state_dict(_read_weights(place, stored, network), assign=True)
    return network.eval(), config.get("drafter")


def _read_folder(place: Path) -> tuple[dict[str, Any], Checkpoint]:
    """Return the configuration of a folder, and its weights, found but not read."""
    try:
        config = read_json(place / _CONFIG, error=CheckpointError)
        stored = Checkpoint(place)
    except CheckpointError as error:
        raise CheckpointError(f"{place}: cannot read a routing network: {error}") from error
    if config.get("format") != _FORMAT:
        raise CheckpointError(
            f"{place}: {_CONFIG} does not describe a {_FORMAT}; specfit train-predictor makes one"
        )
    if config.get("version") != _VERSION or config["version"] is True:
        raise CheckpointError(
            f"{place}: version {shown(config.get('version'))} of a {_FORMAT}; this specfit reads "
            f"version {_VERSION}"
        )
    try:
        return checked(config, Record(_FIELDS, others=True)), stored
    except InvalidInputError as error:
        raise CheckpointError(f"{place / _CONFIG}: {error}") from None


def _read_weights(
    place: Path, stored: Checkpoint, network: RoutingNetwork
) -> dict[str, Tensor]:
    """Return the weights in memory of their own, in float32, those that ``network`` has.

    Shapes are compared before anything is read.
    """
    have = {name: tensor.shape for name, tensor in stored.tensors.items()}
    wanted = {name: tuple(weight.shape) for name, weight in network.state_dict().items()}
    for name in sorted(have.keys() | wanted.keys()):
        if have.get(name) != wanted.get(name):
            raise CheckpointError(
                f"{place}: {_WEIGHTS} holds {name} of shape {have.get(name)}, {_CONFIG} asks for "
                f"{wanted.get(name)}"
            )
    weights = {}
    for name, tensor in stored.read(wanted):
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise CheckpointError(f"{place}: {_WEIGHTS}: {name} holds NaN, infinity or integers")
        weights[name] = tensor.float()
    return weights
