"""What decoding learns of a model and a drafter, and keeps from one text to the next."""

from __future__ import annotations

from dataclasses import dataclass

from specfit_opt.control.acceptance_calibration import AcceptanceCalibrator
from specfit_opt.control.correction import OnlineCorrection
from specfit_opt.policies import Policy
from specfit_opt.routing_predictor import RoutingPredictor

from ..calibration import RuntimeProfile
from ..drafters import Drafter


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
    torn: bool = False
