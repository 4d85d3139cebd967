"""The training path computes what stock Transformers computes."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.usefixtures("recipe"), pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def models(recipe):
    import torch

    from tools.demo_model.export import stock_model
    from tools.demo_model.model import FastMoe
    from tools.demo_model.shape import SMOKE

    torch.manual_seed(3)
    fast = FastMoe(SMOKE, torch.float32)
    with torch.no_grad():
        # Norm weights of 1 and small routers would hide a misplaced factor.
        for parameter in fast.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return fast, stock_model(fast)


def test_logits_are_those_of_the_stock_model(models):
    import torch
    from rounding import assert_same_to_rounding

    fast, stock = models
    ids = torch.randint(0, fast.shape.vocab_size, (3, 40))
    with torch.no_grad():
        assert_same_to_rounding(fast.logits(ids), stock(ids).logits)


def test_states_are_those_of_the_stock_model(models):
    import torch
    from rounding import assert_same_to_rounding

    fast, stock = models
    ids = torch.randint(0, fast.shape.vocab_size, (2, 30))
    with torch.no_grad():
        _, features = fast.features(ids, (1, 3, 5))
        hidden = stock(ids, output_hidden_states=True).hidden_states
    wanted = torch.cat([hidden[1], hidden[3], hidden[5]], dim=-1)
    assert_same_to_rounding(features, wanted)


def test_loss_and_gradients_are_those_of_the_stock_model(models):
    import torch
    from rounding import assert_same_to_rounding
    from torch.nn import functional

    fast, stock = models
    ids = torch.randint(0, fast.shape.vocab_size, (2, 33))
    for model in models:
        model.zero_grad()
    loss = fast(ids[:, :-1], ids[:, 1:], None).loss
    loss.backward()
    logits = stock(ids[:, :-1]).logits
    wanted = functional.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
    wanted.backward()
    assert_same_to_rounding(loss, wanted)
    layer, other = fast.layers[2], stock.model.layers[2]
    queries = fast.shape.num_attention_heads * fast.shape.head_dim
    for mine, theirs in (
        (fast.embed, stock.model.embed_tokens.weight),
        (layer.router, other.mlp.gate.weight),
        (layer.gate_up, other.mlp.experts.gate_up_proj),
        (layer.down, other.mlp.experts.down_proj),
        (layer.out, other.self_attn.o_proj.weight),
        (layer.query_norm, other.self_attn.q_norm.weight),
    ):
        assert_same_to_rounding(mine.grad, theirs.grad)
    assert_same_to_rounding(layer.qkv.grad[:queries], other.self_attn.q_proj.weight.grad)


def test_full_experts_drop_what_does_not_fit_and_nothing_else():
    import torch
    from rounding import assert_same_to_rounding

    from tools.demo_model.experts import dispatch, experts_forward

    torch.manual_seed(0)
    chosen = torch.tensor([[0, 1], [0, 2], [0, 3], [0, 1]])
    hidden, weight = torch.randn(4, 6), torch.rand(4, 2)
    gate_up, down = torch.randn(4, 10, 6), torch.randn(4, 6, 5)
    # Mean load 2, factor 1: room for 3 pairs per expert, and four chose expert 0.
    plan = dispatch(chosen, 4, 1.0)
    assert (plan.capacity, plan.dropped) == (3, 1)
    out = experts_forward(hidden, weight, gate_up, down, plan)
    wanted = torch.zeros(4, 6)
    for token, slots in enumerate(chosen.tolist()):
        for slot, expert in enumerate(slots):
            if (token, slot) != (3, 0):
                gate, up = (gate_up[expert] @ hidden[token]).chunk(2)
                row = down[expert] @ (torch.nn.functional.silu(gate) * up)
                wanted[token] += weight[token, slot] * row
    assert_same_to_rounding(out, wanted)


def test_orthogonalised_matrices_have_singular_values_near_one():
    import torch

    from tools.demo_model.optimizer import orthogonalise

    torch.manual_seed(0)
    for shape in ((3, 16, 32), (3, 32, 16)):
        values = torch.linalg.svdvals(orthogonalise(torch.randn(shape)).float())
        assert values.min() > 0.5
        assert values.max() < 1.4


def test_schedule_finishes_when_told(tmp_path):
    from tools.demo_model.schedule import Schedule

    order = tmp_path / "finish"
    schedule = Schedule(warmup=10, decay_start=None, decay_steps=600)
    assert not schedule.heed(order, 50)
    assert (schedule.factor(0), schedule.factor(500), schedule.end) == (0.1, 1.0, None)
    order.write_text("40")
    assert schedule.heed(order, 100)
    assert not schedule.heed(order, 101)
    assert schedule.end == 140
    assert schedule.factor(99) == 1.0
    assert schedule.factor(120) == pytest.approx(0.5)
    assert schedule.factor(140) == 0.0
