"""Record the shipped model's own branches: sets of held-out texts, for choosing and for judging.

    python -m benchmarks.record_branches --out FOLDER

A set is a text of each of five kinds: Austen, Shakespeare, the Factbook, SQLite's documentation and
the questions of MT-Bench, of which the model has seen nothing like. The first four are passages of
documents that were held out of all training. Four sets are there to choose constants by and eight
to judge by; they share no passage. Every text is continued twice, greedily and at temperature 1:
greedily so small a model soon repeats itself, and nearly all that is drafted is accepted; at
temperature 1 half is. At every position the whole pool of six levels is verified, so that rejected
nodes have the routing that the target gave them.

FOLDER/choose/greedy, FOLDER/choose/sampled, FOLDER/judge/greedy and FOLDER/judge/sampled get a
trace for each set, 18 MB in all; what is there already is kept. A quarter of an hour on one core.

The prompts are in ``benchmarks/branch_prompts.jsonl``, with their licences. A change of the model,
its drafter or its prompts makes other recordings; the same versions of PyTorch on the same
processor make the same ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from specfit_opt.files import Trace

# What runs a model is imported where it is used: asv imports every module here, also where only the
# packages of its own benchmarks are installed.

PROMPTS = Path(__file__).resolve().parent / "branch_prompts.jsonl"
#: What the sets are for.
PURPOSES = ("choose", "judge")
#: How the texts go on: by the temperature at which tokens are drawn.
DECODINGS = {"greedy": 0.0, "sampled": 1.0}
NEW_TOKENS = 96
#: The pool of the traces beside which these recordings stand: as deep as any policy drafts.
LEVELS, TOP_K, WIDTH = 6, 4, 4


@dataclass(frozen=True)
class PromptSet:
    """The prompts that are recorded as one trace.

    Attributes
    ----------
    purpose : str
        ``"choose"`` or ``"judge"``.
    decoding : str
        ``"greedy"`` or ``"sampled"``.
    name : str
        The purpose and a number.
    prompts : tuple of str
        One of each kind of text.
    """

    purpose: str
    decoding: str
    name: str
    prompts: tuple[str, ...]

    def path(self, folder: Path) -> Path:
        """Return where the recording lies."""
        return folder / self.purpose / self.decoding / f"{self.name}.npz"


def prompt_sets(*purposes: str) -> list[PromptSet]:
    """Return all sets of these purposes, by purpose and decoding."""
    texts: dict[str, list[str]] = {}
    for line in PROMPTS.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        texts.setdefault(row["set"], []).append(row["prompt"])
    return [
        PromptSet(purpose, decoding, name, tuple(own))
        for purpose in purposes
        for decoding in DECODINGS
        for name, own in texts.items()
        if name.startswith(purpose)
    ]


def recorded_sets(folder: Path, purpose: str, decoding: str) -> list[Trace]:
    """Return the recorded sets of a purpose and decoding.

    Raises
    ------
    OSError
        If one is missing.
    """
    from specfit_opt.files import load_trace

    own = [each for each in prompt_sets(purpose) if each.decoding == decoding]
    return [load_trace(each.path(folder)) for each in own]


def record(folder: Path, sets: Sequence[PromptSet]) -> None:
    """Record the sets that are not in the folder yet; say on stderr how far it is."""
    missing = [each for each in sets if not each.path(folder).exists()]
    if not missing:
        return
    from transformers import AutoTokenizer

    from specfit_opt.files import save_trace
    from specfit_runtime import demo_drafter, demo_model, load_offloaded, offload_of
    from specfit_runtime.drafters import make_drafter
    from specfit_runtime.tracing import record_trace

    tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)
    model = load_offloaded(demo_model(), store="ram", expert_cache=1.0, dtype="float32")
    begin = time.monotonic()
    with offload_of(model):
        for each in missing:
            trace = record_trace(
                model,
                make_drafter(f"eagle3:{demo_drafter()}"),
                [tokenizer(prompt)["input_ids"] for prompt in each.prompts],
                max_new_tokens=NEW_TOKENS,
                levels=LEVELS,
                top_k=TOP_K,
                width=WIDTH,
                ignore_eos=True,
                temperature=DECODINGS[each.decoding],
                seed=1000 * int(each.name.rpartition("-")[2]),
                name=f"{each.name}, {each.decoding}",
            )
            path = each.path(folder)
            path.parent.mkdir(parents=True, exist_ok=True)
            save_trace(path, trace)
            print(f"{path}: {time.monotonic() - begin:.0f} s so far", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder of the recordings")
    options = parser.parse_args()
    import torch

    torch.set_num_threads(1)
    record(options.out, prompt_sets(*PURPOSES))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
