"""Measure the exported target and drafter on held-out text; write the figures as JSON."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from .acceptance import accepted, chain_figures, greedy_continuation, grow_along, tree_figures
from .batches import windows
from .corpus import read_corpus
from .drafter import EagleHead
from .export import restore, round_to_export, stock_model
from .model import FastMoe
from .routing import draft_tree_unions, record_routing, routing_figures, union_growth
from .tokenizer import encode
from .train_drafter import restore_drafter
from .tree import select

if TYPE_CHECKING:
    from transformers import Qwen3MoeForCausalLM

__all__ = ["EvaluationSize", "evaluate_drafter", "evaluate_target", "write_json"]

GREEDY_PROMPT = "It was a truth that the whole family"
LONGEST_CHAIN = 5
TREE_WIDTH = 4
TREE_SIZES = (4, 8, 16, 32, 60)
UNION_SIZES = (1, 2, 4, 8, 16, 32)


@dataclass(frozen=True)
class EvaluationSize:
    """How much text the figures rest on.

    Parameters
    ----------
    windows
        Windows per source for the perplexity, at most.
    routing_windows
        Windows for the routing statistics.
    prompts
        Held-out prefixes that are decoded once, for the acceptance on text.
    generations, generated
        Prefixes that are decoded further, and by how many tokens.
    """

    windows: int = 200
    routing_windows: int = 128
    prompts: int = 384
    generations: int = 48
    generated: int = 96


def evaluate_target(folder: Path, size: EvaluationSize) -> dict[str, Any]:
    """Return perplexities, use of the experts and sample continuations of ``target.pt``.

    Perplexities and continuations come from the stock model in float32 with the exported, rounded
    weights.
    """
    fast = round_to_export(restore(folder / "target.pt", torch.float32))
    stock = stock_model(fast)
    length = fast.shape.sequence
    held_out = _held_out_by_source(folder)
    figures: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in fast.parameters()),
        "perplexity": {},
    }
    total = tokens = 0.0
    for source, (ids, n_bytes) in held_out.items():
        found = _perplexity(stock, ids, length, size.windows)
        found["bits_per_byte"] = round(
            found["nats_per_token"] / math.log(2) * len(ids) / n_bytes, 4
        )
        figures["perplexity"][source] = found
        if source != "wordnet":
            total += found["nats_per_token"] * len(ids)
            tokens += len(ids)
    nats = total / tokens
    figures["held_out_nats_per_token"] = round(nats, 4)
    figures["held_out_perplexity"] = round(math.exp(nats), 2)
    ids = np.load(folder / "heldout.npy")
    experts = record_routing(fast, _spread(ids, length, size.routing_windows))
    n_experts = fast.shape.num_experts
    figures["routing"] = routing_figures(experts, n_experts)
    sizes = [count for count in UNION_SIZES if count <= length]
    figures["union_growth"] = {
        "sizes": sizes,
        **union_growth(experts, n_experts, sizes),
    }
    figures["greedy"] = _greedy(stock, folder / "tokenizer")
    figures["continuations"] = _continuations(stock, held_out, folder / "tokenizer")
    return figures


def evaluate_drafter(folder: Path, size: EvaluationSize) -> dict[str, Any]:
    """Return the acceptance figures of ``drafter.pt`` with ``target.pt``, all decoding greedy."""
    fast = round_to_export(restore(folder / "target.pt", torch.float32))
    stock = stock_model(fast)
    head = restore_drafter(folder / "drafter.pt", fast)
    half = fast.shape.sequence // 2
    ids = np.load(folder / "heldout.npy")
    need = LONGEST_CHAIN + 2
    after_text = greedy_continuation(stock, _spread(ids, half, size.prompts), need)
    along = greedy_continuation(stock, _spread(ids, half, size.generations), size.generated)
    # A tree needs the features of its position and all that it may be compared with.
    positions = range(half - 1, half + size.generated - LONGEST_CHAIN - 1)
    figures: dict[str, Any] = {
        "parameters": sum(parameter.numel() for parameter in head.parameters()),
        "draft_vocabulary": len(head.d2t),
        "text_tokens_in_draft_vocabulary": round(float(head.t2d.numpy()[ids].mean()), 4),
        "after_held_out_text": _acceptance(head, fast, after_text, [half - 1]),
        "along_greedy_generation": _acceptance(head, fast, along, positions),
        "by_source": {},
    }
    for source, (source_ids, _) in _held_out_by_source(folder).items():
        if len(source_ids) > half * 4:
            prompts = _spread(source_ids, half, max(8, size.prompts // 6))
            continued = greedy_continuation(stock, prompts, need)
            found = _acceptance(head, fast, continued, [half - 1], trees=False)
            figures["by_source"][source] = found["chain"]["committed_per_pass"]["4"]
    figures["tree_unions"] = _tree_unions(head, fast, after_text[: size.generations], half)
    return figures


def write_json(figures: dict[str, Any], path: Path) -> None:
    """Write whole or not at all."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    os.replace(partial, path)


