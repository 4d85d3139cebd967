"""Pictures of trees with their chosen nodes, and of replays; needs the extra ``plot``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import InvalidInputError, MissingExtraError
from .files.atomic import atomic_write
from .layout import tidy_layout

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from .replay import ReplayResult
    from .solution import Solution
    from .tree import DraftTree

_CHOSEN = "#0b6e99"
_REJECTED = "#b9c0c7"
_FIXED = "#b9c0c7"
_RULE = "#8fc1d4"
_INK = "#26323d"

#: Above this many nodes a label no longer fits beside each of them.
_LABEL_LIMIT = 80


def plot_tree(tree: DraftTree, solution: Solution | None = None, ax: Axes | None = None) -> Axes:
    """Draw a draft tree in layers by depth, root on the left, the chosen nodes filled.

    The area of a node is proportional to its path probability, down to a smallest visible dot;
    trees of up to 80 nodes also carry the probability as a label, in percent.

    Parameters
    ----------
    tree : DraftTree
    solution : Solution, optional
        A solution of a problem on this tree; without one, all nodes look alike.
    ax : matplotlib.axes.Axes, optional
        Where to draw; a new figure of fitting size is made when omitted.

    Returns
    -------
    matplotlib.axes.Axes

    Raises
    ------
    InvalidInputError
        If the solution is of a tree with another number of nodes.
    MissingExtraError
        If matplotlib is not installed.
    """
    if solution is not None and len(solution.mask) != tree.n_nodes:
        raise InvalidInputError(
            f"the solution is of a tree of {len(solution.mask)} nodes, this one has {tree.n_nodes}"
        )
    require_matplotlib()
    from matplotlib.collections import LineCollection

    position = tidy_layout(tree)[:, ::-1]  # depth to the right, siblings from top to bottom
    if ax is None:
        ax = _new_figure(_tree_figure_size(tree)).subplots()
    chosen = np.ones(tree.n_nodes, bool) if solution is None else solution.mask
    linked = np.flatnonzero(tree.parent >= 0)
    for used, colour, width, order in ((False, _REJECTED, 0.8, 1), (True, _CHOSEN, 1.6, 2)):
        nodes = linked[chosen[linked] == used]
        lines = list(np.stack([position[tree.parent[nodes]], position[nodes]], axis=1))
        ax.add_collection(LineCollection(lines, colors=colour, linewidths=width, zorder=order))
    largest = _largest_area(ax, tree, position)
    area = np.maximum(largest * tree.path_prob, np.where(chosen, 12.0, 7.0))
    for used in (True, False):
        ax.scatter(
            position[chosen == used, 0],
            position[chosen == used, 1],
            s=area[chosen == used],
            facecolors=_CHOSEN if used else "white",
            edgecolors=_CHOSEN if used else _REJECTED,
            linewidths=1.0,
            zorder=5 if used else 4,
        )
    if tree.n_nodes <= _LABEL_LIMIT:
        _label_nodes(ax, tree, position, area, chosen)
    _dress(ax, tree, position, solution)
    return ax


def plot_replay(results: Sequence[ReplayResult]) -> Figure:
    """Draw the speed of every policy, one panel per trace, machine and cache size.

    Parameters
    ----------
    results : sequence of ReplayResult
        What :func:`specfit_opt.replay.replay` returned, also for several traces and machines.

    Returns
    -------
    matplotlib.figure.Figure
        Bars of tokens per second; the fastest policy of a panel is labelled in bold.

    Raises
    ------
    InvalidInputError
        If there are no results.
    MissingExtraError
        If matplotlib is not installed.
    """
    if not results:
        raise InvalidInputError("there are no replay results to draw")
    require_matplotlib()
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    from .policies import FIXED_POLICIES

    cells: dict[str, dict[str, float]] = {}
    for r in results:
        cells.setdefault(_cell_title(r), {})[r.policy] = r.tokens_per_second
    policies = list(dict.fromkeys(r.policy for r in results))
    columns = min(len(cells), 4)
    rows = -(-len(cells) // columns)
    figure = _new_figure((2.2 + 2.8 * columns, rows * (1.2 + 0.23 * len(policies)) + 0.5))
    panels = figure.subplots(rows, columns, sharey=True, squeeze=False).ravel()
    colours = [_FIXED if p in FIXED_POLICIES else _RULE for p in policies]
    colours = [
        _CHOSEN if p.startswith(("exact", "mip", "specfit")) else c
        for p, c in zip(policies, colours, strict=True)
    ]
    for panel, (title, speeds) in zip(panels, cells.items(), strict=False):
        values = np.array([speeds.get(p, np.nan) for p in policies])
        panel.barh(range(len(policies)), values, color=colours, height=0.74)
        best = np.nanmax(values) if np.isfinite(values).any() else np.nan
        for i, value in enumerate(values):
            panel.annotate(
                f"{value:.1f}" if np.isfinite(value) else "no counted pass",
                (value if np.isfinite(value) else 0.0, i),
                xytext=(3.0, 0.0),
                textcoords="offset points",
                va="center",
                fontsize=7,
                color=_INK,
                fontweight="bold" if value == best else "normal",
            )
        panel.set_title(title, fontsize=8, color=_INK)
        panel.xaxis.set_major_locator(MaxNLocator(4))
        panel.set_xlim(0.0, 1.22 * best if np.isfinite(best) else 1.0)
        panel.set_xlabel("tokens/s", fontsize=8, color=_INK)
        panel.tick_params(length=0, labelsize=8, colors=_INK)
        _clear_frame(panel)
    for panel in panels[len(cells) :]:
        panel.set_visible(False)
    panels[0].set_yticks(range(len(policies)), policies)
    panels[0].invert_yaxis()
    kinds = ((_FIXED, "fixed policy"), (_RULE, "other rule"), (_CHOSEN, "exact choice"))
    figure.legend(
        handles=[Patch(color=c, label=label) for c, label in kinds if c in colours],
        loc="outside lower center",
        ncols=3,
        fontsize=8,
        frameon=False,
        labelcolor=_INK,
    )
    return figure


def _tree_figure_size(tree: DraftTree) -> tuple[float, float]:
    """Return the figure width and height, in inches, at which :func:`plot_tree` is legible."""
    across, depth = tidy_layout(tree).max(axis=0).tolist()
    width = 1.2 + 1.15 * (depth + 1.0)
    height = 1.2 + 0.21 * (across + 1.0)
    return float(np.clip(width, 4.5, 22.0)), float(np.clip(height, 2.4, 22.0))


def require_matplotlib() -> Any:
    """Return the module matplotlib.

    Raises
    ------
    MissingExtraError
        If it is not installed.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingExtraError("matplotlib", "plot") from None
    return matplotlib


