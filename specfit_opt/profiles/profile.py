"""A hardware profile: what a machine charges for drafting, for a pass and for an expert."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import resources
from os import PathLike, fspath
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .._validate import nonnegative_number
from ..cost import CostModel
from ..errors import InvalidInputError

#: Version of the profile file that this code reads.
FILE_VERSION = 1

_REQUIRED = ("version", "name", "fixed_time", "node_time", "draft_time")
_OPTIONAL = (
    "summary",
    "source",
    "bandwidth",
    "resident_bandwidth",
    "experts_resident",
    "layer_repeat",
    "expert_bytes",
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
    bandwidth : float, optional
        Bytes per second of the link over which an expert that is not resident comes in. Needed
        unless ``experts_resident``.
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
    bandwidth: float | None = None
    resident_bandwidth: float | None = None
    experts_resident: bool = False
    layer_repeat: int = 1
    expert_bytes: int | None = None
    summary: str = ""
    source: Mapping[str, str] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        def put(name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

        if not isinstance(self.name, str) or not self.name:
            raise InvalidInputError(f"name must be a non-empty text, got {self.name!r}")
        if not isinstance(self.summary, str):
            raise InvalidInputError(f"summary must be a text, got {self.summary!r}")
        for name, unit in (("fixed_time", "seconds"), ("draft_time", "seconds per level")):
            put(name, nonnegative_number(_number(getattr(self, name), name), name, unit))
        put("node_time", _checked_node_time(self.node_time))
        for name in ("bandwidth", "resident_bandwidth"):
            put(name, _positive_or_none(getattr(self, name), name))
        if not isinstance(self.experts_resident, bool):
            raise InvalidInputError(
                f"experts_resident must be true or false, got {self.experts_resident!r}"
            )
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
        put("layer_repeat", checked_count(self.layer_repeat, "layer_repeat"))
        if self.expert_bytes is not None:
            put("expert_bytes", checked_count(self.expert_bytes, "expert_bytes"))
        if not isinstance(self.source, Mapping) or not all(
            isinstance(k, str) and isinstance(v, str) for k, v in self.source.items()
        ):
            raise InvalidInputError("source must map names of figures to texts")
        put("source", MappingProxyType(dict(self.source)))

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
            self.layer_repeat
            if layer_repeat is None
            else checked_count(layer_repeat, "layer_repeat")
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


def list_profiles() -> list[str]:
    """Return the names of the profiles that the package ships, slowest link first."""
    found = [
        load_profile(entry.name.removesuffix(".json"))
        for entry in resources.files(__package__).iterdir()
        if entry.name.endswith(".json")
    ]
    found.sort(key=lambda p: (p.experts_resident, p.bandwidth or 0.0, p.name))
    return [profile.name for profile in found]


def load_profile(name_or_path: str | PathLike[str] | HardwareProfile) -> HardwareProfile:
    """Return a shipped profile by its name, or read one from a JSON file.

    Parameters
    ----------
    name_or_path : str or path
        A name from :func:`list_profiles`; or a path: anything that ends in ``.json``, or a
        ``pathlib.Path``. A HardwareProfile is returned as it is.

    Raises
    ------
    InvalidInputError
        If the name is unknown, the file cannot be read, is no JSON, has an unknown or missing key,
        another version or a bad figure. The message names the file and the key.

    Notes
    -----
    The file holds one object with the attributes of :class:`HardwareProfile` and ``version`` (1).
    ``null`` in a node_time table forbids that size.
    """
    if isinstance(name_or_path, HardwareProfile):
        return name_or_path
    text = fspath(name_or_path)
    if isinstance(name_or_path, str) and not text.endswith(".json"):
        shipped = resources.files(__package__).joinpath(f"{text}.json")
        if Path(text).name != text or not shipped.is_file():
            raise InvalidInputError(
                f"profile {text!r} is unknown; the shipped ones are {', '.join(list_profiles())}, "
                "and a file of your own must end in .json"
            )
        return parse_profile(shipped.read_text(encoding="utf-8"), f"{text}.json")
    try:
        content = Path(text).read_text(encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(
            f"{text}: cannot read the profile: {error.strerror or error}"
        ) from None
    except UnicodeDecodeError:
        raise InvalidInputError(f"{text}: the profile is not UTF-8 text") from None
    return parse_profile(content, text)


def parse_profile(text: str, where: str) -> HardwareProfile:
    """Return the profile that JSON ``text`` describes; ``where`` is for messages.

    Raises
    ------
    InvalidInputError
        As :func:`load_profile`.
    """
    try:
        data = json.loads(text, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        raise InvalidInputError(f"{where}: not valid JSON: {error}") from None
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}") from None
    if not isinstance(data, dict):
        raise InvalidInputError(f"{where}: a profile is one JSON object, not {_kind(data)}")
    if data.get("version") != FILE_VERSION:
        raise InvalidInputError(
            f"{where}: version is {data.get('version')!r}; this specfit reads version "
            f"{FILE_VERSION}"
        )
    known = _REQUIRED + _OPTIONAL
    for key in data:
        if key not in known:
            raise InvalidInputError(
                f"{where}: unknown key {key!r}; the keys are {', '.join(sorted(known))}"
            )
    missing = [key for key in _REQUIRED if key not in data]
    if missing:
        raise InvalidInputError(f"{where}: missing {', '.join(missing)}")
    figures = {key: value for key, value in data.items() if key != "version"}
    if isinstance(figures["node_time"], list):
        figures["node_time"] = [math.inf if t is None else t for t in figures["node_time"]]
    try:
        return HardwareProfile(**figures)
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}") from None


def checked_count(value: Any, name: str) -> int:
    """Return ``value`` as an int of at least 1.

    Raises
    ------
    InvalidInputError
        If it is not a whole number or below 1.
    """
    number = _number(value, name)
    if number != int(number) or number < 1:
        raise InvalidInputError(f"{name} must be a whole number of at least 1, got {value!r}")
    return int(number)


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


def _number(value: Any, name: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InvalidInputError(f"{name} must be a number, got {value!r}")
    if not math.isfinite(value):
        raise InvalidInputError(f"{name} must be finite, got {value!r}")
    return float(value)


def _positive_or_none(value: Any, name: str) -> float | None:
    if value is None:
        return None
    number = _number(value, name)
    if not number > 0.0:
        raise InvalidInputError(f"{name} must be positive bytes per second, got {value!r}")
    return number


def _checked_node_time(value: Any) -> float | tuple[float, ...]:
    if isinstance(value, (list, tuple, np.ndarray)):
        entries = [
            t if isinstance(t, float) and math.isinf(t) else _number(t, f"node_time[{i}]")
            for i, t in enumerate(value)
        ]
        # CostModel knows what a table may hold; building one here checks it where it is written.
        CostModel(0.0, np.array(entries, dtype=np.float64), 0.0)
        return tuple(entries)
    return nonnegative_number(_number(value, "node_time"), "node_time", "seconds per node")


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise InvalidInputError(f"key {key!r} appears twice")
        result[key] = value
    return result


def _no_constant(name: str) -> Any:
    raise InvalidInputError(f"{name} is no JSON number; write null to forbid a size in node_time")


def _kind(value: Any) -> str:
    return {list: "a list", str: "a text", type(None): "null"}.get(type(value), "a number")
