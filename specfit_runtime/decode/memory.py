"""What decoding learns of a model and a drafter, and keeps from one text to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from specfit_opt.control.acceptance_calibration import AcceptanceCalibrator
from specfit_opt.control.correction import OnlineCorrection
from specfit_opt.policies import Policy
from specfit_opt.routing_predictor import RoutingPredictor

from ..calibration import RuntimeProfile
from ..drafters import Drafter
from ..state.kept_state import KeptState

if TYPE_CHECKING:
    from ..offload import Offload


@dataclass(eq=False)
class DecodeMemory:
    """The parts of a decode that have a memory.

    Attributes
    ----------
    policy : Policy
    drafter : Drafter or None
        Bound to the model.
    predictor : RoutingPredictor
    calibrator : AcceptanceCalibrator
    profile : RuntimeProfile or None
        None where the policy asks no prices.
    correction : OnlineCorrection or None
        Of the profile.
    restored : bool
        Whether it began with what an earlier process had learned.
    torn : bool
        Set while one of them learns: found set afterwards, an exception came in between, and what
        was learned has to be forgotten.
    """

    policy: Policy
    drafter: Drafter | None
    predictor: RoutingPredictor
    calibrator: AcceptanceCalibrator
    profile: RuntimeProfile | None
    correction: OnlineCorrection | None
    restored: bool = False
    torn: bool = False

    def keep(self) -> KeptState:
        """Return what a later process may begin with."""
        return KeptState(
            profile=self.profile,
            costs=None if self.correction is None else self.correction.to_state(),
            acceptance=self.calibrator.to_state(),
            policy=self.policy.to_state(),
            routing=self.predictor.to_state() if self.policy.predicts else None,
        )

    def restore(self, kept: KeptState, offload: Offload) -> None:
        """Begin with what an earlier process learned, in place of nothing.

        Raises
        ------
        InvalidInputError
            If a part of it does not fit; policy and calibrator are then not to be used.
        """
        if self.correction is not None:
            self.correction.from_state(kept.costs or {})
        self.calibrator.from_state(kept.acceptance)
        if kept.policy is not None:
            self.policy.from_state(kept.policy, offload.n_layers, offload.n_experts)
        if kept.routing is not None:
            self.predictor.start(offload.n_layers, offload.n_experts, offload.top_k)
            self.predictor.from_state(*kept.routing)
        self.restored = True
