"""The calibration of draft probabilities against acceptance."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from specfit_opt.control.acceptance_calibration import AcceptanceCalibrator
from specfit_opt.data import example_trace
from specfit_runtime.errors import DrafterError, InvalidInputError


def logit(q: float) -> float:
    return float(np.log(q / (1.0 - q)))


def sigmoid(z: float) -> float:
    return float(1.0 / (1.0 + np.exp(-z)))


def conditional(calibrator: AcceptanceCalibrator, *q: float, depth: int = 1) -> list[float]:
    found: list[float] = calibrator.path_prob([0] * len(q), q, [1.0], depth).tolist()
    return found


def teach(
    calibrator: AcceptanceCalibrator,
    a: float,
    b: float,
    trials: int,
    *,
    depth: int = 1,
    seed: int = 0,
) -> None:
    """Let a target accept children at ``depth`` by the model with the parameters (a, b)."""
    rng = np.random.default_rng(seed)
    for _ in range(trials):
        q = rng.dirichlet([0.6, 0.4, 0.3, 0.5])[:3]
        weight = q**a
        p = weight / (weight.sum() + np.exp(-b) * (1.0 - q.sum()) ** a)
        taken = int(rng.choice(4, p=[*p, 1.0 - p.sum()]))
        # A chain of single sure children leads down to the depth.
        chain = list(range(depth))
        calibrator.observe(
            parent=[-1, *chain[:-1], *[depth - 1] * 3],
            token=[*range(depth), 1001, 1002, 1003],
            prob=[1.0] * depth + q.tolist(),
            accepted=chain,
            committed=[*range(1, depth), 1001 + taken],
        )


class TestColdStart:
    @given(q=st.floats(1e-5, 1 - 1e-5))
    def test_a_single_child_is_a_logistic_of_its_logit(self, q: float) -> None:
        calibrator = AcceptanceCalibrator()
        assert conditional(calibrator, q)[0] == pytest.approx(sigmoid(logit(q) + 0.5), rel=1e-9)
        other = AcceptanceCalibrator(cold_start=(0.5, -0.2))
        assert conditional(other, q)[0] == pytest.approx(sigmoid(0.5 * logit(q) - 0.2), rel=1e-9)

    def test_a_drafter_may_be_trusted(self) -> None:
        calibrator = AcceptanceCalibrator(cold_start=(1.0, 0.0))
        assert conditional(calibrator, 0.5, 0.3, 0.1) == pytest.approx([0.5, 0.3, 0.1])

    def test_acceptance_begins_at_one_half_for_every_depth(self) -> None:
        assert set(AcceptanceCalibrator().acceptance) == {0.5}

    @pytest.mark.parametrize("cold", [(0.0, 0.0), (5.0, 0.0), (1.0, 20.0), (float("nan"), 0.0)])
    def test_a_cold_start_must_be_in_range(self, cold: tuple[float, float]) -> None:
        with pytest.raises(InvalidInputError, match="cold_start"):
            AcceptanceCalibrator(cold_start=cold)

    @pytest.mark.parametrize("window", [0, 1.5])
    def test_a_window_is_a_positive_integer(self, window: float) -> None:
        with pytest.raises(InvalidInputError, match="window"):
            AcceptanceCalibrator(window=window)  # type: ignore[arg-type]


class TestPathProbability:
    @given(
        seed=st.integers(0, 100_000),
        taught=st.booleans(),
        depth=st.integers(1, 4),
    )
    def test_siblings_share_what_their_parent_has(
        self, seed: int, taught: bool, depth: int
    ) -> None:
        rng = np.random.default_rng(seed)
        calibrator = AcceptanceCalibrator()
        if taught:
            teach(calibrator, 1.3, 2.0, 40, seed=seed)
        above = rng.random(4)
        parent = np.sort(rng.integers(0, 4, 9))
        q = np.concatenate(
            [rng.dirichlet(np.full(np.count_nonzero(parent == u) + 1, 0.3))[:-1] for u in range(4)]
        )
        path = calibrator.path_prob(parent, q, above, depth)
        assert (path >= 0.0).all()
        assert (np.bincount(parent, path, minlength=4) <= above * (1 + 1e-12)).all()
        for u in range(4):
            order = np.argsort(q[parent == u])
            assert (np.diff(path[parent == u][order]) >= -1e-15).all()

    def test_certain_and_impossible_children_stay_numbers(self) -> None:
        sure, never = conditional(AcceptanceCalibrator(), 1.0, 0.0)
        assert 0.999 < sure < 1.0
        assert 0.0 < never < 0.001

    def test_no_children_are_fine(self) -> None:
        assert AcceptanceCalibrator().path_prob([], [], [1.0], 1).shape == (0,)

    @pytest.mark.parametrize(
        ("q", "message"),
        [
            ([float("nan"), 0.1], "candidate 0 is nan"),
            ([0.1, float("inf")], "candidate 1 is inf"),
            ([-0.1, 0.1], "must be in"),
            ([1.1, 0.0], "must be in"),
            ([0.8, 0.3], "add up to 1.1"),
            ([0.5], "2 parents but probabilities of shape"),
        ],
    )
    def test_what_is_no_probability_is_the_drafters_fault(
        self, q: list[float], message: str
    ) -> None:
        with pytest.raises(DrafterError, match=message):
            AcceptanceCalibrator().path_prob([0, 0], q, [1.0], 1)

    def test_rounding_is_forgiven(self) -> None:
        low = conditional(AcceptanceCalibrator(), 0.7, 0.3001)
        assert sum(low) <= 1.0

    def test_the_root_has_no_probability(self) -> None:
        with pytest.raises(InvalidInputError, match="depth 1 or more"):
            AcceptanceCalibrator().path_prob([0], [0.5], [1.0], 0)


class TestLearning:
    @pytest.mark.parametrize(("a", "b"), [(1.0, 0.0), (0.6, -1.0), (1.4, 1.5)])
    def test_it_finds_the_parameters_that_made_the_outcomes(self, a: float, b: float) -> None:
        calibrator = AcceptanceCalibrator(window=2000)
        teach(calibrator, a, b, 2000)
        assert calibrator.parameters(1) == pytest.approx((a, b), abs=0.25)

    def test_few_trials_at_a_depth_lean_on_all_depths(self) -> None:
        calibrator = AcceptanceCalibrator()
        teach(calibrator, 1.4, 1.5, 250)
        shallow = calibrator.parameters(1)
        teach(calibrator, 0.5, -2.0, 3, depth=3, seed=1)
        deep = calibrator.parameters(3)
        assert abs(deep[1] - shallow[1]) < 0.75
        assert calibrator.parameters(9)[1] == pytest.approx(shallow[1], abs=0.75)

    def test_depths_may_differ_once_they_are_known(self) -> None:
        calibrator = AcceptanceCalibrator()
        for seed in range(10):
            teach(calibrator, 1.0, 1.0, 25, seed=seed)
            teach(calibrator, 1.0, -1.0, 25, depth=2, seed=100 + seed)
        assert calibrator.parameters(1)[1] - calibrator.parameters(2)[1] > 1.0

    def test_it_follows_a_change(self) -> None:
        calibrator = AcceptanceCalibrator(window=64)
        teach(calibrator, 1.0, 2.0, 200)
        teach(calibrator, 1.0, -2.0, 200, seed=1)
        assert conditional(calibrator, 0.5)[0] < 0.3

    def test_acceptance_counts_expanded_accepted_nodes(self) -> None:
        calibrator = AcceptanceCalibrator()
        for i in range(100):
            # Accepted at depth 1 always, at depth 2 every fourth time, never expanded further.
            hit = i % 4 == 0
            calibrator.observe(
                parent=[-1, 0, 1],
                token=[1, 2, 3],
                prob=[1.0, 0.5, 0.5],
                accepted=[0, 1, 2] if hit else [0, 1],
                committed=[2, 3, 9] if hit else [2, 8],
            )
        acceptance = calibrator.acceptance
        assert acceptance[1] == pytest.approx(1.0, abs=0.05)
        assert acceptance[2] == pytest.approx(0.25, abs=0.05)
        assert acceptance[2] < acceptance[-1] < acceptance[1]
        state = calibrator.state()
        assert [(d.trials, d.hits) for d in state.depths] == [(100, 100), (100, 25)]

    def test_children_need_not_have_been_verified(self) -> None:
        # The root alone was verified; the target's token is that of a drafted child all the same.
        calibrator = AcceptanceCalibrator()
        for _ in range(50):
            calibrator.observe([-1, 0, 0], [1, 2, 3], [1.0, 0.6, 0.2], [0], [3])
        first, second = conditional(calibrator, 0.6, 0.2)
        assert second > 0.23 > 0.2
        assert calibrator.acceptance[1] > 0.9
        assert first < 0.6

    def test_children_of_rejected_nodes_teach_nothing(self) -> None:
        calibrator = AcceptanceCalibrator()
        calibrator.observe(
            [-1, 0, 0, 1, 2], [1, 2, 3, 4, 5], [1.0, 0.5, 0.4, 0.9, 0.9], [0, 2], [3, 9]
        )
        assert [d.trials for d in calibrator.state().depths] == [1, 1]
        assert sum(b.trials for b in calibrator.state().bins) == 3

    def test_a_text_that_ended_teaches_what_it_committed(self) -> None:
        calibrator = AcceptanceCalibrator()
        calibrator.observe([-1, 0, 1], [1, 2, 3], [1.0, 0.5, 0.5], [0, 1], [2])
        assert [d.trials for d in calibrator.state().depths] == [1]

    def test_a_tree_of_one_node_teaches_nothing(self) -> None:
        calibrator = AcceptanceCalibrator()
        calibrator.observe([-1], [1], [1.0], [0], [7])
        assert calibrator.state().depths == ()

    @pytest.mark.parametrize("accepted", [[1], [0, 2, 1], [0, 9]])
    def test_accepted_must_be_a_path(self, accepted: list[int]) -> None:
        with pytest.raises(InvalidInputError, match="path from the root"):
            AcceptanceCalibrator().observe(
                [-1, 0, 0], [1, 2, 3], [1.0, 0.5, 0.4], accepted, [1] * len(accepted)
            )

    def test_forgetting_returns_to_the_cold_start(self) -> None:
        calibrator = AcceptanceCalibrator()
        before = conditional(calibrator, 0.5, 0.2)
        teach(calibrator, 1.4, 2.0, 50)
        assert conditional(calibrator, 0.5, 0.2) != before
        calibrator.forget()
        assert conditional(calibrator, 0.5, 0.2) == before
        assert calibrator.state().depths == ()

    @settings(max_examples=20)
    @given(seed=st.integers(0, 1000), always=st.booleans())
    def test_one_sided_outcomes_keep_the_parameters_finite(self, seed: int, always: bool) -> None:
        calibrator = AcceptanceCalibrator()
        rng = np.random.default_rng(seed)
        for _ in range(120):
            q = float(rng.choice([0.0, 0.3, 1.0]))
            calibrator.observe([-1, 0], [1, 2], [1.0, q], [0], [2 if always else 3])
        (p,) = conditional(calibrator, 0.3)
        assert np.isfinite(calibrator.parameters(1)).all()
        assert (p > 0.5) if always else (p < 0.3)


class TestOnRecordedDecoding:
    def log_loss(self, calibrator: AcceptanceCalibrator | None) -> float:
        """Return the mean log loss of predictions made before each outcome was known."""
        trace = example_trace()
        losses: list[float] = []
        for i, cycle in enumerate(trace.cycles()):
            parent = cycle.tree.parent.astype(np.int64)
            path = np.asarray(cycle.tree.path_prob)
            q = np.where(parent < 0, 1.0, path / path[parent])
            accepted = np.flatnonzero(cycle.accepted)
            following = [
                int(trace.token[trace.cycle_start[i + j + 1]])
                for j in range(len(accepted))
                if i + j + 1 < trace.n_cycles and trace.prompt[i + j + 1] == cycle.prompt
            ]
            for depth, (node, token) in enumerate(zip(accepted, following, strict=False), 1):
                children = np.flatnonzero(parent == node)
                if children.size:
                    p = predicted(calibrator, q[children], depth)
                    hit = cycle.token[children] == token
                    right = p[hit][0] if hit.any() else 1.0 - p.sum()
                    losses.append(-float(np.log(max(right, 1e-9))))
            if calibrator is not None:
                calibrator.observe(parent, cycle.token, q, accepted, following)
        return float(np.mean(losses))

    def test_learning_beats_the_cold_start_and_the_drafter_itself(self) -> None:
        learned = self.log_loss(AcceptanceCalibrator())
        assert learned < self.log_loss(None) - 0.1
        assert learned < self.log_loss(Frozen()) - 0.05

    def test_what_it_predicted_came_true(self) -> None:
        calibrator = AcceptanceCalibrator()
        self.log_loss(calibrator)
        bins = [b for b in calibrator.state().bins if b.trials >= 60]
        assert len(bins) >= 3
        for b in bins:
            assert b.predicted is not None
            assert b.realised is not None
            assert abs(b.predicted - b.realised) < 0.15
        everything = sum(b.trials for b in calibrator.state().bins)
        said = sum((b.predicted or 0.0) * b.trials for b in calibrator.state().bins)
        came = sum((b.realised or 0.0) * b.trials for b in calibrator.state().bins)
        assert said / everything == pytest.approx(came / everything, rel=0.1)

    def test_the_state_is_ready_for_json(self) -> None:
        calibrator = AcceptanceCalibrator()
        self.log_loss(calibrator)
        state = json.loads(json.dumps(calibrator.state().to_dict()))
        assert state["depths"][0]["depth"] == 1
        assert len(state["bins"]) == 10


class Frozen(AcceptanceCalibrator):
    """A calibrator that stays at its cold start."""

    def observe(self, *args: object, **named: object) -> None:
        return


def predicted(
    calibrator: AcceptanceCalibrator | None, q: NDArray[np.float64], depth: int
) -> NDArray[np.float64]:
    if calibrator is None:
        return q
    return calibrator.path_prob(np.zeros(len(q), dtype=np.int64), q, [1.0], depth)
