"""Decode the shipped model over an emulated slow link under every policy, side by side.

    python -m benchmarks.emulated_link [--cache SIZE]... [--temperature T]... [--repeats N]

The link is set so that bringing in all experts of one cold token takes R times as long as computing
one token does here. Per prompt the policies take turns; each has a model, a cache and a memory of
its own. Costs are calibrated and two other texts decoded beforehand, which teach specfit acceptance
and routing. Times are of decoding alone, the prefill excluded.

Every repeat of a column, which is a cache size and a temperature, becomes a line of the data file
beside the table, and what is there already is not measured again. So a long run can be cut into
columns (some minutes each), or broken off. The table is written anew from all lines each time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from specfit_opt.files.atomic import atomic_write
from specfit_opt.text import format_table

if TYPE_CHECKING:
    from specfit_runtime import DecodeReport, RuntimeProfile

# What runs a model is imported where it is used: asv imports every module here, also where only the
# packages of its own benchmarks are installed.

ROOT = Path(__file__).resolve().parents[1]
PROMPTS = ROOT / "benchmarks" / "heldout_prompts.jsonl"
DATA = ROOT / "benchmarks" / "results" / "emulated_link.jsonl"
#: One slot for each layer is as good as no cache.
CACHES = ("1", "12.5%", "25%", "50%")
TEMPERATURES = (0.0, 1.0)
POLICIES = (
    *("ar", "chain-1", "chain-2", "chain-3", "chain-4", "chain-5", "chain-6"),
    *("eagle-8", "eagle-16", "eagle-60", "evict", "ecospec", "s2moe", "ratio", "specfit"),
)
_PARTS = ("draft", "search", "transfer", "verify", "other")
_RATES = ("tokens_per_pass", "verified_per_pass", "moved_per_token", "bytes_per_token", "hit_rate")


def heldout_prompts() -> list[str]:
    """Return 20 beginnings of texts that the shipped model was not trained on."""
    lines = PROMPTS.read_text(encoding="utf-8").splitlines()
    return [json.loads(line)["prompt"] for line in lines]


def load(expert_cache: float | str, bandwidth: float | None) -> Any:
    """Return the shipped model, its experts in memory: no disk shall add to the link's time."""
    from specfit_runtime import demo_model, load_offloaded

    return load_offloaded(
        demo_model(),
        expert_cache=expert_cache,
        store="ram",
        dtype="float32",
        link_bandwidth=bandwidth,
    )


def link_bandwidth(expert_cache: float | str, ratio: float) -> float:
    """Return the bytes per second at which a cold token's experts take ``ratio`` computes."""
    from specfit_runtime import calibrate, offload_of

    model = load(expert_cache, None)
    with offload_of(model) as offload:
        profile = calibrate(model, max_nodes=1)
        one = profile.fixed_time + profile.node_time
        moved = int(offload.store.moved_bytes.sum()) * offload.top_k
    return moved / (ratio * one)


def calibrated(expert_cache: str, bandwidth: float) -> RuntimeProfile:
    """Return what things cost over the link."""
    from specfit_runtime import calibrate, demo_drafter, offload_of
    from specfit_runtime.drafters import make_drafter

    model = load(expert_cache, bandwidth)
    with offload_of(model):
        return calibrate(model, make_drafter(f"eagle3:{demo_drafter()}"))


def measure(column: dict[str, Any], settings: dict[str, Any], repeats: int) -> Iterator[Any]:
    """Yield the figures of each policy, repeat by repeat.

    Raises
    ------
    SpecfitError
        If an output differs from that of the stock model.
    """
    from specfit_runtime.demo_files import demo_prompts
    from specfit_runtime.side_by_side import SideBySide

    bandwidth, cache = settings["bandwidth"], column["cache"]
    with SideBySide(
        settings["policies"],
        new_tokens=settings["new_tokens"],
        temperature=column["temperature"],
        options={"profile": calibrated(cache, bandwidth), "predictor": settings["predictor"]},
        expert_cache=cache,
        store="ram",
        link_bandwidth=bandwidth,
    ) as sides:
        for text in demo_prompts()[:2]:
            sides.decode(text)
        for repeat in range(repeats):
            decoded = []
            for i, prompt in enumerate(heldout_prompts()[: settings["prompts"]]):
                decoded.append(sides.decode(prompt, i + repeat))
                print(f"{column}: repeat {repeat + 1}, prompt {i + 1}", file=sys.stderr)
            yield {name: figures([texts[name] for texts in decoded]) for name in decoded[0]}


def figures(reports: Sequence[DecodeReport]) -> dict[str, Any]:
    """Return what one policy did with all prompts; a pass's time is shared by its tokens."""
    from specfit_runtime import DecodeReport

    merged = DecodeReport.merge(reports)
    committed = [cycle.committed for cycle in merged.cycles]
    each = np.repeat([c.seconds / max(c.committed, 1) for c in merged.cycles], committed)
    totals = merged.totals
    return {
        "seconds_per_token": totals.seconds / totals.tokens,
        "p50": float(np.percentile(each, 50)),
        "p95": float(np.percentile(each, 95)),
        **{name: getattr(totals, name) for name in _RATES},
        **{part: totals.share(part) for part in _PARTS},
    }


