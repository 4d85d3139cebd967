"""A recording holds what real decoding does: the text, the pool, the routing, what is accepted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stock_routing import StockRouting
from tiny_drafters import tiny_eagle3, tiny_lm
from tiny_models import tiny_checkpoint, tiny_config, tiny_model, tiny_prompt

from specfit_opt.files import Trace, load_trace, save_trace
from specfit_opt.replay import replay
from specfit_runtime.drafters import make_drafter
from specfit_runtime.errors import BusyError, InvalidInputError
from specfit_runtime.exclusive import exclusively
from specfit_runtime.load import load_offloaded
from specfit_runtime.offload import BUSY, offload_of
from specfit_runtime.tracing import _Draw, record_trace

NEW = 12
LEVELS = 3
PROMPTS = [tiny_prompt(7, seed=1)[0].tolist(), tiny_prompt(3, seed=2)[0].tolist()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("qwen3_moe", tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[Any]:
    model = load_offloaded(folder, expert_cache=2)
    yield model
    offload_of(model).close()


@pytest.fixture(scope="module")
def stock() -> Any:
    return tiny_model("qwen3_moe")


@pytest.fixture(scope="module")
def texts(stock: Any) -> list[list[int]]:
    """What the stock model says to each prompt, further than is recorded."""
    return [_greedy(stock, prompt, NEW + LEVELS) for prompt in PROMPTS]


def _greedy(stock: Any, prompt: list[int], n: int) -> list[int]:
    ids = torch.tensor([prompt])
    output = stock.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=n, do_sample=False
    )
    return output[0, len(prompt) :].tolist()


def _drafter(kind: str, folder: Path, tmp_path: Path) -> str:
    """Return a drafter's name; the one called ``itself`` drafts with the target's own weights."""
    if kind == "itself":
        return f"lm:{folder}"
    if kind == "lm":
        return f"lm:{tiny_lm(tmp_path / 'lm', tiny_config('qwen3_moe').vocab_size)}"
    if kind == "eagle3":
        return f"eagle3:{tiny_eagle3(tmp_path / 'head', tiny_config('qwen3_moe'))}"
    return kind


@pytest.fixture(scope="module")
def trace(model: Any, folder: Path) -> Trace:
    """Recorded with the target as its own drafter, so that everything likely is accepted."""
    return record_trace(
        model,
        make_drafter(f"lm:{folder}"),
        PROMPTS,
        max_new_tokens=NEW,
        levels=LEVELS,
        top_k=3,
        width=2,
    )


def _check_text(trace: Trace, texts: list[list[int]]) -> None:
    """Check the text and the acceptance of every cycle against the stock model's text."""
    for cycle in trace.cycles():
        ahead = texts[cycle.prompt][cycle.position :]
        path = np.flatnonzero(cycle.accepted)
        parent, token = cycle.tree.parent, cycle.token
        assert parent[path].tolist() == [-1, *path[:-1]]  # one path from the root
        assert token[path].tolist() == ahead[: len(path)]
        # It ends where no drafted child says what the target says.
        children = token[parent == path[-1]].tolist()
        assert len(path) == LEVELS + 1 or ahead[len(path)] not in children


@pytest.mark.parametrize("kind", ["itself", "lm", "eagle3", "prompt-lookup"])
def test_the_text_is_the_stock_model_s(kind, model, folder, texts, tmp_path):
    made = make_drafter(_drafter(kind, folder, tmp_path))
    trace = record_trace(
        model, made, PROMPTS, max_new_tokens=NEW, levels=LEVELS, top_k=3, width=2
    )
    assert trace.prompt.tolist() == [0] * (NEW - 1) + [1] * (NEW - 1)
    assert trace.position.tolist() == [*range(NEW - 1)] * 2
    _check_text(trace, texts)


def test_the_target_as_its_own_drafter_is_always_right(trace):
    for cycle in trace.cycles():
        assert int(cycle.accepted.sum()) == LEVELS + 1


def test_the_pool_is_what_was_asked_for(trace):
    for cycle in trace.cycles():
        depth = cycle.tree.depth
        # Three children of the root, two of them expanded, three children each, and so on.
        assert np.bincount(depth).tolist() == [1, 3, 6, 6]
        parent, prob = cycle.tree.parent, cycle.tree.path_prob
        assert (prob[1:] <= prob[parent[1:]] + 1e-6).all()
        for node in range(len(parent)):
            below = parent == node
            assert prob[below].sum() <= prob[node] + 1e-6
            assert len(set(cycle.token[below].tolist())) == below.sum()


