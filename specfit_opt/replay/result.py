"""What one replay came to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..rates import Rate, plain_dict, ratio

#: The parts of the time of a cycle.
PARTS = ("compute", "draft", "transfer", "search", "prediction", "learning")


@dataclass(frozen=True, kw_only=True)
class ReplayResult:
    """Totals of one trace under one policy, one machine and one cache size.

    The positions that are decoded plainly at the start of each prompt are left out of every total.

    Attributes
    ----------
    trace, policy, profile, cache_policy : str
        Names.
    slots : int
        Experts per layer that the cache holds.
    n_experts, n_layers : int
        Experts per recorded layer, and recorded layers.
    layer_repeat : int
        Layers of the machine's model that each recorded layer stands for. ``bytes`` and ``seconds``
        count them all, ``misses`` and ``hits`` the recorded ones.
    prompts, passes : int
        Prompts with at least one counted pass, and counted passes.
    tokens : int
        Tokens that the passes committed, by the recorded acceptance.
    predicted_tokens : float
        Tokens that the drafter's path probabilities promised: the sum of the chosen nodes'.
    expected_tokens : float
        The same by the calibrated probabilities, as they were when each pass was chosen; of a fixed
        policy, which does not look at them, by the drafter's.
    nodes, levels : int
        Nodes verified (roots included), and levels drafted.
    misses, hits : int
        Experts of the passes' unions that were not resident, and that were.
    bytes : int
        Bytes loaded, those in vain included.
    wasted_prefetch_bytes : int
        Bytes that were fetched early and not used; 0 without overlap.
    seconds : float
        The sum of the parts that follow.
    compute_seconds, draft_seconds, transfer_seconds : float
        Passes without experts, drafting, and experts (loaded, or read from fast memory where the
        profile charges for it); what hides behind compute is in ``compute_seconds`` alone.
    search_seconds, prediction_seconds, learning_seconds : float
        What the policy does on the host, at the profile's prices: choosing after each drafted
        level, predicting routing, and what every cycle takes whatever is drafted. All 0 for a fixed
        policy.
    p50_seconds, p95_seconds : float
        Half of the tokens, and 95 % of them, took at most so long each; the tokens of a cycle share
        its time equally.
    hidden_seconds : float
        Seconds of transfer that hid behind compute; 0 without overlap.
    """

    trace: str
    policy: str
    profile: str
    cache_policy: str
    slots: int
    n_experts: int
    n_layers: int
    layer_repeat: int
    prompts: int
    passes: int
    tokens: int
    predicted_tokens: float
    expected_tokens: float
    nodes: int
    levels: int
    misses: int
    hits: int
    bytes: int
    wasted_prefetch_bytes: int
    seconds: float
    compute_seconds: float
    draft_seconds: float
    transfer_seconds: float
    search_seconds: float
    prediction_seconds: float
    learning_seconds: float
    p50_seconds: float
    p95_seconds: float
    hidden_seconds: float

    tokens_per_second = Rate(
        "tokens", "seconds", "The figure to compare policies by; NaN without a counted pass."
    )
    tokens_per_pass = Rate("tokens", "passes", "Tokens committed per pass, as recorded.")
    predicted_tokens_per_pass = Rate(
        "predicted_tokens", "passes", "Tokens per pass that the drafter's probabilities promised."
    )
    nodes_per_pass = Rate("nodes", "passes", "Nodes verified per pass, the root included.")
    levels_per_pass = Rate("levels", "passes", "Levels drafted per pass.")
    bytes_per_token = Rate("bytes", "tokens", "Bytes loaded per committed token.")

    @property
    def hit_rate(self) -> float:
        """Share of the experts of the passes' unions that were resident."""
        return ratio(self.hits, self.hits + self.misses)

    @property
    def overhead(self) -> float:
        """Share of the time that the policy takes on the host."""
        own = self.search_seconds + self.prediction_seconds + self.learning_seconds
        return ratio(own, self.seconds)

    @property
    def cache_share(self) -> float:
        """Share of each layer's experts that the cache holds."""
        return self.slots / self.n_experts

    def to_dict(self) -> dict[str, Any]:
        """Return totals and rates as plain Python values, ready for JSON (NaN becomes None)."""
        rates = (
            "tokens_per_second",
            "tokens_per_pass",
            "predicted_tokens_per_pass",
            "nodes_per_pass",
            "levels_per_pass",
            "hit_rate",
            "bytes_per_token",
            "cache_share",
            "overhead",
        )
        return plain_dict(self, rates)
