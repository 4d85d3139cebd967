"""Draw the routing statistics and print them as tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["draw_routing", "routing_tables"]


def draw_routing(figures: dict[str, Any], tree_unions: dict[str, Any] | None, path: Path) -> None:
    """Save a picture of popularity, overlap of neighbours and union growth."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    routing, growth = figures["routing"], figures["union_growth"]
    even = 1 / routing["experts"]
    fig, (left, middle, right) = pyplot.subplots(1, 3, figsize=(11, 3.4), layout="constrained")
    colours = pyplot.get_cmap("viridis")(np.linspace(0, 0.9, len(routing["popularity"])))
    for layer, shares in enumerate(routing["popularity"]):
        rank = np.arange(1, len(shares) + 1)
        left.plot(rank, np.array(shares) / even, color=colours[layer], label=str(layer))
    left.axhline(1, color="0.5", linewidth=0.8, linestyle="--")
    left.set(xlabel="experts by popularity", ylabel="load / even load", title="Popularity")
    left.legend(title="layer", fontsize=7, title_fontsize=7, ncols=2)
    layers = np.arange(len(routing["neighbours"]))
    middle.bar(layers - 0.2, routing["neighbours"], 0.4, label="consecutive tokens")
    middle.bar(layers + 0.2, routing["strangers"], 0.4, label="tokens at random")
    middle.axhline(routing["uniform"], color="0.5", linewidth=0.8, linestyle="--", label="even")
    middle.set(xlabel="layer", ylabel="share of experts in common", title="Overlap")
    middle.legend(fontsize=7)
    sizes = growth["sizes"]
    for name, label in (
        ("independent", "even, independent"),
        ("strangers", "tokens at random"),
        ("consecutive", "consecutive tokens"),
    ):
        right.plot(sizes, growth[name], marker=".", label=label)
    if tree_unions:
        right.plot(tree_unions["sizes"], tree_unions["union"], marker=".", label="draft trees")
    right.set(xlabel="tokens or nodes", ylabel="experts per layer", title="Union", xscale="log")
    right.set_xticks(sizes, [str(size) for size in sizes])
    right.minorticks_off()
    right.legend(fontsize=7)
    fig.savefig(path, metadata={"Date": None} if path.suffix == ".svg" else None)
    pyplot.close(fig)


def routing_tables(figures: dict[str, Any], tree_unions: dict[str, Any] | None) -> str:
    """Return two plain tables: per layer, and union by size."""
    routing, growth = figures["routing"], figures["union_growth"]
    lines = [
        f"{'layer':>5} {'used':>5} {'a tenth':>8} {'effective':>10} {'top 8 hold':>11}"
        f" {'neighbours':>11} {'at random':>10}"
    ]
    for layer, shares in enumerate(routing["popularity"]):
        lines.append(
            f"{layer:>5} {routing['used'][layer]:>5}"
            f" {routing['used_at_a_tenth_of_even_share'][layer]:>8}"
            f" {routing['effective_experts'][layer]:>10.1f} {sum(shares[:8]):>11.1%}"
            f" {routing['neighbours'][layer]:>11.1%} {routing['strangers'][layer]:>10.1%}"
        )
    lines += ["", f"{'tokens':>6} {'even':>6} {'at random':>10} {'consecutive':>12} {'tree':>6}"]
    for number, size in enumerate(growth["sizes"]):
        tree = f"{tree_unions['union'][number]:>6.1f}" if tree_unions else f"{'-':>6}"
        lines.append(
            f"{size:>6} {growth['independent'][number]:>6.1f} {growth['strangers'][number]:>10.1f}"
            f" {growth['consecutive'][number]:>12.1f} {tree}"
        )
    return "\n".join(lines)
