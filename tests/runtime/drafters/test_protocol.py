"""What holds for every drafter; a new kind joins by its entries in the registry and the cases."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from drafter_cases import CASES, Text, build, draft, whole_tree
from rounding import PROBABILITY

from specfit_runtime.drafters import DRAFTERS, Drafter, make_drafter
from specfit_runtime.errors import DrafterError, InvalidInputError

VOCAB = 160


@pytest.fixture(scope="module")
def drafters(target, tmp_path_factory):
    """Return a function that gives the drafter of a case, bound, made once."""
    made: dict[str, Drafter] = {}

    def get(case: str) -> Drafter:
        if case not in made:
            made[case] = build(case, tmp_path_factory.mktemp("drafter") / case, target)
        made[case].bind(target)
        return made[case]

    return get


@pytest.fixture(params=CASES)
def drafter(request, drafters):
    return drafters(request.param)


@pytest.fixture(params=[case for case in CASES if case.startswith("eagle3")])
def reader(request, drafters):
    """Return a drafter that reads the target's states."""
    return drafters(request.param)


def repetitive(seed: int, length: int) -> list[int]:
    """Return a text that comes back to itself, so that prompt lookup has something to say."""
    rng = np.random.default_rng(seed)
    phrases = [rng.integers(0, VOCAB, size=rng.integers(2, 6)).tolist() for _ in range(4)]
    text: list[int] = []
    while len(text) < length:
        text += phrases[rng.integers(len(phrases))]
    return text[:length]


def same(one, other, atol=PROBABILITY):
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_array_equal(a.parent, b.parent)
        np.testing.assert_array_equal(a.token, b.token)
        np.testing.assert_array_equal(a.expanded, b.expanded)
        np.testing.assert_allclose(a.prob, b.prob, atol=atol, rtol=0)


def test_every_kind_has_a_case():
    assert {kind for kind in DRAFTERS for case in CASES if case.startswith(kind)} == set(DRAFTERS)


@pytest.mark.parametrize(("top_k", "width"), [(1, 1), (3, 2), (2, 5), (7, 1)])
def test_levels_are_well_formed(drafter, target, top_k, width):
    text = Text.of(target, drafter, repetitive(1, 40))
    text.start(drafter, 40)
    levels = draft(drafter, 5, top_k, width)
    assert levels
    made, open_nodes, path = 1, [0], {0: 1.0}
    for level in levels:
        m = len(level.parent)
        assert m
        ids = list(range(made, made + m))
        assert level.parent.dtype == level.token.dtype == level.expanded.dtype == np.int64
        assert level.prob.dtype == np.float64
        assert set(level.parent.tolist()) <= set(open_nodes)
        assert ((level.token >= 0) & (level.token < VOCAB)).all()
        assert ((level.prob > 0) & (level.prob <= 1)).all()
        for parent in open_nodes:
            mine = level.parent == parent
            assert mine.sum() <= top_k
            assert len(set(level.token[mine].tolist())) == mine.sum()
            assert level.prob[mine].sum() <= 1 + 1e-6
            # Best first, and every expanded node's children stand together.
            assert (np.diff(level.prob[mine]) <= 0).all()
        path.update(
            {v: path[u] * p for v, u, p in zip(ids, level.parent, level.prob, strict=True)}
        )
        assert len(level.expanded) == min(width, m)
        assert set(level.expanded.tolist()) <= set(ids)
        worst_kept = min(path[v] for v in level.expanded)
        assert all(path[v] <= worst_kept for v in set(ids) - set(level.expanded.tolist()))
        assert (np.diff([path[v] for v in level.expanded]) <= 0).all()
        made, open_nodes = made + m, level.expanded.tolist()


def test_the_same_calls_give_the_same_tree(drafter, target):
    text = Text.of(target, drafter, repetitive(2, 60))

    def run():
        text.start(drafter, 30)
        trees = [draft(drafter, 3)]
        text.commit(drafter, 30, 33)
        trees.append(draft(drafter, 4, 2, 4))
        return trees

    for one, other in zip(run(), run(), strict=True):
        same(one, other, atol=0)


@pytest.mark.parametrize("seed", range(3))
def test_after_any_commits_it_is_as_if_started_with_the_whole_text(drafter, target, seed):
    rng = np.random.default_rng(seed)
    text = Text.of(target, drafter, repetitive(seed, 60))
    at = int(rng.integers(2, 20))
    text.start(drafter, at)
    while at < 50:
        # Trees of any depth in between, committed or not, and passes without drafting.
        for _ in range(rng.integers(0, 3)):
            levels, top_k, width = rng.integers([0, 1, 1], [5, 4, 5]).tolist()
            draft(drafter, levels, top_k, width)
        step = int(rng.integers(0, 6))
        text.commit(drafter, at, at + step)
        at += step
        assert drafter.length == at
    after_commits = draft(drafter, 4)
    text.start(drafter, at)
    same(after_commits, draft(drafter, 4))


def test_a_tree_can_be_drafted_again_and_stopped_anywhere(drafter, target):
    text = Text.of(target, drafter, repetitive(5, 40))
    text.start(drafter, 40)
    whole = draft(drafter, 4)
    for levels in range(5):
        same(draft(drafter, levels), whole[:levels])
    drafter.commit([], None)
    same(draft(drafter, 4), whole)


def test_the_text_changes_what_is_drafted(drafter, target):
    trees = []
    for seed in (6, 7):
        text = Text.of(target, drafter, repetitive(seed, 40))
        text.start(drafter, 40)
        trees.append(whole_tree(draft(drafter, 3)))
    assert trees[0] != trees[1]


