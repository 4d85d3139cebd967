"""What a drafter is: it grows a tree of candidate tokens level by level.

Drafting can stop after any level, so a policy decides how much of it is worth its time.
"""

from __future__ import annotations

import warnings
import weakref
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specfit_opt.policies import DraftLevel

from ..errors import DrafterError, InvalidInputError

__all__ = ["Candidates", "DraftLevel", "Drafter"]

#: After this many tries the measured acceptance says whether a drafter fits its target at all.
ACCEPTANCE_TRIES = 64
#: Acceptance below this share is taken for a drafter that does not fit. Random drafts of a
#: vocabulary of thousands are accepted far less often, working drafters far more.
LOW_ACCEPTANCE = 0.05


@dataclass(frozen=True, eq=False)
class Candidates:
    """The children that a drafter gives to the nodes it expands.

    Attributes
    ----------
    row : ndarray of int64, shape (m,)
        Which of the expanded nodes is the parent, ascending.
    token : ndarray of int64, shape (m,)
        Ids in the target's vocabulary.
    prob : ndarray of float64, shape (m,)
        Probability after the parent.
    states : Tensor, shape (m, H_d), or None
        The drafter's hidden state at the parent, as the output layer reads it; None from a drafter
        without states.
    """

    row: NDArray[np.int64]
    token: NDArray[np.int64]
    prob: NDArray[np.float64]
    states: Tensor | None = None

    @classmethod
    def none(cls) -> Candidates:
        """Return no candidates."""
        return cls(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))


