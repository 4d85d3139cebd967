"""``specfit demo``: the shipped model, plain decoding beside specfit on the same prompts."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from specfit_opt.cli.output import note, print_json
from specfit_opt.policies import POLICIES, make_policy
from specfit_opt.text import byte_size, figure, format_table, seconds

from ..demo_files import demo_drafter, demo_model, demo_prompts
from ..errors import InvalidInputError, SpecfitError
from .options import (
    STORES,
    link_bandwidth,
    load_tokenizer,
    no_progress_bars,
    warnings_as_notes,
)

if TYPE_CHECKING:
    from ..report import DecodeReport

_PLAIN = "ar"

#: GB/s: a missing expert of the shipped model then takes 1.2 ms. Its 25 kB would otherwise come
#: from the system's page cache for next to nothing, which the experts of no large model do.
_LINK = 0.02


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "demo",
        help="decode with the shipped model, plainly and with specfit",
        description="Decode the same prompts greedily in float32 with the shipped model, its "
        "experts offloaded, plainly and with specfit. Every policy's token ids are compared with "
        "those of the stock model, which has all its weights in memory; a difference is an error. "
        "Each policy has a model and a cache of its own, empty at first.",
    )
    parser.add_argument(
        "--policy",
        action="append",
        metavar="NAME",
        help="what to decode with besides plain decoding: "
        f"{', '.join(name for name in POLICIES if name != _PLAIN)}; may be repeated (specfit)",
    )
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a prompt; may be repeated; default: four"
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="tokens after each prompt (64)"
    )
    parser.add_argument(
        "--expert-cache",
        default="50%",
        metavar="SIZE",
        help="experts kept in memory: a share, bytes, or experts per layer (50%%)",
    )
    parser.add_argument(
        "--store", choices=STORES, default="disk", help="where the other experts wait (disk)"
    )
    parser.add_argument(
        "--emulate-link",
        type=float,
        default=_LINK,
        metavar="GB/S",
        help="make every transfer take its bytes over this bandwidth, so that bringing experts in "
        f"takes time, as it does for large models; 0: no link is emulated ({_LINK:g})",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


@dataclass(frozen=True, eq=False)
class _Decoded:
    """What one policy made of the prompts."""

    tokens: list[list[int]]
    report: DecodeReport


def run(args: argparse.Namespace) -> None:
    """Decode with every policy, compare the tokens, print what was moved."""
    if args.max_new_tokens < 2:
        raise InvalidInputError(
            f"--max-new-tokens {args.max_new_tokens}: must be at least 2; the first token comes "
            "from the prompt, which every policy reads alike"
        )
    prompts = list(args.prompt or demo_prompts())
    policies = list(dict.fromkeys([_PLAIN, *(args.policy or ["specfit"])]))
    bandwidth = link_bandwidth(args.emulate_link or None)
    from .._extras import require_runtime

    require_runtime()
    with warnings_as_notes():
        _compare(args, prompts, policies, bandwidth)


def _compare(
    args: argparse.Namespace, prompts: list[str], policies: list[str], bandwidth: float | None
) -> None:
    import torch


    for name in policies:
        make_policy(name)  # refuses an unknown one before anything is decoded
    torch.set_num_threads(1)  # the model is so small that more would only wait for each other
    no_progress_bars()
    tokenizer = load_tokenizer(str(demo_model()))
    inputs = [tokenizer(prompt, return_tensors="pt") for prompt in prompts]
    for prompt, encoded in zip(prompts, inputs, strict=True):
        if not encoded["input_ids"].shape[1]:
            raise InvalidInputError(f"--prompt {prompt!r} has no token; give a text")
    expected = _stock(inputs, args.max_new_tokens)
    if not args.json:
        _print_texts(tokenizer, prompts, expected)
    options = {
        "expert_cache": args.expert_cache,
        "store": args.store,
        "link_bandwidth": bandwidth,
    }
    decoded = _decode(policies, inputs, args.max_new_tokens, options)
    differing = [name for name, found in decoded.items() if found.tokens != expected]
    if args.json:
        print_json(
            {
                "prompts": prompts,
                "texts": [tokenizer.decode(ids) for ids in expected],
                "token_ids": expected,
                "equal": not differing,
                "policies": [
                    {
                        "policy": name,
                        "equal": name not in differing,
                        **{k: v for k, v in found.report.to_dict().items() if k != "cycles"},
                    }
                    for name, found in decoded.items()
                ],
            }
        )
    else:
        _print_table({name: found.report for name, found in decoded.items()})
    if differing:
        name = differing[0]
        raise SpecfitError(
            f"policy {name} decoded other tokens than the stock model: "
            + _first_difference(decoded[name].tokens, expected)
        )
    if not args.json:
        print(
            f"\nThe token ids of {' and '.join(policies)} equal those of the stock model: "
            f"{sum(map(len, expected))} tokens after {len(prompts)} prompts, greedy, float32."
        )


def _stock(inputs: list[Any], max_new_tokens: int) -> list[list[int]]:
    """Return what the stock model with all its weights in memory decodes."""
    import torch
    from transformers import AutoModelForCausalLM

    from ..alignment import align_weights

    model = align_weights(
        AutoModelForCausalLM.from_pretrained(
            demo_model(), dtype=torch.float32, trust_remote_code=False
        )
    )
    model.generation_config = _greedy(model.generation_config, max_new_tokens)
    return [_new_tokens(model.generate(**encoded), encoded) for encoded in inputs]


def _decode(
    policies: list[str], inputs: list[Any], max_new_tokens: int, options: dict[str, Any]
) -> dict[str, _Decoded]:
    """Decode every prompt with one policy after the other, each on a model and a cache of its own.

    In turns, so that a machine that slows down meanwhile does so for all of them.
    """
    import torch

    from ..load import load_offloaded
    from ..offload import offload_of
    from ..report import DecodeReport
    from ..speculate import SpecFit

    tokens: dict[str, list[list[int]]] = {policy: [] for policy in policies}
    reports: dict[str, list[DecodeReport]] = {policy: [] for policy in policies}
    with ExitStack() as loaded:
        models = {}
        for policy in policies:
            models[policy] = load_offloaded(demo_model(), dtype=torch.float32, **options)
            loaded.enter_context(offload_of(models[policy]))
        specs = {policy: SpecFit(f"eagle3:{demo_drafter()}", policy=policy) for policy in policies}
        for encoded in inputs:
            for policy, model in models.items():
                model.generation_config = _greedy(model.generation_config, max_new_tokens)
                output = model.generate(**encoded, custom_generate=specs[policy])
                tokens[policy].append(_new_tokens(output, encoded))
                reports[policy].append(specs[policy].report)
    return {
        policy: _Decoded(tokens[policy], DecodeReport.merge(reports[policy]))
        for policy in policies
    }


def _greedy(stock: Any, max_new_tokens: int) -> Any:
    import copy

    config = copy.deepcopy(stock)
    config.do_sample = False
    config.temperature = config.top_k = config.top_p = None
    config.max_new_tokens, config.max_length = max_new_tokens, None
    return config


def _new_tokens(output: Any, encoded: Any) -> list[int]:
    tokens: list[int] = output[0, encoded["input_ids"].shape[1] :].tolist()
    return tokens


def _first_difference(found: list[list[int]], expected: list[list[int]]) -> str:
    for i, (mine, stock) in enumerate(zip(found, expected, strict=True)):
        if mine != stock:
            pairs = enumerate(zip(mine, stock, strict=False))
            at = next((t for t, (a, b) in pairs if a != b), min(len(mine), len(stock)))
            return f"prompt {i}, token {at} ({len(mine)} tokens, stock {len(stock)})"
    raise AssertionError("nothing differs")


def _print_texts(tokenizer: Any, prompts: list[str], expected: list[list[int]]) -> None:
    note("| marks where the model takes over; it writes pastiche and knows nothing")
    for prompt, ids in zip(prompts, expected, strict=True):
        print(f"{prompt} |{tokenizer.decode(ids, skip_special_tokens=True)}\n")


def _print_table(reports: dict[str, DecodeReport]) -> None:
    first = next(iter(reports.values()))
    if first.link_bandwidth is not None:
        print(
            f"emulated link of {byte_size(first.link_bandwidth)}/s: each transfer takes its bytes "
            "over this bandwidth, whatever the machine could do"
        )
    slots = sorted(set(first.slots))
    print(
        f"{first.n_layers} layers of {first.n_experts} experts, {first.top_k} per token; "
        f"{' to '.join(map(str, slots[:: max(1, len(slots) - 1)]))} per layer cached "
        f"({first.cache_policy}); the others: {first.store}. Prefill not counted."
    )
    header = [
        "policy", "tokens/s", "tokens/pass", "nodes/pass", "experts/token", "moved/token",
        "bytes/token", "hits", "pass", "draft", "search", "transfer", "verify", "other",
    ]  # fmt: skip
    rows = []
    for name, report in reports.items():
        totals = report.totals
        rows.append(
            [
                name,
                figure(totals.tokens_per_second),
                f"{totals.tokens_per_pass:.3f}",
                f"{totals.verified_per_pass:.2f}",
                f"{totals.experts_per_token:.1f}",
                f"{totals.moved_per_token:.1f}",
                byte_size(totals.bytes_per_token),
                f"{totals.hit_rate:.1%}",
                seconds(totals.seconds / max(totals.passes, 1)),
                *(f"{totals.share(p):.1%}" for p in header[-5:]),
            ]
        )
    print(format_table(header, rows))