def test_plain_decoding_costs_nothing(drafter, target, monkeypatch):
    text = Text.of(target, drafter, repetitive(8, 40))

    def run(*_, **__):
        raise AssertionError("ran without being asked for a level")

    with monkeypatch.context() as patch:
        for hook in ("_advance", "_children"):
            patch.setattr(drafter, hook, run)
        text.start(drafter, 20)
        for at in range(20, 30):
            drafter.begin()
            text.commit(drafter, at, at + 1)
        drafter.begin()
    lazily = draft(drafter, 3)
    text.start(drafter, 30)
    same(lazily, draft(drafter, 3))


def test_more_children_than_tokens_are_all_of_them(drafter, target):
    text = Text.of(target, drafter, repetitive(9, 40))
    text.start(drafter, 40)
    (level,) = draft(drafter, 1, 10 * VOCAB, 10 * VOCAB)
    assert len(level.token) <= VOCAB
    assert len(level.expanded) == len(level.token)


def test_an_interrupted_level_leaves_it_usable(drafter, target, monkeypatch):
    text = Text.of(target, drafter, repetitive(10, 40))
    text.start(drafter, 40)
    whole = draft(drafter, 3)

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    for hook in ("_descend", "_children"):
        text.start(drafter, 40)
        with monkeypatch.context() as patch:
            patch.setattr(drafter, hook, interrupt)
            drafter.begin()
            with pytest.raises(KeyboardInterrupt):
                drafter.level(3, 3)
        same(draft(drafter, 3), whole)


def test_tensors_of_the_target_stay_as_they_are(drafter, target):
    before = {name: tensor.clone() for name, tensor in target.state_dict().items()}
    implementation = target.config._experts_implementation
    text = Text.of(target, drafter, repetitive(11, 40))
    states = None if text.features is None else text.features.clone()
    text.start(drafter, 40)
    draft(drafter, 3)
    assert target.config._experts_implementation == implementation
    assert all(torch.equal(tensor, before[name]) for name, tensor in target.state_dict().items())
    assert states is None or torch.equal(states, text.features)


def test_misuse_is_refused(target, tmp_path, drafter):
    text = Text.of(target, drafter, repetitive(12, 40))
    with pytest.raises(DrafterError, match=r"call start\(\) first"):
        drafter.begin()
    with pytest.raises(DrafterError, match=r"call start\(\) first"):
        drafter.commit([1], None)
    with pytest.raises(InvalidInputError, match="the prompt and the first committed token"):
        drafter.start([1], None)
    with pytest.raises(InvalidInputError, match="token 1 is 160, outside the target's vocabulary"):
        drafter.start([1, VOCAB, 2], None)
    text.start(drafter, 20)
    with pytest.raises(DrafterError, match=r"call begin\(\) first"):
        drafter.level(2, 2)
    drafter.begin()
    with pytest.raises(InvalidInputError, match="at least 1"):
        drafter.level(0, 2)
    with pytest.raises(InvalidInputError, match="at least 1"):
        drafter.level(2, 0)
    text.commit(drafter, 20, 22)
    with pytest.raises(DrafterError, match=r"call begin\(\) first"):
        drafter.level(2, 2)
    with pytest.raises(InvalidInputError, match="token 0 is -1"):
        drafter.commit([-1], None)


@pytest.mark.parametrize("case", CASES)
def test_a_drafter_without_a_target_is_refused(case, target, tmp_path):
    drafter = make_drafter(CASES[case](tmp_path / case, target))
    with pytest.raises(DrafterError, match=r"call bind\(model\) first"):
        drafter.start([1, 2], None)


def test_states_of_another_shape_are_refused(reader, target):
    drafter = reader
    text = Text.of(target, drafter, repetitive(13, 40))
    states = text.features
    assert states is not None
    bad = [None, states[:18], states[:19, :2], states[:19, :, :-1], states[:19].flatten(1)]
    for features in bad:
        with pytest.raises(InvalidInputError, match=r"features must have shape \(19, 3, 48\)"):
            drafter.start(text.tokens[:20], features)
    drafter.start(text.tokens[:20], states[:19])
    with pytest.raises(InvalidInputError, match=r"must have shape \(2, 3, 48\)"):
        drafter.commit(text.tokens[20:22], states[19:20])


def test_states_that_are_not_finite_are_an_error(reader, target):
    drafter = reader
    text = Text.of(target, drafter, repetitive(14, 40))
    assert text.features is not None
    broken = text.features[:39].clone()
    broken[-1, 0, 0] = float("nan")
    drafter.start(text.tokens, broken)
    drafter.begin()
    with pytest.raises(DrafterError, match="NaN"):
        drafter.level(2, 2)
    text.start(drafter, 40)
    assert draft(drafter, 2)


# ---- acceptance


def test_a_drafter_that_never_fits_is_warned_about_once(drafter):
    for _ in range(63):
        drafter.note_acceptance(1, 0)
    with pytest.warns(UserWarning, match="accepted 1 of 64 drafts; it does not seem to fit"):
        drafter.note_acceptance(1, 1)
    drafter.note_acceptance(100, 0)


def test_a_drafter_that_fits_is_not(drafter):
    for _ in range(20):
        drafter.note_acceptance(10, 1)
    with pytest.raises(InvalidInputError, match="impossible"):
        drafter.note_acceptance(1, 2)
