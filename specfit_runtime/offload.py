"""Loads a mixture-of-experts model whose experts stay where they are until a token needs them."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from threading import RLock, local
from types import TracebackType
from typing import Any, NoReturn, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from specfit_opt.checks import Whole
from specfit_opt.path_weights import PathWeights

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
from .exclusive import held
from .expert_cache import (
    DEFAULT_EVICTION,
    ExpertCache,
    default_scratch,
    get_eviction_policy,
    slots_per_layer,
)
from .experts import EXPERTS_IMPLEMENTATION, ExpertLayer, register
from .families import FAMILIES, ExpertFamily, family_for
from .routing_record import RoutingRecord
from .skeleton import build_skeleton, experts_modules, fill_skeleton, plan_filling
from .stores import EmulatedLink, ExpertStore, open_store
from .stores._check import checked_device
from .stores._cuda import require_process

#: What a second generation on one model is told.
BUSY = (
    "the model is decoding for another call; wait for that one, or load the model a second time"
)

_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


class _Pass(local):
    """What belongs to the forward pass that a thread runs, and to no other thread's."""

    def __init__(self) -> None:
        self.records: list[RoutingRecord] = []
        self.paths: PathWeights | None = None


class Offload:
    """What belongs to an offloaded model beside its modules; see :func:`offload_of`.

    As a context manager it is closed at the end of the block.

    Parameters
    ----------
    family : ExpertFamily
    store : ExpertStore
        Where the experts are kept; closed together with this.
    cache : ExpertCache
        Which of them are in fast memory.

    Attributes
    ----------
    family, store, cache
        As above.
    index : ExpertIndex
        Where the experts lie in the checkpoint.
    n_layers, n_experts, top_k : int
        MoE layers, experts per layer, and experts per token and layer.
    device : torch.device
        Where the model runs.
    dtype : torch.dtype
        What experts are computed in.
    """

    def __init__(self, family: ExpertFamily, store: ExpertStore, cache: ExpertCache) -> None:
        self.family = family
        self.store = store
        self.cache = cache
        self.index: ExpertIndex = store.index
        self.n_layers = self.index.n_layers
        self.n_experts = self.index.n_experts
        self.top_k = self.index.top_k
        self.device = store.device
        self.dtype = self.index.layouts[0].dtype
        self._pass = _Pass()
        self._closed = False
        # A model that is dropped without close() leaves no threads and descriptors behind.
        self._finalizer = weakref.finalize(self, store.close)

    @property
    def lock(self) -> RLock:
        """Held while a layer's experts are computed."""
        return self.cache.lock

    @property
    def link_bandwidth(self) -> float | None:
        """Bytes per second of the emulated link before the store; None: none is emulated."""
        return self.store.bandwidth if isinstance(self.store, EmulatedLink) else None

    @contextmanager
    def recording(self) -> Iterator[RoutingRecord]:
        """Record which experts the forward passes inside the block are routed to.

        Those of the thread that records; what others run on the model meanwhile is not in it.

        Yields
        ------
        RoutingRecord
            Its ``experts()`` gives int32 of shape (n, L, k), one row per token in the order in
            which they were computed.
        """
        record = RoutingRecord(self.n_layers, self.top_k)
        records = self._pass.records
        records.append(record)
        try:
            yield record
        finally:
            records.remove(record)

    def record_routing(self, layer: int, routing: NDArray[np.int32]) -> None:
        """Note the experts of a layer's forward pass, shape (T, k), before they are computed.

        Raises
        ------
        InvalidInputError
            If the offload is closed.
        """
        if self._closed:
            raise InvalidInputError(
                "the experts of this model were closed; load it again with load_offloaded"
            )
        for record in self._pass.records:
            record.note(layer, routing)

    @contextmanager
    def expecting(self, paths: PathWeights) -> Iterator[None]:
        """Tell the cache how likely the tokens of the passes inside the block will be committed.

        Only an eviction policy that weighs makes use of it; outside, and in other threads, every
        token counts as certain.

        Parameters
        ----------
        paths : PathWeights
            Of the tree whose nodes, in their order, are the tokens of the passes.

        Yields
        ------
        None
        """
        self._pass.paths = paths
        try:
            yield
        finally:
            self._pass.paths = None

    def weights(
        self, routing: NDArray[np.integer], experts: Sequence[int]
    ) -> Sequence[float] | None:
        """Return how likely a committed token uses each of a layer's experts.

        Parameters
        ----------
        routing : ndarray of int, shape (T, k)
            Experts of the pass's tokens.
        experts : sequence of int
            What is asked for.

        Returns
        -------
        list of float, or None
            None where nobody asks for it, or every token is certain.
        """
        paths = self._pass.paths
        if paths is None or not self.cache.weighs:
            return None
        weight: list[float] = paths.of(routing[:, None], self.n_experts)[0, experts].tolist()
        return weight

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep the model for one generation.

        Raises
        ------
        BusyError
            On entry, if another generation has it; nothing is waited for.
        """
        return held(self, BUSY)

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._closed

    def close(self) -> None:
        """Stop the store's threads and release its files; the model cannot run any more.

        Waits for the layer that is being computed; may be called again.
        """
        with self.lock:
            self._closed = True
            self._finalizer()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        slots = sorted(set(self.cache.slots))
        shown = f"{slots[0]}" if len(slots) == 1 else f"{slots[0]} to {slots[-1]}"
        total = int(self.index.record_bytes.sum()) * self.n_experts
        state = ", closed" if self._closed else ""
        return (
            f"<Offload {self.family.model_type}: {self.n_layers} layers x {self.n_experts} "
            f"experts, top-{self.top_k}; {self.store.description}; {shown} slots per layer "
            f"({self.cache.policy}), {self.cache.n_bytes / 1e6:.1f} MB of the experts' "
            f"{total / 1e6:.1f} MB; {str(self.dtype).removeprefix('torch.')} on "
            f"{self.device}{state}>"
        )

    def __deepcopy__(self, memo: Any) -> NoReturn:
        raise InvalidInputError(
            "an offloaded model cannot be copied: files, threads and slots belong to one model; "
            "load it a second time with load_offloaded"
        )

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise InvalidInputError(
            "an offloaded model cannot be pickled: its experts are not in it; pass on the "
            "checkpoint and load it with load_offloaded"
        )


def load_offloaded(
    model: str | os.PathLike[str],
    *,
    expert_cache: float | int | str = 0.25,
    store: str = "disk",
    device: str | torch.device = "cpu",
    dtype: torch.dtype | str | None = None,
    cache_policy: str = DEFAULT_EVICTION,
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
        Which expert gives up its slot first: ``lfu``, ``lru``, ``lru-2``, ``fifo`` or ``admit``.
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
    get_eviction_policy(cache_policy)
    asked = _checked_dtype(dtype)
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
        run_dtype = asked or _stored_dtype(config, checkpoint)
        index, taken = index_experts(checkpoint, family, config, run_dtype)
    generation_config = read_generation_config(folder)
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
    config.name_or_path = os.fspath(folder if local else model)
    with reading(folder / "config.json", "the stock model cannot be made of"):
        built = build_skeleton(
            config,
            run_dtype,
            attn_implementation=attn_implementation,
            experts_implementation=EXPERTS_IMPLEMENTATION,
        )
    experts_modules(built, family)  # here, because what follows is dearer
    filling = plan_filling(built, checkpoint, family, taken)
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
            family,
            opened,
            slots,
            cache_policy=cache_policy,
            scratch=scratch,
            source=os.fspath(folder),
        )
        fill_skeleton(built, checkpoint, family, filling, device=target, dtype=run_dtype)
    except BaseException:
        opened.close()
        raise
    # There is no gradient to the experts, so none may be asked of the rest by accident.
    built.requires_grad_(False).eval()
    return built


def attach_experts(
    model: Any,
    family: ExpertFamily,
    store: ExpertStore,
    slots: Sequence[int],
    *,
    cache_policy: str = DEFAULT_EVICTION,
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
        module.register_forward_pre_hook(_check_implementation)
        _guard_conversion(module, offload, has_weights=False)
    _guard_conversion(model, offload, has_weights=True)
    model.save_pretrained = _Unsaveable(source)
    hook_generate(model)
    if store.device.type == "cuda":
        process = os.getpid()
        model.register_forward_pre_hook(lambda module, args: require_process(process))
    model._specfit_offload = offload
    return offload


def offload_of(model: Any) -> Offload:
    """Return what belongs to a model that :func:`load_offloaded` returned.

    Raises
    ------
    InvalidInputError
        If it is another model.
    """
    offload = getattr(model, "_specfit_offload", None)
    if not isinstance(offload, Offload):
        raise InvalidInputError(
            f"this {type(model).__name__} has no offloaded experts; load the model with "
            "specfit_runtime.load_offloaded"
        )
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


# The guards below are attributes and hooks of the one model that was loaded: its classes stay as
# they are. Without them, three things that users do would go wrong silently or obscurely.


def _check_implementation(module: nn.Module, args: Any) -> None:
    """Refuse a forward pass of stock code over the parameters on meta, which gives no numbers."""
    chosen = getattr(module.config, "_experts_implementation", None)
    if chosen != EXPERTS_IMPLEMENTATION:
        raise InvalidInputError(
            f"the experts implementation of this offloaded model was changed to {chosen!r}, which "
            f"needs all experts in memory; call set_experts_implementation("
            f"{EXPERTS_IMPLEMENTATION!r}), or load the model with from_pretrained"
        )


class _Unsaveable:
    """Stands for ``save_pretrained`` of a model that does not hold its experts."""

    def __init__(self, source: str) -> None:
        self._source = source

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise InvalidInputError(
            "an offloaded model cannot be saved: its experts are not in it; they are, unchanged, "
            f"in {self._source}"
        )


def _guard_conversion(module: nn.Module, offload: Offload, *, has_weights: bool) -> None:
    """Let ``.to()`` and its like pass only where they change nothing.

    A converted model would hand hidden states of one type or device to experts of another.
    """
    device, dtype = offload.device, offload.dtype
    probe = torch.empty(0, dtype=dtype, device=device)
    stock: Any = type(module)._apply
    # Not the module itself: a cycle would keep a dropped model until the garbage collector runs.
    reference = weakref.ref(module)

    def checked(fn: Any, recurse: bool = True) -> nn.Module:
        after: Tensor = fn(probe)
        if after.device != device or after.dtype != dtype:
            raise InvalidInputError(
                f"an offloaded model cannot be moved or converted (to {after.dtype} on "
                f"{after.device}): its experts stay {dtype} on {device}; load it again with "
                "load_offloaded(..., device=..., dtype=...)"
            )
        this = reference()
        assert this is not None  # it is being called
        if has_weights:
            stock(this, fn, recurse)
        # Else the parameters are on meta, where there is nothing to apply it to.
        return this

    module._apply = checked  # type: ignore[method-assign]
