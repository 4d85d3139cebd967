"""Tables of evaluations for people."""

from __future__ import annotations

import math
from collections.abc import Sequence

from specfit_opt.text import format_table, seconds

from .evaluation import PredictorEvaluation


def evaluation_table(evaluations: Sequence[PredictorEvaluation]) -> str:
    """Return a block per trace: recall and unions, recall by layer, decisions; and the times."""
    by_trace: dict[str, list[PredictorEvaluation]] = {}
    for evaluation in evaluations:
        by_trace.setdefault(evaluation.trace, []).append(evaluation)
    blocks = [f"{trace}\n\n{_block(group)}" for trace, group in by_trace.items()]
    return "\n\n".join([*blocks, _times(evaluations)])


def _block(group: list[PredictorEvaluation]) -> str:
    levels, layers = group[0].recall.shape[0] - 1, group[0].recall.shape[1]
    unions = group[0].unions
    overview = format_table(
        [
            "recall by depth",
            *("root" if d == 0 else str(d) for d in range(levels + 1)),
            "accepted",
            *(f"{u.tree} error" for u in unions),
            *(f"{u.tree} bias" for u in unions),
        ],
        [
            [
                e.predictor,
                *map(_share, e.recall_by_depth),
                _share(e.accepted_recall_by_layer.mean()),
                *(f"{u.error:.1%}" for u in e.unions),
                *(f"{u.bias:+.1%}" for u in e.unions),
            ]
            for e in group
        ],
    )
    by_layer = format_table(
        ["recall by layer", *map(str, range(layers))],
        [[e.predictor, *map(_share, e.recall_by_layer)] for e in group],
    )
    cells = [f"{d.profile}, {d.slots} slots" for d in group[0].decisions]
    decisions = format_table(
        ["share, worst decile", *cells],
        [
            [e.predictor, *(f"{_share(d.share)} {_share(d.worst_decile)}" for d in e.decisions)]
            for e in group
        ],
    )
    misses = format_table(
        ["predicted misses", *cells],
        [[e.predictor, *(_share(d.misses) for d in e.decisions)] for e in group],
    )
    return "\n\n".join([overview, by_layer, decisions, misses])


def _times(evaluations: Sequence[PredictorEvaluation]) -> str:
    levels = max(len(e.predict_seconds) for e in evaluations) - 1
    rows = [
        [f"{e.predictor}, {e.trace}", *map(seconds, e.predict_seconds[1:])] for e in evaluations
    ]
    return format_table(["time by level", *map(str, range(1, levels + 1))], rows)


def _share(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.3f}"
