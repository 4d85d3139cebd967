"""``specfit trace``: record real decoding, so that every policy can be replayed on it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from specfit_opt.cli.output import print_json, progress_bar

from ..errors import InvalidInputError
from .options import (
    add_drafter_option,
    add_draw_options,
    add_model_options,
    check_output,
    load_model,
    load_tokenizer,
    named,
    warnings_as_notes,
)
from .prompts import many_prompts


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "trace",
        help="record decoding with its draft trees, for specfit replay",
        description="Decode prompts. At every position the drafter grows its whole pool, "
        "the target verifies it, and probabilities, acceptance and the experts of every node are "
        "recorded. `specfit replay FILE` walks the recording under any policy, cache and machine.",
    )
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a prompt; may be repeated"
    )
    parser.add_argument(
        "--prompt-file",
        metavar="FILE",
        help='one prompt a line, as text or as JSON with the key "prompt"; - is standard input',
    )
    parser.add_argument(
        "--max-new-tokens", type=int, default=64, metavar="N", help="tokens after each prompt (64)"
    )
    parser.add_argument("--ignore-eos", action="store_true", help="go on after the end of a text")
    parser.add_argument("--levels", type=int, default=5, metavar="N", help="levels of a pool (5)")
    parser.add_argument(
        "--top-k", type=int, default=4, metavar="N", help="children of an expanded node (4)"
    )
    parser.add_argument(
        "--width", type=int, default=4, metavar="N", help="nodes that a level expands (4)"
    )
    add_draw_options(parser)
    parser.add_argument(
        "--states",
        action="store_true",
        help="record the drafter's hidden states too, for specfit train-predictor",
    )
    add_model_options(parser)
    add_drafter_option(parser, "default with the shipped model: its EAGLE-3 head")
    parser.add_argument(
        "-o", "--output", required=True, metavar="FILE", help="where to: a trace, .npz"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Record, write and say what was recorded."""
    if Path(args.output).suffix.lower() != ".npz":
        raise InvalidInputError(f"{args.output}: a trace file must end in .npz")
    check_output(args.output, "--output")
    prompts = many_prompts(args.prompt, args.prompt_file)
    from .._extras import require_runtime

    require_runtime()
    with warnings_as_notes():
        _record(args, prompts)


def _record(args: argparse.Namespace, prompts: list[str]) -> None:
    from specfit_opt.files import save_trace

    from ..drafters import make_drafter
    from ..tracing import record_trace

    path, drafter_name = named(args, needs_drafter=True)
    assert drafter_name is not None
    drafter = make_drafter(drafter_name)
    tokenizer = load_tokenizer(path)
    ids = [tokenizer(prompt)["input_ids"] for prompt in prompts]
    model = load_model(args, path)
    with progress_bar("recording") as progress:
        trace = record_trace(
            model,
            drafter,
            ids,
            max_new_tokens=args.max_new_tokens,
            levels=args.levels,
            top_k=args.top_k,
            width=args.width,
            ignore_eos=args.ignore_eos,
            states=args.states,
            temperature=args.temperature,
            seed=args.seed,
            name=Path(args.output).stem,
            progress=progress,
        )
    save_trace(args.output, trace)
    n = len(trace.prompts)
    drafted = trace.n_nodes - trace.n_cycles
    # What a policy that verifies every pool would emit per pass, at each position taken alone.
    emitted = float(trace.accepted.sum()) / trace.n_cycles
    if args.json:
        print_json(
            {
                "file": args.output,
                "prompts": n,
                "positions": trace.n_cycles,
                "nodes": trace.n_nodes,
                "n_layers": trace.n_layers,
                "n_experts": trace.n_experts,
                "expert_bytes": trace.expert_bytes,
                "state_size": None if trace.states is None else trace.states.shape[1],
                "tokens_per_full_pass": emitted,
            }
        )
        return
    print(
        f"{args.output}: {n} prompt{'s' * (n > 1)}, {trace.n_cycles} positions, "
        f"{drafted / trace.n_cycles:.1f} drafted nodes each, {trace.n_layers} layers of "
        f"{trace.n_experts} experts; verifying all of a pool emits {emitted:.3f} tokens"
        + ("" if trace.states is None else f"; with states of size {trace.states.shape[1]}")
    )
