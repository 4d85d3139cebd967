"""Pictures of evaluations; needs the extra ``plot``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from specfit_opt.plot import require_matplotlib

from ..errors import InvalidInputError
from .result import RouterEvaluation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def plot_evaluations(evaluations: Sequence[RouterEvaluation]) -> Figure:
    """Draw recall by layer, recall by depth and the quality of decisions, a row for each trace.

    Parameters
    ----------
    evaluations : sequence of RouterEvaluation

    Returns
    -------
    matplotlib.figure.Figure
        Left: recall of the drafted nodes by layer. Middle: recall by depth. Right: throughput as a
        share of the oracle's, the geometric mean as a dot and the worst decile as the end of the
        line below it, by machine and cache size.

    Raises
    ------
    InvalidInputError
        If there is nothing to draw.
    MissingExtraError
        If matplotlib is not installed.
    """
    if not evaluations:
        raise InvalidInputError("there are no evaluations to draw")
    require_matplotlib()
    import matplotlib.pyplot as plt

    traces = list(dict.fromkeys(e.trace for e in evaluations))
    predictors = list(dict.fromkeys(e.predictor for e in evaluations))
    colour = {name: f"C{i}" for i, name in enumerate(predictors)}
    figure = plt.figure(figsize=(11.0, 0.6 + 3.0 * len(traces)), layout="constrained")
    rows = figure.subplots(len(traces), 3, squeeze=False)
    for trace, (layers, depths, decisions) in zip(traces, rows, strict=True):
        group = [e for e in evaluations if e.trace == trace]
        for e in group:
            style = {"color": colour[e.predictor], "label": e.predictor, "marker": ".", "lw": 1.2}
            layers.plot(e.recall_by_layer, **style)
            depths.plot(e.recall_by_depth, **style)
        _decisions(decisions, group, colour)
        for panel, label in ((layers, "layer"), (depths, "depth (0: the root)")):
            panel.set_xlabel(label)
            panel.set_ylim(0.0, 1.03)
            panel.xaxis.get_major_locator().set_params(integer=True)
        layers.set_ylabel(f"{trace}\ntop-k recall")
        decisions.set_ylabel("share of the oracle's throughput")
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False)
    return figure


def _decisions(panel: Axes, group: list[RouterEvaluation], colour: dict[str, str]) -> None:
    cells = [f"{d.profile}\n{d.slots} slots" for d in group[0].decisions]
    for i, e in enumerate(group):
        place = np.arange(len(e.decisions)) + 0.7 * ((i + 0.5) / len(group) - 0.5)
        share = np.array([d.share for d in e.decisions])
        worst = np.array([d.worst_decile for d in e.decisions])
        panel.vlines(place, worst, share, color=colour[e.predictor], lw=1.2)
        panel.plot(place, share, "o", color=colour[e.predictor], ms=4)
    panel.axhline(1.0, color="0.8", lw=0.8, zorder=0)
    panel.set_xticks(range(len(cells)), cells, fontsize=7)
