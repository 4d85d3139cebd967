"""Are the tokens those of stock generate on the same device, in float32?"""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from specfit_runtime import SpecFit, demo_drafter, demo_model, load_offloaded, offload_of
from specfit_runtime.drafters import Drafter, make_drafter
from specfit_runtime.drafters.causal_lm import CausalLmDrafter
from specfit_runtime.families import FAMILIES

from .models import VOCABULARY, random_prompt, write_family
from .table import FAILED, OK, Table

if TYPE_CHECKING:
    from .runner import Machine

PART = "equality"
POLICIES = ("ar", "chain-4", "eagle-60", "specfit")
#: The disk store gets one slot per layer, so that nearly all experts pass through the scratch slab.
CACHES: dict[str, float | int] = {"pinned": 0.25, "ram": 0.5, "disk": 1}


def check(machine: Machine, table: Table) -> None:
    stores = list(CACHES) if machine.cuda else ["ram", "disk"]
    for i, model_type in enumerate(FAMILIES):
        # Without a GPU the families take turns with the stores: what is checked is the script.
        mine = stores if machine.cuda else [stores[i % len(stores)]]
        case = f"{model_type}, {', '.join(mine)}"
        if table.reached(PART, case, "family"):
            with table.step(PART, case, "family"):
                _check_family(machine, table, model_type, mine)
    case = f"shipped model, EAGLE-3 head, {machine.memory_store}"
    if table.reached(PART, case, "family"):
        with table.step(PART, case, "family"):
            _check_shipped(machine, table, case)


def _check_family(machine: Machine, table: Table, model_type: str, stores: list[str]) -> None:
    folder = write_family(model_type, machine.folder / model_type, machine.small)
    prompt = random_prompt(9, VOCABULARY, machine.device)
    n_new = 8 if machine.small else 32
    stock = _stock(folder, machine.device)
    expected = greedy(stock, prompt, n_new)
    # The stock model drafts for its own offloaded self, so that most drafts are accepted.
    for store in stores:
        case = f"{model_type}, {store}"
        if table.reached(PART, case, "store"):
            with table.step(PART, case, "store"):
                drafter = CausalLmDrafter(stock)
                _compare(machine, table, case, folder, store, drafter, prompt, expected)
    shutil.rmtree(folder)


def _check_shipped(machine: Machine, table: Table, case: str) -> None:
    folder = demo_model()
    stock = _stock(folder, machine.device)
    n_new = 8 if machine.small else 64
    prompt = random_prompt(24, int(stock.config.vocab_size), machine.device)
    expected = greedy(stock, prompt, n_new)
    drafter = make_drafter(f"eagle3:{demo_drafter()}")
    _compare(machine, table, case, folder, machine.memory_store, drafter, prompt, expected)


def _compare(
    machine: Machine,
    table: Table,
    case: str,
    folder: Path,
    store: str,
    drafter: Drafter,
    prompt: Tensor,
    expected: list[int],
) -> None:
    """Decode with every policy and add a row."""
    n_new = len(expected) - prompt.shape[1]
    model = load_offloaded(
        folder,
        expert_cache=CACHES[store],
        store=store,
        device=machine.device,
        dtype="float32",
    )
    wrong, per_pass = [], []
    with offload_of(model):
        for policy in POLICIES:
            spec = SpecFit(None if policy == "ar" else drafter, policy=policy)
            with warnings.catch_warnings():
                # A head that drafts after random tokens is hardly ever right, and says so.
                warnings.filterwarnings("ignore", message="drafter .* the target accepted")
                found = greedy(model, prompt, n_new, custom_generate=spec)
            if found != expected:
                wrong.append(f"{policy} from token {first_difference(found, expected, prompt)} on")
            per_pass.append(f"{spec.report.totals.tokens_per_pass:.1f}")
    verdict = FAILED if wrong else OK
    said = f"DIFFERENT: {', '.join(wrong)}" if wrong else f"{n_new} tokens equal"
    passes = ", ".join(f"{p} {n}" for p, n in zip(POLICIES, per_pass, strict=True))
    table.add(PART, case, verdict, f"{said}; tokens per pass: {passes}")


def greedy(model: Any, prompt: Tensor, n_new: int, **more: Any) -> list[int]:
    """Return the text that a model continues a prompt with."""
    out = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=n_new,
        do_sample=False,
        pad_token_id=0,
        **more,
    )
    text: list[int] = out[0].tolist()
    return text


def first_difference(found: list[int], expected: list[int], prompt: Tensor) -> int:
    """Return the number of the first new token that differs, counted from 1."""
    n = prompt.shape[1]
    pairs = zip(found[n:], expected[n:], strict=False)
    same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(found), len(expected)) - n)
    return same + 1


def _stock(folder: Path, device: torch.device) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, trust_remote_code=False
    )
    return model.to(device).eval()
