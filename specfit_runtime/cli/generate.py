"""``specfit generate``: decode a text with an offloaded model."""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any

from specfit_opt.checks import Whole
from specfit_opt.cli.output import print_json
from specfit_opt.policies import POLICIES, make_policy

from ..errors import InvalidInputError
from ..predictors import PREDICTORS
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
from .prompts import one_prompt

#: No text is longer.
_MOST_TOKENS = 2**31 - 1


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "generate",
        help="decode a text",
        description="Decode a text with a model whose experts are brought in as they are needed. "
        "The text goes to standard output as it comes, a summary to standard error.",
    )
    _add_text_options(parser)
    add_model_options(parser)
    add_drafter_option(parser, "default with the shipped model: its EAGLE-3 head")
    _add_choice_options(parser)
    _add_drawing_options(parser)
    parser.add_argument(
        "--report", metavar="FILE", help="write every cycle of the decode as JSON lines"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=partial(run, parser))


def _add_text_options(parser: argparse.ArgumentParser) -> None:
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="the text to go on from")
    prompt.add_argument(
        "--prompt-file", metavar="FILE", help="a file with that text; - is standard input"
    )
    parser.add_argument(
        "--chat",
        action="store_true",
        help="make the prompt a user's message, by the tokenizer's chat template",
    )
    parser.add_argument(
        "--max-new-tokens",
        type=int,
        default=128,
        metavar="N",
        help="tokens to decode at most (128)",
    )
    parser.add_argument(
        "--ignore-eos",
        action="store_true",
        help="go on after the end of the text, to --max-new-tokens",
    )


def _add_choice_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--policy",
        default="specfit",
        metavar="NAME",
        help=f"what is verified: {', '.join(POLICIES)}; K and N are numbers (specfit)",
    )
    parser.add_argument(
        "--predictor",
        default="frequency",
        metavar="NAME",
        help="what predicts the experts of draft tokens: "
        f"{', '.join(kind.usage for kind in PREDICTORS.values())} (frequency)",
    )
    parser.add_argument(
        "--no-prefetch",
        action="store_true",
        help="fetch no experts early, before their layer asks for them",
    )
    parser.add_argument(
        "--profile", metavar="FILE", help="what things cost here, as specfit calibrate measured it"
    )


    parser.add_argument(
        "--no-state",
        action="store_true",
        help="begin without what was learned in earlier runs, and keep nothing; it is kept in "
        "$XDG_STATE_HOME/specfit, or ~/.local/state/specfit",
    )


def _add_drawing_options(parser: argparse.ArgumentParser) -> None:
    add_draw_options(parser)
    parser.add_argument(
        "--top-k", type=int, metavar="K", help="draw among the K most probable tokens"
    )
    parser.add_argument(
        "--top-p", type=float, metavar="P", help="draw among the tokens that hold this probability"
    )
    parser.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="above 1, tokens that were there become less probable; default: the checkpoint's",
    )


def run(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    """Decode, and print the text or the document."""
    with warnings_as_notes():
        _decode(parser, args)


def _decode(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    sampling = args.temperature != 0.0
    for option, value in (("--top-p", args.top_p), ("--top-k", args.top_k)):
        if value is not None and not sampling:
            parser.error(f"{option} is about drawing tokens: give --temperature as well")
    Whole(1, _MOST_TOKENS)(args.max_new_tokens, "--max-new-tokens")
    if not 0.0 <= args.temperature < float("inf"):
        raise InvalidInputError(f"--temperature {args.temperature}: must be finite and >= 0")
    check_output(args.report, "--report")
    prompt = one_prompt(args.prompt, args.prompt_file)
    from .._extras import require_runtime

    require_runtime()
    import transformers

    from ..speculate import SpecFit

    # What can be refused without the model is refused before it is loaded.
    policy = make_policy(args.policy)
    path, drafter = named(args, needs_drafter=policy.drafts)
    spec = SpecFit(
        drafter,
        policy=policy,
        predictor=args.predictor,
        profile=args.profile,
        prefetch=not args.no_prefetch,
        state=not args.no_state,
    )
    tokenizer = load_tokenizer(path)
    model = load_model(args, path)
    inputs = _encode(tokenizer, prompt, args.chat).to(model.device)
    model.generation_config = _generation_config(model.generation_config, args, sampling)
    streamer = None
    if not args.json:
        streamer = transformers.TextStreamer(
            tokenizer, skip_prompt=True, skip_special_tokens=True
        )
    transformers.set_seed(args.seed)
    output = model.generate(**inputs, custom_generate=spec, streamer=streamer)
    tokens = output[0, inputs["input_ids"].shape[1] :].tolist()
    report = spec.report
    if args.report is not None:
        report.write_jsonl(args.report)
    if args.json:
        text = tokenizer.decode(tokens, skip_special_tokens=True)
        print_json({"text": text, "token_ids": tokens, "report": report.to_dict()})
        return
    sys.stdout.flush()  # before the summary, where both go to one terminal
    print(report.summary(), file=sys.stderr)


def _encode(tokenizer: Any, prompt: str, chat: bool) -> Any:
    if not chat:
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
    elif tokenizer.chat_template is None:
        raise InvalidInputError(
            "--chat: the model's tokenizer has no chat template; leave --chat out"
        )
    else:
        try:
            inputs = tokenizer.apply_chat_template(
                [{"role": "user", "content": prompt}],
                add_generation_prompt=True,
                return_tensors="pt",
                return_dict=True,
            )
        except Exception as error:
            # A template is a program, which Jinja runs shut off from Python.
            raise InvalidInputError(
                f"--chat: the chat template of the model's tokenizer fails: {error!r}"
            ) from error
    if not inputs["input_ids"].shape[1]:
        raise InvalidInputError("the prompt has no token; give a text")
    return inputs


def _generation_config(stock: Any, args: argparse.Namespace, sampling: bool) -> Any:
    """Return the checkpoint's generation config with what the options say instead.

    Greedy decoding is the default whatever the checkpoint says, and then the checkpoint's settings
    of drawing are left out, since they would have no effect.
    """
    import copy

    config = copy.deepcopy(stock)
    config.do_sample = sampling
    for name in ("temperature", "top_p", "top_k"):
        value = getattr(args, name)
        if not sampling:
            setattr(config, name, None)
        elif value is not None:
            setattr(config, name, value)
    if args.repetition_penalty is not None:
        config.repetition_penalty = args.repetition_penalty
    if args.ignore_eos:
        config.eos_token_id = None
    config.max_new_tokens = args.max_new_tokens
    config.max_length = None
    return config