class Drafter(ABC):
    """Grows draft trees after a text that grows.

    Call `bind` once per model, `start` once per text, then per pass `begin`, `level` as often as
    drafting is worth it, and `commit` with what the target accepted. `commit` only takes note: a
    drafter runs over committed tokens at the next `level`, so that a pass without drafting costs
    nothing.

    A subclass implements ``_bind``, ``_restart``, ``_advance``, ``_children`` and ``_descend``.

    Attributes
    ----------
    name : str
        As in the registry.
    feature_layers : tuple of int
        Indices into Transformers' ``hidden_states`` whose values it reads; empty for none. Final
        after `bind`.
    max_levels : int or None
        Levels that a tree can have at most.
    assumption : str
        What was assumed because neither files nor arguments said it; empty if nothing was.
    folder : Path or None
        That its weights are from; None without such a folder.
    """

    name: ClassVar[str]
    feature_layers: tuple[int, ...] = ()
    max_levels: int | None = None
    assumption: str = ""
    folder: Path | None = None
    _bound: weakref.ref[Any] | None = None

    def __init__(self) -> None:
        self._vocab_size: int | None = None
        self._feature_size = 0
        self._length = 0  # committed tokens, pending ones included
        self._pending_tokens: list[int] = []
        self._pending_features: list[Tensor] = []
        self._expanded: NDArray[np.int64] | None = None
        self._path = np.empty(0)
        self._nodes = self._levels = 0
        self._tries = self._accepted = 0
        self._warnings: dict[str, str] = {}

    @property
    def warning(self) -> str:
        """What was warned of since `bind`; empty if nothing was."""
        return " ".join(self._warnings.values())

    @property
    def length(self) -> int:
        """Committed tokens of the text, the root of the next tree included."""
        return self._length

    # ---- what the decoding loop calls

    def bind(self, model: Any) -> None:
        """Check that the drafter fits ``model``, and load what it needs onto its device.

        Parameters
        ----------
        model : transformers.PreTrainedModel
            The target. It is read and never written to.

        Raises
        ------
        InvalidInputError
            If it was made for another target: vocabulary, hidden size or layers differ.
        DrafterError
            If its weights cannot be used.
        """
        self._bound = None
        self._forget()
        self._vocab_size = int(model.config.get_text_config().vocab_size)
        self._feature_size = int(model.config.get_text_config().hidden_size)
        self._tries = self._accepted = 0
        self._warnings = {}
        self._bind(model)
        self._bound = weakref.ref(model)

    def bound_to(self, model: Any) -> bool:
        """Return whether ``model`` is what the drafter was bound to last."""
        return self._bound is not None and self._bound() is model

    def start(self, tokens: Sequence[int], features: Tensor | None = None) -> None:
        """Begin a text: the prompt and the first committed token.

        Parameters
        ----------
        tokens : sequence of int
            P + 1 ids, P >= 1.
        features : Tensor, shape (P, F, H), optional
            The target's states of ``feature_layers`` at the prompt's positions; needed if there are
            any such layers.
        """
        if self._vocab_size is None:
            raise DrafterError(f"drafter {self.name} has no target yet; call bind(model) first")
        if len(tokens) < 2:
            raise InvalidInputError(
                "start() takes the prompt and the first committed token, "
                f"got {len(tokens)} token(s)"
            )
        ids, states = self._checked(tokens, features, len(tokens) - 1)
        self._forget()
        self._restart(ids[0])
        self._note(ids[1:], states)
        self._length = len(ids)

    def commit(self, tokens: Sequence[int], features: Tensor | None = None) -> None:
        """Take note of newly committed tokens; this closes the tree.

        Parameters
        ----------
        tokens : sequence of int
            m ids, in order; none is allowed.
        features : Tensor, shape (m, F, H), optional
            The target's states at the token before each.
        """
        if not self._length:
            raise DrafterError(f"drafter {self.name} has no text yet; call start() first")
        ids, states = self._checked(tokens, features, len(tokens))
        self._expanded = None
        self._note(ids, states)
        self._length += len(ids)

    def begin(self) -> None:
        """Start a new tree, whose root is the last committed token."""
        if not self._length:
            raise DrafterError(f"drafter {self.name} has no text yet; call start() first")
        self._expanded = np.zeros(1, dtype=np.int64)
        self._path = np.ones(1)
        self._nodes, self._levels = 1, 0

    @torch.inference_mode()
    def level(self, top_k: int, width: int) -> DraftLevel | None:
        """Draft one more level of the tree.

        Parameters
        ----------
        top_k : int
            Children per expanded node, at most.
        width : int
            How many nodes of this level the next one expands, at most: those of the highest path
            probability, the earlier one among equals.

        Returns
        -------
        DraftLevel or None
            None if there is nothing more to draft.

        Raises
        ------
        DrafterError
            If a probability is NaN or impossible.
        """
        if top_k < 1 or width < 1:
            raise InvalidInputError(f"top_k and width must be at least 1, got {top_k}, {width}")
        if self._expanded is None:
            raise DrafterError(f"drafter {self.name} has no open tree; call begin() first")
        if not len(self._expanded) or self._levels == self.max_levels:
            return None
        if not self._levels and self._pending_tokens:
            tokens, features = self._pending_tokens, self._pending_features
            self._advance(tokens, torch.cat(features) if features else None)
            self._pending_tokens, self._pending_features = [], []
        found = self._children(self._levels, top_k)
        prob = self._checked_prob(found)
        parent = self._expanded[found.row]
        path = self._path[found.row] * prob
        best = np.argsort(-path, kind="stable")[:width]
        self._descend(found, best)
        self._path, self._expanded = path[best], self._nodes + best
        self._nodes += len(prob)
        self._levels += 1
        if not len(prob):
            return None
        return DraftLevel(parent, found.token, prob, self._expanded, found.states)

    def root_state(self) -> Tensor | None:
        """Return the drafter's hidden state at the token before the root, shape (1, H_d).

        The root was drafted from it, or would have been. None where the drafter did not run over
        that token yet, as before the first level of a tree, or has no states.
        """
        return None

    def note_acceptance(self, tried: int, accepted: int) -> None:
        """Count how often a draft was accepted, and warn once if that is next to never.

        A try is a pass whose verified tree had a child of the root; it is accepted if the target
        took one.

        Parameters
        ----------
        tried, accepted : int
            Of the passes since the last call.
        """
        if not 0 <= accepted <= tried:
            raise InvalidInputError(f"{accepted} accepted of {tried} tries is impossible")
        self._tries += tried
        self._accepted += accepted
        if self._tries < ACCEPTANCE_TRIES or "acceptance" in self._warnings:
            return
        if self._accepted < LOW_ACCEPTANCE * self._tries:
            self._warn_once(
                "acceptance",
                f"the target accepted {self._accepted} of {self._tries} drafts; it does not seem "
                f"to fit this target. {self._likely_cause()}",
            )

    # ---- what a drafter implements

    @abstractmethod
    def _bind(self, model: Any) -> None:
        """See `bind`."""

    @abstractmethod
    def _restart(self, token: int) -> None:
        """Drop the text; the new one begins with ``token``, of which no state precedes it."""

    @abstractmethod
    def _advance(self, tokens: list[int], features: Tensor | None) -> None:
        """Run over committed tokens; ``features`` belong to the token before each."""

    @abstractmethod
    def _children(self, depth: int, top_k: int) -> Candidates:
        """Return the children of the expanded nodes, which lie at ``depth``; the root at 0."""

    @abstractmethod
    def _descend(self, found: Candidates, chosen: NDArray[np.int64]) -> None:
        """Expand the candidates at the indices ``chosen`` of the last `_children` next."""

    def _likely_cause(self) -> str:
        """Return what may be wrong if the target accepts nothing."""
        return self.assumption

    # ---- shared

    def _warn_once(self, about: str, message: str) -> None:
        """Warn, unless it was done since `bind`; reports say it too."""
        if about not in self._warnings:
            self._warnings[about] = f"drafter {self.name}: {message}".rstrip()
            warnings.warn(self._warnings[about], stacklevel=3)

    def _forget(self) -> None:
        self._length = 0
        self._pending_tokens, self._pending_features = [], []
        self._expanded = None

    def _note(self, tokens: list[int], features: Tensor | None) -> None:
        self._pending_tokens += tokens
        if features is not None and len(features):
            self._pending_features.append(features)

    def _checked(
        self, tokens: Sequence[int], features: Tensor | None, count: int
    ) -> tuple[list[int], Tensor | None]:
        assert self._vocab_size is not None
        ids = [int(token) for token in tokens]
        for place, token in enumerate(ids):
            if not 0 <= token < self._vocab_size:
                raise InvalidInputError(
                    f"token {place} is {token}, outside the target's vocabulary of "
                    f"{self._vocab_size}"
                )
        if not self.feature_layers:
            return ids, None
        wanted = (count, len(self.feature_layers), self._feature_size)
        if features is None and not count:
            return ids, None
        if features is None or tuple(features.shape) != wanted:
            got = "none" if features is None else f"shape {tuple(features.shape)}"
            raise InvalidInputError(
                f"drafter {self.name} reads hidden_states{list(self.feature_layers)}: features "
                f"must have shape {wanted} (tokens, layers, hidden size), got {got}"
            )
        return ids, features

    def _checked_prob(self, found: Candidates) -> NDArray[np.float64]:
        prob = found.prob
        if not (prob >= 0.0).all():
            raise DrafterError(
                f"drafter {self.name} gave a probability of NaN or below 0 at level "
                f"{self._levels + 1}; its weights or the target's states are not finite"
            )
        total = np.bincount(found.row, prob, minlength=1)
        if total.max() > 1.0:
            # Single-precision scores can add up to a little more than 1.
            if total.max() > 1.001:
                raise DrafterError(
                    f"drafter {self.name} gave siblings a total probability of {total.max()}"
                )
            prob = prob / np.maximum(total, 1.0)[found.row]
        return prob
