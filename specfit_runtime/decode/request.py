"""What `generate` asks for, checked: one sequence, greedy or sampled, and what to return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    StoppingCriteriaList,
)
from transformers.generation.configuration_utils import GenerationMode

from ..errors import InvalidInputError
from ..verify.transformers_api import Prompt, read_generate_arguments


@dataclass(frozen=True, eq=False)
class Request:
    """One call of `generate`.

    Attributes
    ----------
    input_ids : Tensor of int64, shape (1, t)
        What `generate` was given, the beginning of what it returns.
    prompt : Prompt
        What is new in it, and the cache.
    do_sample : bool
    max_new_tokens : int
        At least 1.
    logits_processor, stopping_criteria
        As `generate` prepared them.
    streamer : object or None
    wants : tuple of str
        ``"scores"`` and ``"logits"`` if they are to be returned.
    returns_dict : bool
    """

    input_ids: Tensor
    prompt: Prompt
    do_sample: bool
    max_new_tokens: int
    logits_processor: LogitsProcessorList
    stopping_criteria: StoppingCriteriaList
    streamer: Any
    wants: tuple[str, ...]
    returns_dict: bool

    @classmethod
    def of(
        cls,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        streamer: Any,
        model_kwargs: Mapping[str, Any],
    ) -> Request:
        """Return the request, checked.

        Raises
        ------
        InvalidInputError
            If it asks for what speculative decoding of one sequence cannot give.
        """
        mode = generation_config.get_generation_mode()
        if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
            raise InvalidInputError(
                f"SpecFit decodes greedily or by sampling, and generate was asked for "
                f"{mode.value.replace('_', ' ')}; set num_beams=1 and leave other modes off"
            )
        returns_dict = bool(generation_config.return_dict_in_generate)
        for name in ("output_attentions", "output_hidden_states"):
            if returns_dict and getattr(generation_config, name, False):
                raise InvalidInputError(
                    f"{name}=True: a pass over a tree has no steps of one token; leave it off"
                )
        if (generation_config.guidance_scale or 1) != 1:
            raise InvalidInputError(
                "guidance_scale needs a second pass per token, which SpecFit does not run; "
                "leave it out"
            )
        if generation_config.is_assistant:
            raise InvalidInputError(
                "is_assistant=True is for a model that drafts, and SpecFit decodes with the "
                "target; leave it off"
            )
        prompt = read_generate_arguments(input_ids, generation_config, model_kwargs)
        room = int(generation_config.max_length) - input_ids.shape[1]
        return cls(
            input_ids=input_ids,
            prompt=prompt,
            do_sample=bool(generation_config.do_sample),
            # Stock decoding commits a token before it looks at the length.
            max_new_tokens=max(room, 1),
            logits_processor=logits_processor,
            stopping_criteria=stopping_criteria,
            streamer=streamer,
            wants=tuple(
                name
                for name in ("scores", "logits")
                if returns_dict and getattr(generation_config, f"output_{name}", False)
            ),
            returns_dict=returns_dict,
        )