def _greedy(stock: Qwen3MoeForCausalLM, tokenizer: Path) -> dict[str, Any]:
    """Return what the model writes greedily after a fixed prompt, for comparison elsewhere."""
    from tokenizers import Tokenizer

    reader = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    prompt = reader.encode(GREEDY_PROMPT).ids
    made = greedy_continuation(stock, torch.tensor([prompt]), 32)[0, len(prompt) :].tolist()
    return {"prompt": GREEDY_PROMPT, "ids": made, "text": reader.decode(made)}


def _continuations(
    stock: Qwen3MoeForCausalLM,
    held_out: dict[str, tuple[NDArray[np.uint16], int]],
    tokenizer: Path,
) -> list[dict[str, str]]:
    """Return one sampled continuation per source, from its held-out text."""
    from tokenizers import Tokenizer

    reader = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    samples = []
    for source, (ids, _) in held_out.items():
        torch.manual_seed(0)
        prompt = windows(ids, np.array([len(ids) // 3]), 48)
        made = stock.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=80,
            do_sample=True,
            temperature=0.7,
            top_k=40,
            eos_token_id=0,
            pad_token_id=0,
        )
        samples.append(
            {
                "source": source,
                "prompt": reader.decode(prompt[0].tolist()),
                "continuation": reader.decode(made[0, 48:].tolist()),
            }
        )
    return samples


def _acceptance(
    head: EagleHead, target: FastMoe, ids: Tensor, positions: Sequence[int], trees: bool = True
) -> dict[str, Any]:
    chain = grow_along(head, target, ids, positions, width=1, levels=LONGEST_CHAIN)
    every = torch.ones_like(chain.trees.token, dtype=torch.bool)
    figures: dict[str, Any] = {
        "positions": len(chain.places),
        "chain": chain_figures(accepted(chain, every), chain, LONGEST_CHAIN),
    }
    if trees:
        grown = grow_along(head, target, ids, positions, TREE_WIDTH, LONGEST_CHAIN)
        figures["tree_committed_per_pass"] = tree_figures(grown, TREE_SIZES)
    return figures


def _tree_unions(head: EagleHead, target: FastMoe, ids: Tensor, half: int) -> dict[str, Any]:
    sizes = list(UNION_SIZES)
    grown = grow_along(head, target, ids, [half - 1], TREE_WIDTH, LONGEST_CHAIN)
    nodes = sizes[-1] - 1
    chosen = select(grown.trees, nodes)
    score = grown.trees.log_prob.masked_fill(~chosen, -math.inf)
    order = torch.sort(score, dim=1, descending=True, stable=True).indices[:, :nodes]
    rank = torch.full_like(grown.trees.token, -1).scatter_(
        1, order, torch.arange(nodes).expand(len(order), -1)
    )
    parent = grown.trees.parent.gather(1, order)
    parent = torch.where(parent < 0, -1, rank.gather(1, parent.clamp_min(0)))
    token = grown.trees.token.gather(1, order)
    unions = draft_tree_unions(
        target, ids[:, :half], ids[:, half], token, parent, target.shape.num_experts, sizes
    )
    return {"trees": len(ids), "sizes": sizes, "union": unions}


def _spread(ids: NDArray[np.uint16], length: int, count: int) -> Tensor:
    starts = np.linspace(0, len(ids) - length - 1, count).astype(np.int64)
    return windows(ids, np.unique(starts), length)


@torch.no_grad()
def _perplexity(
    stock: Qwen3MoeForCausalLM, ids: NDArray[np.uint16], length: int, limit: int
) -> dict[str, Any]:
    starts = np.arange(0, max(1, len(ids) - length - 1), length)
    if len(starts) > limit:
        starts = starts[np.linspace(0, len(starts) - 1, limit).astype(np.int64)]
    length = min(length, len(ids) - 1)
    total = 0.0
    for begin in range(0, len(starts), 16):
        some = windows(ids, starts[begin : begin + 16], length + 1)
        logits = stock(some[:, :-1]).logits
        total += float(functional.cross_entropy(logits.flatten(0, 1), some[:, 1:].flatten())) * len(
            some
        )
    nats = total / len(starts)
    return {
        "tokens": len(starts) * length,
        "nats_per_token": round(nats, 4),
        "perplexity": round(math.exp(nats), 2),
    }


def _held_out_by_source(folder: Path) -> dict[str, tuple[NDArray[np.uint16], int]]:
    """Return each source's held-out ids and the bytes of their text; WordNet's are a tenth."""
    texts: dict[str, list[Any]] = {}
    for document in read_corpus(folder / "corpus.jsonl"):
        if document.split != "train":
            texts.setdefault(document.source, []).append(document)
    found = {}
    for source, documents in texts.items():
        some = documents[::10] if source == "wordnet" else documents
        path = folder / f"heldout-{source}.npy"
        encode(some, folder / "tokenizer", path)
        found[source] = (np.load(path), sum(len(d.text.encode()) for d in some))
    return found
