"""How much more unneeded loads cost than was predicted, learned while decoding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..checks import Real, checked
from ..schema import Record

#: Speculative cycles after which what was seen has lost 63 % of its weight.
_MEMORY = 64.0
#: Rejected nodes, and what each loads beyond the prediction as a share of what the root was
#: predicted to load, that stand for experience before there is any.
_PRIOR_NODES, _PRIOR_SHARE = 2.0, 0.2
#: What is left of the estimate after a cycle that drafted but verified nothing of it.
_UNTESTED = 0.97

#: What `WasteBias.to_state` gives: seconds, and nodes.
BIAS_STATE = Record({"excess": Real(-1e12, 1e12), "rejected": Real(most=1e9)})


class WasteBias:
    """Seconds that a rejected node costs beyond what its predicted experts cost.

    The exact choice takes the nodes that look cheap, and some look cheap because their experts were
    predicted wrongly, so predicted loads of the chosen nodes are too low even where those of all
    nodes are right on average. A correction in proportion to the prediction cannot mend that: it
    leaves what looks free free. This one is a charge per rejected node, ``beta * (n - P)`` for n
    chosen nodes of which P are expected to be accepted.
    """

    def __init__(self) -> None:
        self._excess = self._rejected = 0.0
        self._known = False

    def expect(self, root_load: float) -> None:
        """Set the first estimate from the seconds that a root's own experts take to load."""
        if not self._known:
            self._known = True
            self._excess = _PRIOR_NODES * _PRIOR_SHARE * root_load
            self._rejected = _PRIOR_NODES

    def to_state(self) -> dict[str, float]:
        """Return what a later decode of the same model and machine may begin with."""
        return {"excess": self._excess, "rejected": self._rejected}

    def from_state(self, state: Mapping[str, Any]) -> None:
        """Begin with what :meth:`to_state` gave.

        Raises
        ------
        InvalidInputError
            If it is none; nothing is changed then.
        """
        kept = checked(state, BIAS_STATE, "bias")
        self._excess, self._rejected = kept["excess"], kept["rejected"]
        self._known = self._rejected > 0.0

    @property
    def seconds(self) -> float:
        """The charge per rejected node; never negative."""
        return max(self._excess, 0.0) / self._rejected if self._rejected else 0.0

    def learn(self, excess: float, rejected: float) -> None:
        """Take in a cycle: seconds of unneeded loads beyond the predicted, expected rejections."""
        keep = 1.0 - 1.0 / _MEMORY
        self._excess = keep * self._excess + excess
        self._rejected = keep * self._rejected + max(rejected, 0.0)

    def fade(self) -> None:
        """Believe a little less in an estimate that kept everything from being verified."""
        self._excess *= _UNTESTED
