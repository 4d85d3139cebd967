"""Print the acceptance figures as a table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

__all__ = ["acceptance_table"]


def acceptance_table(figures: Mapping[str, Any]) -> str:
    """Return committed tokens per pass of chains and trees, and acceptance by depth."""
    text, along = figures["after_held_out_text"], figures["along_greedy_generation"]
    lines = [f"{'committed tokens per pass':<26} {'after text':>11} {'along generation':>17}"]
    for length, value in text["chain"]["committed_per_pass"].items():
        other = along["chain"]["committed_per_pass"][length]
        lines.append(f"{'chain of ' + length:<26} {value:>11.2f} {other:>17.2f}")
    for size, value in text["tree_committed_per_pass"].items():
        other = along["tree_committed_per_pass"][size]
        lines.append(f"{'tree of ' + size:<26} {value:>11.2f} {other:>17.2f}")
    lines += ["", f"{'accepted at depth':<26} {'after text':>11} {'along generation':>17}"]
    pairs = zip(
        text["chain"]["acceptance_by_depth"], along["chain"]["acceptance_by_depth"], strict=True
    )
    for depth, (one, other) in enumerate(pairs, 1):
        lines.append(f"{depth:<26} {_share(one):>11} {_share(other):>17}")
    lines += ["", f"positions                  {text['positions']:>11} {along['positions']:>17}"]
    return "\n".join(lines)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"
