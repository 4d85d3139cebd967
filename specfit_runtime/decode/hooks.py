"""Hooks into `generate` of an offloaded model: a `SpecFit` gets all that was asked for."""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

#: Settings of a generation config that leave the text as it is and that a decode of trees cannot
#: follow, and what is put in their place unless the caller himself asks for them: a file may hold
#: what training or another program left in it.
_LEFTOVERS: Mapping[str, Any] = {
    "use_cache": True,
    "cache_implementation": None,
    "output_attentions": False,
    "output_hidden_states": False,
    # Speculation of Transformers' own.
    "use_mtp": None,
    "prompt_lookup_num_tokens": None,
    "assistant_early_exit": None,
}

#: Whether the `generate` that this thread is in has begun with a decoder of ours.
_ours: ContextVar[bool] = ContextVar("specfit_ours", default=False)
#: The streamer of the `generate` that this thread is in.
_streamer: ContextVar[Any] = ContextVar("specfit_streamer", default=None)


def streamer_of_generate() -> Any:
    """Return the streamer that the `generate` above was given, or None.

    For a ``custom_generate`` that is a user's own and calls a `SpecFit`: it is handed none.
    """
    streamer = _streamer.get()
    _streamer.set(None)
    return streamer


def hook_generate(model: Any) -> None:
    """Make ``model.generate`` keep nothing from a ``custom_generate`` that is a `SpecFit`.

    To a callable `generate` hands those arguments that `GenerationMixin._sample` does not take;
    the streamer, the tokenizer, ``assistant_model`` and ``synced_gpus`` it drops, of which stop
    strings and token healing need the tokenizer within `generate` itself. What it hands on is
    decided by one method and what the files of a checkpoint add to the caller's settings by
    another. Both become attributes of the one model here that call the stock ones.
    """
    kind = type(model)
    # Not the model itself: a cycle would keep a dropped one until the garbage collector runs.
    reference = weakref.ref(model)

    def extract(
        custom_generate: Any, kwargs: Any, synced_gpus: Any, assistant_model: Any, streamer: Any
    ) -> Any:
        ours = getattr(custom_generate, "_takes_all_of_generate", False)
        _ours.set(ours)
        _streamer.set(streamer if callable(custom_generate) and not ours else None)
        custom = None if ours else custom_generate
        return kind._extract_generation_mode_kwargs(
            reference(), custom, kwargs, synced_gpus, assistant_model, streamer
        )

    def prepare(generation_config: Any, **kwargs: Any) -> Any:
        this = reference()
        if _ours.get():
            _ours.set(False)
            kwargs = _without_leftovers(this, generation_config, kwargs)
        return kind._prepare_generation_config(this, generation_config, **kwargs)

    model._extract_generation_mode_kwargs = extract
    model._prepare_generation_config = prepare


def _without_leftovers(model: Any, config: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the keyword arguments with what undoes settings that only files ask for."""
    files = model.generation_config
    changed = dict(given)

    def setting(name: str) -> Any:
        if name in given:
            return given[name]
        value = getattr(config, name, None)
        return getattr(files, name, None) if value is None else value

    returns_dict = bool(setting("return_dict_in_generate"))
    for name, neutral in _LEFTOVERS.items():
        value = setting(name)
        if value is None or value == neutral:
            continue
        # A config that the caller passes on may be the file's.
        asked = name in given or value != getattr(files, name, None)
        output = name.startswith("output_")
        if asked and (returns_dict or not output):
            continue
        if output and returns_dict:
            warnings.warn(
                f"the generation config of the checkpoint asks for {name}, which a pass over a "
                "tree has not for each token; the result goes without",
                stacklevel=5,
            )
        changed[name] = neutral
    return changed
