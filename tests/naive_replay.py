"""The replay semantics once more, written from their description with sets, lists and loops only.

Nothing of specfit_opt.replay is used, so that a test can hold the two against each other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Levels that an EAGLE tree has.
EAGLE_LEVELS = 6


def chain(parent: list[int], prob: list[float], depth: list[int], length: int) -> Any:
    chosen = [0]
    for _ in range(length):
        best = None
        for v in range(len(parent)):
            if parent[v] == chosen[-1] and (best is None or prob[v] > prob[best]):
                best = v
        if best is None:
            break
        chosen.append(best)
    return chosen, min(length, max(depth))


def eagle(parent: list[int], prob: list[float], depth: list[int], size: int) -> Any:
    # Among equals the one that is drafted first: level by level, below the likeliest node first.
    drafted, level = [0], [0]
    for _ in range(EAGLE_LEVELS):
        level = [
            child
            for node in sorted(level, key=lambda v: -prob[v])
            for child in range(len(parent))
            if parent[child] == node
        ]
        drafted += level
    ranked = sorted(drafted[1:], key=lambda v: -prob[v])
    return [0, *ranked][:size], min(EAGLE_LEVELS, max(depth))


def fixed_choice(policy: str) -> Callable[..., Any]:
    """Return ``choose(position, parent, prob, depth) -> (nodes, levels)`` for a fixed policy."""
    kind, _, number = policy.partition("-")
    if kind == "ar":
        return lambda at, *pool: ([0], 0)
    rule = {"chain": chain, "eagle": eagle}[kind]
    return lambda at, *pool: rule(*pool, int(number))


def naive_replay(
    trace: Any,
    choose: Callable[..., Any],
    *,
    slots: int,
    bandwidth: float,
    fixed_time: float,
    draft_time: float,
    node_time: Callable[[int], float],
    expert_bytes: list[int],
    layer_repeat: int = 1,
    resident_time: float = 0.0,
    all_resident: bool = False,
    warmup: int = 12,
    overlap: tuple[float, float, float] | None = None,
) -> dict[str, Any]:
    start = trace.cycle_start.tolist()
    n_layers = trace.experts.shape[1]
    total = dict.fromkeys(
        ("tokens", "passes", "misses", "hits", "bytes", "nodes", "levels", "predicted"), 0
    )
    total["seconds"] = total["hidden"] = total["wasted"] = 0.0
    cycles = len(start) - 1
    at = 0
    while at < cycles:
        # one prompt
        prompt = trace.prompt[at]
        end = at
        while end < cycles and trace.prompt[end] == prompt:
            end += 1
        first = at
        stamp: list[dict[int, int]] = [{} for _ in range(n_layers)]
        number = 0
        while at < end:
            nodes = range(start[at], start[at + 1])
            parent = [int(trace.parent[v]) for v in nodes]
            prob = [float(trace.path_prob[v]) for v in nodes]
            depth = [int(trace.depth[v]) for v in nodes]
            counted = at - first >= warmup
            chosen, levels = choose(at, parent, prob, depth) if counted else ([0], 0)
            number += 1
            misses = hits = size = 0
            hidden = wasted = 0.0
            compute = fixed_time + node_time(len(chosen))
            seconds = compute + draft_time * levels
            for layer in range(n_layers):
                union = set()
                for v in chosen:
                    for e in trace.experts[start[at] + v, layer]:
                        if e >= 0:
                            union.add(int(e))
                lacking = set() if all_resident else union - set(stamp[layer])
                misses += len(lacking)
                hits += len(union) - len(lacking)
                needed = len(lacking) * expert_bytes[layer] * layer_repeat
                size += needed
                if overlap is not None:
                    coverage, precision, window = overlap
                    # All guesses, right and wrong, as far as they come in the time there is.
                    guessed = coverage * needed / bandwidth / precision
                    moved = min(guessed, window * compute / n_layers)
                    hidden += precision * moved
                    wasted += (1.0 - precision) * moved * bandwidth
                for e in union:
                    stamp[layer][e] = number
                while len(stamp[layer]) > slots:
                    oldest = min(stamp[layer].items(), key=lambda item: (item[1], item[0]))
                    del stamp[layer][oldest[0]]
            seconds += size / bandwidth - hidden + hits * resident_time
            emitted = 1
            node = 0
            while True:
                following = [
                    v for v in chosen if parent[v] == node and bool(trace.accepted[start[at] + v])
                ]
                if not following:
                    break
                node = following[0]
                emitted += 1
            at += emitted
            if counted:
                total["tokens"] += emitted
                total["passes"] += 1
                total["misses"] += misses
                total["hits"] += hits
                total["bytes"] += size
                total["nodes"] += len(chosen)
                total["levels"] += levels
                total["predicted"] += sum(prob[v] for v in chosen)
                total["seconds"] += seconds
                total["hidden"] += hidden
                total["wasted"] += wasted
        at = end
    return total
