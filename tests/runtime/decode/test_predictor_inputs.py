"""What a decode tells its predictor: the model, and with each node the drafter's state."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tiny_drafters import tiny_eagle3
from tiny_models import tiny_config

from specfit_opt.routing_predictor import DraftNodes, RoutingPredictor
from specfit_runtime import SpecFit
from specfit_runtime.drafters import Drafter, DraftLevel, Eagle3Drafter


class Listener(RoutingPredictor):
    """Takes note of everything and predicts nothing."""

    name = "listener"

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.nodes: list[DraftNodes] = []
        self.bound: list[tuple[Any, Drafter | None]] = []

    def bind(self, model: Any, drafter: Drafter | None) -> None:
        self.calls.append("bind")
        self.bound.append((model, drafter))

    def start(self, n_layers: int, n_experts: int, top_k: int) -> None:
        self.calls.append("start")
        self.shape = n_layers, top_k

    def predict(self, nodes: DraftNodes) -> NDArray[np.int32]:
        self.nodes.append(nodes)
        return np.zeros((len(nodes.token), *self.shape), dtype=np.int32)

    def observe(self, tokens: Any, experts: Any) -> None:
        return


class Spy(Eagle3Drafter):
    """Keeps what it drafted."""

    def __init__(self, folder: Any) -> None:
        super().__init__(folder)
        self.drafted: list[DraftLevel] = []
        self.roots: list[torch.Tensor | None] = []

    def level(self, top_k: int, width: int) -> DraftLevel | None:
        level = super().level(top_k, width)
        if level is not None:
            self.drafted.append(level)
            self.roots.append(self.root_state())
        return level


def decoded(model: Any, target: Any, drafter: Any, listener: Listener, policy: str) -> None:
    spec = SpecFit(drafter, policy=policy, predictor=listener)
    for _ in range(2):
        model.generate(
            target.prompt, max_new_tokens=16, do_sample=False, custom_generate=spec
        )


def test_each_node_comes_with_the_state_it_was_drafted_from(model, target, tmp_path):
    drafter = Spy(tiny_eagle3(tmp_path, tiny_config("qwen3_moe")))
    listener = Listener()
    # Its trees are drafted whole before the routing is asked for.
    decoded(model, target, drafter, listener, "ecospec")
    assert listener.calls == ["bind", "start", "start"]
    assert listener.bound == [(model, drafter)]
    known = {
        (*np.round(row, 4).tolist(), int(token))
        for level in drafter.drafted
        for row, token in zip(level.states.numpy(), level.token, strict=True)
    }
    drafted = 0
    for nodes in listener.nodes:
        if nodes.states is None:
            assert nodes.depth.tolist() == [0]  # nothing was drafted
            continue
        states = torch.cat(nodes.states)
        assert states.shape == (len(nodes.token), 48)
        for depth, row, token in zip(nodes.depth, states.numpy(), nodes.token, strict=True):
            if depth:
                assert (*np.round(row, 4).tolist(), int(token)) in known
                drafted += 1
    assert drafted > 16
    first = [nodes.states[0][:1] for nodes in listener.nodes if nodes.states is not None]
    roots = [root for root in drafter.roots if root is not None]
    assert any(torch.equal(state, root) for state in first for root in roots)


def test_a_root_that_was_not_run_over_gets_zeros(model, target, tmp_path):
    class NoRoots(Spy):
        def root_state(self) -> None:
            return None

    listener = Listener()
    drafter = NoRoots(tiny_eagle3(tmp_path, tiny_config("qwen3_moe")))
    decoded(model, target, drafter, listener, "ecospec")
    states = [torch.cat(n.states) for n in listener.nodes if n.states is not None]
    assert states
    for some in states:
        assert not some[0].any()
        assert some[1:].any()


def test_without_states_there_are_none(model, target):
    listener = Listener()
    decoded(model, target, "prompt-lookup", listener, "ecospec")
    assert listener.nodes
    assert all(nodes.states is None for nodes in listener.nodes)


def test_without_a_drafter_the_model_alone_is_told(model, target):
    listener = Listener()
    decoded(model, target, None, listener, "ar")
    assert listener.calls == ["bind", "start", "start"]
    assert listener.bound == [(model, None)]
