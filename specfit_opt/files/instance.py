"""Load and save one instance; the file name's extension chooses the format."""

from __future__ import annotations

import os

from ..errors import InvalidInputError
from ..instance import Instance
from .instance_json import load_json, save_json
from .instance_npz import load_npz, save_npz

_LOADERS = {".npz": load_npz, ".json": load_json}
_SAVERS = {".npz": save_npz, ".json": save_json}


def load_instance(path: str | os.PathLike[str]) -> Instance:
    """Load an instance from a ``.npz`` or a ``.json`` file.

    Parameters
    ----------
    path : str or path-like
        ``.npz`` (the exchange format, see :mod:`specfit_opt.files.instance_npz`) or ``.json``
        (small instances written by hand, see :mod:`specfit_opt.files.instance_json`).

    Returns
    -------
    Instance
        Named after the file unless a JSON file gives a name.

    Raises
    ------
    InvalidInputError
        For another extension, a file that is truncated, foreign or pickled, and every instance
        that the data classes refuse. The message starts with the file's name.
    OSError
        If the file cannot be opened.

    Examples
    --------
    >>> from specfit_opt import load_instance, solve_instance
    >>> solution = solve_instance(load_instance("tree.npz"))  # doctest: +SKIP
    """
    return _LOADERS[_extension(path)](path)


def save_instance(path: str | os.PathLike[str], instance: Instance) -> None:
    """Save an instance as ``.npz`` or ``.json``, whole or not at all.

    Parameters
    ----------
    path : str or path-like
        Replaced if it exists.
    instance : Instance

    Raises
    ------
    InvalidInputError
        For another extension, something that is no Instance, or a routing made of scenarios, which
        the formats do not hold.
    OSError
        If the file cannot be written; an older file is then as it was.

    Notes
    -----
    Both formats give back every time, probability and expert bit by bit. ``.npz`` holds times as
    full tables: an affine ``node_time`` slope comes back as the table of its multiples, with the
    same value at every size. ``.json`` keeps the form that the cost model has.
    """
    if not isinstance(instance, Instance):
        raise InvalidInputError(
            f"expected an Instance, got {type(instance).__name__}; the order is path, instance"
        )
    if instance.routing.scenario_weights is not None:
        raise InvalidInputError(
            f"{os.fspath(path)}: an instance file holds one routing, but this instance has "
            f"{instance.routing.n_scenarios} scenarios; save each as an instance of its own"
        )
    _SAVERS[_extension(path)](path, instance)


def _extension(path: str | os.PathLike[str]) -> str:
    extension = os.path.splitext(os.fspath(path))[1].lower()
    if extension not in _LOADERS:
        raise InvalidInputError(
            f"{os.fspath(path)}: the extension {extension!r} is no instance format; use .npz or "
            ".json"
        )
    return extension
