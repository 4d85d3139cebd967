"""``specfit train-predictor``: train the network behind the predictor ``learned`` on recordings."""

from __future__ import annotations

import argparse
from typing import Any

from specfit_opt.cli.output import print_json, progress_bar


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "train-predictor",
        help="train a predictor of routing on recorded decoding",
        description="Train a small network that predicts which experts a draft token will use from "
        "the token, the drafter's state and the depth. Recordings come from `specfit trace "
        "--states`; without states, or with a drafter that has none, it learns from the tokens. "
        "Decode with `--predictor learned:DIR`.",
    )
    parser.add_argument(
        "--trace",
        nargs="+",
        required=True,
        metavar="FILE",
        help="traces of one target and drafter, with two prompts or more",
    )
    parser.add_argument(
        "-o", "--output", required=True, metavar="DIR", help="where to: a new folder"
    )
    parser.add_argument(
        "--epochs", type=int, default=4, metavar="N", help="passes over the nodes at most (4)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of all draws (0)")
    parser.add_argument(
        "--embedding", type=int, default=128, metavar="N", help="size of a token's embedding (128)"
    )
    parser.add_argument(
        "--hidden", type=int, default=256, metavar="N", help="size of the hidden layers (256)"
    )
    parser.add_argument(
        "--held-out",
        type=float,
        default=0.1,
        metavar="SHARE",
        help="share of the texts that is judged by and not trained on (0.1)",
    )
    parser.add_argument(
        "--drafter",
        metavar="KIND",
        help="whose states the traces hold, such as eagle3; another one is then refused",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> None:
    """Train, write the checkpoint and say how good it is."""
    from .._extras import require_runtime

    require_runtime()
    from specfit_opt.files import load_trace

    from ..predictor_training import train_predictor
    from ..predictor_training.card import predictor_card
    from ..predictors.routing_network_files import check_new_folder, save_network

    check_new_folder(args.output)
    traces = [load_trace(path) for path in args.trace]
    with progress_bar("training", unit="nodes") as progress:
        training = train_predictor(
            traces,
            epochs=args.epochs,
            seed=args.seed,
            embedding_size=args.embedding,
            hidden_size=args.hidden,
            held_out=args.held_out,
            progress=progress,
        )
    figures = training.to_dict()
    card = predictor_card(training, drafter=args.drafter)
    save_network(
        args.output, training.network, card=card, drafter=args.drafter, training=figures
    )
    if args.json:
        print_json({"folder": args.output, **figures})
        return
    depths = ", ".join(f"{d}: {r:.1%}" for d, r in training.recall_by_depth.items())
    print(
        f"{args.output}: trained on {training.nodes} nodes in {len(training.train_loss)} epochs; "
        f"on held-out texts {training.recall.mean():.1%} of the experts are predicted "
        f"(by depth {depths})"
    )
