"""Training learns what can be learned, repeats itself, and refuses what does not fit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from rounding import assert_same_to_rounding
from routed_trace import EXPERTS, LAYERS, STATE, TOP_K, VOCAB, routed_trace

from specfit_opt.files import Trace
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.predictor_training import PredictorTraining, train_predictor
from specfit_runtime.predictor_training.examples import split_examples
from specfit_runtime.predictor_training.token_table import start_from_table
from specfit_runtime.predictors.routing_network import NetworkShape, RoutingNetwork

SIZES = {"embedding_size": 12, "hidden_size": 24, "seed": 3}


def changed(trace: Trace, **changes: object) -> Trace:
    names = (
        "cycle_start prompt position parent token path_prob depth accepted experts n_experts "
        "expert_bytes name states"
    )
    return Trace(**({name: getattr(trace, name) for name in names.split()} | changes))


@pytest.fixture(scope="module")
def trace() -> Trace:
    return routed_trace(prompts=12, positions=80)


@pytest.fixture(scope="module")
def training(trace: Trace) -> PredictorTraining:
    return train_predictor([trace], epochs=30, **SIZES)


def test_it_learns_what_token_and_state_tell(trace, training):
    assert training.nodes + training.held_out_nodes == trace.n_nodes
    assert training.held_out_nodes == 80 * 4  # one text of twelve
    assert training.recall.shape == (LAYERS,)
    assert training.recall.mean() > 0.9
    least = np.log(TOP_K)  # two experts of the same probability
    for losses in (training.train_loss, training.held_out_loss):
        assert least < min(losses) < least + 0.4 * (losses[0] - least)
    assert training.recall_by_depth.keys() == {0, 1}


def test_a_table_of_the_token_s_experts_knows_half_of_it(trace):
    """The other expert is a guess among five, and the best that a table can do."""
    without = train_predictor([changed(trace, states=None)], epochs=30, **SIZES)
    assert without.network.shape.state_size == 0
    assert 0.5 <= without.recall.mean() < 0.7


def test_an_epoch_is_a_pass_over_all_nodes(trace):
    told: list[tuple[int, int]] = []
    short = train_predictor(
        [trace], epochs=2, progress=lambda done, total: told.append((done, total)), **SIZES
    )
    assert told[-1] == (2 * short.nodes, 2 * short.nodes)
    assert [done for done, _ in told] == sorted(done for done, _ in told)
    assert len(short.train_loss) == 2
    assert len(short.held_out_loss) == 3


def test_the_seed_decides_everything(trace):
    def weights(seed: int) -> torch.Tensor:
        found = train_predictor([trace], epochs=1, **(SIZES | {"seed": seed}))
        return torch.cat([p.flatten() for p in found.network.parameters()]).detach()

    torch.manual_seed(1)
    first = weights(5)
    torch.manual_seed(2)
    assert torch.equal(first, weights(5))
    assert not torch.equal(first, weights(6))


def test_it_ends_when_the_held_out_loss_rises():
    # Routing at random: all that can be learned is noise.
    rng = np.random.default_rng(0)
    noise = routed_trace(prompts=4, positions=30)
    experts = np.argsort(rng.random((noise.n_nodes, LAYERS, EXPERTS)), axis=2)[:, :, :TOP_K]
    found = train_predictor([changed(noise, experts=experts)], epochs=200, **SIZES)
    assert len(found.train_loss) < 200
    best = int(np.argmin(found.held_out_loss))
    assert len(found.held_out_loss) == best + 3  # two more epochs were tried
    assert found.recall.mean() < 0.5


def test_unseen_tokens_share_what_was_learned_for_unknown_ones(trace, training):
    """The vocabulary ends at the last token that occurs; holes in it count as unknown."""
    odd = train_predictor([changed(trace, token=2 * trace.token)], epochs=1, **SIZES)
    assert odd.network.shape.vocab_size == 2 * VOCAB - 1
    weight = odd.network.embedding.weight
    assert torch.equal(weight[3], weight[-1])
    assert not torch.equal(weight[2], weight[-1])
    tokens = torch.tensor([3, 10**6, -1])
    with torch.inference_mode():
        scores = odd.network(tokens, torch.ones(3, dtype=torch.int64), torch.ones(3, STATE))
    assert_same_to_rounding(scores[1:], scores[:1].expand(2, -1, -1))


def test_weights_are_what_a_file_keeps(training):
    for weight in training.network.parameters():
        assert torch.equal(weight, weight.half().float())


def test_the_table_s_start_ranks_experts_by_frequency():
    """With room for the whole table, an untrained network is the table."""
    trace = routed_trace(prompts=4, positions=50, states=False)
    train, _ = split_examples([trace], 0.25, 0)
    shape = NetworkShape(LAYERS, EXPERTS, TOP_K, VOCAB, 0, embedding_size=LAYERS * EXPERTS)
    network = RoutingNetwork(shape)
    start_from_table(network, train)
    every = torch.arange(VOCAB)
    scores = network(every, torch.ones_like(every), None).detach().numpy()
    count = np.zeros((VOCAB, LAYERS, EXPERTS))
    for token, ids in zip(train.tokens.numpy(), train.experts.numpy(), strict=True):
        count[token, np.arange(LAYERS)[:, None], ids] += 1
    mean = count.sum(axis=0) / len(train)
    times = np.bincount(train.tokens.numpy(), minlength=VOCAB)[:, None, None]
    expected = np.log((count + 4.0 * np.maximum(mean, 0.5 / len(train))) / (times + 4.0))
    np.testing.assert_allclose(scores, expected, atol=1e-3)


def test_traces_are_split_by_text():
    trace = routed_trace(prompts=10, positions=7)
    other = routed_trace(seed=1, prompts=10, positions=7)
    train, held = split_examples([trace, other], 0.2, 0)
    assert (len(train), len(held)) == (16 * 28, 4 * 28)
    again, _ = split_examples([trace, other], 0.2, 0)
    assert torch.equal(train.tokens, again.tokens)
    differs, _ = split_examples([trace, other], 0.2, 1)
    assert not torch.equal(train.tokens, differs.tokens)


def test_padding_is_no_expert():
    trace = routed_trace(prompts=4, positions=20)
    experts = trace.experts.copy()
    experts[:, :, 1] = -1
    found = train_predictor([changed(trace, experts=experts)], epochs=10, **SIZES)
    assert found.recall.mean() > 0.9  # of the one expert that the token tells


@pytest.mark.parametrize(
    ("traces", "options", "message"),
    [
        ([], {}, "no trace to train on"),
        ([routed_trace(prompts=1)], {}, "a single text"),
        ([routed_trace()], {"held_out": 0.0}, "held_out must be between 0 and 1, got 0.0"),
        ([routed_trace()], {"held_out": 1.0}, "held_out must be between 0 and 1"),
        ([routed_trace()], {"epochs": 0}, "epochs must be at least 1"),
        ([routed_trace()], {"hidden_size": 0}, "hidden_size must be at least 1"),
        ([routed_trace()], {"embedding_size": -1}, "embedding_size must be at least 1"),
        (
            [routed_trace(), routed_trace(states=False)],
            {},
            "'routed-0' has 3 layers of 8 experts, top-2, and no states, .* states of size 5",
        ),
        (
            [routed_trace(), changed(routed_trace(), n_experts=9)],
            {},
            "3 layers of 9 experts",
        ),
    ],
)
def test_what_does_not_fit_is_refused(traces, options, message):
    with pytest.raises(InvalidInputError, match=message):
        train_predictor(traces, **options)


def test_figures_survive_json(training):
    figures = training.to_dict()
    assert figures["nodes"] == training.nodes
    assert figures["recall"] == training.recall.tolist()
    assert set(figures["recall_by_depth"]) == {"0", "1"}
    assert "network" not in figures
    assert replace(training, nodes=1).to_dict()["nodes"] == 1
