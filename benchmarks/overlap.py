"""Decode with and without fetching experts early, turn by turn over one emulated link.

    python -m benchmarks.overlap [--prompts N] [--new-tokens N] [--repeats N] [--write]

The shipped model decodes held-out prompts, plainly and with specfit, over links at which plain
decoding without early fetches waits for 30 and for 50 % of its time. Then a model of random weights
with the layers of Qwen3-30B-A3B, where no routing can be foreseen, decodes plainly. Two other texts
are decoded first. Each prompt is decoded with and without in turn; times are medians over the
repeats. Written to benchmarks/results/overlap.txt with --write.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from specfit_opt.files.atomic import atomic_write
from specfit_opt.text import format_table

from .emulated_link import heldout_prompts
from .processor_clock import processor_clock

if TYPE_CHECKING:
    from specfit_runtime import DecodeReport

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "benchmarks" / "results" / "overlap.txt"
SHARES, WAITS, POLICIES = (0.125, 0.25), (0.3, 0.5), ("ar", "specfit")
#: Of the model with random weights: layers, and what of its experts is cached.
LAYERS, RANDOM_SHARE = 3, 0.5


@dataclass(frozen=True)
class Row:
    """One setting: per prompt and repeat a report without early fetches and one with them."""

    model: str
    policy: str
    expert_cache: float
    off: list[list[DecodeReport]]
    on: list[list[DecodeReport]]

    def speed(self) -> float:
        """Return the speed with early fetches over that without, medians over the repeats."""
        return self._seconds(self.off) / self._seconds(self.on)

    def cells(self) -> list[str]:
        """Return the row of the table."""
        from specfit_runtime import DecodeReport

        off, on = (
            DecodeReport.merge([one for repeats in reports for one in repeats]).totals
            for reports in (self.off, self.on)
        )
        needed = on.prefetch_hits + on.misses
        return [
            self.model,
            f"{self.expert_cache:.1%}",
            self.policy,
            f"{self.speed():.3f}",
            f"{on.bytes_per_token / off.bytes_per_token:.3f}",
            f"{off.share('transfer'):.0%}",
            f"{on.share('transfer'):.0%}",
            f"{on.hidden_seconds / off.seconds:.0%}",
            f"{on.prefetch_hits / needed:.0%}",
            f"{on.prefetch_hits / on.prefetched:.1%}" if on.prefetched else "-",
            f"{on.verified_per_pass:.2f}",
        ]

    @staticmethod
    def _seconds(reports: list[list[DecodeReport]]) -> float:
        # By token: with another time, specfit may end a text in another number of passes.
        return sum(
            median(one.totals.seconds / one.totals.tokens for one in repeats)
            for repeats in reports
        )


class Pair:
    """Two models, caches and decodes alike but for early fetches."""

    def __init__(self, load: Any, policy: str, drafter: str | None) -> None:
        from specfit_runtime import SpecFit

        self.models = {on: load() for on in (False, True)}
        self.specs = {
            on: SpecFit(drafter if policy != "ar" else None, policy=policy, prefetch=on)
            for on in (False, True)
        }

    def decode(self, prompt: Any, new_tokens: int, first: bool) -> dict[bool, DecodeReport]:
        """Decode a prompt with both; raise if the texts differ."""
        texts = {}
        for on in (first, not first):
            texts[on] = self.models[on].generate(
                prompt,
                max_new_tokens=new_tokens,
                min_new_tokens=new_tokens,
                do_sample=False,
                custom_generate=self.specs[on],
            )[0].tolist()
        if texts[True] != texts[False]:
            raise RuntimeError("the texts with and without early fetches differ")
        return {on: spec.report for on, spec in self.specs.items()}

    def run(
        self, warm: Sequence[Any], prompts: Sequence[Any], new_tokens: int, repeats: int
    ) -> tuple[list[list[DecodeReport]], list[list[DecodeReport]]]:
        """Return the reports of each prompt without and with, after two texts to learn from."""
        from specfit_runtime import offload_of

        for prompt in warm:
            self.decode(prompt, new_tokens, False)
        found: dict[bool, list[list[DecodeReport]]] = {on: [] for on in (False, True)}
        for i, prompt in enumerate(prompts):
            both = [self.decode(prompt, new_tokens, bool((i + r) % 2)) for r in range(repeats)]
            for on, reports in found.items():
                reports.append([one[on] for one in both])
        for model in self.models.values():
            offload_of(model).close()
        return found[False], found[True]


def bandwidth_for(load: Any, wait: float, prompts: Sequence[Any], new_tokens: int) -> float:
    """Return the bytes per second at which plain decoding waits for this share of its time."""
    from specfit_runtime import SpecFit, offload_of

    bandwidth = 1e9
    for _ in range(3):
        model = load(link_bandwidth=bandwidth)
        spec = SpecFit(None, policy="ar", prefetch=False)
        for prompt in prompts:
            model.generate(
                prompt, max_new_tokens=new_tokens, do_sample=False, custom_generate=spec
            )
        totals = spec.report.totals
        offload_of(model).close()
        # Some of the transfers hide behind the experts that are there.
        moved = totals.bytes / bandwidth
        hidden = moved - totals.transfer_seconds
        computed = totals.seconds - totals.transfer_seconds
        bandwidth = totals.bytes / (computed * wait / (1.0 - wait) + max(hidden, 0.0))
    return bandwidth


def shipped(options: argparse.Namespace) -> list[Row]:
    """Return the rows of the shipped model."""
    from transformers import AutoTokenizer

    from specfit_runtime import demo_drafter, demo_model, load_offloaded
    from specfit_runtime.demo_files import demo_prompts

    tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)

    def encoded(texts: Sequence[str]) -> list[Any]:
        return [tokenizer(text, return_tensors="pt").input_ids for text in texts]

    warm, prompts = encoded(demo_prompts()[:2]), encoded(heldout_prompts()[: options.prompts])
    rows = []
    for share in options.expert_cache or SHARES:
        load = partial(
            load_offloaded, demo_model(), expert_cache=share, store="ram", dtype="float32"
        )
        for wait in options.wait or WAITS:
            link = bandwidth_for(load, wait, warm, options.new_tokens)
            for policy in options.policy or POLICIES:
                pair = Pair(partial(load, link_bandwidth=link), policy, f"eagle3:{demo_drafter()}")
                reports = pair.run(warm, prompts, options.new_tokens, options.repeats)
                rows.append(Row("shipped", policy, share, *reports))
                print(*rows[-1].cells(), file=sys.stderr)
    return rows


def random_weights(options: argparse.Namespace) -> list[Row]:
    """Return the rows of a model with random weights and the layers of Qwen3-30B-A3B."""
    import torch

    from specfit_runtime import load_offloaded

    rows = []
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(1000, (1, 16), generator=generator) for _ in range(2)]
    with tempfile.TemporaryDirectory() as place:
        folder = write_random_model(Path(place))
        load = partial(load_offloaded, folder, expert_cache=RANDOM_SHARE, store="ram")
        for wait in options.wait or WAITS:
            link = bandwidth_for(load, wait, prompts[:1], 24)
            pair = Pair(partial(load, link_bandwidth=link), "ar", None)
            reports = pair.run(prompts[:1], prompts, options.new_tokens, options.repeats)
            rows.append(Row("random", "ar", RANDOM_SHARE, *reports))
            print(*rows[-1].cells(), file=sys.stderr)
    return rows


def write_random_model(folder: Path) -> Path:
    """Write a few layers of Qwen3-30B-A3B's shape; its experts share one block of noise."""
    import torch
    from safetensors.torch import save_file
    from transformers import Qwen3MoeConfig

    hidden, inner, experts = 2048, 768, 128
    config = Qwen3MoeConfig(
        vocab_size=1000,
        hidden_size=hidden,
        intermediate_size=6144,
        moe_intermediate_size=inner,
        num_hidden_layers=LAYERS,
        num_attention_heads=32,
        num_key_value_heads=4,
        num_experts=experts,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        tie_word_embeddings=False,
        dtype="bfloat16",
        eos_token_id=None,
        bos_token_id=None,
    )
    config.head_dim = 128
    config.architectures = ["Qwen3MoeForCausalLM"]
    config.save_pretrained(folder)
    generator = torch.Generator().manual_seed(1)

    def noise(*shape: int) -> Any:
        drawn = torch.randn(shape, generator=generator) * (1.5 / shape[-1] ** 0.5)
        return drawn.bfloat16()

    ones = partial(torch.ones, dtype=torch.bfloat16)
    top = {
        "model.embed_tokens.weight": noise(1000, hidden),
        "lm_head.weight": noise(1000, hidden),
        "model.norm.weight": ones(hidden),
    }
    block = {"gate": noise(inner, hidden), "up": noise(inner, hidden), "down": noise(hidden, inner)}
    weight_map: dict[str, str] = {}

    def save(name: str, tensors: dict[str, Any]) -> None:
        save_file(tensors, folder / name, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(tensors, name))

    save("top.safetensors", top)
    for layer in range(LAYERS):
        at = f"model.layers.{layer}"
        part = {
            f"{at}.input_layernorm.weight": ones(hidden),
            f"{at}.post_attention_layernorm.weight": ones(hidden),
            f"{at}.self_attn.q_proj.weight": noise(4096, hidden),
            f"{at}.self_attn.k_proj.weight": noise(512, hidden),
            f"{at}.self_attn.v_proj.weight": noise(512, hidden),
            f"{at}.self_attn.o_proj.weight": noise(hidden, 4096),
            f"{at}.self_attn.q_norm.weight": ones(128),
            f"{at}.self_attn.k_norm.weight": ones(128),
            f"{at}.mlp.gate.weight": noise(experts, hidden),
        }
        for expert in range(experts):
            for name, weight in block.items():
                key = f"{at}.mlp.experts.{expert}.{name}_proj.weight"
                part[key] = weight.roll(expert, 0)
        save(f"layer{layer}.safetensors", part)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def report(rows: Sequence[Row], options: argparse.Namespace) -> str:
    """Return the table, the slowest row of all first."""
    head = ["model", "cached", "policy", "speed", "bytes", "wait off", "wait on", "hidden",
            "covered", "right", "nodes"]
    ordered = sorted(rows, key=Row.speed)
    return "\n".join(
        [
            f"{options.prompts} held-out prompts (random weights: 2), {options.new_tokens} new",
            f"tokens each, greedy, one thread; medians of {options.repeats} repeats, with and",
            "without early fetches in turn. The link is emulated; time is that of the processor",
            "and the link.",
            "speed, bytes: with early fetches over without, per token; wait: share of the time",
            "that waits for weights; hidden: estimated waiting that was spared, of the time",
            "without; covered: share of the experts to load that came early; right: share of the",
            "early ones that were used; nodes: verified per pass.",
            "",
            format_table(head, [row.cells() for row in ordered], left=["model", "policy"]),
            "",
        ]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--prompts", type=int, default=6)
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--expert-cache", type=float, action="append", help="0.125, 0.25")
    parser.add_argument("--wait", type=float, action="append", help="0.3, 0.5")
    parser.add_argument("--policy", action="append", help="ar, specfit")
    parser.add_argument("--model", choices=("shipped", "random"), action="append")
    parser.add_argument("--write", action="store_true", help=f"to {OUTPUT.relative_to(ROOT)}")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    models = options.model or ("shipped", "random")
    with processor_clock():
        rows = [
            *(shipped(options) if "shipped" in models else ()),
            *(random_weights(options) if "random" in models else ()),
        ]
    text = report(rows, options)
    if options.write:
        OUTPUT.parent.mkdir(parents=True, exist_ok=True)
        with atomic_write(OUTPUT, "w") as handle:
            handle.write(f"$ python -m benchmarks.overlap\n{text}")
    print(text)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
