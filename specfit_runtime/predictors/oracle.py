"""The recorded routing itself, for ceilings."""

from __future__ import annotations

from specfit_opt.replay.true_routing import TrueRouting

from .predictor_kind import PredictorKind

KIND = PredictorKind(
    name="oracle",
    make=TrueRouting,
    summary="the recorded routing, in replays and evaluations alone",
    source="a ceiling: what a perfect predictor would be worth",
)
