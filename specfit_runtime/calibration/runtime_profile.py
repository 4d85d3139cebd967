"""A runtime profile: what one machine charges for one offloaded model, as measured."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields
from os import PathLike, fspath
from typing import TYPE_CHECKING, Any

import numpy as np

from specfit_opt import CostModel
from specfit_opt.checks import Anything, Kind, Maybe, OneOf, Real, Text, Whole, checked, shown
from specfit_opt.errors import InvalidInputError
from specfit_opt.files.archive import named
from specfit_opt.files.atomic import atomic_write
from specfit_opt.files.regular_file import printable
from specfit_opt.files.strict_json import read_json
from specfit_opt.rates import plain_dict
from specfit_opt.schema import ListOf, Record, check_attributes

from .offload_setup import OffloadSetup, setup_of
from .quartiles import Quartiles

if TYPE_CHECKING:
    from ..offload import Offload

#: Version of the profile file that this code reads and writes.
FILE_VERSION = 2

_TIMES = ListOf(Real(unit="seconds"))


@dataclass(frozen=True)
class RuntimeProfile:
    """What a machine charges for a pass, a draft level and an expert of one offloaded model.

    Parameters
    ----------
    name : str
        Label for tables.
    setup : OffloadSetup
        The model that was measured, and where its experts waited.
    drafter : str or None
        The drafter's name; None when none was measured.
    repeats : int
        Measurements behind each figure.
    prefix_tokens : int
        Tokens in the key-value cache while passes were measured.
    fixed_time, node_time : float
        Seconds per pass and seconds per token: the line closest to the measured medians of whole
        passes, every expert in place.
    node_sizes : sequence of int
        The sizes of the passes that were measured, rising from 1.
    node_quartiles : Quartiles
        Of each measured size.
    node_misses : sequence of float
        Experts that the median pass of each measured size missed, because the cache does not hold
        that union; their waiting and ``handling_time`` were taken out of the time.
    draft_time : sequence of float
        Seconds per drafted level, the first level first.
    draft_quartiles : Quartiles
        Of each level.
    expert_time : sequence of float, shape (L,)
        Seconds that a missed expert of each layer costs: what bringing it in takes while the store
        is kept busy or, if that is more, what it adds to a pass.
    expert_quartiles : Quartiles
        Of bringing in an expert of each layer while the store is kept busy.
    handling_time : float
        The part of what a missed expert adds to a pass that is not waiting: starting transfers,
        copying where nothing waits for a copy, computing with an expert apart from the others.

    Raises
    ------
    InvalidInputError
        For figures that are negative, not finite, of the wrong number or contradict each other.
    """

    name: str
    setup: OffloadSetup
    drafter: str | None
    repeats: int
    prefix_tokens: int
    fixed_time: float
    node_time: float
    node_sizes: tuple[int, ...]
    node_quartiles: Quartiles
    node_misses: tuple[float, ...]
    draft_time: tuple[float, ...]
    draft_quartiles: Quartiles
    expert_time: tuple[float, ...]
    expert_quartiles: Quartiles
    handling_time: float

    def __post_init__(self) -> None:
        check_attributes(self, _KINDS)
        self._check_passes()
        self._check_drafter()
        self._check_experts()

    def _check_passes(self) -> None:
        if not self.fixed_time + self.node_time > 0.0:
            raise InvalidInputError(
                "fixed_time and node_time are 0: a pass over one token takes time"
            )
        sizes = self.node_sizes
        if list(sizes) != sorted(set(sizes)) or sizes[0] != 1:
            raise InvalidInputError(f"node_sizes must rise from 1, got {list(sizes)}")
        for name in ("node_quartiles", "node_misses"):
            _require_length(getattr(self, name), len(sizes), name, "node_sizes")

    def _check_drafter(self) -> None:
        _require_length(self.draft_quartiles, len(self.draft_time), "draft_quartiles", "draft_time")
        if (self.drafter is None) == bool(self.draft_time):
            raise InvalidInputError(
                f"drafter is {shown(self.drafter)}, so draft_time must "
                f"{'be empty' if self.drafter is None else 'have an entry per level'}"
            )

    def _check_experts(self) -> None:
        for name in ("expert_time", "expert_quartiles"):
            _require_length(getattr(self, name), self.setup.n_layers, name, "setup.n_layers")

    @property
    def handling_share(self) -> float:
        """Share of ``expert_time`` that is handling, from 0 to 1."""
        mean = math.fsum(self.expert_time) / len(self.expert_time)
        return min(self.handling_time / mean, 1.0) if mean else 0.0

    def cost_model(self) -> CostModel:
        """Return the cost model of one pass without drafting.

        Returns
        -------
        CostModel
            ``expert_time`` of shape (L,). Resident experts are free: what they cost is part of the
            pass.
        """
        return CostModel(self.fixed_time, self.node_time, np.array(self.expert_time))

    def check_fits(self, offload: Offload) -> None:
        """Check that the profile was measured on a model like the one at hand.

        Parameters
        ----------
        offload : Offload
            Of the model at hand.

        Raises
        ------
        InvalidInputError
            Says what differs.
        """
        differing = self.setup.differences(setup_of(offload))
        if differing:
            raise InvalidInputError(
                f"profile {self.name} was measured on another set-up: {', '.join(differing)}; "
                "calibrate this one, or give the profile that belongs to it"
            )

    def check_drafter(self, drafter: str | None) -> None:
        """Check that draft times were measured with the kind of drafter at hand.

        Parameters
        ----------
        drafter : str or None
            Its name, such as ``"eagle3"``; None, no drafter, fits every profile.

        Raises
        ------
        InvalidInputError
            If another kind was measured, or none.
        """
        if drafter is not None and drafter != self.drafter:
            measured = "without a drafter" if self.drafter is None else f"with {self.drafter}"
            raise InvalidInputError(
                f"profile {self.name} was measured {measured}, so it does not know what drafting "
                f"with {drafter} takes; calibrate with that drafter"
            )

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as plain Python values, as the JSON file holds it."""
        parts = {name: asdict(getattr(self, name)) for name in _PARTS}
        return {"version": FILE_VERSION, **plain_dict(self), **parts}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the profile as JSON, whole or not at all.

        Parameters
        ----------
        path : str or path
            Its name must end in ``.json``, as :func:`load_runtime_profile` wants it.

        Raises
        ------
        InvalidInputError
            If the name ends otherwise.
        OSError
            If the file cannot be written, for instance on a full disk; a file that was there
            before is as it was.
        """
        where = fspath(path)
        if not where.endswith(".json"):
            raise InvalidInputError(f"{where}: the name of a profile must end in .json")
        text = json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n"
        with atomic_write(path, "w") as handle:
            handle.write(text)


def load_runtime_profile(path: str | PathLike[str] | RuntimeProfile) -> RuntimeProfile:
    """Read a runtime profile from a JSON file.

    Parameters
    ----------
    path : str or path
        A RuntimeProfile is returned as it is.

    Returns
    -------
    RuntimeProfile

    Raises
    ------
    InvalidInputError
        If the file cannot be read, is no JSON, has an unknown, missing or repeated key, another
        version or a bad figure. The message names the file and the key.

    Notes
    -----
    The file is read as :mod:`specfit_opt.files.strict_json` says.
    """
    if isinstance(path, RuntimeProfile):
        return path
    return profile_from(read_json(path, _FILE, error=InvalidInputError), printable(path))


def profile_from(data: Any, where: str) -> RuntimeProfile:
    """Return the profile of what :meth:`RuntimeProfile.to_dict` gave.

    Parameters
    ----------
    data : dict
        From a file; everything is checked.
    where : str
        For messages.

    Raises
    ------
    InvalidInputError
        As `load_runtime_profile` says.
    """
    data = checked(data, _FILE, where)
    figures = {name: data[name] for name in _KINDS}
    for name, part in _PARTS.items():
        with named(f"{where}: {name}"):
            figures[name] = part(**data[name])
    with named(where):
        return RuntimeProfile(**figures)


#: What the figures of a profile may be.
_KINDS: dict[str, Kind] = {
    "name": Text(),
    "drafter": Maybe(Text()),
    "repeats": Whole(1),
    "prefix_tokens": Whole(),
    "fixed_time": Real(unit="seconds"),
    "node_time": Real(unit="seconds per token"),
    "node_sizes": ListOf(Whole(1), 1),
    "node_misses": ListOf(Real()),
    "draft_time": _TIMES,
    "expert_time": _TIMES,
    "handling_time": Real(unit="seconds"),
}
_PARTS: dict[str, Any] = {
    "setup": OffloadSetup,
    "node_quartiles": Quartiles,
    "draft_quartiles": Quartiles,
    "expert_quartiles": Quartiles,
}
# The values are checked where the profile is built, from a file or not.
_FILE = Record(
    {
        "version": OneOf((FILE_VERSION,)),
        **dict.fromkeys(_KINDS, Anything()),
        **{
            name: Record({f.name: Anything() for f in fields(part)})
            for name, part in _PARTS.items()
        },
    }
)


def _require_length(value: Any, expected: int, name: str, reference: str) -> None:
    if len(value) != expected:
        raise InvalidInputError(
            f"{name} has {len(value)} entries but {reference} calls for {expected}"
        )
