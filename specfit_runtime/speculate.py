"""`SpecFit`: speculative decoding as a ``custom_generate`` of Transformers' ``generate``."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from specfit_opt.checks import Flag
from specfit_opt.control.acceptance_calibration import AcceptanceCalibrator, CalibrationState
from specfit_opt.control.correction import OnlineCorrection
from specfit_opt.policies import Policy, make_policy
from specfit_opt.routing_predictor import RoutingPredictor

from ._ambient import usual_float_errors
from .calibration import RuntimeProfile, load_runtime_profile
from .calibration.measure import calibrate_briefly
from .decode.hooks import streamer_of_generate
from .decode.loop import DecodeLoop
from .decode.memory import DecodeMemory
from .decode.request import Request
from .drafters import Drafter, make_drafter
from .errors import InvalidInputError
from .exclusive import exclusively, loading, taken
from .offload import BUSY, model_name, offload_of
from .predictors import make_predictor
from .prefetch import Prefetcher
from .report import DecodeReport
from .state import StateKeeper
from .state.setup_key import setup_key

if TYPE_CHECKING:
    from .offload import Offload

#: A text of fewer cycles teaches little, and what it taught is not written.
_LEAST_CYCLES = 8

#: The field of ``generate``'s result that holds the cache; it was renamed on the way.
_CACHE_FIELD = (
    "cache"
    if "cache" in GenerateDecoderOnlyOutput.__dataclass_fields__
    else "past_key_values"
)


class SpecFit:
    """Decodes an offloaded model with draft trees chosen cycle by cycle; the output stays the same.

    Pass it to ``generate``: ``model.generate(**inputs, custom_generate=SpecFit(drafter=...))``.
    What ``generate`` does with logits processors, sampling, stopping criteria, end tokens,
    streamers and generation configurations works as without it.

    Parameters
    ----------
    drafter : str or Drafter, optional
        ``"eagle3:DIR"``, ``"lm:DIR"``, ``"prompt-lookup"``, or a drafter object. None: for policies
        that never draft.
    policy : str or Policy
        A name of :data:`~specfit_opt.policies.POLICIES`, such as ``"specfit"``, ``"ar"``,
        ``"chain-4"`` or ``"eagle-60"``.
    predictor : str or RoutingPredictor
        What predicts the experts of draft tokens: a name of
        :data:`~specfit_runtime.predictors.PREDICTORS`, with a path for those that need one, such as
        ``"learned:DIR"``.
    profile : RuntimeProfile, path or None
        What passes, drafting and experts cost, from `calibrate`. None: it is measured briefly when
        the first text begins, if the policy asks prices.
    prefetch : bool
        Fetch experts early: while a layer computes, those that the next one's router will probably
        choose, as far as what is learned meanwhile says that it pays. False: never.
    state : bool, str or path
        Keep what is learned for later processes: in the user's folder of state
        (``$XDG_STATE_HOME/specfit``, or ``~/.local/state/specfit``), or in a folder that is named.
        Off by default: a program then writes nothing that it was not asked for, and decodes alike
        whenever it runs.

    Raises
    ------
    InvalidInputError
        If a name is unknown, a profile cannot be read, or the policy drafts without a drafter.

    Notes
    -----
    One object serves one model at a time. What it learns (acceptance, routing, costs) stays from
    one text to the next, and is dropped when another model is decoded or by :meth:`forget`. With
    ``state`` it is written after each text of at least 8 cycles, whole or not at all, and a new
    process begins with it, without measuring anything beforehand: if model, drafter, store and
    machine are the same, and with a warning if the file is damaged. Other processes may do so at
    the same time; the last one that ends a text leaves what it knows.

    The text is the target's own: each token is chosen from the target's scores exactly as
    ``generate`` chooses it, greedily or with the same draw of the random generator. A pass over
    several tokens adds in another order than passes over one, so the scores agree to rounding: in
    float32 the tokens are the same unless two are tied to about a millionth of the largest score,
    in bfloat16 near-ties are common and may fall the other way.

    Examples
    --------
    >>> import torch, specfit_runtime as sr
    >>> model = sr.load_offloaded(sr.demo_model(), expert_cache=0.5, dtype="float32")
    >>> prompt = torch.tensor([[0, 310, 282]])
    >>> spec = sr.SpecFit(drafter="prompt-lookup", policy="chain-2")
    >>> plain = model.generate(prompt, max_new_tokens=8, do_sample=False)
    >>> quick = model.generate(prompt, max_new_tokens=8, do_sample=False, custom_generate=spec)
    >>> torch.equal(plain, quick), spec.report.new_tokens
    (True, 8)
    >>> sr.offload_of(model).close()
    """

    #: Tells an offloaded model's `generate` to hand on all that it was given.
    _takes_all_of_generate = True

    def __init__(
        self,
        drafter: str | Drafter | None = None,
        *,
        policy: str | Policy = "specfit",
        predictor: str | RoutingPredictor = "frequency",
        profile: RuntimeProfile | str | os.PathLike[str] | None = None,
        prefetch: bool = True,
        state: bool | str | os.PathLike[str] = False,
    ) -> None:
        self._policy = make_policy(policy)
        self._keeper = StateKeeper(state)
        self._drafter = None if drafter is None else make_drafter(drafter)
        self._predictor = make_predictor(predictor)
        self._predictor_name = predictor if isinstance(predictor, str) else None
        self._profile = None if profile is None else load_runtime_profile(profile)
        self._prefetch: bool = Flag()(prefetch, "prefetch")
        if self._policy.drafts and self._drafter is None:
            raise InvalidInputError(
                f"policy {self._policy.name} drafts, but no drafter was given: give one, such as "
                "drafter='prompt-lookup', or policy='ar'"
            )
        self._offload: Offload | None = None
        self._learned: DecodeMemory | None = None
        self._prefetcher: Prefetcher | None = None
        self._report: DecodeReport | None = None
        self._begins_anew = False
        self._key: dict[str, Any] | None = None  # None: nothing is kept

    @property
    def report(self) -> DecodeReport:
        """What the last decode did; of one that was interrupted, up to there.

        Raises
        ------
        InvalidInputError
            Before the first decode.
        """
        if self._report is None:
            raise InvalidInputError("nothing was decoded yet; pass this to generate first")
        return self._report

    @property
    def profile(self) -> RuntimeProfile | None:
        """The profile in use; None if none was needed yet."""
        return self._profile if self._learned is None else self._learned.profile

    @property
    def acceptance(self) -> CalibrationState | None:
        """How predicted and realised acceptance compare so far; None before the first decode."""
        return None if self._learned is None else self._learned.calibrator.state()

    @property
    def correction(self) -> OnlineCorrection | None:
        """What was learned of the costs; None where the policy asks no prices."""
        return None if self._learned is None else self._learned.correction

    def forget(self) -> None:
        """Drop what was learned of the model and the drafter.

        What is kept for other processes stays as it is, and this object does not read it again.
        """
        self._offload = self._learned = self._prefetcher = None
        self._begins_anew = True

    def __call__(
        self,
        model: Any,
        input_ids: Tensor,
        logits_processor: Any = None,
        stopping_criteria: Any = None,
        generation_config: Any = None,
        synced_gpus: bool = False,
        streamer: Any = None,
        tokenizer: Any = None,
        assistant_tokenizer: Any = None,
        assistant_model: Any = None,
        **model_kwargs: Any,
    ) -> GenerateDecoderOnlyOutput | Tensor:
        """Decode one text; ``generate`` calls this.

        Returns
        -------
        Tensor of int64, shape (1, t), or GenerateDecoderOnlyOutput
            As ``generate`` returns it.

        Raises
        ------
        InvalidInputError
            If the model was not loaded by `load_offloaded`, the drafter or the profile is not for
            it, or ``generate`` was asked for what this cannot give.
        BusyError
            If the model is decoding for another call.
        DrafterError
            If the drafter gave something that cannot be verified.
        StoreError
            If weights could not be brought in.
        """
        if synced_gpus:
            raise InvalidInputError("synced_gpus=True: SpecFit decodes on one device; leave it off")
        if assistant_model is not None:
            raise InvalidInputError(
                "assistant_model: SpecFit drafts with its own drafter; give it to SpecFit, as in "
                "drafter='lm:DIR', or leave custom_generate out"
            )
        offload = offload_of(model)
        request = Request.of(
            input_ids,
            logits_processor,
            stopping_criteria,
            generation_config,
            streamer_of_generate() if streamer is None else streamer,
            model_kwargs,
        )
        with usual_float_errors():
            loop = exclusively(
                self._parts(offload, request), lambda: self._decode(model, offload, request)
            )
        if not request.returns_dict:
            return loop.ids
        fields: dict[str, Any] = {name: tuple(getattr(loop, name)) for name in request.wants}
        return GenerateDecoderOnlyOutput(
            **{"sequences": loop.ids, _CACHE_FIELD: loop.cache, **fields}
        )

    def _parts(self, offload: Offload, request: Request) -> list[tuple[object, str]]:
        """Return what belongs to one text at a time, and what to say if it is taken."""
        parts: list[tuple[object, str]] = [(offload, BUSY), (self, taken("SpecFit"))]
        if self._drafter is not None and self._policy.drafts:
            parts.append((self._drafter, taken("drafter")))
        parts.append((self._predictor, taken("predictor")))
        if self._policy.fresh() is self._policy:
            parts.append((self._policy, taken("policy")))
        parts.append((request.prompt.cache, taken("cache of keys and values")))
        return parts

    def _decode(self, model: Any, offload: Offload, request: Request) -> DecodeLoop:
        learned, prefetcher = self._prepare(model, offload)
        self._report = None
        loop = DecodeLoop(model, offload, request, learned, prefetcher)
        try:
            loop.run()
            if self._key is not None and len(loop.cycles) >= _LEAST_CYCLES:
                self._keeper.save(self._key, learned.keep())
        finally:
            loop.close()
            if loop.prefill is not None:
                self._report = _report(model, offload, loop, request, learned)
        return loop

    def _prepare(self, model: Any, offload: Offload) -> tuple[DecodeMemory, Prefetcher | None]:
        known = self._learned if self._offload is offload else None
        if known is not None and not known.torn:
            self._bind(model, known.drafter)
            return known, self._prefetcher
        if known is not None and self._predictor_name is not None:
            self._predictor = make_predictor(self._predictor_name)
        policy = self._policy
        drafter = self._drafter if policy.drafts else None
        self._bind(model, drafter)
        if self._profile is not None:
            self._profile.check_fits(offload)
            if drafter is not None and policy.priced:
                self._profile.check_drafter(drafter.name)
        learned = self._restored(model, offload, drafter)
        if learned is None:
            profile = self._profile if known is None else known.profile
            if profile is None and policy.priced:
                profile = calibrate_briefly(model, drafter)
            learned = self._memory(drafter, profile)
        prefetcher = Prefetcher(model, offload) if self._prefetch else None
        self._offload, self._learned, self._prefetcher = offload, learned, prefetcher
        return learned, prefetcher

    def _memory(self, drafter: Drafter | None, profile: RuntimeProfile | None) -> DecodeMemory:
        """Return the parts of a decode that have a memory, without any."""
        policy, correction = self._policy.fresh(), None
        if profile is not None and policy.priced:
            correction = OnlineCorrection(
                profile.cost_model(), profile.draft_time, handling=profile.handling_share
            )
        return DecodeMemory(
            policy, drafter, self._predictor, AcceptanceCalibrator(), profile, correction
        )

    def _restored(
        self, model: Any, offload: Offload, drafter: Drafter | None
    ) -> DecodeMemory | None:
        """Return them as an earlier process left them; None if it left nothing that fits."""
        self._key = None
        if self._keeper.folder is None or self._policy.fixed:
            return None
        try:
            self._key = setup_key(
                model, offload, self._policy, drafter, self._predictor, self._profile
            )
        except OSError as error:  # a file of the model is gone, so nothing belongs to it
            self._keeper.discard(error)
            return None
        kept = None if self._begins_anew else self._keeper.load(self._key)
        if kept is None:
            return None
        learned = self._memory(drafter, kept.profile)
        try:
            if self._policy.priced and kept.profile is None:
                raise InvalidInputError("it holds no profile, and the policy asks prices")
            learned.restore(kept, offload)
        except InvalidInputError as error:
            self._keeper.discard(error)
            return None
        return learned

    def _bind(self, model: Any, drafter: Drafter | None) -> None:
        """Bind drafter and predictor, unless nobody has bound them to others since."""
        with loading():
            if drafter is not None and not drafter.bound_to(model):
                drafter.bind(model)
            served = model, drafter
            last = _served.get(self._predictor)
            if last is None or any(a() is not b for a, b in zip(last, served, strict=True)):
                self._predictor.bind(model, drafter)
                _served[self._predictor] = tuple(map(_reference, served))


#: The target and the drafter that each predictor was bound to last.
_served: WeakKeyDictionary[RoutingPredictor, tuple[Callable[[], Any], ...]] = WeakKeyDictionary()


def _reference(thing: Any) -> Callable[[], Any]:
    return ref(thing) if thing is not None else lambda: None


def _cost_source(learned: DecodeMemory) -> str | None:
    if learned.profile is None:
        return None
    source = f"profile {learned.profile.name}, corrected meanwhile"
    return f"{source} and in earlier runs" if learned.restored else source


def _report(
    model: Any, offload: Offload, loop: DecodeLoop, request: Request, learned: DecodeMemory
) -> DecodeReport:
    drafter = learned.drafter
    assert loop.prefill is not None
    return DecodeReport(
        model=model_name(model),
        policy=learned.policy.name,
        drafter=None if drafter is None else drafter.name,
        predictor=learned.predictor.name if learned.policy.predicts else None,
        store=offload.store.name,
        cache_policy=offload.cache.policy,
        link_bandwidth=offload.link_bandwidth,
        device=str(offload.device),
        dtype=str(offload.dtype).removeprefix("torch."),
        n_layers=offload.n_layers,
        n_experts=offload.n_experts,
        top_k=offload.top_k,
        slots=offload.cache.slots,
        do_sample=request.do_sample,
        prompt_tokens=request.input_ids.shape[1],
        prefill=loop.prefill,
        cycles=tuple(loop.cycles),
        cost_source=_cost_source(learned),
        assumptions=(drafter.assumption,) if drafter is not None and drafter.assumption else (),
        warnings=tuple(filter(None, (loop.warning, "" if drafter is None else drafter.warning))),
    )
