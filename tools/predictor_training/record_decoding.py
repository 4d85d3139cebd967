"""Record greedy decoding after training text, with every draft node's routing and state."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specfit_opt.files import Trace
from specfit_runtime import demo_drafter, demo_model, load_offloaded, offload_of
from specfit_runtime.drafters import make_drafter
from specfit_runtime.tracing import record_trace

__all__ = ["record_decoding"]


def record_decoding(
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    name: str = "",
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Return a trace of the shipped model's continuations of prompts.

    Its pools have the sizes that policies draft: five levels, four children, four nodes expanded.
    """
    model = load_offloaded(demo_model(), store="ram", expert_cache=1.0, dtype="float32")
    with offload_of(model):
        return record_trace(
            model,
            make_drafter(f"eagle3:{demo_drafter()}"),
            prompts,
            max_new_tokens=max_new_tokens,
            ignore_eos=True,
            states=True,
            name=name,
            progress=progress,
        )
