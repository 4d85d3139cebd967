"""Write the two model cards out of the measured figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .sources import LICENCES

__all__ = ["drafter_card", "target_card"]

_TITLES = {
    "austen": "Jane Austen's novels",
    "shakespeare": "Shakespeare's plays and poems",
    "factbook": "CIA World Factbook",
    "sqlite": "SQLite documentation",
    "gsm8k": "GSM8K, 100 problems",
    "wordnet": "WordNet glosses",
}


def target_card(
    figures: Mapping[str, Any], record: Mapping[str, Any], sizes: Mapping[str, int]
) -> str:
    """Return the target's card.

    Parameters
    ----------
    figures
        From `evaluate_target`.
    record
        The training record: steps, tokens, plan, shape.
    sizes
        Bytes of the corpus by ``"source split"``.
    """
    shape, plan, routing = record["shape"], record["plan"], figures["routing"]
    data = [
        "| text | trained on | held out | licence |",
        "| --- | --- | --- | --- |",
    ]
    for source, title in _TITLES.items():
        held = sizes.get(f"{source} heldout", 0) + sizes.get(f"{source} domain", 0)
        data.append(
            f"| {title} | {sizes.get(f'{source} train', 0) / 1e6:.2f} MB | {held / 1e6:.2f} MB"
            f" | {LICENCES[source]} |"
        )
    quality = [
        "| held-out text | tokens | nats per token | perplexity | bits per byte |",
        "| --- | --- | --- | --- | --- |",
    ]
    for source, row in figures["perplexity"].items():
        name = _TITLES[source] + (", a domain never trained on" if source == "wordnet" else "")
        quality.append(
            f"| {name} | {row['tokens']} | {row['nats_per_token']:.3f} | {row['perplexity']:.1f}"
            f" | {row['bits_per_byte']:.2f} |"
        )
    samples = []
    for sample in figures["continuations"]:
        samples += [
            f"{_TITLES[sample['source']]}:",
            "",
            *_quoted(f"{sample['prompt']}**|**{sample['continuation']}"),
            "",
        ]
    experts = shape["num_experts"]
    return "\n".join(
        [
            "# specfit demo model",
            "",
            f"A small mixture-of-experts language model of {figures['parameters'] / 1e6:.1f}"
            " million"
            " parameters in the architecture of Qwen3-30B-A3B"
            f" (`Qwen3MoeForCausalLM`): {shape['num_hidden_layers']} layers, {experts} experts per"
            f" layer of which {shape['num_experts_per_tok']} work per token, hidden size"
            f" {shape['hidden_size']}, byte-level BPE vocabulary of {shape['vocab_size']},"
            " bfloat16."
            " It exists so that speculative decoding of an offloaded mixture of experts can be run,"
            " tested and shown on any machine, with routing that was learned.",
            "",
            "```python",
            "from transformers import AutoModelForCausalLM, AutoTokenizer",
            "from specfit_runtime import demo_model",
            "",
            "model = AutoModelForCausalLM.from_pretrained(demo_model(), trust_remote_code=False)",
            "tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)",
            "```",
            "",
            "Licence: Apache-2.0. Text begins with the end-of-text token (id 0).",
            "",
            "## Data",
            "",
            "English text, public domain or under permissive licences. Documents (chapters, plays,"
            " countries, pages, problems) are held out whole, one in 24, by a hash of their name."
            " The Factbook's sections on crime, disease, the military and disputes are left out.",
            "",
            *data,
            "",
            "## Recipe",
            "",
            f"{record['step']} steps of {plan['batch']} sequences of {shape['sequence']} tokens:"
            f" {record['tokens'] / 1e6:.1f} million tokens, {record['epochs']:.1f} passes over the"
            " training text, on two CPU cores shared with other work"
            f" ({record['processor_hours']:.1f} processor hours)."
            f" Muon ({plan['muon_lr']}) for the matrices, AdamW ({plan['adam_lr']}; routers"
            f" {plan['router_lr']}) for the rest; warm-up of {plan['warmup']} steps, constant rate,"
            f" linear decay over the last {record['decay_steps']}; load-balancing loss with weight"
            f" {plan['balance']} per layer; seed {plan['seed']}. The recipe is"
            " `tools/demo_model` in"
            " the source repository.",
            "",
            "## Measured quality",
            "",
            f"Held-out perplexity {figures['held_out_perplexity']:.1f}"
            f" ({figures['held_out_nats_per_token']:.3f} nats per token; the sources weighted by"
            " their"
            f" held-out length, the domain apart). Windows of {shape['sequence']} tokens without"
            " overlap, stock Transformers, float32.",
            "",
            *quality,
            "",
            f"Experts used on {routing['tokens']} held-out tokens, by layer:"
            f" {', '.join(str(value) for value in routing['used'])} of {experts}"
            f" (at least {min(routing['used']) / experts:.0%} in every layer); with at least a"
            " tenth of the even share:"
            f" {', '.join(str(v) for v in routing['used_at_a_tenth_of_even_share'])}."
            f" A token shares {_mean(routing['neighbours']):.0%} of its experts with the one before"
            f" it, {_mean(routing['strangers']):.0%} with a random one; even routing would give"
            f" {routing['uniform']:.0%}.",
            "",
            "Sampled continuations of held-out text (temperature 0.7, top-k 40), not chosen by"
            " hand;"
            " **|** marks where the model takes over:",
            "",
            *samples,
            "## Limits",
            "",
            "It writes pastiche: the grammar holds for a clause or two, the sense does not. It"
            " knows no"
            " facts, follows no instructions and was trained on sequences of"
            f" {shape['sequence']} tokens. Its texts carry the views of their time and authors."
            " Nothing that it says should be relied on; use it to exercise software.",
            "",
        ]
    )


def drafter_card(figures: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    """Return the drafter's card from `evaluate_drafter`'s figures and its training record."""
    plan, shape = record["plan"], record["shape"]
    boundaries = list(shape["boundaries"])
    text, along = figures["after_held_out_text"], figures["along_greedy_generation"]
    depth = [
        "| depth | after held-out text | along greedy generation |",
        "| --- | --- | --- |",
    ]
    pairs = zip(
        text["chain"]["acceptance_by_depth"], along["chain"]["acceptance_by_depth"], strict=True
    )
    for number, (one, other) in enumerate(pairs, 1):
        depth.append(f"| {number} | {_share(one)} | {_share(other)} |")
    passes = [
        "| draft | after held-out text | along greedy generation |",
        "| --- | --- | --- |",
    ]
    for length, value in text["chain"]["committed_per_pass"].items():
        other = along["chain"]["committed_per_pass"][length]
        passes.append(f"| chain of {length} | {value:.2f} | {other:.2f} |")
    for size, value in text["tree_committed_per_pass"].items():
        other = along["tree_committed_per_pass"][size]
        passes.append(f"| tree of {size} | {value:.2f} | {other:.2f} |")
    sources = ", ".join(f"{_TITLES[s]} {v:.2f}" for s, v in figures["by_source"].items())
    return "\n".join(
        [
            "# specfit demo drafter",
            "",
            f"An EAGLE-3 head of {figures['parameters'] / 1e6:.2f} million parameters for the"
            " specfit"
            " demo model, in the weight names and configuration fields of SpecForge and SGLang"
            " (`LlamaForCausalLMEagle3`), bfloat16. It drafts"
            f" {figures['draft_vocabulary']} of the target's tokens, which are"
            f" {figures['text_tokens_in_draft_vocabulary']:.1%} of the tokens of held-out text;"
            " `d2t` and `t2d` translate. Embeddings are the target's. Licence: Apache-2.0.",
            "",
            "It reads the states that Transformers calls `hidden_states"
            f"{boundaries}`. `eagle_aux_hidden_state_layer_ids` holds the 0-based layers whose"
            " outputs"
            f" these are, {[b - 1 for b in boundaries]}, as SGLang and SpecForge count.",
            "",
            "## Data and recipe",
            "",
            "The target's training text, with the licences listed in its card, and the target's own"
            " distribution as the goal."
            f" {record['step']} steps of {plan['batch']} sequences ({record['tokens'] / 1e6:.1f}"
            f" million tokens), {plan['unroll']} draft steps unrolled on the head's own states with"
            f" weights {plan['step_decay']}^s; Muon ({plan['muon_lr']}) and AdamW"
            f" ({plan['adam_lr']}); seed {plan['seed']}. The recipe is `tools/demo_model` in the"
            " source"
            " repository.",
            "",
            "## Measured quality",
            "",
            f'Greedy decoding, float32. "After held-out text": one pass behind each of'
            f' {text["positions"]} prefixes of held-out text. "Along greedy generation": pass after'
            f" pass while the target continues such prefixes, {along['positions']} positions in"
            " all."
            " The target's choice is compared with the draft.",
            "",
            "Acceptance by depth, given that the depth before was accepted (chains):",
            "",
            *depth,
            "",
            "Committed tokens per pass, bonus token included; trees hold the most probable nodes"
            " of a"
            " pool of width 4 and depth 5, root not counted:",
            "",
            *passes,
            "",
            f"Chain of 4 after held-out text, by source: {sources}.",
            "",
            "## Limits",
            "",
            "Made for the demo model alone: its states mean nothing to another target. The"
            " acceptance"
            " is that of a small drafter on a small model, and no guide to what larger ones reach.",
            "",
        ]
    )


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _quoted(text: str) -> list[str]:
    return [f"> {line}".rstrip() for line in text.split("\n")]
