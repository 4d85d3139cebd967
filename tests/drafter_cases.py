"""One drafter of every kind, and of every way a kind may work, for one tiny target."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tiny_drafters import tiny_eagle3, tiny_lm
from tiny_models import tiny_checkpoint
from transformers import PreTrainedModel

from specfit_runtime.drafters import Drafter, DraftLevel, make_drafter

_VOCAB = 160

_Build = Callable[[Path, PreTrainedModel], str]

#: By a name of its own: what to pass to `make_drafter`, after the folder was written.
CASES: dict[str, _Build] = {
    "eagle3-specforge": lambda folder, target: f"eagle3:{tiny_eagle3(folder, target.config)}",
    "eagle3-speculators": lambda folder, target: (
        f"eagle3:{tiny_eagle3(folder, target.config, style='speculators', draft_vocab_size=None)}"
    ),
    "lm-dense": lambda folder, target: f"lm:{tiny_lm(folder, _VOCAB)}",
    "lm-moe": lambda folder, target: f"lm:{tiny_checkpoint('qwen3_moe', folder, seed=3)}",
    "lm-sliding": lambda folder, target: f"lm:{tiny_checkpoint('mixtral-sliding', folder)}",
    "lm-two-layer-types": lambda folder, target: f"lm:{tiny_checkpoint('gpt_oss', folder)}",
    "prompt-lookup": lambda folder, target: "prompt-lookup",
}


def build(case: str, folder: Path, target: PreTrainedModel) -> Drafter:
    """Return a drafter of a case, bound to the target."""
    drafter = make_drafter(CASES[case](folder, target))
    drafter.bind(target)
    return drafter


@torch.no_grad()
def features_of(
    target: PreTrainedModel, tokens: Sequence[int], layers: Sequence[int]
) -> torch.Tensor | None:
    """Return [len(tokens), F, H]: what the target hands to a drafter that reads these layers."""
    if not layers:
        return None
    states = target(torch.tensor([list(tokens)]), output_hidden_states=True).hidden_states
    return torch.stack([states[i][0] for i in layers], dim=1)


@dataclass(frozen=True)
class Text:
    """A text and the target's states at all of it."""

    tokens: list[int]
    features: torch.Tensor | None

    @classmethod
    def of(cls, target: PreTrainedModel, drafter: Drafter, tokens: Sequence[int]) -> Text:
        """Run the target over the text."""
        tokens = list(tokens)
        return cls(tokens, features_of(target, tokens, drafter.feature_layers))

    def start(self, drafter: Drafter, length: int) -> None:
        """Start the drafter with the first ``length`` tokens."""
        states = None if self.features is None else self.features[: length - 1]
        drafter.start(self.tokens[:length], states)

    def commit(self, drafter: Drafter, begin: int, end: int) -> None:
        """Commit tokens ``begin`` to ``end`` (excluded)."""
        states = None if self.features is None else self.features[begin - 1 : end - 1]
        drafter.commit(self.tokens[begin:end], states)


def draft(drafter: Drafter, levels: int, top_k: int = 3, width: int = 3) -> list[DraftLevel]:
    """Begin a tree and return its levels, fewer if there is nothing more to draft."""
    drafter.begin()
    found = []
    for _ in range(levels):
        level = drafter.level(top_k, width)
        if level is None:
            break
        found.append(level)
    return found


def whole_tree(levels: Sequence[DraftLevel]) -> tuple[list[int], list[int], list[float]]:
    """Return parent, token and probability of all nodes; those of the root are -1, -1 and 1."""
    parent, token, prob = [-1], [-1], [1.0]
    for level in levels:
        parent += level.parent.tolist()
        token += level.token.tolist()
        prob += level.prob.tolist()
    return parent, token, prob


def path_to(node: int, parent: Sequence[int], token: Sequence[int]) -> list[int]:
    """Return the tokens from below the root down to a node."""
    path: list[int] = []
    while node > 0:
        path.append(token[node])
        node = parent[node]
    return path[::-1]
