"""One text on one model: prefill, then verify trees and commit paths."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import InvalidInputError
from ..routing_record import RoutingRecord
from . import transformers_api
from .compaction import CachePoint
from .context import context_length
from .rotary import GrowingRotary
from .tree_mask import TreeShape, attention_mask, require_mask_format

__all__ = ["ForwardResult", "RoutingRecorder", "TargetSession"]


class RoutingRecorder(Protocol):
    """Records the routing of the passes that run inside a context; an `Offload` is one."""

    def recording(self) -> AbstractContextManager[RoutingRecord]:
        """Return the context."""


@dataclass(frozen=True, eq=False)
class ForwardResult:
    """What a pass of the target gave.

    Attributes
    ----------
    logits : Tensor of float32, shape [n, V]
        After each token; after a prefill, n = 1: those after the last token.
    features : Tensor, shape [n, F, H], or None
        The hidden states that were asked for, of all tokens of the pass, in the model's dtype.
    experts : ndarray of int32, shape (n, L, k)
        The experts of all tokens of the pass in each MoE layer.
    """

    logits: Tensor
    features: Tensor | None
    experts: NDArray[np.int32]


class TargetSession:
    """One sequence and its cache on a target model.

    Parameters
    ----------
    model : PreTrainedModel
        From `load_offloaded`, or any causal language model together with ``recorder``.
    feature_layers : tuple of int
        Indices into Transformers' ``hidden_states`` that a drafter reads: 0 is the embedding,
        ``num_hidden_layers`` the normalised output of the last layer.
    cache : DynamicCache, optional
        Continue this one: what it holds counts as committed. Default: a new one.
    recorder : RoutingRecorder, optional
        What records the routing. Default: the model's `Offload`.

    Attributes
    ----------
    cache : DynamicCache
    feature_layers : tuple of int
    context_length : int or None
        Positions that the model was made for, scaled ones included; None if its configuration does
        not say. Texts may be longer, as with `generate`.

    Raises
    ------
    InvalidInputError
        For an attention implementation, a layer or a cache that cannot hold draft trees, a feature
        layer that the model does not have, or a model that was not loaded by `load_offloaded`.

    Notes
    -----
    Prefill and the verification of a single token go through the model exactly as `generate` calls
    it, with the same shapes and masks, so plain decoding does what Transformers does, operation by
    operation.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        feature_layers: Sequence[int] = (),
        cache: Any = None,
        recorder: RoutingRecorder | None = None,
    ) -> None:
        if recorder is None:
            from ..offload import offload_of

            recorder = offload_of(cast(Any, model))
        config = transformers_api.text_config(model)
        self._attention = transformers_api.attention_of(model)
        require_mask_format(self._attention)
        transformers_api.cache_argument(model)
        self._layers = transformers_api.attention_layers(config)
        for i in feature_layers:
            if not 0 <= i <= config.num_hidden_layers:
                raise InvalidInputError(
                    f"feature layer {i} does not exist: hidden states are 0 (the embedding) to "
                    f"{config.num_hidden_layers} (the output)"
                )
        self.model = model
        self.feature_layers = tuple(int(i) for i in feature_layers)
        self.context_length = context_length(config)
        self._rotary = GrowingRotary(model)
        self.cache = (
            transformers_api.new_cache(model)
            if cache is None
            else transformers_api.check_cache(cache)
        )
        self._recorder = recorder
        embedding = cast(Tensor, cast(Any, model).get_input_embeddings().weight)
        self._device, self._dtype = embedding.device, embedding.dtype
        self._n_tokens = int(embedding.shape[0])
        held = len(self.cache.layers)
        if held not in (0, len(self._layers)):
            raise InvalidInputError(
                f"the cache has {held} layers but the model {len(self._layers)}; it is of another"
            )
        # Where to go back to while a pass is under way or waits to be committed, and its tree.
        self._point: CachePoint | None = None
        self._shape: TreeShape | None = None

    @property
    def length(self) -> int:
        """Committed tokens whose keys and values are in the cache."""
        # Read off the cache, so that an interrupt cannot come between the two.
        return int(self.cache.get_seq_length()) if self._point is None else self._point.length

    @torch.no_grad()
    def prefill(self, input_ids: Tensor, *, chunk: int | None = None) -> ForwardResult:
        """Append tokens of the text to the cache.

        Parameters
        ----------
        input_ids : Tensor of int64, shape [1, P]
            What follows the tokens in the cache.
        chunk : int, optional
            Tokens per pass; bounds the memory for long prompts. Default: one pass.

        Returns
        -------
        ForwardResult
            The logits after the last token; features and experts of all P.

        Raises
        ------
        InvalidInputError
            For an empty prompt, more than one sequence, or a token that the model does not have.
        """
        self._require_nothing_pending()
        ids = self._checked_prompt(input_ids)
        if chunk is not None and chunk < 1:
            raise InvalidInputError(f"chunk = {chunk}: give at least one token per pass")
        first = self.length
        positions = torch.arange(first, first + ids.shape[1], device=self._device)[None]
        size = chunk or ids.shape[1]
        passes = zip(torch.split(ids, size, 1), torch.split(positions, size, 1), strict=True)
        parts: list[ForwardResult] = []
        self._point = CachePoint(self.cache)
        try:
            for part, where in passes:
                parts.append(self._run(part, where, None, 1))
        except BaseException:
            self.rollback()
            raise
        self._point = None
        features = [part.features for part in parts if part.features is not None]
        return ForwardResult(
            parts[-1].logits,
            torch.cat(features) if features else None,
            np.concatenate([part.experts for part in parts]),
        )

    @torch.no_grad()
    def verify(self, tokens: Sequence[int], parent: Sequence[int]) -> ForwardResult:
        """Run the target over a tree behind the committed text.

        Parameters
        ----------
        tokens : sequence of int, length n
            Node 0, the root, holds the last token of the text, which is not in the cache yet.
        parent : sequence of int, length n
            -1 for the root; parents come before their children.

        Returns
        -------
        ForwardResult
            Of every node, as if the model had read the text and the path to the node alone.

        Raises
        ------
        InvalidInputError
            If a node comes without its parent, a token is none of the model's, or the last
            verification was not committed.

        Notes
        -----
        If the pass fails or is interrupted, the cache is rolled back to the committed text.
        """
        self._require_nothing_pending()
        shape = TreeShape.of(parent)
        ids = self._checked_tokens(tokens, shape)
        n = shape.n_nodes
        self._point, self._shape = CachePoint(self.cache), shape
        try:
            positions = shape.position_ids(self.length, self._device)
            if n == 1:
                result = self._run(ids, positions, None, 1)
            else:
                masks = self._masks(shape, self._point)
                with transformers_api.keeping_past(self.cache, n):
                    result = self._run(ids, positions, masks, n)
        except BaseException:
            self.rollback()
            raise
        return result

    def commit(self, rows: Sequence[int]) -> None:
        """Keep a path of the last verification in the cache and drop the other nodes.

        Parameters
        ----------
        rows : sequence of int
            Nodes from the root downwards, each the parent of the next.

        Raises
        ------
        InvalidInputError
            If nothing was verified, or the rows are no such path.
        """
        if self._point is None or self._shape is None:
            raise InvalidInputError("nothing to commit: verify a tree first")
        parent = self._shape.parent
        above = -1
        for row in rows:
            if not 0 <= row < len(parent) or parent[row] != above:
                raise InvalidInputError(
                    f"rows {list(rows)} are no path from the root: {row} is no child of {above}"
                )
            above = row
        if len(rows) == 0:
            raise InvalidInputError("rows are empty; commit the root at least, or roll back")
        self._point.keep(rows, len(parent))
        self._point = self._shape = None

    def rollback(self) -> None:
        """Take back a verification that was not committed, also one that was interrupted."""
        if self._point is not None:
            self._point.rollback()
            self._point = self._shape = None

    def finish(self) -> None:
        """End the text: the cache, which its owner may keep, gives back what trees left in it."""
        CachePoint(self.cache).own_memory()

    def _run(
        self,
        ids: Tensor,
        positions: Tensor,
        mask: Tensor | dict[str, Tensor] | None,
        logits_to_keep: int,
    ) -> ForwardResult:
        with self._rotary.fresh(tree=mask is not None), self._recorder.recording() as record:
            logits, features = transformers_api.forward(
                self.model,
                ids,
                position_ids=positions,
                cache=self.cache,
                attention_mask=mask,
                logits_to_keep=logits_to_keep,
                feature_layers=self.feature_layers,
            )
        # float32 before anything else touches them, as in `generate`.
        return ForwardResult(logits.float(), features, record.experts())

    def _masks(self, shape: TreeShape, point: CachePoint) -> Tensor | dict[str, Tensor]:
        """Return the tree's mask, one per type of layer where there are several."""
        masks: dict[str, Tensor] = {}
        kept = point.kept or (0,) * len(self._layers)
        held: dict[str, int] = {}
        for (kind, window), length in zip(self._layers, kept, strict=True):
            if kind in held:
                if held[kind] != length:
                    raise InvalidInputError(
                        f"{kind} layers hold {held[kind]} and {length} keys in this cache; they "
                        "share a mask, so they must hold the same"
                    )
                continue
            held[kind] = length
            masks[kind] = attention_mask(
                shape.visible(point.length, kept=length, window=window),
                self._attention,
                dtype=self._dtype,
                device=self._device,
            )
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _checked_prompt(self, input_ids: Tensor) -> Tensor:
        if input_ids.ndim != 2 or input_ids.shape[0] != 1:
            raise InvalidInputError(
                f"input_ids has shape {tuple(input_ids.shape)}; give one sequence, [1, P]"
            )
        if input_ids.shape[1] == 0:
            raise InvalidInputError("the prompt is empty; give at least one token")
        self._check_vocabulary(int(input_ids.min()), int(input_ids.max()))
        return input_ids.to(self._device)

    def _checked_tokens(self, tokens: Sequence[int], shape: TreeShape) -> Tensor:
        if len(tokens) != shape.n_nodes:
            raise InvalidInputError(
                f"{len(tokens)} tokens for {shape.n_nodes} parents; give one per node"
            )
        self._check_vocabulary(min(tokens), max(tokens))
        return torch.tensor([list(tokens)], dtype=torch.int64, device=self._device)

    def _check_vocabulary(self, lowest: int, highest: int) -> None:
        for token in (lowest, highest):
            if not 0 <= token < self._n_tokens:
                raise InvalidInputError(
                    f"token {token} is none of the model's; they are 0 to {self._n_tokens - 1}"
                )

    def _require_nothing_pending(self) -> None:
        if self._point is not None:
            raise InvalidInputError(
                "the last verification was neither committed nor rolled back; do that first"
            )
