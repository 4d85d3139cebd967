"""What a profile and a model at hand must have in common for one to speak of the other."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from specfit_opt.checks import Maybe, Real, Text, Whole
from specfit_opt.errors import InvalidInputError
from specfit_opt.schema import ListOf, check_attributes

if TYPE_CHECKING:
    from ..offload import Offload


@dataclass(frozen=True)
class OffloadSetup:
    """An offloaded model and where its experts wait; copies in other folders are the same.

    Attributes
    ----------
    type : str
        ``model_type`` of the configuration.
    n_layers, n_experts, top_k : int
        MoE layers L, experts per layer E, experts per token k.
    dtype : str
        In which the model runs, such as ``"bfloat16"``.
    device : str
        Kind of device, such as ``"cpu"`` or ``"cuda"``.
    store : str
        The expert store's name.
    link_bandwidth : float or None
        Bytes per second of an emulated link; None when nothing is emulated.
    moved_bytes : tuple of int, shape (L,)
        Bytes that one expert of each layer moves over the store's link.

    Raises
    ------
    InvalidInputError
        For figures that are out of range or contradict each other.
    """

    type: str
    n_layers: int
    n_experts: int
    top_k: int
    dtype: str
    device: str
    store: str
    link_bandwidth: float | None
    moved_bytes: tuple[int, ...]

    def __post_init__(self) -> None:
        check_attributes(
            self,
            {
                **dict.fromkeys(("type", "dtype", "device", "store"), Text()),
                **dict.fromkeys(("n_layers", "n_experts", "top_k"), Whole(1)),
                "link_bandwidth": Maybe(Real(1.0, unit="bytes per second")),
                "moved_bytes": ListOf(Whole(1)),
            },
            "setup.",
        )
        if len(self.moved_bytes) != self.n_layers:
            raise InvalidInputError(
                f"setup.moved_bytes has {len(self.moved_bytes)} entries but setup.n_layers calls "
                f"for {self.n_layers}"
            )

    def differences(self, here: OffloadSetup) -> list[str]:
        """Return what ``here`` has otherwise, such as ``"store disk (here ram)"``."""
        pairs = ((f.name, getattr(self, f.name), getattr(here, f.name)) for f in fields(self))
        return [
            f"{name} {_brief(mine)} (here {_brief(other)})"
            for name, mine, other in pairs
            if mine != other
        ]


def setup_of(offload: Offload) -> OffloadSetup:
    """Return the set-up of the model at hand."""
    store = offload.store
    bandwidth = getattr(store, "bandwidth", None)
    return OffloadSetup(
        type=offload.family.name,
        n_layers=int(offload.n_layers),
        n_experts=int(offload.n_experts),
        top_k=int(offload.top_k),
        dtype=str(offload.dtype).removeprefix("torch."),
        device=str(getattr(offload.device, "type", offload.device)),
        store=store.name,
        link_bandwidth=None if bandwidth is None else float(bandwidth),
        moved_bytes=tuple(int(b) for b in store.moved_bytes),
    )


def _brief(value: Any) -> str:
    if isinstance(value, tuple):
        distinct = sorted(set(value))
        return f"{distinct[0]}" if len(distinct) == 1 else f"{distinct[0]} to {distinct[-1]}"
    return str(value)
