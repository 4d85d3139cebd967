"""Drafts with a small causal language model that shares the target's tokenizer."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import get_ident
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AutoModelForCausalLM, DynamicCache

from ..alignment import align_weights
from ..checkpoint import Checkpoint, read_generation_config, read_model_config, reading
from ..errors import CheckpointError, DrafterError, InvalidInputError, SpecfitError
from ..part_kind import PartKind
from ..verify import transformers_api
from ..verify.compaction import CachePoint
from ..verify.context import context_length
from ..verify.rotary import GrowingRotary
from ..verify.tree_mask import attention_mask, require_mask_format
from .drafter import Candidates, Drafter
from .shared_vocabulary import require_shared_vocabulary

__all__ = ["CausalLmDrafter"]

#: Committed tokens that the model runs over at once.
_BLOCK = 512
#: Tokens of the text, and of the tree behind it, by which binding tries whether trees come out
#: right, and by how much of their spread scores may differ there. Half precision rounds more.
_TRIAL_TEXT = 5
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-3}
_HALF_TOLERANCE = 0.05


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
    """A causal language model of Transformers, loaded as it is and wholly in memory.

    It has a cache of its own, which never holds more of the tree than the current one. The target,
    its experts and their cache are not touched, also if both models are of one class.

    Whether a class takes trees, as those with rotary or learned positions do, is tried when it is
    bound: a small tree must come out as its paths do one by one. Models with ALiBi or a recurrent
    state are refused there. In texts longer than what it was made for it reads the end of the text
    alone.

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
        self.folder = None
        self._model: Any = None
        self._tested: Any = None
        if isinstance(model, (str, os.PathLike)):
            # At once: the working directory may be another one when the first text begins.
            self.folder = Path(os.path.abspath(os.path.expanduser(model)))
            self._config = _checked_config(self.folder)
        elif hasattr(model, "config") and hasattr(model, "get_input_embeddings"):
            self._model = model
        else:
            raise InvalidInputError(
                f"a draft model is a folder or a model of Transformers, got {type(model).__name__}"
            )
        self._dtype = dtype

    # ---- hooks

    def _bind(self, model: Any) -> None:
        if self._model is model:
            raise InvalidInputError("the target cannot be its own drafter; pass another model")
        if self.folder is not None:
            wanted = self._dtype or model.dtype
            device = model.get_input_embeddings().weight.device
            if self._model is None or self._model.dtype != wanted:
                self._model = _load(self.folder, self._config, wanted)
            self._model.to(device)
        if self._model.training:
            raise InvalidInputError("the draft model is in training mode; call eval() on it")
        with self._refusing():
            embedding = self._model.get_input_embeddings().weight
            self._device, self._ids = embedding.device, len(embedding)
            self.assumption = require_shared_vocabulary(self._model, model)
            self._attention = transformers_api.attention_of(self._model)
            require_mask_format(self._attention)
            config = transformers_api.text_config(self._model)
            self._layers = transformers_api.attention_layers(config)
            self._context = context_length(config)
            self._rotary = GrowingRotary(self._model)
            if self._tested is not self._model:
                self._try_trees()
                self._tested = self._model

    def _restart(self, token: int) -> None:
        self._text = [token] if token < self._ids else []  # what the model reads of the text
        self._empty_cache()

    def _empty_cache(self) -> None:
        self._cache: DynamicCache = transformers_api.new_cache(self._model)
        self._point = CachePoint(self._cache)
        self._drawn: list[int] = []  # depths of the tree's rows in the cache

    def _advance(self, tokens: list[int], features: Tensor | None) -> None:
        self._drop_tree()
        text = [*self._text, *tokens]
        strange = next((token for token in reversed(tokens) if token >= self._ids), None)
        if strange is not None:
            self._warn_once(
                "ids",
                f"the target wrote token {strange}, which the draft model with {self._ids} ids "
                "does not have; it reads the text behind it alone",
            )
            text = text[len(text) - text[::-1].index(strange) :]
            self._empty_cache()
        if self._context is not None and len(text) > self._context:
            half = max(self._context // 2, 1)
            self._warn_once(
                "context",
                f"the text is longer than the {self._context} tokens that the draft model was made "
                f"for; it reads the last {half} to {self._context} of them",
            )
            text = text[-half:]
            self._empty_cache()
        begin = self._point.length
        outputs = None
        try:
            for at in range(begin, len(text), _BLOCK):
                some = torch.tensor([text[at : at + _BLOCK]], device=self._device)
                where = torch.arange(at, at + some.shape[1], device=self._device)[None]
                outputs = self._run(some, where, logits_to_keep=1)
        except BaseException:
            self._point.rollback()
            raise
        self._point = CachePoint(self._cache)
        self._text = text
        if outputs is not None:
            self._after_text = outputs

    def _children(self, depth: int, top_k: int) -> Candidates:
        if depth == 0:
            self._drop_tree()
        end = self._point.length + depth
        if not self._text or (self._context is not None and end > self._context):
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
            # No tree: the tokens of a level share their place.
            with self._rotary.fresh():
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

    # ---- whether it can draft

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """Turn what a class raises that cannot draft trees into a refusal."""
        try:
            yield
        except SpecfitError:
            raise
        except Exception as error:
            raise InvalidInputError(
                f"the draft model, a {type(self._model).__name__}, cannot draft trees: it fails on "
                f"a small one with {type(error).__name__}: {' '.join(str(error).split())[:300]}. "
                "Models with rotary or learned positions can"
            ) from error

    @torch.inference_mode()
    def _try_trees(self) -> None:
        """Draft two levels behind a few tokens, and compare with reading each path by itself.

        Raises
        ------
        InvalidInputError
            If the model gives a tree other scores than its paths.
        DrafterError
            If scores are not finite.
        """
        most = _TRIAL_TEXT if self._context is None else max(self._context - 2, 1)
        text = [i * self._ids // _TRIAL_TEXT for i in range(min(_TRIAL_TEXT, most))]
        self._restart(text[0])
        self._advance(text[1:], None)
        paths, rows = [text], [self._after_text.logits]
        nodes = np.empty((1, 0), dtype=np.bool_)
        leaves = [text]
        for depth in (1, 2):
            best = rows[-1].float().topk(2).indices.flatten().tolist()
            leaves = [[*path, best[2 * i + j]] for i, path in enumerate(leaves) for j in (0, 1)]
            token = np.array([path[-1] for path in leaves], dtype=np.int64)
            outputs = self._expand(_Frontier(token, np.repeat(nodes, 2, axis=0)), depth)
            nodes = self._seen
            rows.append(outputs.logits)
            paths += leaves
        tree = torch.cat(rows).float()
        with self._rotary.fresh():
            alone = torch.cat(
                [
                    self._model(
                        input_ids=torch.tensor([path], device=self._device), return_dict=True
                    ).logits[0, -1:]
                    for path in paths
                ]
            ).float()
        self._empty_cache()
        if not bool(torch.stack([tree, alone]).isfinite().all()):
            raise DrafterError(
                "the draft model gives NaN or infinite scores for a few tokens; its weights are "
                "not finite"
            )
        spread = alone.max(dim=1).values - alone.min(dim=1).values
        apart = (tree - alone).abs().max(dim=1).values / spread.clamp_min(1e-9)
        if float(apart.median()) > _TOLERANCE.get(self._model.dtype, _HALF_TOLERANCE):
            raise InvalidInputError(
                f"the draft model, a {type(self._model).__name__}, gives a draft tree other scores "
                f"than its paths one by one, by up to {float(apart.max()):.0%} of their range: it "
                "does not go by the positions or the mask that a tree needs. Models with rotary or "
                "learned positions do"
            )


def _checked_config(folder: Path) -> Any:
    """Return the configuration in a folder, after looking over all its files but for numbers."""
    if not (folder / "config.json").is_file():
        raise CheckpointError(f"the drafter's folder {folder} holds no config.json")
    if (folder / "adapter_config.json").exists():
        raise CheckpointError(
            f"{folder} holds adapter_config.json, so weights of another model belong to it; merge "
            "them with merge_and_unload() and save_pretrained"
        )
    config = read_model_config(folder, Checkpoint(folder))
    read_generation_config(folder)
    return config


def _load(folder: Path, config: Any, dtype: torch.dtype) -> Any:
    """Return the model in a folder, on the CPU."""
    what = "the weights do not fit config.json, or cannot be loaded, in"
    with reading(folder, what), torch.device("cpu"):
        from_pretrained: Any = AutoModelForCausalLM.from_pretrained
        model, found = from_pretrained(
            folder,
            config=copy.deepcopy(config),
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            use_safetensors=True,
            output_loading_info=True,
        )
    # Transformers draws at random what it does not find.
    missing = sorted(found["missing_keys"])
    if missing:
        raise CheckpointError(
            f"the drafter in {folder} lacks {', '.join(missing[:3])} ({len(missing)} tensors); "
            "fetch it again"
        )
    return align_weights(model)


KIND: PartKind[Drafter] = PartKind(
    name="lm",
    make=CausalLmDrafter,
    summary="a small causal language model that shares the tokenizer",
    needs="DIR",
)
