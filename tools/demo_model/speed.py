"""Time training steps of the stock model and of the fast path on the same batches."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from .export import stock_model
from .fusion import fuse
from .model import FastMoe
from .shape import Shape

__all__ = ["speed_table"]


def speed_table(shape: Shape, batch: int = 16, repeats: int = 4) -> str:
    """Return tokens per second of forward and backward passes; the best of `repeats` each.

    The optimizer is left out: it costs all paths the same.
    """
    torch.manual_seed(0)
    fast = FastMoe(shape)
    stock = stock_model(fast).train()
    ids = torch.randint(0, shape.vocab_size, (batch, shape.sequence + 1))
    tokens = batch * shape.sequence

    def run_stock(narrow: bool) -> Callable[[], Tensor]:
        def run() -> Tensor:
            with torch.autocast("cpu", torch.bfloat16, enabled=narrow):
                logits = stock(ids[:, :-1]).logits
            return functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

        return run

    def run_fast() -> Tensor:
        result = fast(ids[:, :-1], ids[:, 1:], 2.0)
        return result.loss + 0.01 * result.balance

    lines = [f"{torch.get_num_threads()} threads, batch {batch} x {shape.sequence}"]
    stock.set_experts_implementation("grouped_mm")  # the default
    for narrow in (False, True):
        name = f"stock, grouped_mm, {'bfloat16' if narrow else 'float32'}"
        lines.append(_row(name, tokens, run_stock(narrow), repeats))
    for fused in (False, True):
        fuse(fused)
        name = "fast path" + (", fused" if fused else "")
        lines.append(_row(name, tokens, run_fast, repeats))
    return "\n".join(lines)


def _row(name: str, tokens: int, run: Callable[[], Tensor], repeats: int) -> str:
    try:
        run().backward()  # type: ignore[no-untyped-call]
    except RuntimeError as error:
        return f"{name:<30} refused: {str(error).splitlines()[0][:60]}"
    best = float("inf")
    for _ in range(repeats):
        begun = time.perf_counter()
        run().backward()  # type: ignore[no-untyped-call]
        best = min(best, time.perf_counter() - begun)
    return f"{name:<30} {tokens / best:>8.0f} tokens/s"
