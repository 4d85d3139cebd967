"""Drafts with an EAGLE-3 head, which reads the target's own states."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from ..checkpoint import refuse_code
from ..errors import CheckpointError, DrafterError, InvalidInputError
from ..part_kind import PartKind
from .drafter import Candidates, Drafter
from .eagle3_config import Eagle3Config, read_config
from .eagle3_head import Eagle3Head
from .eagle3_rotary import RotaryTables
from .eagle3_weights import HeadFiles

__all__ = ["Eagle3Drafter"]

#: Committed tokens that the head runs over at once, which bounds the size of its masks.
_BLOCK = 256
#: States of the target that a head fuses where nobody says so.
_STATES = 3
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class _Frontier:
    """The nodes to expand next.

    Attributes
    ----------
    token : Tensor of int64, shape (w,)
    states : Tensor, shape (w, hidden)
        What the head goes on from: the state of each node's parent.
    seen : Tensor of bool, shape (w, rows of the cache)
        The text and each node's ancestors.
    """

    token: Tensor
    states: Tensor
    seen: Tensor


class Eagle3Drafter(Drafter):
    """An EAGLE-3 head from a folder, in the names of SpecForge and SGLang or of speculators.

    Parameters
    ----------
    folder : path
        Holds ``config.json`` and ``model.safetensors``.
    feature_layers : sequence of int, optional
        Indices into Transformers' ``hidden_states`` whose values the head fuses, where
        ``config.json`` does not name them or means something else.
    dtype : torch.dtype, optional
        What the head computes in; by default what the target does. Scores are float32 in any case.

    Notes
    -----
    The state that follows a node is the head's own. When its token is committed the head runs over
    it again with the target's states, so that nothing drafted stays behind.

    References
    ----------
    Y. Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
    Training-Time Test", 2025, arXiv:2503.01840.
    """

    name: ClassVar[str] = "eagle3"

    _frontier: _Frontier
    _outcome: tuple[Tensor, Tensor]  # of the last level: new states, and the rows they saw

    def __init__(
        self,
        folder: str | Path,
        *,
        feature_layers: tuple[int, ...] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        # At once: the working directory may be another one when the first text begins.
        self.folder = Path(os.path.abspath(os.path.expanduser(folder)))
        if not self.folder.is_dir():
            raise CheckpointError(f"the drafter's folder {self.folder} does not exist")
        refuse_code(self.folder)
        self._files = HeadFiles(self.folder)
        self.config: Eagle3Config = read_config(self.folder, self._files.shapes)
        self._given = None if feature_layers is None else tuple(feature_layers)
        config, states = self.config, self._given or self.config.feature_layers
        self._files.check(config, _STATES if states is None else len(states))
        RotaryTables(config.rope, config.n_heads, config.head_dim, _CPU, torch.float32)
        self._dtype = dtype
        self._head: Eagle3Head | None = None
        self._target: tuple[Tensor, torch.dtype] | None = None
        self._notes: list[str] = []

    @torch.inference_mode()
    def root_state(self) -> Tensor | None:
        """See `Drafter`."""
        # Each token that was not run over yet comes after the last state.
        pending = len(self._pending_tokens)
        state = (self._before, self._last)[pending] if self._length and pending < 2 else None
        return None if state is None else self._ready().normed(state)

    # ---- hooks

    def _bind(self, model: Any) -> None:
        config, target = self.config, model.config.get_text_config()
        for what, have, need in (
            ("a vocabulary", config.vocab_size, int(target.vocab_size)),
            ("states of hidden size", config.target_hidden_size, int(target.hidden_size)),
        ):
            if have != need:
                raise InvalidInputError(
                    f"the drafter in {self.folder} was made for {what} {have}, the target has "
                    f"{need}; it belongs to another target"
                )
        self.feature_layers = self._choose_layers(int(target.num_hidden_layers))
        embed = model.get_input_embeddings().weight
        output = model.get_output_embeddings()
        dtype = self._dtype or model.dtype
        if self._target is None or self._target[0] is not embed or self._target[1] != dtype:
            self._load(embed, None if output is None else output.weight, dtype)
            self._target = embed, dtype
        notes = list(self._notes)
        named = str(getattr(model, "name_or_path", "") or "")
        if config.verifier and Path(config.verifier).name != Path(named).name:
            notes.append(f"config.json names {config.verifier} as the target")
        self.assumption = "; ".join(filter(None, [self.assumption, *notes]))

    def _load(self, embed: Tensor, output: Tensor | None, dtype: torch.dtype) -> None:
        config, device = self.config, embed.device
        tensors = self._files.read(config, len(self.feature_layers))
        notes = []
        own = tensors.pop("embed_tokens.weight", None)
        if own is not None:
            embed = own.to(device=device, dtype=dtype)
        elif config.hidden_size != embed.shape[1]:
            raise CheckpointError(
                f"the drafter in {self.folder} has no embed_tokens.weight, and the target's "
                f"embeddings have size {embed.shape[1]}, not {config.hidden_size}"
            )
        if "lm_head.weight" not in tensors:
            tied = embed if config.tied else output
            if tied is None or tuple(tied.shape) != (config.vocab_size, config.hidden_size):
                raise CheckpointError(
                    f"the drafter in {self.folder} has no lm_head.weight, and there is no output "
                    f"layer of shape {(config.vocab_size, config.hidden_size)} to take instead"
                )
            tensors["lm_head.weight"] = tied.detach()
            if not config.tied:
                notes.append("there is no lm_head.weight, so the target's output layer is used")
        for flag, name in ((config.norm_before_fc, "input_norm"), (config.fc_norm, "fc_norm")):
            if flag is None and any(key.startswith(name) for key in tensors):
                notes.append(f"config.json does not mention the norms {name}; they are applied")
        offsets = tensors.pop("d2t", None)
        tensors.pop("t2d", None)
        self._kept: NDArray[np.int64] | None = None
        if offsets is not None:
            self._kept = offsets.long().cpu().numpy() + np.arange(len(offsets))
        self._embed = embed.detach()
        self._head = Eagle3Head(config, tensors, device, dtype)
        self._notes = notes

    def _restart(self, token: int) -> None:
        self._pairs = 0
        self._last: Tensor | None = None  # the state at the last token that the head ran over
        self._before: Tensor | None = None  # and at the one before it

    def _advance(self, tokens: list[int], features: Tensor | None) -> None:
        head = self._ready()
        assert features is not None
        ids = torch.tensor(tokens, device=head.device)
        pairs, states = self._pairs, None
        before = self._last
        if head.context is not None and pairs + len(tokens) > head.context:
            self._warn_once(
                "context",
                f"the text is longer than the {head.context} tokens that the head was made for; it "
                "reads the last ones",
            )
        for at in range(0, len(tokens), _BLOCK):
            if states is not None:
                before = states[-1:]
            block = self._look_up(ids[at : at + _BLOCK])
            fused = head.fuse(features[at : at + _BLOCK])
            states = head.step(block, fused, pairs, pairs, None)
            pairs += len(block)
        assert states is not None
        # Copies: views would keep the states of a whole block.
        self._before = states[-2:-1].clone() if len(states) > 1 else before
        self._last, self._pairs = states[-1:].clone(), pairs

    def _children(self, depth: int, top_k: int) -> Candidates:
        head = self._ready()
        assert self._last is not None
        if depth:
            states, own = self._expand(head, self._frontier, depth)
        else:
            states = self._last
            own = torch.ones(1, self._pairs, dtype=torch.bool, device=head.device)
        log_prob, draft, states, normed = head.scores(states, top_k)
        n, k = log_prob.shape
        token = draft.flatten().cpu().numpy()
        if self._kept is not None:
            token = self._kept[token]
        prob = np.exp(log_prob.flatten().cpu().numpy().astype(np.float64))
        self._outcome = states, own
        return Candidates(np.repeat(np.arange(n), k), token, prob, normed.repeat_interleave(k, 0))

    def _descend(self, found: Candidates, chosen: NDArray[np.int64]) -> None:
        head, (states, seen) = self._ready(), self._outcome
        row = torch.from_numpy(found.row[chosen]).to(head.device)
        token = torch.from_numpy(found.token[chosen]).to(head.device)
        self._frontier = _Frontier(token, states[row], seen[row])

    def _likely_cause(self) -> str:
        return (
            f"It fuses hidden_states{list(self.feature_layers)}; another choice can be passed as "
            f"feature_layers. {self.assumption}"
        )

    # ---- parts

    def _expand(self, head: Eagle3Head, nodes: _Frontier, depth: int) -> tuple[Tensor, Tensor]:
        """Return the new states of the nodes, and which rows of the cache they saw."""
        itself = torch.eye(len(nodes.token), dtype=torch.bool, device=head.device)
        seen = torch.cat([nodes.seen, itself], dim=1)
        begin, position = nodes.seen.shape[1], self._pairs - 1 + depth
        return head.step(self._look_up(nodes.token), nodes.states, begin, position, seen), seen

    def _ready(self) -> Eagle3Head:
        if self._head is None:
            raise DrafterError("the drafter has no target yet; call bind(model) first")
        return self._head

    def _look_up(self, ids: Tensor) -> Tensor:
        head = self._ready()
        return functional.embedding(ids, self._embed).to(head.dtype)

    def _choose_layers(self, n_layers: int) -> tuple[int, ...]:
        named = self.config.feature_layers
        if self._given is not None:
            layers, self.assumption = self._given, ""
        elif named is not None:
            layers, self.assumption = named, self.config.assumption
        else:
            layers = (2, n_layers // 2, n_layers - 3)
            self.assumption = (
                f"config.json does not name the states to fuse, so hidden_states{list(layers)} is "
                "assumed"
            )
            warnings.warn(
                f"drafter in {self.folder}: {self.assumption}; if it was trained on others the "
                "target will accept next to nothing. Pass feature_layers if you know them",
                stacklevel=4,
            )
        # The last entry of hidden_states comes after the final norm, which no head is trained on.
        if not all(0 <= layer < n_layers for layer in layers):
            raise InvalidInputError(
                f"the drafter in {self.folder} would fuse hidden_states{list(layers)}, but this "
                f"target's states before its final norm are 0 to {n_layers - 1}. Either it belongs "
                f"to another target, or the ids mean something else: pass feature_layers. "
                f"{self.assumption}".rstrip()
            )
        return layers


KIND: PartKind[Drafter] = PartKind(
    name="eagle3",
    make=Eagle3Drafter,
    summary="an EAGLE-3 head, which reads the target's own states",
    needs="DIR",
)
