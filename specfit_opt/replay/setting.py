"""What a replay runs on: the machine, its prices for a trace's experts, and its caches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..caches import CACHE_RULES, CacheRule, slots_of
from ..checks import Whole
from ..cost import CostModel
from ..errors import InvalidInputError
from ..files import Trace
from ..instance import check_sizes
from ..profiles import HardwareProfile, load_profile
from ..profiles.profile import checked_expert_bytes
from ..solution import node_time_at
from .overlap import Overlap

#: Cache sizes when none is given.
DEFAULT_CACHE = ("12.5%", "25%", "50%")


@dataclass(frozen=True, eq=False)
class ReplaySetting:
    """One machine, as a trace's replay meets it.

    Attributes
    ----------
    machine : HardwareProfile
    cost : CostModel
        Of a pass without drafting.
    cache : CacheRule or None
        What is evicted; None: the machine keeps all experts in fast memory.
    slots : tuple of int
        Cache sizes to be tried, experts per layer.
    layer_bytes : ndarray of float64, shape (L,)
        Bytes of one expert of each recorded layer, times ``layer_repeat``.
    layer_repeat : int
        Layers that each recorded one stands for.
    n_experts : int
        Experts per layer.
    overlap : Overlap or None
        What is fetched early within a pass.
    """

    machine: HardwareProfile
    cost: CostModel
    cache: CacheRule | None
    slots: tuple[int, ...]
    layer_bytes: NDArray[np.float64]
    layer_repeat: int
    n_experts: int
    overlap: Overlap | None = None

    @property
    def cache_policy(self) -> str:
        """Name of the cache policy; ``"resident"`` where there is nothing to evict."""
        return "resident" if self.cache is None else self.cache.name

    @classmethod
    def of(
        cls,
        trace: Trace,
        profile: str | PathLike[str] | HardwareProfile,
        *,
        cache: float | int | str | Sequence[float | int | str] | None,
        expert_bytes: ArrayLike | None,
        layer_repeat: int | None,
        cache_policy: str,
        overlap: Overlap | None = None,
    ) -> ReplaySetting:
        """Return the setting of a trace; the arguments are those of :func:`replay`.

        Raises
        ------
        InvalidInputError
            As :func:`replay` does for these arguments.
        """
        machine = load_profile(profile)
        repeat = (
            machine.layer_repeat
            if layer_repeat is None
            else Whole(1)(layer_repeat, "layer_repeat")
        )
        if expert_bytes is None:
            known = trace.expert_bytes
            expert_bytes = machine.expert_bytes if known is None else known
        layer_bytes = checked_expert_bytes(expert_bytes, trace.n_layers, trace.n_experts)
        if layer_bytes.ndim != 1:
            raise InvalidInputError("a replay takes expert_bytes per layer, not per expert")
        cost = machine.cost_model(trace.n_layers, trace.n_experts, layer_bytes, layer_repeat=repeat)
        check_sizes(cost, 1, int(np.diff(trace.cycle_start).max()))
        if not math.isfinite(node_time_at(cost, 1)):
            raise InvalidInputError(
                f"profile {machine.name}: node_time forbids one node, but prompts begin with plain "
                "decoding"
            )
        if overlap is not None and machine.experts_resident:
            raise InvalidInputError(
                f"profile {machine.name} keeps all experts resident, so there is no transfer to "
                "hide; leave overlap out"
            )
        rule, sizes = _caches(machine, cache_policy, cache, trace.n_experts, layer_bytes, repeat)
        scaled = layer_bytes * repeat
        return cls(machine, cost, rule, sizes, scaled, repeat, trace.n_experts, overlap)


def _caches(
    machine: HardwareProfile,
    cache_policy: str,
    cache: float | int | str | Sequence[float | int | str] | None,
    n_experts: int,
    layer_bytes: NDArray[np.float64],
    layer_repeat: int,
) -> tuple[CacheRule | None, tuple[int, ...]]:
    if machine.experts_resident:
        if cache is not None:
            raise InvalidInputError(
                f"profile {machine.name} keeps all experts resident, so there is no cache to size; "
                "leave the cache size out"
            )
        return None, (n_experts,)
    if cache is None:
        cache = DEFAULT_CACHE
    elif isinstance(cache, (float, int, str)):
        cache = [cache]
    sizes = [slots_of(size, n_experts, layer_bytes, layer_repeat) for size in cache]
    if not sizes:
        raise InvalidInputError("no cache size was given; name at least one")
    return CACHE_RULES.find(cache_policy), tuple(dict.fromkeys(sizes))
