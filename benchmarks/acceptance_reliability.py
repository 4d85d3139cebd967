"""Hold the drafter's probabilities and the calibrated ones against what the target accepted.

    python -m benchmarks.acceptance_reliability [--traces FOLDER] [--texts N] [--new-tokens N]

Two recordings are decoded again, all that was drafted verified, while acceptance is learned as it
is live: the small model's with its two-layer draft model, and texts that the shipped model decodes
here with the shipped head. A prediction is what stood before its outcome was seen. Writes a table
and docs/acceptance_reliability.svg. The small model's recording is optional material beside the
checkout.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from specfit_opt import CostModel
from specfit_opt.files import Trace, load_trace
from specfit_opt.files.atomic import atomic_write
from specfit_opt.policies import Outcome, make_policy
from specfit_opt.replay import RecordedDecode, RecordedView, SimulatedMachine
from specfit_opt.text import format_table

from .emulated_link import ROOT, heldout_prompts
from .routing_replay import SMALL
from .traces_command import TRACES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


# What runs a model is imported where it is used: asv imports every module here, also where only the
# packages of its own benchmarks are installed.

OUTPUT = ROOT / "benchmarks" / "results" / "acceptance_reliability.txt"
FIGURE = ROOT / "docs" / "acceptance_reliability.svg"
PROMPT_TOKENS = 64
DEPTHS = (1, 2, 3, 4)
N_BINS = 10
#: Bins with fewer children are in the figures of the table, but not drawn.
LEAST_DRAWN = 10


@dataclass(frozen=True, eq=False)
class Children:
    """The drafted children of accepted nodes, in the order of their drafting.

    Attributes
    ----------
    depth : ndarray of int64, shape (n,)
    drafter, calibrated : ndarray of float64, shape (n,)
        Probability given the parent.
    taken : ndarray of bool, shape (n,)
        Whether the target took it.
    """

    depth: NDArray[np.int64]
    drafter: NDArray[np.float64]
    calibrated: NDArray[np.float64]
    taken: NDArray[np.bool_]

    def at(self, where: NDArray[np.bool_]) -> Children:
        return Children(
            self.depth[where], self.drafter[where], self.calibrated[where], self.taken[where]
        )


@dataclass(frozen=True, eq=False)
class Bins:
    """Predicted and realised acceptance by the predicted.

    Attributes
    ----------
    trials : ndarray of int64, shape (N_BINS,)
    predicted, realised : ndarray of float64, shape (N_BINS,)
        NaN without trials.
    """

    trials: NDArray[np.int64]
    predicted: NDArray[np.float64]
    realised: NDArray[np.float64]

    @classmethod
    def of(cls, predicted: NDArray[np.float64], taken: NDArray[np.bool_]) -> Bins:
        where = np.minimum((predicted * N_BINS).astype(np.int64), N_BINS - 1)
        trials = np.bincount(where, minlength=N_BINS)
        with np.errstate(invalid="ignore"):
            return cls(
                trials,
                np.bincount(where, predicted, minlength=N_BINS) / trials,
                np.bincount(where, taken, minlength=N_BINS) / trials,
            )

    @property
    def error(self) -> float:
        """The expected calibration error: mean difference over the bins, by their trials."""
        return float(np.nansum(self.trials * np.abs(self.predicted - self.realised))) / float(
            self.trials.sum()
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--traces", type=Path, default=TRACES, help="folder of the traces")
    parser.add_argument("--texts", type=int, default=20)
    parser.add_argument("--new-tokens", type=int, default=128)
    options = parser.parse_args()
    recording = options.traces / SMALL.files[0]
    if not recording.exists():
        print(f"no {recording}; name the folder of the traces with --traces", file=sys.stderr)
        return 2
    from specfit_opt.plot import save_figure

    own = f"the shipped model, {options.texts} held-out texts of {options.new_tokens} new tokens"
    found = {
        "the small model": replayed(load_trace(recording)),
        own: replayed(recorded(options.texts, options.new_tokens)),
    }
    text = report(found)
    with atomic_write(OUTPUT, "w") as handle:
        handle.write(text)
    save_figure(plot(found), FIGURE)
    print(text)
    return 0


def recorded(n_texts: int, new_tokens: int) -> Trace:
    """Return the shipped model's own decoding after held-out texts."""
    import torch
    from transformers import AutoTokenizer

    from specfit_runtime import demo_model
    from tools.predictor_training.record_decoding import record_decoding

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)
    texts = [tokenizer(text)["input_ids"] for text in heldout_prompts()[:n_texts]]
    return record_decoding([ids[:PROMPT_TOKENS] for ids in texts], new_tokens)


