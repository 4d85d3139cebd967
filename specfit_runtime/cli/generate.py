"""``specfit generate``: decode a text with an offloaded model, or write a selection instance.

The word is older than the runtime: with KIND it writes an instance, as it always did.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from typing import Any, Literal

from specfit_opt.checks import Whole
from specfit_opt.cli import generate as instances
from specfit_opt.cli.output import print_json
from specfit_opt.policies import POLICIES, make_policy

from ..errors import InvalidInputError
from ..predictors import PREDICTORS
from .options import (
    add_drafter_option,
    add_model_options,
    check_output,
    load_model,
    load_tokenizer,
    named,
    warnings_as_notes,
)
from .prompts import one_prompt

_DESCRIPTION = """\
Decode a text with a model whose experts are brought in as they are needed. The text goes to
standard output as it comes, a summary to standard error. With KIND, write a generated selection
instance to a file instead; the same arguments give the same one."""

_MAX_NEW_TOKENS = 128
#: No text is that long.
_MOST_TOKENS = 2**31 - 1
_PREFETCH: dict[str, bool | Literal["auto"]] = {"auto": "auto", "on": True, "off": False}


def add_parser(commands: Any) -> None:
    """Add the subcommand to ``commands``."""
    parser = commands.add_parser(
        "generate",
        help="decode a text; with KIND, write a selection instance",
        usage="specfit generate [--model DIR] --prompt TEXT [options]\n"
        "       specfit generate KIND -o FILE [options]",
        description=_DESCRIPTION,
        epilog=instances.kinds_table(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    decoding = parser.add_argument_group("decoding a text")
    _add_decoding(decoding)
    both = parser.add_argument_group("either")
    both.add_argument("--seed", type=int, metavar="N", help="of the random numbers (0)")
    both.add_argument(
        "--top-k",
        type=int,
        metavar="K",
        help="decoding: draw among the K most probable tokens; instance: experts per token and "
        "layer",
    )
    both.add_argument("--json", action="store_true", help="print JSON")
    instance = parser.add_argument_group("writing an instance")
    instance.add_argument("kind", nargs="?", metavar="KIND", help="one of the kinds below")
    instance.add_argument("-o", "--output", metavar="FILE", help="where to: .npz or .json")
    instances.add_kind_options(instance, leave_out=("top-k",))
    parser.set_defaults(run=partial(run, parser, decoding, instance))


def _add_decoding(group: argparse._ArgumentGroup) -> None:
    prompt = group.add_mutually_exclusive_group()
    prompt.add_argument("--prompt", metavar="TEXT", help="the text to go on from")
    prompt.add_argument(
        "--prompt-file", metavar="FILE", help="a file with that text; - is standard input"
    )
    group.add_argument(
        "--chat",
        action="store_true",
        default=None,
        help="make the prompt a user's message, by the tokenizer's chat template",
    )
    group.add_argument(
        "--max-new-tokens",
        type=int,
        metavar="N",
        help=f"tokens to decode at most ({_MAX_NEW_TOKENS})",
    )
    add_model_options(group)
    add_drafter_option(group, "default with the shipped model: its EAGLE-3 head")
    group.add_argument(
        "--policy",
        metavar="NAME",
        help=f"what is verified: {', '.join(POLICIES)}; K and N are numbers (specfit)",
    )
    group.add_argument(
        "--predictor",
        metavar="NAME",
        help="what predicts the experts of draft tokens: "
        f"{', '.join(kind.usage for kind in PREDICTORS.values())} (frequency)",
    )
    group.add_argument(
        "--prefetch",
        choices=_PREFETCH,
        help="bring predicted experts in before the pass asks for them (auto: while that pays)",
    )
    group.add_argument(
        "--profile", metavar="FILE", help="what things cost here, as specfit calibrate measured it"
    )
    group.add_argument(
        "--temperature",
        type=float,
        metavar="T",
        help="draw tokens at this temperature (0: take the most probable one, the default)",
    )
    group.add_argument(
        "--top-p", type=float, metavar="P", help="draw among the tokens that hold this probability"
    )
    group.add_argument(
        "--repetition-penalty",
        type=float,
        metavar="X",
        help="above 1, tokens that were there become less probable; default: the checkpoint's",
    )
    group.add_argument(
        "--ignore-eos",
        action="store_true",
        default=None,
        help="go on after the end of the text, to --max-new-tokens",
    )
    group.add_argument(
        "--report", metavar="FILE", help="write every cycle of the decode as JSON lines"
    )


def run(
    parser: argparse.ArgumentParser,
    decoding: argparse._ArgumentGroup,
    instance: argparse._ArgumentGroup,
    args: argparse.Namespace,
) -> None:
    """Do what the arguments are for: those of one group alone may be given."""
    if args.kind is None:
        given = _given(instance, args)
        if given and args.prompt is None and args.prompt_file is None:
            parser.error(f"KIND is missing: {given[0]} is an option of writing an instance")
        if given:
            parser.error(
                f"{given[0]} is an option of writing an instance, which a prompt is not: leave it "
                "out, or say KIND and no --prompt"
            )
        if args.prompt is None and args.prompt_file is None:
            parser.error(
                "give --prompt TEXT or --prompt-file FILE to decode a text, or KIND and -o FILE to "
                "write an instance"
            )
        with warnings_as_notes():
            _decode(parser, args)
        return
    given = _given(decoding, args)
    if given:
        parser.error(
            f"{given[0]} is an option of decoding a text, but KIND ({args.kind}) writes an "
            "instance: leave one of them out"
        )
    if args.output is None:
        parser.error(
            "the following arguments are required with KIND: -o/--output (to decode a text, give "
            "it as --prompt TEXT)"
        )
    instances.run(args)


def _given(group: argparse._ArgumentGroup, args: argparse.Namespace) -> list[str]:
    """Return the options of ``group`` that were given; their defaults are None."""
    return [
        action.option_strings[-1] if action.option_strings else str(action.metavar)
        for action in group._group_actions
        if getattr(args, action.dest) is not None
    ]


def _decode(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
    sampling = args.temperature is not None and args.temperature != 0.0
    for option, value in (("--top-p", args.top_p), ("--top-k", args.top_k)):
        if value is not None and not sampling:
            parser.error(f"{option} is about drawing tokens: give --temperature as well")
    if args.max_new_tokens is not None:
        Whole(1, _MOST_TOKENS)(args.max_new_tokens, "--max-new-tokens")
    if args.temperature is not None and not 0.0 <= args.temperature < float("inf"):
        raise InvalidInputError(f"--temperature {args.temperature}: must be finite and >= 0")
    check_output(args.report, "--report")
    prompt = one_prompt(args.prompt, args.prompt_file)
    from .._extras import require_runtime

    require_runtime()
    import transformers

    from ..speculate import SpecFit

    # What can be refused without the model is refused before it is loaded.
    policy = make_policy(args.policy or "specfit")
    path, drafter = named(args, needs_drafter=policy.drafts)
    spec = SpecFit(
        drafter,
        policy=policy,
        predictor=args.predictor or "frequency",
        profile=args.profile,
        prefetch=_PREFETCH[args.prefetch or "off"],
    )
    tokenizer = load_tokenizer(path)
    model = load_model(args, path)
    inputs = _encode(tokenizer, prompt, bool(args.chat)).to(model.device)
    model.generation_config = _generation_config(model.generation_config, args, sampling)
    streamer = None
    if not args.json:
        streamer = transformers.TextStreamer(
            tokenizer, skip_prompt=True, skip_special_tokens=True
        )
    transformers.set_seed(args.seed or 0)
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
    config.max_new_tokens = args.max_new_tokens or _MAX_NEW_TOKENS  # 0 was refused
    config.max_length = None
    return config
