"""Count the bytes that decoding hands over per token, beside accelerate's disk offload.

    python -m benchmarks.offload_bytes [--model DIR] [--tokens N] [--prompts N] [--write]

Both decode the same prompts greedily, with the stock generate() and no speculation, and may keep
the same number of experts in memory. specfit keeps that share of every layer and fetches what a
token needs and has not. accelerate keeps the first layers whole (the share rounded up in its
favour) and brings in all experts of the others at every forward pass.

What is counted, exactly: for specfit the bytes that its reads of the files returned; for accelerate
the bytes of the tensors that its weights loader (OffloadedWeightsLoader) returned. What
the operating system reads from the device for that is not in either figure. Bytes, not seconds:
they are the same on every machine.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from logging import getLogger
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specfit_opt.files.atomic import atomic_write
from specfit_opt.text import format_table

if TYPE_CHECKING:
    import torch
    from torch import nn

# What runs a model is imported where it is used: asv imports every module here, also where only the
# packages of its own benchmarks are installed.

RESULTS = Path(__file__).parent / "results"
SHARES = (0.125, 0.25, 0.5)


@dataclass(frozen=True)
class Decoded:
    """What one side handed over.

    Attributes
    ----------
    tokens : list of list of int
        Per prompt, prompt included.
    n_new : int
        Tokens generated.
    n_bytes : int
        Handed over meanwhile, the prompts' passes included.
    """

    tokens: list[list[int]]
    n_new: int
    n_bytes: int

    @property
    def per_token(self) -> float:
        return self.n_bytes / self.n_new


@dataclass(frozen=True)
class Comparison:
    """Both sides with the same share of the experts in memory.

    Attributes
    ----------
    share : float
    slots : int
        Experts per layer that specfit kept.
    layers : tuple of int
        MoE layers that accelerate kept whole, and all of them.
    specfit, accelerate : Decoded
    """

    share: float
    slots: int
    layers: tuple[int, int]
    specfit: Decoded
    accelerate: Decoded

    @property
    def same_tokens(self) -> bool:
        return self.specfit.tokens == self.accelerate.tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, help="checkpoint folder (default: the shipped model)")
    parser.add_argument("--tokens", type=int, default=32, help="tokens per prompt (default 32)")
    parser.add_argument("--prompts", type=int, default=4, help="prompts (default 4, at most 4)")
    parser.add_argument("--write", action="store_true", help="write results/offload_bytes.txt, too")
    options = parser.parse_args()
    from transformers import AutoTokenizer
    from transformers.utils import logging

    from specfit_runtime import demo_model
    from specfit_runtime.demo_files import demo_prompts

    logging.disable_progress_bar()
    getLogger("accelerate").setLevel("ERROR")  # that parameters are on disk is what is wanted
    model = options.model or demo_model()
    tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
    texts = demo_prompts()[: options.prompts]
    prompts = [tokenizer(text, return_tensors="pt").input_ids for text in texts]
    shown = "the shipped model" if options.model is None else options.model.name
    head = f"{shown}, {len(prompts)} prompts x {options.tokens} tokens, greedy, disk offload"
    text = f"{head}\n\n{table(compare(model, prompts, options.tokens))}"
    print(text)
    if options.write:
        with atomic_write(RESULTS / "offload_bytes.txt", "w") as handle:
            handle.write(f"$ python -m benchmarks.offload_bytes\n{text}\n")


def compare(
    model: Path, prompts: Sequence[torch.Tensor], n_new: int, shares: Iterable[float] = SHARES
) -> list[Comparison]:
    """Decode with both and count.

    Parameters
    ----------
    model : Path
        Checkpoint folder of any family that specfit serves.
    prompts : sequence of Tensor, shape (1, P)
    n_new : int
        Tokens to generate per prompt.
    shares : iterable of float
        Of the experts, to be kept in memory.
    """
    from specfit_runtime import load_offloaded, offload_of
    from specfit_runtime.skeleton import experts_modules

    found = []
    for share in shares:
        offloaded = load_offloaded(model, expert_cache=share, store="disk")
        with offload_of(offloaded) as offload:
            before = offload.store.counters().bytes
            tokens, total = generate(offloaded, prompts, n_new)
            specfit = Decoded(tokens, total, offload.store.counters().bytes - before)
            slots, n_layers = max(offload.cache.slots), offload.n_layers
            experts = experts_modules(offloaded, offload.family)
        kept = math.ceil(share * n_layers)
        places = placement(offloaded, experts[kept:])
        accelerate = with_accelerate(model, prompts, n_new, places)
        found.append(Comparison(share, slots, (kept, n_layers), specfit, accelerate))
    return found


def with_accelerate(
    folder: Path, prompts: Sequence[torch.Tensor], n_new: int, places: dict[str, str]
) -> Decoded:
    """Decode with the modules placed as in ``places``; the loading is not counted."""
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as scratch:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype="auto", device_map=places, offload_folder=scratch,
            trust_remote_code=False,
        )
        with counted_loads() as loaded:
            tokens, total = generate(model, prompts, n_new)
        return Decoded(tokens, total, sum(loaded))


def placement(model: nn.Module, on_disk: Sequence[nn.Module]) -> dict[str, str]:
    """Return a device map with the modules ``on_disk`` on disk and all others in memory."""
    places: dict[str, str] = {}

    def place(name: str, module: nn.Module) -> None:
        if any(module is other for other in on_disk):
            places[name] = "disk"
        elif any(part is other for part in module.modules() for other in on_disk):
            for child, part in module.named_children():
                place(f"{name}.{child}" if name else child, part)
        else:
            places[name] = "cpu"

    place("", model)
    return places


def generate(
    model: Any, prompts: Sequence[torch.Tensor], n_new: int
) -> tuple[list[list[int]], int]:
    """Return the tokens per prompt, and how many of all are new."""
    import torch

    tokens = [
        model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=n_new,
            min_new_tokens=n_new,
            do_sample=False,
        )[0].tolist()
        for prompt in prompts
    ]
    return tokens, sum(map(len, tokens)) - sum(prompt.shape[1] for prompt in prompts)


@contextmanager
def counted_loads() -> Iterator[list[int]]:
    """Yield the bytes of every tensor that accelerate's loader brings from disk meanwhile."""
    from accelerate.utils.offload import OffloadedWeightsLoader

    loaded: list[int] = []
    original = OffloadedWeightsLoader.__getitem__

    def counted(self: OffloadedWeightsLoader, key: str) -> torch.Tensor:
        tensor: torch.Tensor = original(self, key)
        if key not in self.state_dict:  # what is there is in memory already
            loaded.append(tensor.nbytes)
        return tensor

    OffloadedWeightsLoader.__getitem__ = counted
    try:
        yield loaded
    finally:
        OffloadedWeightsLoader.__getitem__ = original


def table(comparisons: Iterable[Comparison]) -> str:
    header = (
        "experts kept",
        "specfit keeps",
        "accelerate keeps",
        "specfit MB/token",
        "accelerate MB/token",
        "times fewer",
        "tokens",
    )
    rows = [
        (
            f"{100 * c.share:g} %",
            f"{c.slots} per layer",
            f"{c.layers[0]} of {c.layers[1]} layers",
            f"{c.specfit.per_token / 1e6:.3f}",
            f"{c.accelerate.per_token / 1e6:.3f}",
            f"{c.accelerate.n_bytes / c.specfit.n_bytes:.1f}" if c.specfit.n_bytes else "-",
            "same" if c.same_tokens else "DIFFER",
        )
        for c in comparisons
    ]
    return format_table(header, rows)


if __name__ == "__main__":
    main()
