"""Drafts with a small causal language model that shares the target's tokenizer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from ..errors import CheckpointError, DrafterError, InvalidInputError
from ..verify import transformers_api
from ..verify.compaction import CachePoint
from ..verify.tree_mask import attention_mask, require_mask_format
from .protocol import Candidates, Drafter
from .registry import DrafterKind
from .shared_vocabulary import require_shared_vocabulary

__all__ = ["CausalLmDrafter"]

#: Committed tokens that the model runs over at once.
_BLOCK = 512


@dataclass(frozen=True)
class _Frontier:
    """The nodes to expand next.

    Attributes
    ----------
    token : ndarray of int64, shape (w,)
    seen : ndarray of bool, shape (w, rows)
        Which of the tree's rows in the cache are ancestors.
    """

    token: NDArray[np.int64]
    seen: NDArray[np.bool_]


@dataclass(frozen=True)
class _Outputs:
    """What the model made of n tokens.

    Attributes
    ----------
    logits : Tensor, shape (n, V)
    states : Tensor, shape (n, hidden), or None
        What the output layer read; None where the model has no such layer.
    """

    logits: Tensor
    states: Tensor | None


class CausalLmDrafter(Drafter):
    """Any causal language model of Transformers, loaded as it is and wholly in memory.

    It has a cache of its own, which never holds more of the tree than the current one. The target,
    its experts and their cache are not touched, also if both models are of one class.

    Parameters
    ----------
    model : path or transformers.PreTrainedModel
        A checkpoint folder, or a model that is loaded already and in evaluation mode.
    dtype : torch.dtype, optional
        For a folder: what it computes in; by default what the target does.
    """

    name: ClassVar[str] = "lm"

    _frontier: _Frontier
    _seen: NDArray[np.bool_]  # of the last level's nodes
    _after_text: _Outputs  # at the last committed token

    def __init__(self, model: Any, *, dtype: torch.dtype | None = None) -> None:
        super().__init__()
        self._folder: Path | None = None
        self._model: Any = None
        if isinstance(model, (str, Path)):
            self._folder = Path(model)
            if not (self._folder / "config.json").is_file():
                raise CheckpointError(f"the drafter's folder {self._folder} holds no config.json")
        else:
            self._model = model
        self._dtype = dtype

    # ---- hooks

    def _bind(self, model: Any) -> None:
        if self._model is model:
            raise InvalidInputError("the target cannot be its own drafter; pass another model")
        if self._folder is not None:
            wanted = self._dtype or model.dtype
            device = model.get_input_embeddings().weight.device
            if self._model is None or self._model.dtype != wanted:
                self._model = _load(self._folder, wanted)
            self._model.to(device)
        if self._model.training:
            raise InvalidInputError("the draft model is in training mode; call eval() on it")
        self.assumption = require_shared_vocabulary(self._model, model)
        config = transformers_api.text_config(self._model)
        self._attention = transformers_api.attention_of(self._model)
        require_mask_format(self._attention)
        self._layers = transformers_api.attention_layers(config)
        embedding = self._model.get_input_embeddings().weight
        self._device, self._ids = embedding.device, len(embedding)
        self._context = transformers_api.context_length(self._model)

    def _restart(self, token: int) -> None:
        self._unread = [token]
        self._cache: DynamicCache = transformers_api.new_cache(self._model)
        self._point = CachePoint(self._cache)
        self._full = False
        self._drawn: list[int] = []  # depths of the tree's rows in the cache

    def _advance(self, tokens: list[int], features: Tensor | None) -> None:
        self._drop_tree()
        ids = [*self._unread, *tokens]
        first = self._point.length
        if self._full or (self._context is not None and first + len(ids) > self._context):
            self._full = True  # for good: the text only grows
            return
        if max(ids) >= self._ids:
            raise DrafterError(
                f"the target wrote token {max(ids)}, which the draft model with {self._ids} ids "
                "does not have"
            )
        try:
            for at in range(0, len(ids), _BLOCK):
                some = torch.tensor([ids[at : at + _BLOCK]], device=self._device)
                begin = first + at
                where = torch.arange(begin, begin + some.shape[1], device=self._device)[None]
                outputs = self._run(some, where, logits_to_keep=1)
        except BaseException:
            self._point.rollback()
            raise
        self._point = CachePoint(self._cache)
        self._after_text, self._unread = outputs, []

    def _children(self, depth: int, top_k: int) -> Candidates:
        if depth == 0:
            self._drop_tree()
        if self._full or (self._context is not None and self._point.length + depth > self._context):
            return Candidates.none()
        if depth:
            outputs = self._expand(self._frontier, depth)
        else:
            outputs, self._seen = self._after_text, np.empty((1, 0), dtype=np.bool_)
        every = torch.log_softmax(outputs.logits, dim=-1, dtype=torch.float32)
        every = every[:, : self._vocab_size]
        log_prob, token = every.topk(min(top_k, every.shape[-1]), dim=-1)
        n, k = token.shape
        prob = np.exp(log_prob.flatten().cpu().numpy().astype(np.float64))
        states = None if outputs.states is None else outputs.states.repeat_interleave(k, 0)
        return Candidates(np.repeat(np.arange(n), k), token.flatten().cpu().numpy(), prob, states)

    def _descend(self, found: Candidates, chosen: NDArray[np.int64]) -> None:
        self._frontier = _Frontier(found.token[chosen], self._seen[found.row[chosen]])

    # ---- parts

    def _run(
        self,
        ids: Tensor,
        position_ids: Tensor,
        *,
        logits_to_keep: int,
        attention_mask: Tensor | dict[str, Tensor] | None = None,
    ) -> _Outputs:
        """Run over ``ids``, which are appended to the cache."""
        read: list[Tensor] = []
        hook, layer = None, self._model.get_output_embeddings()
        thread = get_ident()

        def note(module: Any, inputs: tuple[Tensor, ...]) -> None:
            if get_ident() == thread:  # the model may be in use elsewhere too
                read[:] = [inputs[0]]

        # Cheaper than hidden states, which some versions collect of all layers.
        if layer is not None:
            hook = layer.register_forward_pre_hook(note)
        try:
            logits, _ = transformers_api.forward(
                self._model,
                ids,
                position_ids=position_ids,
                cache=self._cache,
                attention_mask=attention_mask,
                logits_to_keep=logits_to_keep,
            )
        finally:
            if hook is not None:
                hook.remove()
        return _Outputs(logits, read[-1][0] if read else None)

    def _expand(self, nodes: _Frontier, depth: int) -> _Outputs:
        """Run over the nodes behind the tree so far."""
        n = len(nodes.token)
        seen = np.concatenate([nodes.seen, np.eye(n, dtype=np.bool_)], axis=1)
        place = self._point.length - 1 + depth
        ids = torch.from_numpy(nodes.token).to(self._device)[None]
        with transformers_api.without_windows(self._cache):
            outputs = self._run(
                ids,
                torch.full_like(ids, place),
                logits_to_keep=n,
                attention_mask=self._masks(seen, depth),
            )
        self._drawn += [depth] * n
        self._seen = seen
        return outputs

    def _masks(self, seen: NDArray[np.bool_], depth: int) -> Tensor | dict[str, Tensor]:
        """Return the mask of a level, one per type of layer where there are several."""
        n = len(seen)
        masks: dict[str, Tensor] = {}
        for (kind, window), kept in zip(self._layers, self._point.kept, strict=True):
            if kind in masks:
                continue
            visible = np.concatenate([np.ones((n, kept), dtype=np.bool_), seen], axis=1)
            if window is not None:
                text = np.arange(-kept, 0) + 1  # depth of the text's rows: the root is the last
                back = depth - np.concatenate([text, self._drawn, np.full(n, depth)])
                visible &= back < window
            masks[kind] = attention_mask(
                visible, self._attention, dtype=self._model.dtype, device=self._device
            )
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _drop_tree(self) -> None:
        if self._drawn or int(self._cache.get_seq_length()) != self._point.length:
            self._point.rollback()
            self._drawn = []


def _load(folder: Path, dtype: torch.dtype) -> Any:
    try:
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"cannot load the drafter in {folder}: {error}") from error


KIND = DrafterKind(
    name="lm",
    make=CausalLmDrafter,
    summary="a small causal language model that shares the tokenizer",
    needs="DIR",
)
