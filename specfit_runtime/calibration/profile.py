"""A runtime profile: what one machine charges for one offloaded model, as measured."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from os import PathLike, fspath
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel
from specfit_opt.checks import Anything, Kind, Maybe, OneOf, Real, Text, Whole
from specfit_opt.errors import InvalidInputError
from specfit_opt.files.archive import named
from specfit_opt.files.atomic import atomic_write
from specfit_opt.files.regular_file import printable
from specfit_opt.files.strict_json import parse_json, read_json
from specfit_opt.schema import ListOf, MapOf, Record, settle

from .facts import OffloadFacts, facts_of

if TYPE_CHECKING:
    from ..offload import Offload

#: Version of the profile file that this code reads and writes.
FILE_VERSION = 1

_TIMES = ListOf(Real(unit="seconds"))


@dataclass(frozen=True)
class Machine:
    """The machine that was measured, without anything that names its owner.

    Attributes
    ----------
    processor : str
        The processor's model.
    cores : int
        Logical processors that the process may use.
    threads : int
        Threads that one operator may use.
    system : str
        Operating system and architecture.
    accelerator : str or None
        The device's name; None when the model runs on the processor.
    """

    processor: str
    cores: int
    threads: int
    system: str
    accelerator: str | None

    def __post_init__(self) -> None:
        kinds = {
            "processor": Text(),
            "cores": Whole(1),
            "threads": Whole(1),
            "system": Text(),
            "accelerator": Maybe(Text()),
        }
        settle(self, kinds, "machine.")


@dataclass(frozen=True)
class ModelShape:
    """The model that was measured.

    Attributes
    ----------
    name : str
        For people: the folder's or the hub's name.
    type : str
        ``model_type`` of its configuration.
    n_layers, n_experts, top_k : int
        MoE layers L, experts per layer E, experts per token k.
    """

    name: str
    type: str
    n_layers: int
    n_experts: int
    top_k: int

    def __post_init__(self) -> None:
        sizes = dict.fromkeys(("n_layers", "n_experts", "top_k"), Whole(1))
        settle(self, {"name": Text(), "type": Text(), **sizes}, "model.")


@dataclass(frozen=True)
class Quartiles:
    """Spread of repeated measurements, in seconds; one entry per thing measured.

    Attributes
    ----------
    lower, median, upper : tuple of float
        ``lower[i] <= median[i] <= upper[i]``.
    """

    lower: tuple[float, ...]
    median: tuple[float, ...]
    upper: tuple[float, ...]

    def __post_init__(self) -> None:
        settle(self, dict.fromkeys(("lower", "median", "upper"), _TIMES))
        if not len(self.lower) == len(self.median) == len(self.upper):
            raise InvalidInputError(
                f"lower, median and upper have {len(self.lower)}, {len(self.median)} and "
                f"{len(self.upper)} entries; give the same number"
            )
        for i, (low, middle, high) in enumerate(
            zip(self.lower, self.median, self.upper, strict=True)
        ):
            if not low <= middle <= high:
                raise InvalidInputError(
                    f"quartiles {i} are {low}, {middle}, {high}; they must not fall"
                )

    def __len__(self) -> int:
        return len(self.median)

    @classmethod
    def of(cls, samples: Sequence[Sequence[float]]) -> Quartiles:
        """Return the quartiles of each sequence in ``samples``."""
        rows = [np.percentile(np.asarray(s, dtype=np.float64), (25, 50, 75)) for s in samples]
        lower, median, upper = (tuple(float(row[i]) for row in rows) for i in range(3))
        return cls(lower, median, upper)


@dataclass(frozen=True)
class RuntimeProfile:
    """What a machine charges for a pass, a draft level and an expert of one offloaded model.

    Parameters
    ----------
    name : str
        Label for tables.
    machine : Machine
    software : mapping of str to str
        Versions of the packages that ran.
    model : ModelShape
    dtype : str
        In which the model ran, such as ``"bfloat16"``.
    device : str
        Kind of device, such as ``"cpu"`` or ``"cuda"``.
    store : str
        The expert store's name.
    link_bandwidth : float or None
        Bytes per second of an emulated link; None when nothing was emulated.
    drafter : str or None
        The drafter's name; None when none was measured.
    draft_top_k, draft_width : int
        Children per node and nodes per level at which the drafter was measured; 0 without drafter.
    repeats : int
        Measurements behind each figure.
    prefix_tokens : int
        Tokens in the key-value cache while passes were measured.
    node_time : sequence of float, shape (N,)
        Seconds of a whole pass over 1 to N tokens, every expert in place; not falling.
    node_sizes : sequence of int
        The sizes that were measured; between them ``node_time`` is interpolated.
    node_quartiles : Quartiles
        Of each measured size, before smoothing.
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
    expert_batch : int
        Experts that were asked for at once.
    miss_quartiles : Quartiles
        Of what a missed expert, the mean over the layers, adds to a pass of which about half the
        experts are missing; one entry, or none where the cache holds no pass.
    handling_time : float
        The part of its median that was not spent waiting: starting transfers, copying where
        nothing waits for a copy, computing with an expert apart from the others.
    moved_bytes : sequence of int, shape (L,)
        Bytes that one expert of each layer moves over the store's link.

    Raises
    ------
    InvalidInputError
        For figures that are negative, not finite, of the wrong number or contradict each other.

    Notes
    -----
    Node time is one table of the whole pass: its fixed part is in every entry.
    """

    name: str
    machine: Machine
    software: Mapping[str, str] = field(hash=False)
    model: ModelShape
    dtype: str
    device: str
    store: str
    link_bandwidth: float | None
    drafter: str | None
    draft_top_k: int
    draft_width: int
    repeats: int
    prefix_tokens: int
    node_time: tuple[float, ...]
    node_sizes: tuple[int, ...]
    node_quartiles: Quartiles
    node_misses: tuple[float, ...]
    draft_time: tuple[float, ...]
    draft_quartiles: Quartiles
    expert_time: tuple[float, ...]
    expert_quartiles: Quartiles
    expert_batch: int
    miss_quartiles: Quartiles
    handling_time: float
    moved_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        settle(self, _KINDS)
        object.__setattr__(self, "software", MappingProxyType(dict(self.software)))
        self._check_passes()
        self._check_drafter()
        self._check_experts()

    def _check_passes(self) -> None:
        if not self.node_time[0] > 0.0:
            raise InvalidInputError("node_time[0] is 0: a pass over one token takes time")
        for i, (before, after) in enumerate(
            zip(self.node_time, self.node_time[1:], strict=False), 1
        ):
            if after < before:
                raise InvalidInputError(
                    f"node_time[{i}] = {after} is less than the entry before it, {before}; more "
                    "tokens take no less time"
                )
        sizes = self.node_sizes
        n_max = len(self.node_time)
        if list(sizes) != sorted(set(sizes)) or sizes[:1] != (1,) or sizes[-1] != n_max:
            raise InvalidInputError(
                f"node_sizes must rise from 1 to {n_max}, the entries of node_time, got "
                f"{list(sizes)}"
            )
        for name in ("node_quartiles", "node_misses"):
            _require_length(getattr(self, name), len(sizes), name, "node_sizes")

    def _check_drafter(self) -> None:
        _require_length(self.draft_quartiles, len(self.draft_time), "draft_quartiles", "draft_time")
        if self.drafter is None:
            if self.draft_time or self.draft_top_k or self.draft_width:
                raise InvalidInputError(
                    "drafter is null, so draft_time must be empty and draft_top_k and draft_width 0"
                )
            return
        if not self.draft_time or not self.draft_top_k or not self.draft_width:
            raise InvalidInputError(
                f"drafter is {self.drafter!r}, so draft_time needs an entry per level, and "
                "draft_top_k and draft_width must be at least 1"
            )

    def _check_experts(self) -> None:
        if len(self.miss_quartiles) > 1:
            raise InvalidInputError(
                f"miss_quartiles has {len(self.miss_quartiles)} entries; it has one or none"
            )
        for name in ("expert_time", "expert_quartiles", "moved_bytes"):
            _require_length(getattr(self, name), self.model.n_layers, name, "model.n_layers")

    @property
    def max_nodes(self) -> int:
        """The largest pass that was measured, N."""
        return len(self.node_time)

    @property
    def handling_share(self) -> float:
        """Share of ``expert_time`` that is handling, from 0 to 1."""
        mean = math.fsum(self.expert_time) / len(self.expert_time)
        return min(self.handling_time / mean, 1.0) if mean else 0.0

    def node_table(self, n_nodes: int | None = None) -> NDArray[np.float64]:
        """Return the time of a pass by its number of tokens.

        Parameters
        ----------
        n_nodes : int, optional
            Largest size that the table has to cover; default the largest that was measured. Beyond
            that the table goes on with the slope of its upper half.

        Returns
        -------
        ndarray of float64, shape (n_nodes + 1,)
            Seconds; entry 0, no pass, is 0.
        """
        last = self.max_nodes
        n_nodes = last if n_nodes is None else Whole(1)(n_nodes, "n_nodes")
        time = np.array((0.0, *self.node_time))
        half = last // 2  # entry 0 is 0, so that one measured size is continued in proportion
        slope = (time[last] - time[half]) / (last - half)
        beyond = time[last] + slope * np.arange(1, n_nodes - last + 1)
        return np.concatenate([time, beyond])[: n_nodes + 1]

    def affine(self) -> tuple[float, float]:
        """Return the line that is closest to the measured medians, in relative terms.

        Returns
        -------
        tuple of float
            Seconds per pass and seconds per token, both >= 0.
        """
        sizes = np.array(self.node_sizes, dtype=np.float64)
        time = np.maximum(np.array(self.node_quartiles.median), 1e-12)
        if len(sizes) == 1:
            return float(time[0]), 0.0
        rows = np.column_stack([np.ones_like(sizes), sizes]) / time[:, None]
        fixed, slope = np.linalg.lstsq(rows, np.ones_like(time), rcond=None)[0]
        if slope < 0.0:
            # The best constant in the same measure.
            return float((1.0 / time).sum() / (1.0 / time**2).sum()), 0.0
        if fixed < 0.0:
            return 0.0, float((sizes / time).sum() / ((sizes / time) ** 2).sum())
        return float(fixed), float(slope)

    def level_time(self, level: int) -> float:
        """Return the seconds that drafting level ``level`` (1, 2, ...) takes.

        Parameters
        ----------
        level : int
            Levels past the last measured one cost what that one does.

        Returns
        -------
        float

        Raises
        ------
        InvalidInputError
            If no drafter was measured.
        """
        level = Whole(1)(level, "level")
        if not self.draft_time:
            raise InvalidInputError(
                f"profile {self.name} has no draft_time: calibrate with the drafter to get one"
            )
        return self.draft_time[min(level, len(self.draft_time)) - 1]

    def cost_model(
        self, levels: int = 0, *, n_nodes: int | None = None, form: str = "table"
    ) -> CostModel:
        """Return the cost model of one pass.

        Parameters
        ----------
        levels : int
            Levels that were drafted before the pass; their time goes into ``fixed_time``.
        n_nodes : int, optional
            Largest size that the table has to cover, see :meth:`node_table`.
        form : {"table", "affine"}
            Node time as measured, or the line closest to it, which has no largest size and is
            quicker to optimise over.

        Returns
        -------
        CostModel
            ``expert_time`` of shape (L,). Resident experts are free: what they cost is part of the
            pass.

        Raises
        ------
        InvalidInputError
            If levels are asked for and no drafter was measured, or ``form`` is unknown.
        """
        levels = Whole(0)(levels, "levels")
        drafting = math.fsum(self.level_time(level) for level in range(1, levels + 1))
        expert_time = np.array(self.expert_time)
        if form == "table":
            return CostModel(drafting, self.node_table(n_nodes), expert_time)
        if form == "affine":
            fixed, slope = self.affine()
            return CostModel(drafting + fixed, slope, expert_time)
        raise InvalidInputError(f"form {form!r} is unknown; give 'table' or 'affine'")

    def check_fits(self, offload: Offload) -> None:
        """Check that the profile was measured on a model like the one at hand.

        Parameters
        ----------
        offload : Offload
            Of the model at hand.

        Raises
        ------
        InvalidInputError
            Says what differs. The name of the model is not compared: a copy in another folder is
            the same model.
        """
        measured = OffloadFacts(
            type=self.model.type,
            n_layers=self.model.n_layers,
            n_experts=self.model.n_experts,
            top_k=self.model.top_k,
            dtype=self.dtype,
            device=self.device,
            store=self.store,
            link_bandwidth=self.link_bandwidth,
            moved_bytes=self.moved_bytes,
        )
        at_hand = facts_of(offload)
        differing = [
            f"{f.name} {_brief(getattr(measured, f.name))} (here "
            f"{_brief(getattr(at_hand, f.name))})"
            for f in fields(OffloadFacts)
            if getattr(measured, f.name) != getattr(at_hand, f.name)
        ]
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

    def replace(self, **changes: Any) -> RuntimeProfile:
        """Return a copy with some attributes changed, checked afresh."""
        return replace(self, **changes)

    def to_dict(self) -> dict[str, Any]:
        """Return the profile as the JSON file holds it."""
        return {"version": FILE_VERSION, **_plain(self)}

    def save(self, path: str | PathLike[str]) -> None:
        """Write the profile as JSON, whole or not at all.

        Parameters
        ----------
        path : str or path
            Its name must end in ``.json``, as :func:`load_profile` wants it.

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