def test_experts_are_the_routing_of_the_stock_model(trace, stock, texts):
    """The root's, of every position, and a whole rejected branch's, one token at a time."""
    routing = StockRouting(stock)
    for first, last in trace.prompts:
        prompt = PROMPTS[trace.prompt[first]]
        text = [*prompt, *texts[trace.prompt[first]]]
        with torch.no_grad(), routing.recording() as record:
            stock(torch.tensor([text]))
        true = record.experts()
        for index in range(first, last):
            cycle = trace.cycle(index)
            at = len(prompt) + cycle.position
            _same_experts(cycle.experts[0], true[at])
    cycle = trace.cycle(4)
    prompt = PROMPTS[0]
    for node in np.flatnonzero(~cycle.accepted)[[0, -1]].tolist():
        path = []
        at = node
        while at >= 0:
            path.append(int(cycle.token[at]))
            at = int(cycle.tree.parent[at])
        text = [*prompt, *texts[0][: cycle.position], *reversed(path)]
        with torch.no_grad(), routing.recording() as record:
            stock(torch.tensor([text]))
        _same_experts(cycle.experts[node], record.experts()[-1])


def _same_experts(found: np.ndarray, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(np.sort(found, axis=1), np.sort(expected, axis=1))


def test_expert_bytes_are_the_checkpoint_s(trace, stock):
    experts = stock.model.layers[0].mlp.experts
    weights = sum(p[0].numel() * p.element_size() for p in experts.parameters())
    assert trace.expert_bytes.tolist() == [weights] * 3
    assert (trace.n_experts, trace.n_layers) == (8, 3)


def test_it_survives_its_file_and_can_be_replayed(trace, tmp_path):
    path = tmp_path / "recorded.npz"
    save_trace(path, trace)
    loaded = load_trace(path)
    for name in ("cycle_start", "token", "path_prob", "accepted", "experts", "expert_bytes"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(trace, name))
    results = {
        r.policy: r for r in replay(loaded, policies=["ar", "pool-exact"], cache=4, warmup=2)
    }
    positions = 2 * (NEW - 1 - 2)
    assert results["ar"].tokens == results["ar"].passes == positions
    # Everything is accepted, and four tokens a pass cost few experts more.
    assert results["pool-exact"].passes < positions


@pytest.mark.parametrize("kind", ["lm", "eagle3"])
def test_states_are_those_that_the_nodes_were_drafted_from(kind, model, folder, tmp_path):
    made = make_drafter(_drafter(kind, folder, tmp_path))
    drafted: list[list[np.ndarray]] = []

    class Spy(type(made)):  # type: ignore[misc]
        def begin(self) -> None:
            super().begin()
            drafted.append([])

        def level(self, top_k: int, width: int) -> Any:
            level = super().level(top_k, width)
            drafted[-1].append(level.states.numpy().copy())
            return level

    made.__class__ = Spy
    options: dict[str, Any] = {"max_new_tokens": 6, "levels": 2, "top_k": 2}
    trace = record_trace(model, made, PROMPTS, states=True, **options)
    assert len(drafted) == trace.n_cycles
    for cycle, levels in zip(trace.cycles(), drafted, strict=True):
        assert cycle.states is not None
        expected = np.concatenate(levels).astype(np.float16)
        np.testing.assert_array_equal(cycle.states[1:], expected)
        if kind == "lm":  # it keeps no state of the token before
            assert not cycle.states[0].any()
    if kind == "eagle3":
        for first, last in trace.prompts:
            for index in range(first, last - 1):
                children, after = trace.cycle(index).states, trace.cycle(index + 1).states
                assert children is not None
                assert after is not None
                np.testing.assert_allclose(after[0], children[1], atol=1e-2)
    assert record_trace(model, made, PROMPTS, **options).states is None


def test_states_of_a_drafter_without_any_are_refused(model):
    with pytest.raises(InvalidInputError, match="prompt-lookup has no hidden states to record"):
        record_trace(
            model, make_drafter("prompt-lookup"), [[1, 2, 1, 2, 1]], max_new_tokens=4, states=True
        )


def test_drawn_text_does_not_depend_on_what_is_drafted(model, folder, tmp_path):
    """Whatever is accepted of a pool is what later positions hold: any policy can be replayed."""
    options: dict[str, Any] = {"max_new_tokens": NEW, "levels": LEVELS, "temperature": 1.0}
    names = [f"lm:{folder}", _drafter("lm", folder, tmp_path), "prompt-lookup"]
    found = [record_trace(model, make_drafter(name), PROMPTS, **options) for name in names]
    texts = [[trace.token[trace.cycle_start[:-1]].tolist()] for trace in found]
    assert texts[0] == texts[1] == texts[2]
    for trace in found:
        for first, end in trace.prompts:
            text = [int(trace.cycle(i).token[0]) for i in range(first, end)]
            for i in range(first, end):
                cycle = trace.cycle(i)
                ahead = text[i - first :]
                path = cycle.token[cycle.accepted].tolist()
                assert path[: len(ahead)] == ahead[: len(path)]
    other = record_trace(model, make_drafter(names[0]), PROMPTS, seed=7, **options)
    assert other.token[other.cycle_start[:-1]].tolist() != texts[0][0]


@pytest.mark.parametrize("temperature", [1.0, 0.5])
def test_tokens_are_drawn_from_the_softmax(temperature):
    draw = _Draw(temperature, seed=3)
    logits, n = torch.tensor([[0.0, 1.0, 2.0]]), 4000
    taken = [draw.tokens(logits, place, np.zeros(1, dtype=np.int64))[0] for place in range(n)]
    share = np.bincount(taken, minlength=3) / n
    np.testing.assert_allclose(share, torch.softmax(logits[0] / temperature, 0), atol=0.025)


def test_the_recording_ends_where_the_text_ends(model, folder, texts, monkeypatch):
    # The fifth token of the first text becomes an end token; the second may have it too.
    end = texts[0][4]
    where = [text.index(end) if end in text[:NEW] else NEW - 1 for text in texts]
    monkeypatch.setattr(model.generation_config, "eos_token_id", [end])
    options: dict[str, Any] = {"max_new_tokens": NEW, "levels": LEVELS, "top_k": 3, "width": 2}
    trace = record_trace(model, make_drafter(f"lm:{folder}"), PROMPTS, **options)
    assert np.bincount(trace.prompt).tolist() == where
    cycle = trace.cycle(where[0] - 1)
    # The end token is accepted and nothing after it, although the drafter goes on.
    assert cycle.token[cycle.accepted].tolist() == [texts[0][where[0] - 1], end]
    assert (cycle.tree.parent == np.flatnonzero(cycle.accepted)[-1]).any()
    whole = record_trace(
        model, make_drafter(f"lm:{folder}"), PROMPTS, ignore_eos=True, **options
    )
    assert whole.n_cycles == 2 * (NEW - 1)


def test_a_text_that_ends_at_once_is_no_recording(model, texts, monkeypatch):
    monkeypatch.setattr(model.generation_config, "eos_token_id", texts[0][0])
    with pytest.raises(InvalidInputError, match="ends every text at once"):
        record_trace(model, make_drafter("prompt-lookup"), PROMPTS[:1], max_new_tokens=NEW)


def test_beyond_the_stated_context_it_records_on(tmp_path):
    checkpoint = tiny_checkpoint("qwen3_moe", tmp_path, max_position_embeddings=16)
    with offload_of(load := load_offloaded(checkpoint)):
        trace = record_trace(
            load, make_drafter("prompt-lookup"), PROMPTS[:1], max_new_tokens=20, levels=2, top_k=2
        )
    assert trace.n_cycles == 19


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompts": []}, "no prompt"),
        ({"prompts": [[3], []]}, "prompt 1 has no token"),
        ({"max_new_tokens": 1}, "max_new_tokens must be a whole number of at least 2"),
        ({"levels": 0}, "levels must be a whole number of at least 1"),
        ({"top_k": 0}, "top_k must be a whole number of at least 1"),
        ({"width": 0}, "width must be a whole number of at least 1"),
        ({"temperature": -1.0}, "temperature must be a finite number of at least 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0"),
    ],
)
def test_bad_requests_are_refused(changes, message, model):
    options = {"prompts": PROMPTS, "max_new_tokens": 4, **changes}
    with pytest.raises(InvalidInputError, match=message):
        record_trace(model, make_drafter("prompt-lookup"), **options)


def test_a_stock_model_is_refused(stock):
    with pytest.raises(InvalidInputError, match="load_offloaded"):
        record_trace(stock, make_drafter("prompt-lookup"), PROMPTS, max_new_tokens=4)


def test_a_busy_model_is_left_alone(model):
    def record() -> None:
        with pytest.raises(BusyError):
            record_trace(model, make_drafter("prompt-lookup"), PROMPTS, max_new_tokens=4)

    exclusively([(offload_of(model), BUSY)], record)


def test_progress_is_told(model):
    told: list[tuple[int, int]] = []
    record_trace(
        model,
        make_drafter("prompt-lookup"),
        PROMPTS,
        max_new_tokens=3,
        progress=lambda done, total: told.append((done, total)),
    )
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]
