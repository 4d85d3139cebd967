"""Record routing and the drafter's states along given text: windows at once, nothing decoded."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import AutoModelForCausalLM

from specfit_opt.files import Trace
from specfit_runtime import demo_drafter, demo_model
from specfit_runtime.drafters.eagle3_config import read_config
from specfit_runtime.drafters.eagle3_head import Eagle3Head
from specfit_runtime.drafters.eagle3_weights import HeadFiles

__all__ = ["TextRecorder"]

#: Windows that run at once.
_BATCH = 16


class TextRecorder:
    """Runs the shipped model and its head over text.

    A token's state is the head's output after the pair of the state before the last token and that
    one's embedding, as in decoding. The first two tokens of a window have none and are left out.
    """

    def __init__(self) -> None:
        folder = demo_model()
        self._model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, trust_remote_code=False
        ).eval()
        files = HeadFiles(demo_drafter())
        config = read_config(demo_drafter(), files.shapes)
        assert config.feature_layers is not None
        self._layers = config.feature_layers
        tensors = files.read(config, len(self._layers))
        tensors.pop("d2t", None)
        tensors.pop("t2d", None)
        self._head = Eagle3Head(config, tensors, torch.device("cpu"), torch.float32)
        self._embed = self._model.get_input_embeddings().weight.detach()

    @torch.inference_mode()
    def record(self, windows: Tensor, name: str = "") -> Trace:
        """Return a trace of roots alone, a prompt for each of the windows, int64 [N, S]."""
        n, length = windows.shape[0], windows.shape[1] - 2
        experts, states = zip(*map(self._batch, windows.split(_BATCH)), strict=True)
        nodes = n * length
        return Trace(
            cycle_start=np.arange(nodes + 1),
            prompt=np.repeat(np.arange(n), length),
            position=np.tile(np.arange(length), n),
            parent=np.full(nodes, -1),
            token=windows[:, 2:].flatten().numpy(),
            path_prob=np.ones(nodes),
            depth=np.zeros(nodes, dtype=np.int16),
            accepted=np.ones(nodes, dtype=np.bool_),
            experts=np.concatenate(experts),
            n_experts=int(self._model.config.num_experts),
            states=np.concatenate(states),
            name=name,
        )

    def _batch(self, ids: Tensor) -> tuple[np.ndarray, np.ndarray]:
        outputs = self._model(ids, output_hidden_states=True, output_router_logits=True,
                              use_cache=False, logits_to_keep=1)
        top_k = int(self._model.config.num_experts_per_tok)
        chosen = torch.stack([s.topk(top_k, dim=-1).indices for s in outputs.router_logits], 1)
        chosen = chosen.view(*ids.shape, *chosen.shape[1:])[:, 2:].flatten(0, 1)
        features = torch.stack([outputs.hidden_states[i] for i in self._layers], dim=2)
        embedded = functional.embedding(ids, self._embed)
        rows = [
            self._head.normed(
                self._head.step(embedded[b, 1:-1], self._head.fuse(features[b, :-2]), 0, 0, None)
            )
            for b in range(len(ids))
        ]
        return chosen.to(torch.int16).numpy(), torch.cat(rows).to(torch.float16).numpy()