class Column:
    """The repeats of one cache size and temperature, and how specfit does in it."""

    def __init__(self, name: str, repeats: Sequence[dict[str, dict[str, float]]]) -> None:
        self.repeats = repeats
        self.speeds = {policy: self.over_ar(policy, "seconds_per_token") for policy in repeats[0]}
        middle = {policy: median(speeds) for policy, speeds in self.speeds.items()}
        rival = max((p for p in middle if p != "specfit"), key=lambda p: middle[p])
        own = self.speeds.get("specfit", [0.0])
        self.lead = median(own) / middle[rival]
        verdict = "loses"
        if self.lead >= 1.0:
            verdict = "is first"
        elif self.lead >= 0.99:
            verdict = "is within 1 % of the first"
        elif middle[rival] <= max(own):
            verdict = "has the first inside its interval"
        self.title = f"{name}: specfit {verdict}, {self.lead:.3f} of {rival}"

    def over_ar(self, policy: str, figure: str, of_ar: str = "seconds_per_token") -> list[float]:
        """Return how many times ``figure`` goes into that of plain decoding, by repeat."""
        return [found["ar"][of_ar] / found[policy][figure] for found in self.repeats]

    def table(self) -> str:
        """Return the figures, policies as rows, each the median of the repeats."""
        rows = []
        for policy, speeds in self.speeds.items():
            latency = [1.0 / median(self.over_ar(policy, p, "p50")) for p in ("p50", "p95")]
            tokens, nodes, moved, size, hits = (
                median(found[policy][name] for found in self.repeats) for name in _RATES
            )
            shares = [median(found[policy][part] for found in self.repeats) for part in _PARTS]
            rows.append(
                [
                    policy,
                    *(f"{x:.3f}" for x in (median(speeds), min(speeds), max(speeds))),
                    *(f"{x:.2f}" for x in (*latency, tokens, nodes, moved)),
                    f"{size / 1e3:.0f}",
                    f"{hits:.1%}",
                    *(f"{share:.0%}" for share in shares),
                ]
            )
        head = ["policy", "speed", "low", "high", "p50", "p95", "tokens", "nodes", "moved", "kB"]
        return format_table([*head, "hits", *_PARTS], rows)


def report(lines: Sequence[dict[str, Any]]) -> str:
    """Return all columns as text, the one first in which specfit does worst."""
    settings = lines[0]["settings"]
    grouped: dict[str, list[Any]] = {}
    for line in lines:
        cache, temperature = line["column"]["cache"], line["column"]["temperature"]
        cached = "one expert per layer" if cache == "1" else cache
        way = "greedy" if not temperature else f"temperature {temperature:g}"
        grouped.setdefault(f"{cached} cached, {way}", []).append(line["figures"])
    columns = sorted((Column(*item) for item in grouped.items()), key=lambda c: c.lead)
    text = [
        f"{settings['prompts']} held-out prompts, {settings['new_tokens']} new tokens each, "
        "float32, one thread; bringing in a cold",
        f"token's experts takes {settings['ratio']:g} times as long as computing a token: "
        f"{settings['bandwidth'] / 1e6:.1f} MB/s (the link is emulated).",
        "Costs were calibrated and two other texts decoded beforehand. Routing predicted by: "
        f"{settings['predictor']}.",
        "Every output was equal to that of the stock model.",
        f"Each figure is the median of {min(len(c.repeats) for c in columns)} or more repeats, "
        "policies in turns at each prompt.",
        "speed: tokens per second relative to ar over all prompts; low, high: of the repeats;",
        "p50, p95: time of a token over the median of ar's, a pass's time shared by its tokens;",
        "tokens, nodes: committed and verified per pass; moved, kB: experts and bytes per token.",
    ]
    for column in columns:
        text += ["", column.title, "", column.table()]
    return "\n".join(text) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--cache", action="append", help=f"default {', '.join(CACHES)}")
    parser.add_argument("--temperature", type=float, action="append", help="default 0 and 1")
    parser.add_argument("--policy", action="append", help=f"default {', '.join(POLICIES)}")
    parser.add_argument("--ratio", type=float, default=5.0, help="transfer over compute (5)")
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--new-tokens", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3, help="of each column (3)")
    parser.add_argument("--predictor", default="frequency", help="of routing (frequency)")
    parser.add_argument("--data", type=Path, default=DATA)
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    known = options.data.read_text("utf-8").splitlines() if options.data.exists() else []
    lines = [json.loads(line) for line in known]
    settings = {
        "policies": list(dict.fromkeys(["ar", *(options.policy or POLICIES)])),
        "predictor": options.predictor,
        "prompts": options.prompts,
        "new_tokens": options.new_tokens,
        "ratio": options.ratio,
    }
    # One link for all columns, measured once.
    found = lines[0]["settings"]["bandwidth"] if lines else link_bandwidth("25%", options.ratio)
    settings["bandwidth"] = found
    if any(line["settings"] != settings for line in lines):
        parser.error(f"{options.data} was measured with other settings; remove it or give those")
    for cache in options.cache or CACHES:
        for temperature in options.temperature or TEMPERATURES:
            column = {"cache": cache, "temperature": temperature}
            missing = options.repeats - sum(line["column"] == column for line in lines)
            for result in measure(column, settings, missing) if missing > 0 else ():
                lines.append({"column": column, "settings": settings, "figures": result})
                with options.data.open("a", encoding="utf-8") as handle:
                    handle.write(json.dumps(lines[-1]) + "\n")
    text = report(lines)
    with atomic_write(options.data.with_suffix(".txt"), "w") as handle:
        handle.write(text)
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
