"""Cut the example that the package ships out of a longer recorded trace.

    python tools/make_example_data.py TRACE.npz [FOLDER]

TRACE is the recording described in specfit_opt/data/README.md; FOLDER, where the files go, defaults
to specfit_opt/data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

from specfit_opt import Instance
from specfit_opt.caches import CACHE_RULES, SimulatedCache, slots_of
from specfit_opt.data import EXAMPLE_EXPERT_BYTES, EXAMPLE_LAYER_REPEAT
from specfit_opt.files import Trace, load_trace, save_instance, save_trace
from specfit_opt.profiles import load_profile

#: Prompts that are kept, one each where the drafter did well, middling and badly, and how many of
#: their positions: together below 200 kB.
PROMPTS = (0, 5, 6)
POSITIONS = 56

#: Positions where the published rules part from the optimum, so that a comparison shows something.
#: Instance: machine, share of the experts that the cache holds, prompt, position.
INSTANCES = {
    "pcie4-25": ("pcie4", "25%", 5, 48),
    "pcie4-50": ("pcie4", "50%", 0, 28),
    "nvme-50": ("nvme", "50%", 6, 32),
}


def cut(trace: Trace, prompts: tuple[int, ...], positions: int) -> Trace:
    """Return the first ``positions`` cycles of each of ``prompts``."""
    chosen = np.isin(trace.prompt, prompts) & (trace.position < positions)
    return trace.select(chosen, name="example-trace")


def instance_at(trace: Trace, machine: str, share: str, prompt: int, position: int) -> Instance:
    """Return the pool of one position beside the cache that plain decoding up to there leaves."""
    profile = load_profile(machine)
    layer_bytes = np.full(trace.n_layers, float(EXAMPLE_EXPERT_BYTES))
    slots = slots_of(share, trace.n_experts, layer_bytes, EXAMPLE_LAYER_REPEAT)
    cache = SimulatedCache(CACHE_RULES["lru"], slots, trace.n_layers, trace.n_experts)
    for cycle in trace.cycles():
        if cycle.prompt != prompt:
            continue
        tree, routing = cycle.tree, cycle.routing
        if cycle.position == position:
            cost = profile.cost_model(
                trace.n_layers,
                trace.n_experts,
                EXAMPLE_EXPERT_BYTES,
                levels=int(tree.depth.max()),
                layer_repeat=EXAMPLE_LAYER_REPEAT,
            )
            return Instance(tree, routing.with_resident(cache.resident), cost)
        cache.use(routing.union(tree.parent < 0))
    raise SystemExit(f"the trace has no position {position} of prompt {prompt}")


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trace", type=Path)
    default = Path(__file__).resolve().parents[1] / "specfit_opt" / "data"
    parser.add_argument("folder", type=Path, nargs="?", default=default)
    options = parser.parse_args()
    trace = cut(load_trace(options.trace), PROMPTS, POSITIONS)
    save_trace(options.folder / "example-trace.npz", trace)
    for name, where in INSTANCES.items():
        save_instance(options.folder / f"{name}.npz", instance_at(trace, *where))
    for path in sorted(options.folder.glob("*.npz")):
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
