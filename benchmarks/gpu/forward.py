"""How near are offloaded forward passes to stock ones with grouped_mm?"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specfit_runtime import load_offloaded, offload_of
from specfit_runtime.families import FAMILIES

from .models import VOCABULARY, random_prompt, write_family
from .table import FAILED, FIGURE, OK, Table

if TYPE_CHECKING:
    from .runner import Machine

PART = "forward"
#: Of the largest logit. Another order of the same sums stays far below, a wrong expert far above.
TOLERANCE = 1e-4
#: Tokens per pass: one, a tree's worth, a prompt's worth.
LENGTHS = (1, 24, 160)


def check(machine: Machine, table: Table) -> None:
    for model_type in FAMILIES:
        folder = machine.folder / f"forward-{model_type}"
        for dtype in (torch.float32, torch.bfloat16):
            case = f"{model_type}, {str(dtype).removeprefix('torch.')}"
            if table.reached(PART, case, "forward"):
                with table.step(PART, case, "forward"):
                    if not folder.exists():
                        write_family(model_type, folder, machine.small)
                    _compare(machine, table, case, folder, dtype)
        shutil.rmtree(folder, ignore_errors=True)


@torch.no_grad()
def _compare(machine: Machine, table: Table, case: str, folder: Any, dtype: torch.dtype) -> None:
    stock: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=dtype, experts_implementation="grouped_mm",
        trust_remote_code=False,
    )
    stock.to(machine.device).eval()
    model = load_offloaded(
        folder, expert_cache=0.5, store=machine.memory_store, device=machine.device, dtype=dtype
    )
    bitwise, worst, largest, flips, n, finite = True, 0.0, 0.0, 0, 0, True
    with offload_of(model):
        for seed, length in enumerate(LENGTHS[: 2 if machine.small else None]):
            ids = random_prompt(length, VOCABULARY, machine.device, seed)
            expected: Tensor = stock(ids).logits[0]
            for _ in range(2):  # cold and warm
                found: Tensor = model(ids).logits[0]
                bitwise &= torch.equal(found, expected)
                finite &= bool(found.isfinite().all())
                worst = max(worst, float((found.double() - expected.double()).abs().max()))
                flips += int((found.argmax(-1) != expected.argmax(-1)).sum())
                n += length
            largest = max(largest, float(expected.abs().max()))
    if dtype == torch.float32:
        verdict = OK if finite and not flips and worst <= TOLERANCE * largest else FAILED
    else:
        # Kernels may differ by how many rows they get; that is no error, and not lossless either.
        verdict = FIGURE if finite else FAILED
    equal = "bit for bit equal" if bitwise else f"largest difference {worst:.3g} of {largest:.3g}"
    table.add(PART, case, verdict, f"{equal}; {flips} of {n} argmax differ")
