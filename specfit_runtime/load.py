"""Loads a mixture-of-experts model whose experts stay where they are until a token needs them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from specfit_opt.caches import DEFAULT_CACHE_RULE, slots_per_layer
from specfit_opt.checks import Whole

from .checkpoint import (
    Checkpoint,
    ExpertIndex,
    checkpoint_folder,
    index_experts,
    read_generation_config,
    read_model_config,
    reading,
)
from .decode.hooks import hook_generate
from .errors import CheckpointError, InvalidInputError
from .expert_cache import ExpertCache, default_scratch, live_cache_rule
from .experts import EXPERTS_IMPLEMENTATION, ExpertLayer, register, require_implementation
from .families import FAMILIES, ExpertFamily, family_for
from .filling import fill_skeleton, plan_filling
from .forking import require_process
from .guards import Unsaveable, guard_conversion
from .offload import Offload
from .skeleton import build_skeleton, experts_modules
from .stores import ExpertStore, open_store
from .stores.device import checked_device

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def load_offloaded(
    model: str | os.PathLike[str],
    *,
    expert_cache: float | int | str = 0.25,
    store: str = "disk",
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    cache_policy: str = DEFAULT_CACHE_RULE,
    attn_implementation: str | None = None,
    scratch: int | None = None,
    direct_io: bool = False,
    io_threads: int = 4,
    link_bandwidth: float | None = None,
    revision: str | None = None,
) -> Any:
    """Load a mixture-of-experts model without its experts, which are fetched when tokens need them.

    The result is the stock Transformers model in evaluation mode. Its experts' parameters stay on
    the meta device; what computes them is an experts implementation from Transformers' registry
    with the products and sums of the stock implementation ``grouped_mm``. The outputs agree to
    rounding: last bits depend on the processor, and there on where in memory weights lie.

    Parameters
    ----------
    model : path or str
        A folder with ``config.json`` and safetensors files, or a model id of the Hugging Face Hub.
    expert_cache : float, int or str
        Experts kept in fast memory: a share of each layer's (0.25 or ``"25%"``), slots per layer
        (16), or bytes for all layers together (``"8GiB"``).
    store : {"disk", "ram", "pinned"}
        Where the others are: in the checkpoint's files, in memory, or in page-locked memory that a
        CUDA device copies from.
    device : str or torch.device
        Where the model runs: ``"cpu"`` or a CUDA device.
    dtype : torch.dtype or str, optional
        What it computes in: float32, bfloat16, float16 or float64. By default as the checkpoint
        says.
    cache_policy : str
        Which expert gives up its slot first: ``lfu``, ``lru``, ``lru-2`` or ``fifo``.
    attn_implementation : {"eager", "sdpa"}, optional
        By default what the stock model chooses.
    scratch : int, optional
        Slots of the slab through which experts pass that get no slot of their layer. By default
        twice the experts of a token.
    direct_io : bool
        Read files past the operating system's page cache; for ``store="disk"``.
    io_threads : int
        Threads that read or copy.
    link_bandwidth : float, optional
        Bytes per second of an emulated link in front of the store.
    revision : str, optional
        Branch, tag or commit of a hub model.

    Returns
    -------
    transformers.PreTrainedModel
        :func:`offload_of` gives its :class:`Offload`.

    Raises
    ------
    InvalidInputError
        If an argument is out of range or no family serves the model.
    CheckpointError
        If the checkpoint is incomplete, damaged, quantised or does not fit its configuration.
    StoreError
        If the store cannot be opened.

    Examples
    --------
    >>> import specfit_runtime
    >>> model = specfit_runtime.load_offloaded(specfit_runtime.demo_model(), expert_cache=16)
    >>> offload = specfit_runtime.offload_of(model)
    >>> offload.n_layers, offload.n_experts, offload.top_k
    (8, 64, 4)
    >>> offload.close()
    """
    target = checked_device(device)
    live_cache_rule(cache_policy)
    found = _find_experts(model, revision, _checked_dtype(dtype))
    index = found.index
    generation_config = read_generation_config(found.folder)
    if scratch is None:
        scratch = default_scratch(index.n_experts, index.top_k)
    else:
        scratch = Whole()(scratch, "scratch")
    slots = slots_per_layer(
        expert_cache,
        n_experts=index.n_experts,
        record_bytes=index.record_bytes.tolist(),
        scratch=scratch,
    )
    register()
    local = os.path.isdir(os.path.expanduser(model))
    found.config.name_or_path = os.fspath(found.folder if local else model)
    with reading(found.folder / "config.json", "the stock model cannot be made of"):
        built = build_skeleton(
            found.config,
            found.dtype,
            attn_implementation=attn_implementation,
            experts_implementation=EXPERTS_IMPLEMENTATION,
        )
    experts_modules(built, found.family)  # here, because what follows is dearer
    filling = plan_filling(built, found.checkpoint, found.family, found.keys)
    if generation_config is not None:
        built.generation_config = generation_config
    # What is cheap to find wrong comes before what takes long to read.
    opened = open_store(
        store,
        index,
        device=target,
        direct_io=direct_io,
        io_threads=io_threads,
        link_bandwidth=link_bandwidth,
    )
    try:
        attach_experts(
            built,
            found.family,
            opened,
            slots,
            cache_policy=cache_policy,
            scratch=scratch,
            source=os.fspath(found.folder),
        )
        fill_skeleton(
            built, found.checkpoint, found.family, filling, device=target, dtype=found.dtype
        )
    except BaseException:
        opened.close()
        raise
    # There is no gradient to the experts, so none may be asked of the rest by accident.
    built.requires_grad_(False).eval()
    return built


@dataclass(frozen=True)
class _Found:
    """A checkpoint, and where its experts are.

    Attributes
    ----------
    folder : Path
    checkpoint : Checkpoint
    config : PretrainedConfig
    family : ExpertFamily
    dtype : torch.dtype
        What the model will compute in.
    index : ExpertIndex
    keys : frozenset of str
        Names of the tensors that hold the experts.
    """

    folder: Path
    checkpoint: Checkpoint
    config: Any
    family: ExpertFamily
    dtype: torch.dtype
    index: ExpertIndex
    keys: frozenset[str]


def _find_experts(
    model: str | os.PathLike[str], revision: str | None, dtype: torch.dtype | None
) -> _Found:
    folder = checkpoint_folder(model, revision=revision)
    checkpoint = Checkpoint(folder)
    try:
        config = read_model_config(folder, checkpoint)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; the families are {', '.join(FAMILIES)}") from error
    with reading(folder / "config.json", "the experts cannot be found by"):
        family = family_for(config)
        try:
            family.check(config)
        except CheckpointError as error:
            raise CheckpointError(f"{folder}: {error}") from None
        run_dtype = dtype or _stored_dtype(config, checkpoint)
        index, keys = index_experts(checkpoint, family, config, run_dtype)
    return _Found(folder, checkpoint, config, family, run_dtype, index, keys)


def attach_experts(
    model: Any,
    family: ExpertFamily,
    store: ExpertStore,
    slots: Sequence[int],
    *,
    cache_policy: str = DEFAULT_CACHE_RULE,
    scratch: int,
    source: str,
) -> Offload:
    """Serve the experts of a skeleton from a store.

    Parameters
    ----------
    model : PreTrainedModel
        From :func:`~specfit_runtime.skeleton.build_skeleton` with this experts implementation;
        changed in place. Whether its other parameters are filled already does not matter.
    family : ExpertFamily
    store : ExpertStore
        Open; belongs to the model from now on.
    slots : sequence of int, shape (L,)
        Experts per layer that stay in fast memory.
    cache_policy : str
    scratch : int
        Slots of the scratch slab.
    source : str
        Where the experts are, for messages.

    Returns
    -------
    Offload
        The same as :func:`offload_of` gives.

    Raises
    ------
    InvalidInputError
        If the slots do not fit into memory, or an argument is out of range. The store stays open.
    """
    modules = experts_modules(model, family)
    cache = ExpertCache(store, slots, policy=cache_policy, scratch=scratch, device=store.device)
    offload = Offload(family, store, cache)
    for layer, module in enumerate(modules):
        module._specfit = ExpertLayer(offload, layer)  # type: ignore[assignment]
        module.register_forward_pre_hook(require_implementation)
        guard_conversion(module, offload.device, offload.dtype, has_weights=False)
    guard_conversion(model, offload.device, offload.dtype, has_weights=True)
    model.save_pretrained = Unsaveable(source)
    hook_generate(model)
    if store.device.type == "cuda":
        process = os.getpid()
        model.register_forward_pre_hook(lambda module, args: require_process(process))
    model._specfit_offload = offload
    return offload


def _checked_dtype(dtype: Any) -> torch.dtype | None:
    if dtype is None or (isinstance(dtype, str) and dtype == "auto"):
        return None
    found = getattr(torch, dtype.removeprefix("torch."), None) if isinstance(dtype, str) else dtype
    if not isinstance(found, torch.dtype) or found not in _DTYPES:
        names = ", ".join(str(d).removeprefix("torch.") for d in _DTYPES)
        raise InvalidInputError(f"dtype must be one of {names}, or None, got {dtype!r}")
    return found


def _stored_dtype(config: Any, checkpoint: Checkpoint) -> torch.dtype:
    """Return what ``from_pretrained`` would load in: the configuration's type, or the tensors'."""
    dtype = config.dtype
    if dtype is None:
        stored = (tensor.float_dtype for tensor in checkpoint.tensors.values())
        dtype = next((d for d in stored if d is not None), None)
    if dtype not in _DTYPES:
        raise CheckpointError(
            f"{checkpoint.folder} is in {dtype}, which experts are not computed in; pass dtype"
        )
    return dtype  # type: ignore[no-any-return]
