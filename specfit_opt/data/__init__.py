"""The recorded example that the package ships: a short trace and instances made from it."""

from __future__ import annotations

from importlib import resources

from ..files import Trace, load_instance, load_trace
from ..instance import Instance

#: File names of the shipped instances, without extension.
EXAMPLE_INSTANCES = ("pcie4-25", "pcie4-50", "nvme-50")

#: Bytes of one expert of Qwen3-30B-A3B in bfloat16. The recorded model is a small one of the same
#: shape; a replay of the example that wants the big model's prices passes these two.
EXAMPLE_EXPERT_BYTES = 3 * 2048 * 768 * 2

#: Layers of Qwen3-30B-A3B (48) for each of the recorded model's 8.
EXAMPLE_LAYER_REPEAT = 6


def example_trace() -> Trace:
    """Return the shipped trace; ``data/README.md`` says what was recorded."""
    with resources.as_file(resources.files(__package__) / "example-trace.npz") as path:
        return load_trace(path)


def example_instances() -> list[Instance]:
    """Return the shipped instances, each named after its machine and cache share."""
    instances = []
    for name in EXAMPLE_INSTANCES:
        with resources.as_file(resources.files(__package__) / f"{name}.npz") as path:
            instances.append(load_instance(path))
    return instances