def replayed(trace: Trace) -> Children:
    """Decode all texts one after the other with one calibrator, and return what it met."""
    # Nothing here depends on times, and the whole pool is verified whatever is resident.
    machine = SimulatedMachine(
        cost_model=CostModel(1.0, 0.0, np.ones(trace.n_layers)),
        draft_time=0.0,
        slots=trace.n_experts,
    )
    pool = int(np.diff(trace.cycle_start).max())
    # One that looks at acceptance, so that it is learned; it verifies all that was drafted.
    policy = make_policy("pool-eagle", top_k=pool, width=pool, budget=pool)
    decode = RecordedDecode(trace, policy, machine, warmup=0)
    met: list[Children] = []

    def watch(view: RecordedView, outcome: Outcome) -> None:
        parent = np.maximum(view.parent, 0)
        above = view.path_prob[parent]
        calibrated = np.divide(view.path_prob, above, out=np.zeros_like(above), where=above > 0.0)
        everything = Children(view.depth, view.prob, calibrated, view.accepted)
        met.append(everything.at((view.depth > 0) & view.accepted[parent]))

    for first, end in trace.prompts:
        decode.text(first, end, watch=watch)
    fields = ("depth", "drafter", "calibrated", "taken")
    return Children(*(np.concatenate([getattr(one, name) for one in met]) for name in fields))


def report(found: dict[str, Children]) -> str:
    lines = [
        "$ python -m benchmarks.acceptance_reliability",
        "Drafted children of accepted nodes: their mean probability given the parent, by the",
        "drafter and calibrated before the outcome was seen, and the share that the target took.",
        f"error: expected calibration error, over {N_BINS} bins of the probability.",
    ]
    for name, children in found.items():
        rows = [row(f"depth {d}", children.at(children.depth == d)) for d in DEPTHS]
        half = np.arange(len(children.depth)) < len(children.depth) // 2
        rows += [
            row("all depths", children),
            row("  first half", children.at(half)),
            row("  second half", children.at(~half)),
        ]
        head = ["", "children", "taken", "drafter", "error", "calibrated", "error"]
        lines += ["", "", name, "", format_table(head, rows)]
        lines += ["", "All depths by bin.", "", bin_table(children)]
    return "\n".join(lines) + "\n"


def row(name: str, children: Children) -> list[str]:
    cells = [name, str(len(children.taken)), f"{children.taken.mean():.3f}"]
    for predicted in (children.drafter, children.calibrated):
        error = Bins.of(predicted, children.taken).error
        cells += [f"{predicted.mean():.3f}", f"{error:.3f}"]
    return cells


def bin_table(children: Children) -> str:
    both = [Bins.of(p, children.taken) for p in (children.drafter, children.calibrated)]
    rows = []
    for i in range(N_BINS):
        cells = [f"{i / N_BINS:.1f} to {(i + 1) / N_BINS:.1f}"]
        for bins in both:
            cells += [str(bins.trials[i])]
            cells += [
                f"{v[i]:.3f}" if bins.trials[i] else "-" for v in (bins.predicted, bins.realised)
            ]
        rows.append(cells)
    head = ["probability", "drafter", "mean", "taken", "calibrated", "mean", "taken"]
    return format_table(head, rows)


def plot(found: dict[str, Children]) -> Figure:
    """Draw a panel for each recording and depth."""
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(11.0, 0.6 + 2.9 * len(found)), layout="constrained")
    rows = figure.subplots(len(found), len(DEPTHS), squeeze=False, sharex=True, sharey=True)
    for (name, children), panels in zip(found.items(), rows, strict=True):
        for depth, panel in zip(DEPTHS, panels, strict=True):
            draw(panel, children.at(children.depth == depth))
            panel.set_title(f"depth {depth}", fontsize=9)
        panels[0].set_ylabel(f"{name.split(',')[0]}\nshare taken")
    for panel in rows[-1]:
        panel.set_xlabel("probability")
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    return figure


def draw(panel: Axes, children: Children) -> None:
    panel.plot([0, 1], [0, 1], color="0.8", lw=0.8, zorder=0)
    series: Sequence[tuple[str, NDArray[np.float64], str]] = (
        ("drafter", children.drafter, "0.6"),
        ("calibrated", children.calibrated, "C0"),
    )
    for label, predicted, colour in series:
        bins = Bins.of(predicted, children.taken)
        drawn = bins.trials >= LEAST_DRAWN
        x, y, n = bins.predicted[drawn], bins.realised[drawn], bins.trials[drawn]
        # One standard error of a share.
        panel.errorbar(
            x, y, np.sqrt(y * (1.0 - y) / n), label=label, color=colour, marker=".", lw=1.0
        )
    panel.set_aspect("equal")


if __name__ == "__main__":
    sys.exit(main())