def load_profile(path: str | PathLike[str] | RuntimeProfile) -> RuntimeProfile:
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
    return _built(read_json(path, _FILE, error=InvalidInputError), printable(path))


def parse_profile(content: bytes | str, where: str) -> RuntimeProfile:
    """Return the profile that JSON ``content`` describes; ``where`` is for messages.

    Raises
    ------
    InvalidInputError
        As :func:`load_profile`.
    """
    return _built(parse_json(content, where, _FILE), where)


def _built(data: dict[str, Any], where: str) -> RuntimeProfile:
    figures = {name: data[name] for name in _KINDS}
    for name, part in _PARTS.items():
        with named(f"{where}: {name}"):
            figures[name] = part(**data[name])
    with named(where):
        return RuntimeProfile(**figures)


#: What the figures of a profile may be.
_KINDS: dict[str, Kind] = {
    "name": Text(),
    "software": MapOf(Text(empty=True)),
    "dtype": Text(),
    "device": Text(),
    "store": Text(),
    "link_bandwidth": Maybe(Real(1.0, unit="bytes per second")),
    "drafter": Maybe(Text()),
    "draft_top_k": Whole(),
    "draft_width": Whole(),
    "repeats": Whole(1),
    "prefix_tokens": Whole(),
    "node_time": ListOf(Real(unit="seconds"), 1),
    "node_sizes": ListOf(Whole(1), 1),
    "node_misses": ListOf(Real()),
    "draft_time": _TIMES,
    "expert_time": _TIMES,
    "expert_batch": Whole(1),
    "handling_time": Real(unit="seconds"),
    "moved_bytes": ListOf(Whole(1)),
}
_PARTS: dict[str, Any] = {
    "machine": Machine,
    "model": ModelShape,
    "node_quartiles": Quartiles,
    "draft_quartiles": Quartiles,
    "expert_quartiles": Quartiles,
    "miss_quartiles": Quartiles,
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


def _plain(record: Any) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for entry in fields(record):
        value = getattr(record, entry.name)
        if isinstance(value, (Machine, ModelShape, Quartiles)):
            value = _plain(value)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, Mapping):
            value = dict(value)
        result[entry.name] = value
    return result


def _require_length(value: Any, expected: int, name: str, reference: str) -> None:
    if len(value) != expected:
        raise InvalidInputError(
            f"{name} has {len(value)} entries but {reference} calls for {expected}"
        )


def _brief(value: Any) -> str:
    if isinstance(value, tuple):
        distinct = sorted(set(value))
        return f"{distinct[0]}" if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"
    return str(value)
