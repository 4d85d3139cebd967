"""Small profiles and reports that tests change and write to files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from specfit_runtime.calibration import OffloadSetup, Quartiles, RuntimeProfile
from specfit_runtime.report import CycleRecord, DecodeReport, PrefillRecord


def setup(**changes: Any) -> OffloadSetup:
    """Return what the profile was measured on."""
    facts: dict[str, Any] = {
        "type": "qwen3_moe",
        "n_layers": 2,
        "n_experts": 8,
        "top_k": 2,
        "dtype": "bfloat16",
        "device": "cpu",
        "store": "disk",
        "link_bandwidth": None,
        "moved_bytes": (1000, 2000),
    }
    return OffloadSetup(**(facts | changes))


def profile(**changes: Any) -> RuntimeProfile:
    """Return a small profile: sizes 1, 2 and 4 measured."""
    figures: dict[str, Any] = {
        "name": "tiny on disk",
        "setup": setup(),
        "drafter": "eagle3",
        "repeats": 5,
        "prefix_tokens": 16,
        "fixed_time": 0.010,
        "node_time": 0.001,
        "node_sizes": (1, 2, 4),
        "node_quartiles": Quartiles((0.009, 0.011, 0.013), (0.010, 0.012, 0.014), (0.1, 0.2, 0.3)),
        "node_misses": (0.0, 0.0, 1.5),
        "draft_time": (0.003, 0.001),
        "draft_quartiles": Quartiles((0.002, 0.001), (0.003, 0.001), (0.003, 0.001)),
        "expert_time": (0.001, 0.002),
        "expert_quartiles": Quartiles((0.001, 0.001), (0.001, 0.002), (0.001, 0.003)),
        "handling_time": 0.0003,
    }
    return RuntimeProfile(**(figures | changes))


def cycle(position: int = 1, **changes: Any) -> CycleRecord:
    """Return a cycle of three tokens."""
    given: dict[str, Any] = {
        "position": position,
        "levels": 2,
        "drafted": 8,
        "verified": 5,
        "accepted": 2,
        "committed": 3,
        "draft_seconds": 0.010,
        "search_seconds": 0.001,
        "transfer_seconds": 0.020,
        "verify_seconds": 0.030,
        "other_seconds": 0.003,
        "predicted_seconds": 0.048,
        "expected_tokens": 2.5,
        "lookups": 100,
        "hits": 60,
        "misses": 40,
        "bytes": 4_500_000,
        "prefetch_bytes": 500_000,
        "prefetch_hits": 4,
        "wasted_prefetch_bytes": 100_000,
        "prefetched": 5,
        "hidden_seconds": 0.004,
    }
    return CycleRecord(**{**given, **changes})


def prefill(**changes: Any) -> PrefillRecord:
    """Return a prefill of twelve tokens."""
    given: dict[str, Any] = {
        "tokens": 12,
        "seconds": 0.4,
        "transfer_seconds": 0.1,
        "lookups": 300,
        "hits": 20,
        "misses": 280,
        "bytes": 28_000_000,
    }
    return PrefillRecord(**{**given, **changes})


def report(cycles: Iterable[CycleRecord] = (), **changes: Any) -> DecodeReport:
    """Return a report."""
    given: dict[str, Any] = {
        "model": "tiny",
        "policy": "specfit",
        "drafter": "eagle3",
        "predictor": "frequency",
        "store": "disk",
        "cache_policy": "lru",
        "device": "cpu",
        "dtype": "float32",
        "n_layers": 8,
        "n_experts": 64,
        "top_k": 4,
        "slots": (16,) * 8,
        "prompt_tokens": 12,
        "prefill": prefill(),
        "cycles": tuple(cycles),
    }
    return DecodeReport(**{**given, **changes})
