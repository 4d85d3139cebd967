"""A hardware profile: what a machine charges for drafting, for a pass and for an expert."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from os import PathLike, fspath
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..checks import Anything, Flag, Kind, Maybe, OneOf, Real, Text, Whole, checked, shown
from ..cost import CostModel
from ..errors import InvalidInputError
from ..files.archive import named
from ..files.strict_json import parse_json, read_json
from ..registry import Registry
from ..schema import Either, ListOf, MapOf, Record, check_attributes
from .policy_time import POLICY_TIME, PREDICTION_TIME, SOURCE, PolicyTime

#: Version of the profile file that this code reads.
FILE_VERSION = 1

_KINDS: dict[str, Kind] = {
    "name": Text(),
    "summary": Text(empty=True),
    "fixed_time": Real(unit="seconds"),
    "node_time": Either(Real(unit="seconds per node"), ListOf(Real(unit="seconds", infinite=True))),
    "draft_time": Real(unit="seconds per level"),
    "prediction_time": Real(unit="seconds per level"),
    "policy_time": MapOf(Anything()),
    "bandwidth": Maybe(Real(1.0, unit="bytes per second")),
    "resident_bandwidth": Maybe(Real(1.0, unit="bytes per second")),
    "experts_resident": Flag(),
    "layer_repeat": Whole(1),
    "expert_bytes": Maybe(Whole(1)),
    "source": MapOf(Text(empty=True)),
}
_POLICY_TIME = Record(dict.fromkeys(("cycle", "level"), Real(unit="seconds")))
_REQUIRED = ("name", "fixed_time", "node_time", "draft_time")

# The values are checked where the profile is built, from a file or not.
_FILE = Record(
    {"version": OneOf((FILE_VERSION,)), **dict.fromkeys(_REQUIRED, Anything())},
    {name: Anything() for name in _KINDS if name not in _REQUIRED},
)


@dataclass(frozen=True)
class HardwareProfile:
    """What a machine charges: the parts of a cost model that do not depend on the model's routing.

    Parameters
    ----------
    name : str
        Label for tables.
    fixed_time : float
        Seconds of a verification pass that do not depend on what is chosen, drafting excluded.
    node_time : float or sequence of float
        Seconds per node, or a table indexed by node count (entry 0 is not used; inf forbids a
        size).
    draft_time : float
        Seconds per drafted level.
    prediction_time : float
        Seconds of predicting the routing of a drafted level, or of the root.
    policy_time : mapping of str to PolicyTime
        What policies take on the host, by the name of a policy up to its first hyphen; in a file an
        object with ``cycle`` and ``level``, in seconds. See :func:`time_of`. The times of this
        package's code as measured by default; empty: policies are free.
    bandwidth : float, optional
        Bytes per second, at least 1, of the link over which an expert that is not resident comes
        in. Needed unless ``experts_resident``.
    resident_bandwidth : float, optional
        Bytes per second at which a resident expert's weights are read; None: free, because the
        link dominates. Needed if ``experts_resident``.
    experts_resident : bool
        All experts live in fast memory: nothing is ever loaded, and a pass pays for reading the
        union of its experts.
    layer_repeat : int
        How many layers of the machine's model each recorded layer stands for: every expert's bytes
        and time count this many times. Results say so.
    expert_bytes : int, optional
        Bytes of one expert, for traces that do not tell.
    summary : str
        One line for tables.
    source : mapping of str to str
        Where each figure comes from.

    Raises
    ------
    InvalidInputError
        For figures that are negative, not finite or contradict each other.

    Examples
    --------
    >>> profile = load_profile("pcie4")
    >>> cost = profile.cost_model(n_layers=48, n_experts=128, expert_bytes=9_437_184)
    >>> round(float(cost.expert_time[0]) * 1e6)
    381
    """

    name: str
    fixed_time: float
    node_time: float | tuple[float, ...]
    draft_time: float
    prediction_time: float = PREDICTION_TIME
    policy_time: Mapping[str, PolicyTime] = field(default_factory=lambda: POLICY_TIME, hash=False)
    bandwidth: float | None = None
    resident_bandwidth: float | None = None
    experts_resident: bool = False
    layer_repeat: int = 1
    expert_bytes: int | None = None
    summary: str = ""
    source: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        check_attributes(self, _KINDS)
        if isinstance(self.node_time, tuple):
            # CostModel knows what a table may hold; building one here checks it where it is
            # written.
            CostModel(0.0, self.node_time, 0.0)
        if self.experts_resident and self.resident_bandwidth is None:
            raise InvalidInputError(
                "experts_resident needs resident_bandwidth, the bytes per second at which an "
                "expert's weights are read from fast memory"
            )
        if not self.experts_resident and self.bandwidth is None:
            raise InvalidInputError(
                "bandwidth is missing: give the bytes per second of the link that loads experts, "
                "or set experts_resident if none is ever loaded"
            )
        source = dict(self.source)
        if self.policy_time == POLICY_TIME and self.prediction_time == PREDICTION_TIME:
            source["policy_time"] = source["prediction_time"] = SOURCE
        object.__setattr__(self, "source", MappingProxyType(source))
        times = {name: _policy_time(time, name) for name, time in self.policy_time.items()}
        object.__setattr__(self, "policy_time", MappingProxyType(times))

    def cost_model(
        self,
        n_layers: int,
        n_experts: int,
        expert_bytes: ArrayLike | None = None,
        *,
        levels: int = 0,
        layer_repeat: int | None = None,
    ) -> CostModel:
        """Return the cost model of one pass on this machine.

        Parameters
        ----------
        n_layers, n_experts : int
            Recorded MoE layers and experts per layer.
        expert_bytes : int or array_like of int, shape (L,) or (L, E), optional
            Bytes of an expert's weights; default the profile's.
        levels : int
            Levels that were drafted before the pass; their time goes into ``fixed_time``.
        layer_repeat : int, optional
            Overrides the profile's.

        Returns
        -------
        CostModel
            ``expert_time`` of shape (L,) or (L, E). ``resident_time`` is one figure for all
            experts: where their sizes differ, that of the mean size.

        Raises
        ------
        InvalidInputError
            If no ``expert_bytes`` is known or it has another shape.
        """
        size = checked_expert_bytes(
            self.expert_bytes if expert_bytes is None else expert_bytes, n_layers, n_experts
        )
        repeat = (
            self.layer_repeat if layer_repeat is None else Whole(1)(layer_repeat, "layer_repeat")
        )
        weights = size * float(repeat)
        resident = self.resident_bandwidth
        resident_time = 0.0 if resident is None else float(weights.mean()) / resident
        # Without a link an expert that counts as not resident is priced as a resident one.
        link = self.bandwidth or resident
        assert link is not None  # one of the two is given, see __post_init__
        return CostModel(
            fixed_time=self.fixed_time + self.draft_time * levels,
            node_time=self.node_time,
            expert_time=weights / link,
            resident_time=resident_time,
        )

    def replace(self, **changes: Any) -> HardwareProfile:
        """Return a copy with some attributes changed, checked afresh."""
        return replace(self, **changes)


def load_profile(name_or_path: str | PathLike[str] | HardwareProfile) -> HardwareProfile:
    """Return a shipped profile by its name, or read one from a JSON file.

    Parameters
    ----------
    name_or_path : str or path
        A name in :data:`PROFILES`; or a path: anything that ends in ``.json``, or a
        ``pathlib.Path``. A HardwareProfile is returned as it is.

    Raises
    ------
    InvalidInputError
        If the name is unknown, the file cannot be read, is no JSON, has an unknown or missing key,
        another version or a bad figure. The message names the file and the key.

    Notes
    -----
    The file holds one object with the attributes of :class:`HardwareProfile` and ``version`` (1).
    ``null`` in a node_time table forbids that size. The file is read as
    :mod:`specfit_opt.files.strict_json` says.
    """
    if isinstance(name_or_path, HardwareProfile):
        return name_or_path
    if not isinstance(name_or_path, (str, PathLike)):
        raise InvalidInputError(f"a profile is a name or a path, got {shown(name_or_path)}")
    text = fspath(name_or_path)
    if isinstance(name_or_path, str) and not text.endswith(".json"):
        if text not in PROFILES:
            raise InvalidInputError(
                f"{PROFILES.unknown(text)}, and a file of your own must end in .json"
            )
        return PROFILES[text]
    return _built(read_json(text, _FILE, error=InvalidInputError), text)


def parse_profile(content: bytes | str, where: str) -> HardwareProfile:
    """Return the profile that JSON ``content`` describes; ``where`` is for messages.

    Raises
    ------
    InvalidInputError
        As :func:`load_profile`.
    """
    return _built(parse_json(content, where, _FILE), where)


def _built(data: dict[str, Any], where: str) -> HardwareProfile:
    with named(where):
        return HardwareProfile(**{key: value for key, value in data.items() if key != "version"})


def _policy_time(value: Any, name: str) -> PolicyTime:
    if isinstance(value, PolicyTime):
        return value
    return PolicyTime(**checked(value, _POLICY_TIME, f"policy_time.{name}"))


def checked_expert_bytes(
    value: ArrayLike | None, n_layers: int, n_experts: int
) -> NDArray[np.float64]:
    """Return bytes per expert as an array of shape (L,) or (L, E).

    Raises
    ------
    InvalidInputError
        If it is missing, not positive or of another shape.
    """
    if value is None:
        raise InvalidInputError(
            "expert_bytes is unknown: neither the trace nor the profile tells the bytes of one "
            "expert's weights; pass expert_bytes"
        )
    size = np.asarray(value)
    if size.dtype.kind not in "iuf":
        raise InvalidInputError(f"expert_bytes must be numbers of bytes, got {value!r}")
    if size.ndim == 0:
        size = np.repeat(size, n_layers)
    if size.shape not in ((n_layers,), (n_layers, n_experts)):
        raise InvalidInputError(
            f"expert_bytes has shape {size.shape}; give a number, shape ({n_layers},) or "
            f"({n_layers}, {n_experts})"
        )
    if not ((size > 0) & (size < math.inf)).all():
        raise InvalidInputError("expert_bytes must be positive and finite numbers of bytes")
    return size.astype(np.float64)


def _shipped() -> list[HardwareProfile]:
    """Return the profiles that the package ships, slowest link first."""
    files = (f for f in resources.files(__package__).iterdir() if f.name.endswith(".json"))
    found = [parse_profile(file.read_bytes(), file.name) for file in files]
    return sorted(found, key=lambda p: (p.experts_resident, p.bandwidth or 0.0, p.name))


#: Every profile by name, the slowest link first.
PROFILES: Registry[HardwareProfile] = Registry("profile", _shipped())
