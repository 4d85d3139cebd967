"""A policy of your own, replayed on the recorded example beside those of the package.

Run it with ``python examples/own_policy.py``. To decode with it, pass ``policy=Likely(20)`` to
``specfit_runtime.SpecFit``.
"""

from __future__ import annotations

import numpy as np

from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT, example_trace
from specfit_opt.policies import POLICIES, Choice, DraftView, Policy, PolicyKind
from specfit_opt.replay import replay, replay_table


class Likely(Policy):
    """Verify every token that the target should take with at least a given probability.

    Parameters
    ----------
    percent : int
        That probability, of the token and all tokens before it, in per cent.
    """

    priced = False  # asks the view for no times, so that nothing need be calibrated
    predicts = False  # and for no experts, so that none need be predicted

    def __init__(self, percent: int = 20) -> None:
        self.name = f"likely-{percent}"
        self.least = percent / 100.0

    def choose(self, view: DraftView) -> Choice:
        """Draft as long as some node could have a child that is probable enough."""
        while (view.path_prob[view.frontier] >= self.least).any():
            if not view.grow(top_k=4, width=4):
                break
        # A path probability never rises from parent to child, so these nodes are a subtree.
        nodes = np.flatnonzero(view.path_prob >= self.least)
        return Choice(nodes, expected_tokens=float(view.path_prob[nodes].sum()))


POLICIES.register(
    PolicyKind(
        name="likely-P",  # the capital letter stands for what varies
        make=lambda text: Likely(int(text)),  # "likely-5" gives it "5"
        summary="every token of at least P per cent",
        source="this example",
        default="20",
    )
)


def main() -> None:
    """Replay it at one cache size, with the experts of a large model behind PCIe 4."""
    results = replay(
        example_trace(),
        policies=["ar", "chain-2", "likely-20", "likely-5", "specfit"],
        profile="pcie4",
        cache="50%",
        expert_bytes=EXAMPLE_EXPERT_BYTES,
        layer_repeat=EXAMPLE_LAYER_REPEAT,
    )
    print(replay_table(results))


if __name__ == "__main__":
    main()