def save_figure(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure whole or not at all, in the format that the extension names.

    Raises
    ------
    InvalidInputError
        If matplotlib does not know the extension.
    OSError
        If the file cannot be written.
    """
    matplotlib = require_matplotlib()
    extension = os.path.splitext(os.fspath(path))[1].lower().lstrip(".")
    known = figure.canvas.get_supported_filetypes()
    if extension not in known:
        raise InvalidInputError(
            f"{os.fspath(path)}: {extension!r} is no picture format; use one of "
            f"{', '.join(sorted(known))}"
        )
    # The same picture gives the same bytes: no date, no random ids.
    metadata = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(extension)
    with matplotlib.rc_context({"svg.hashsalt": "specfit"}), atomic_write(path) as handle:
        figure.savefig(handle, format=extension, dpi=150, metadata=metadata)


def _new_figure(size: tuple[float, float]) -> Figure:
    # Through pyplot, so that a notebook or an interactive session shows it.
    import matplotlib.pyplot as plt

    return plt.figure(figsize=size, layout="constrained")


def _cell_title(result: ReplayResult) -> str:
    if result.cache_policy == "resident":
        cache = f"all {result.n_experts} experts resident"
    else:
        cache = f"{result.cache_policy} cache: {result.slots} of {result.n_experts} experts"
    return f"{result.trace}\n{result.profile}, {cache}"


def _largest_area(ax: Axes, tree: DraftTree, position: Any) -> float:
    """Return the area, in square points, of a node of probability 1 that leaves room for all.

    Two nodes of one depth and root share a probability of 1, so that their radii add up to at most
    0.71 times this node's diameter; two roots do not share.
    """
    width, height = ax.figure.figure.get_size_inches()
    column = 72.0 * width / (position[:, 0].max() + 1.5)
    row = 72.0 * height / (position[:, 1].max() + 1.5)
    return float(np.clip(min(0.9 * column, (1.3 if tree.n_roots == 1 else 0.9) * row), 4, 24)) ** 2


def _label_nodes(ax: Axes, tree: DraftTree, position: Any, area: Any, chosen: Any) -> None:
    for v, p in enumerate(tree.path_prob.tolist()):
        radius = np.sqrt(area[v]) / 2.0
        inside = radius >= 8.0
        ax.annotate(
            _percent(p),
            position[v],
            xytext=(0.0 if inside else radius + 2.0, 0.0),
            textcoords="offset points",
            fontsize=6.5,
            color="white" if inside and chosen[v] else _INK,
            va="center_baseline",
            ha="center" if inside else "left",
            # Edges to children leave on this side; the label interrupts them.
            bbox=None if inside else {"facecolor": "white", "edgecolor": "none", "pad": 0.6},
            zorder=6 if inside else 3,
        )


def _percent(probability: float) -> str:
    percent = 100.0 * probability
    if 0.0 < percent < 0.05:
        return "<0.1"
    return f"{percent:.0f}" if percent >= 0.95 or percent == 0.0 else f"{percent:.1f}"


def _dress(ax: Axes, tree: DraftTree, position: Any, solution: Solution | None) -> None:
    levels = int(tree.depth.max()) + 1
    ax.set_xlim(-0.4, levels - 0.5)
    ax.set_ylim(position[:, 1].max() + 0.9, -0.9)  # the first child on top
    ax.set_yticks([])
    ax.set_xticks(range(0, levels, max(1, levels // 12)))
    ax.tick_params(axis="x", length=0, colors=_INK, labelsize=8)
    _clear_frame(ax)
    parts = ["depth" if solution is None else "depth;  filled: chosen"]
    if tree.n_nodes <= _LABEL_LIMIT:
        parts.append("area and label: path probability in %")
    else:
        parts.append("area: path probability")
    ax.set_xlabel(";  ".join(parts), fontsize=8, color=_INK)
    if solution is not None:
        ax.set_title(
            f"{solution.method or 'subtree'}: {solution.n_selected} of {tree.n_nodes} nodes "
            f"({solution.status.value})\n{solution.expected_tokens:.2f} tokens expected in "
            f"{1e3 * solution.cycle_time:.3g} ms: {solution.throughput:.3g} tokens/s",
            fontsize=10,
            color=_INK,
        )


def _clear_frame(ax: Axes) -> None:
    ax.grid(axis="x", color="#eef1f3", linewidth=0.8)
    ax.set_axisbelow(True)
    for side in ("top", "right", "bottom", "left"):
        ax.spines[side].set_visible(False)
