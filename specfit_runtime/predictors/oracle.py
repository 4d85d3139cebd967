"""The recorded routing itself, for ceilings."""

from __future__ import annotations

from specfit_opt.replay.true_routing import TrueRouting
from specfit_opt.routing_predictor import RoutingPredictor

from ..part_kind import PartKind

KIND: PartKind[RoutingPredictor] = PartKind(
    name="oracle",
    make=TrueRouting,
    summary="the recorded routing, in replays and evaluations alone",
)
