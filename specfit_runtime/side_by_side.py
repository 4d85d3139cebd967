"""The shipped model decodes a text under several policies in turns; the stock model checks it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from specfit_opt.policies import Policy

from .alignment import align_weights
from .demo_files import demo_drafter, demo_model
from .errors import SpecfitError
from .load import load_offloaded
from .offload import offload_of
from .report import DecodeReport
from .speculate import SpecFit


class SideBySide:
    """Decodes with the shipped model under several policies, in float32.

    Each policy has a model, a cache and a memory of its own, which stay from text to text.

    Parameters
    ----------
    policies : sequence of str
        Names.
    new_tokens : int
        Tokens after each prompt.
    temperature : float
        Tokens are drawn at this temperature from all of the vocabulary; 0: decoding is greedy.
    options : dict, optional
        Of `SpecFit`.
    **offload
        Of `load_offloaded`.
    """

    def __init__(
        self,
        policies: Sequence[str],
        *,
        new_tokens: int,
        temperature: float = 0.0,
        options: dict[str, Any] | None = None,
        **offload: Any,
    ) -> None:
        self.tokenizer = AutoTokenizer.from_pretrained(demo_model(), trust_remote_code=False)
        self._head = f"eagle3:{demo_drafter()}"
        self.specs = {name: SpecFit(self._head, policy=name, **options or {}) for name in policies}
        self._stock = align_weights(
            AutoModelForCausalLM.from_pretrained(
                demo_model(), dtype=torch.float32, trust_remote_code=False
            )
        )
        config = copy.deepcopy(self._stock.generation_config)
        config.max_new_tokens, config.max_length = new_tokens, None
        config.do_sample = temperature > 0.0
        config.temperature, config.top_k = (temperature, 0) if config.do_sample else (None, None)
        self.models: dict[str, Any] = {}
        with ExitStack() as opened:
            for name in self.specs:
                self.models[name] = load_offloaded(demo_model(), dtype="float32", **offload)
                opened.enter_context(offload_of(self.models[name]))
            self._opened = opened.pop_all()
        for model in (self._stock, *self.models.values()):
            model.generation_config = config

    def __enter__(self) -> SideBySide:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def decode(self, prompt: str, turn: int = 0) -> dict[str, DecodeReport]:
        """Go on from ``prompt`` with every policy, one after the other.

        Parameters
        ----------
        prompt : str
        turn : int
            Who begins meets the machine in another state; counted up from call to call, everyone
            begins in turn. Draws of tokens have it as their seed.

        Returns
        -------
        dict of str to DecodeReport

        Raises
        ------
        SpecfitError
            If a policy gives other tokens than the stock model, which has all weights in memory.
        """
        inputs = self.tokenizer(prompt, return_tensors="pt")
        expected = self._tokens(self._stock, inputs, turn)
        begin = turn % len(self.specs)
        names = list(self.specs)
        for name in (*names[begin:], *names[:begin]):
            found = self._tokens(self.models[name], inputs, turn, custom_generate=self.specs[name])
            if not torch.equal(found, expected):
                raise SpecfitError(
                    f"policy {name} decoded other tokens than the stock model: "
                    f"{found.tolist()}, stock {expected.tolist()}"
                )
        return {name: spec.report for name, spec in self.specs.items()}

    def decode_once(self, prompt: str, policy: Policy) -> None:
        """Go on from ``prompt`` with another policy, on the model and by the prices of the last."""
        name = list(self.specs)[-1]
        spec = SpecFit(self._head, policy=policy, profile=self.specs[name].profile)
        inputs = self.tokenizer(prompt, return_tensors="pt")
        self._tokens(self.models[name], inputs, custom_generate=spec)

    def _tokens(self, model: Any, inputs: Any, seed: int = 0, **options: Any) -> Tensor:
        torch.manual_seed(seed)
        output: Tensor = model.generate(**inputs, **options)
        return output[0, inputs["input_ids"].shape[1] :]
