"""What the correction learns from synthetic decoding: right, soon, and unmoved by stalls."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from specfit_opt import CostModel
from specfit_opt.control.correction import (
    LEAST_MISS_RATIO,
    MOST_MISS_RATIO,
    MOST_SCALE,
    WINDOW,
    CycleMeasurement,
    OnlineCorrection,
)
from specfit_opt.errors import InvalidInputError

L = 6
EXPERT_TIME = 1e-3 * np.arange(1, L + 1)
TABLE = np.concatenate([[0.0], 0.020 + 1e-3 * np.arange(1, 65)])
BASE = CostModel(0.0, TABLE, EXPERT_TIME)
DRAFT = (0.004, 0.002, 0.002)


class Machine:
    """A synthetic machine that differs from the profile in known ways."""

    def __init__(self, seed: int = 0, **figures: Any) -> None:
        self.rng = np.random.default_rng(seed)
        self.scale = 1.0
        self.constant = 0.0
        self.transfer = 1.0
        self.misses: NDArray[np.float64] = np.ones(L)
        self.levels = (0.004, 0.002, 0.002)
        self.search = 2e-4
        self.other = 0.0
        self.noise = 0.05
        self.stalls = 0.0
        self.sizes = (1, 4, 8, 20, 40)
        self.__dict__.update(figures)

    def cycle(self) -> CycleMeasurement:
        rng = self.rng
        n = int(rng.choice(self.sizes))
        predicted = rng.uniform(0.5, 4.0, L)
        realised = rng.poisson(predicted * self.misses).astype(float)
        drafted = rng.integers(0, len(self.levels) + 1)
        return CycleMeasurement(
            n,
            predicted,
            realised,
            self._noisy(self.scale * TABLE[n] + self.constant),
            self._noisy(self.transfer * float(realised @ EXPERT_TIME)),
            tuple(self._noisy(t) for t in self.levels[:drafted]),
            self._noisy(self.search * drafted),
            self._noisy(self.other),
        )

    def _noisy(self, seconds: float) -> float:
        stall = 20.0 if self.rng.random() < self.stalls else 1.0
        return float(seconds * np.exp(self.noise * self.rng.normal()) * stall)


def decode(machine: Machine, cycles: int, correction: OnlineCorrection | None = None) -> Any:
    correction = correction or OnlineCorrection(BASE, DRAFT)
    for _ in range(cycles):
        correction.update(machine.cycle())
    return correction


def compute(model: CostModel, n: int) -> float:
    return model.fixed_time + float(model.node_table(64)[n])


def expert_scale(correction: OnlineCorrection) -> NDArray[np.float64]:
    """Return what an expert of each layer costs over what the profile says."""
    return np.asarray(correction.cost_model().expert_time) / EXPERT_TIME


# ---- before the first cycle


def test_a_new_correction_says_what_the_profile_says() -> None:
    correction = OnlineCorrection(BASE, DRAFT)
    model = correction.cost_model()
    assert model.fixed_time == 0.0
    assert model.node_table(64) == pytest.approx(TABLE)
    assert model.expert_time == pytest.approx(EXPERT_TIME)
    assert [correction.level_time(i) for i in (1, 2, 3, 7)] == [0.004, 0.002, 0.002, 0.002]
    assert OnlineCorrection(BASE).level_time(1) == 0.0
    assert correction.error() == correction.base_error()
    assert correction.error().cycles == 0
    assert correction.error().bias == 0.0
    assert correction.predict(4, [1.0] * L, 2) == pytest.approx(
        TABLE[4] + EXPERT_TIME.sum() + 0.006
    )


def test_a_true_profile_stays_as_it_is() -> None:
    correction = decode(Machine(noise=0.0, search=0.0), 200)
    model = correction.cost_model()
    assert model.node_table(64) == pytest.approx(TABLE)
    assert model.fixed_time == 0.0
    # What was missed beyond the predicted, by chance, is charged.
    assert expert_scale(correction) == pytest.approx(np.ones(L), rel=0.2)
    assert correction.level_time(1) == pytest.approx(0.004)


# ---- convergence


@pytest.mark.parametrize("stalls", [0.0, 0.05, 0.1])
@pytest.mark.parametrize("seed", range(3))
def test_learns_a_machine_that_differs_in_everything(stalls: float, seed: int) -> None:
    true = Machine(
        seed,
        scale=1.8,
        constant=0.006,
        transfer=0.6,
        misses=np.full(L, 1.7),
        levels=(0.006, 0.003, 0.003),
        search=4e-4,
        other=0.002,
        stalls=stalls,
    )
    correction = decode(true, 400)
    model = correction.cost_model()
    for n in (1, 8, 40):
        truth = true.scale * TABLE[n] + true.constant + true.other
        assert compute(model, n) == pytest.approx(truth, rel=0.12)
    assert expert_scale(correction) == pytest.approx(0.6 * true.misses, rel=0.35)
    assert expert_scale(correction).mean() == pytest.approx(0.6 * 1.7, rel=0.15)
    assert model.fixed_time == pytest.approx(0.002, rel=0.1)
    assert correction.level_time(1) == pytest.approx(0.0064, rel=0.1)
    assert correction.level_time(3) == pytest.approx(0.0034, rel=0.1)
    if not stalls:
        assert abs(correction.error().bias) < 0.05
        assert correction.error().mean_relative_error < 0.2
        assert correction.base_error().mean_relative_error > 0.25
        assert correction.base_error().bias < -0.3


def test_a_few_cycles_already_help() -> None:
    correction = decode(Machine(scale=3.0, noise=0.02), 8)
    assert compute(correction.cost_model(), 8) == pytest.approx(3.0 * TABLE[8], rel=0.1)


def test_one_stalled_first_cycle_is_not_believed() -> None:
    correction = OnlineCorrection(BASE, DRAFT)
    slow = CycleMeasurement(1, [1.0] * L, [1.0] * L, 1.0, 0.021, (0.004,))
    correction.update(slow)
    assert compute(correction.cost_model(), 1) < 1.1 * TABLE[1]
    usual = CycleMeasurement(1, [1.0] * L, [1.0] * L, TABLE[1], 1.0, (0.4,), 0.0, 0.0)
    correction.update(usual)
    correction.update(usual)
    assert compute(correction.cost_model(), 1) < 1.1 * TABLE[1]


@pytest.mark.parametrize("sizes", [(1,), (8,), (1, 4, 8, 20, 40)])
@pytest.mark.parametrize("factor", [0.5, 1.2, 3.0])
def test_follows_a_machine_that_changes(sizes: tuple[int, ...], factor: float) -> None:
    machine = Machine(scale=1.5, transfer=0.8, sizes=sizes)
    correction = decode(machine, 100)
    machine.scale *= factor
    machine.transfer *= factor
    decode(machine, WINDOW + 8, correction)
    model = correction.cost_model()
    for n in sizes:
        assert compute(model, n) == pytest.approx(machine.scale * TABLE[n], rel=0.08)
    assert expert_scale(correction).mean() == pytest.approx(machine.transfer, rel=0.2)


def test_one_size_alone_leaves_the_shape_as_calibrated() -> None:
    # Twice as slow at one size: the likeliest reason is a machine that is twice as slow.
    correction = decode(Machine(scale=2.0, sizes=(8,)), 100)
    model = correction.cost_model()
    for n in (1, 40):
        assert compute(model, n) == pytest.approx(2.0 * TABLE[n], rel=0.15)


def test_layers_with_enough_misses_have_their_own_ratio() -> None:
    ratios = np.array([0.5, 1.0, 1.5, 2.0, 3.0, 4.0])
    correction = decode(Machine(misses=ratios), 400)
    assert expert_scale(correction) == pytest.approx(ratios, rel=0.35)
    # A layer that has seen nothing leans on the others.
    correction = OnlineCorrection(BASE)
    for _ in range(100):
        predicted = np.array([4.0] * (L - 1) + [0.0])
        waiting = 2.0 * float(predicted @ EXPERT_TIME)
        correction.update(CycleMeasurement(1, predicted, 2.0 * predicted, TABLE[1], waiting))
    assert expert_scale(correction) == pytest.approx([2.0] * L, rel=0.1)


def test_misses_nobody_predicted_raise_the_price() -> None:
    correction = OnlineCorrection(BASE)
    waiting = 2.0 * float(EXPERT_TIME.sum())
    for _ in range(100):
        correction.update(CycleMeasurement(1, [0.0] * L, [2.0] * L, TABLE[1], waiting))
    assert expert_scale(correction) == pytest.approx([MOST_MISS_RATIO] * L)
    for _ in range(500):
        correction.update(CycleMeasurement(1, [8.0] * L, [0.0] * L, TABLE[1], 0.0))
    assert expert_scale(correction) == pytest.approx([LEAST_MISS_RATIO] * L)


def test_search_without_levels_is_overhead() -> None:
    correction = OnlineCorrection(BASE)
    for _ in range(20):
        correction.update(CycleMeasurement(1, [0.0] * L, [0.0] * L, TABLE[1], 0.0, (), 1e-3, 2e-3))
    assert correction.level_time(1) == 0.0
    assert correction.cost_model().fixed_time == pytest.approx(3e-3, rel=0.01)


def test_overlap_makes_transfers_cheap_but_not_negative() -> None:
    correction = OnlineCorrection(BASE)
    for _ in range(40):
        correction.update(CycleMeasurement(1, [1.0] * L, [1.0] * L, TABLE[1], 0.0))
    assert correction.cost_model().expert_time == pytest.approx(np.zeros(L))


def test_what_hides_is_charged_and_not_predicted() -> None:
    correction = OnlineCorrection(BASE)
    moving = float(EXPERT_TIME.sum())
    for _ in range(40):
        cycle = CycleMeasurement(
            1, [1.0] * L, [1.0] * L, TABLE[1], 0.5 * moving, hidden_seconds=0.3 * moving
        )
        correction.update(cycle)
    assert correction.cost_model().expert_time == pytest.approx(0.8 * EXPERT_TIME)
    assert correction.predict(1, [1.0] * L) == pytest.approx(TABLE[1] + 0.5 * moving)


@pytest.mark.parametrize("known", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("sizes", [(1,), (1, 4, 8, 20, 40)])
def test_what_a_miss_costs_without_any_waiting_is_still_charged(
    known: float, sizes: tuple[int, ...]
) -> None:
    # A store that copies while it is called: nothing is ever waited for, and the pass takes longer.
    rng = np.random.default_rng(3)
    correction = OnlineCorrection(BASE, handling=known)
    for _ in range(150):
        n = int(rng.choice(sizes))
        misses = rng.integers(0, 4, L).astype(float)
        seconds = 1.2 * TABLE[n] + 0.8 * float(misses @ EXPERT_TIME)
        noise = float(np.exp(0.03 * rng.normal()))
        correction.update(CycleMeasurement(n, misses, misses, seconds * noise))
    model = correction.cost_model()
    assert model.expert_time == pytest.approx(0.8 * EXPERT_TIME, rel=0.2)
    for n in sizes:
        assert compute(model, n) == pytest.approx(1.2 * TABLE[n], rel=0.1)
    assert abs(correction.error().bias) < 0.03


def test_a_calibrated_share_of_handling_is_not_charged_twice() -> None:
    correction = OnlineCorrection(BASE, handling=0.25)
    assert correction.cost_model().expert_time == pytest.approx(EXPERT_TIME)
    misses = np.array([2.0, 1.0, 0.0, 1.0, 3.0, 1.0])
    moving = float(misses @ EXPERT_TIME)
    for _ in range(100):
        cycle = CycleMeasurement(4, misses, misses, TABLE[4] + 0.25 * moving, 0.75 * moving)
        correction.update(cycle)
    assert correction.cost_model().node_table(64) == pytest.approx(TABLE)
    assert correction.cost_model().expert_time == pytest.approx(EXPERT_TIME)
    assert correction.error().mean_relative_error == pytest.approx(0.0, abs=1e-9)


def test_misses_that_come_with_quicker_passes_are_not_rewarded() -> None:
    correction = OnlineCorrection(BASE, handling=0.3)
    for i in range(100):
        misses = np.full(L, float(i % 4))
        seconds = TABLE[4] * (1.0 - 0.1 * (i % 4))
        correction.update(CycleMeasurement(4, misses, misses, seconds))
    assert correction.cost_model().expert_time == pytest.approx(np.zeros(L), abs=1e-9)
    assert 0.6 * TABLE[4] < compute(correction.cost_model(), 4) < TABLE[4]


# ---- other forms of cost models


def test_the_time_of_resident_experts_is_passed_on() -> None:
    base = CostModel(0.0, TABLE, EXPERT_TIME, 1e-5)
    assert decode(Machine(scale=2.0), 40, OnlineCorrection(base)).cost_model().resident_time == 1e-5


def test_affine_node_time_and_experts_that_differ() -> None:
    times = np.arange(1.0, 2.0 * L + 1).reshape(L, 2) * 1e-3
    correction = OnlineCorrection(CostModel(0.02, 1e-3, times))
    rng = np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.choice([1, 8, 64]))
        seconds = 1.5 * (0.02 + 1e-3 * n) + 0.004
        realised = rng.integers(0, 5, L).astype(float)
        waiting = 0.5 * float(realised @ times.mean(axis=1))
        correction.update(CycleMeasurement(n, realised, realised, seconds, waiting))
    model = correction.cost_model()
    assert isinstance(model.node_time, float)
    assert model.node_time == pytest.approx(1.5e-3, rel=0.05)
    assert model.fixed_time == pytest.approx(0.034, rel=0.05)
    assert model.expert_time == pytest.approx(0.5 * times, rel=0.01)


def test_a_constant_below_zero_comes_off_the_table() -> None:
    correction = OnlineCorrection(BASE)
    for i in range(200):
        n = (1, 8, 40)[i % 3]
        correction.update(CycleMeasurement(n, [0.0] * L, [0.0] * L, 2.0 * TABLE[n] - 0.01))
    model = correction.cost_model()
    assert model.fixed_time == 0.0
    for n in (1, 8, 40):
        assert compute(model, n) == pytest.approx(2.0 * TABLE[n] - 0.01, rel=0.03)
    assert (model.node_table(64) >= 0.0).all()
    assert (np.diff(model.node_table(64)) >= 0.0).all()


@pytest.mark.parametrize("slope", [0.0, 2e-4, 5e-3])
@pytest.mark.parametrize("form", ["affine", "table"])
def test_a_slope_that_was_calibrated_badly_is_mended(slope: float, form: str) -> None:
    # A true pass takes 20 ms and 1 ms per token.
    fixed, per_node = 0.021 - slope, slope
    base = CostModel(fixed, per_node, EXPERT_TIME)
    if form == "table":
        base = CostModel(0.0, fixed + per_node * np.arange(65.0), EXPERT_TIME)
    correction = decode(Machine(noise=0.03), 100, OnlineCorrection(base))
    model = correction.cost_model()
    for n in (1, 8, 20, 40):
        assert compute(model, n) == pytest.approx(TABLE[n], rel=0.1)


def test_a_table_that_falls_may_go_on_falling() -> None:
    # A kernel for tiles of eight: full tiles are quicker than one token less.
    table = TABLE + np.where(np.arange(65) % 8 == 7, 0.01, 0.0)
    correction = OnlineCorrection(CostModel(0.0, table, EXPERT_TIME))
    for i in range(60):
        n = (1, 7, 8, 16)[i % 4]
        correction.update(CycleMeasurement(n, [0.0] * L, [0.0] * L, 2.0 * table[n]))
    assert correction.cost_model().node_table(64)[1:] == pytest.approx(2.0 * table[1:], rel=0.02)


def test_forbidden_sizes_stay_forbidden() -> None:
    table = np.where(np.arange(65) > 16, math.inf, TABLE)
    base = CostModel(0.0, table, EXPERT_TIME)
    correction = decode(Machine(scale=2.0, sizes=(1, 8, 20)), 60, OnlineCorrection(base))
    model = correction.cost_model()
    assert math.isinf(model.node_table(64)[17])
    gap = np.where(np.arange(65) == 5, math.inf, TABLE)
    correction = decode(Machine(sizes=(1, 8)), 60, OnlineCorrection(CostModel(0, gap, EXPERT_TIME)))
    assert np.flatnonzero(np.isinf(correction.cost_model().node_table(64))).tolist() == [5]
    assert compute(model, 8) == pytest.approx(2.0 * TABLE[8], rel=0.1)
    correction = decode(Machine(scale=2.0, sizes=(1, 8, 20)), 60, OnlineCorrection(base))
    # Nothing was predicted of the cycles of a forbidden size.
    assert 0 < correction.error().cycles < 60
    assert math.isfinite(correction.error().predicted_seconds)


# ---- limits


@given(
    st.lists(
        st.tuples(
            st.integers(1, 64),
            st.floats(0.0, 1e6),
            st.floats(0.0, 1e6),
            st.floats(0.0, 1e3),
            st.floats(0.0, 1e6),
        ),
        max_size=80,
    )
)
def test_whatever_is_measured_the_model_stays_valid(
    cycles: list[tuple[int, float, float, float, float]],
) -> None:
    correction = OnlineCorrection(BASE, DRAFT)
    for n, seconds, waiting, misses, drafting in cycles:
        correction.update(
            CycleMeasurement(n, [1.0] * L, [misses] * L, seconds, waiting, (drafting,), 0.0, 1.0)
        )
        model = correction.cost_model()  # which checks that it is finite and >= 0
        assert (np.diff(model.node_table(64)[1:]) >= 0.0).all()
        assert math.isfinite(correction.predict(n, [misses] * L, 3))
        assert (expert_scale(correction) <= 2.0 * MOST_SCALE * MOST_MISS_RATIO).all()
    assert correction.error().cycles <= len(cycles)
    assert math.isfinite(correction.error().mean_relative_error)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_nodes": 0}, "n_nodes must be a whole number of at least 1"),
        ({"compute_seconds": math.nan}, "compute_seconds must be a finite number of at least"),
        ({"wait_seconds": -1.0}, "wait_seconds must be a finite number of at least 0,"),
        ({"hidden_seconds": -1.0}, "hidden_seconds must be a finite number of at least 0,"),
        ({"other_seconds": math.inf}, "other_seconds must be a finite number of at least"),
        ({"search_seconds": "1"}, "search_seconds must be a finite number of at least"),
        ({"draft_seconds": (0.1, math.nan)}, r"draft_seconds\[1\] must be a finite number of at"),
        ({"predicted_misses": [1.0] * (L - 1)}, "are for 5 and 6 layers"),
        ({"predicted_misses": [math.nan] * L}, "predicted_misses must be one finite number >= 0"),
        ({"realised_misses": [-1.0] * L}, "realised_misses must be one finite number >= 0"),
        ({"realised_misses": [[1.0] * L]}, "realised_misses must be one finite number >= 0"),
    ],
)
def test_bad_measurements(changes: dict[str, Any], message: str) -> None:
    figures: dict[str, Any] = {
        "n_nodes": 1,
        "predicted_misses": [1.0] * L,
        "realised_misses": [1.0] * L,
        "compute_seconds": 0.02,
    }
    with pytest.raises(InvalidInputError, match=message):
        CycleMeasurement(**(figures | changes))


def test_a_measurement_adds_up() -> None:
    cycle = CycleMeasurement(1, [1] * L, [1] * L, 1.0, 2.0, (3.0, 4.0), 5.0, 6.0)
    assert cycle.seconds == 21.0


def test_what_does_not_fit_the_base_model() -> None:
    correction = OnlineCorrection(BASE)
    with pytest.raises(InvalidInputError, match="misses are for 2 layers, the cost model for 6"):
        correction.update(CycleMeasurement(1, [1.0] * 2, [1.0] * 2, 0.02))
    with pytest.raises(InvalidInputError, match="node_time has 65 entries but the tree has 65"):
        correction.update(CycleMeasurement(65, [1.0] * L, [1.0] * L, 0.02))
    assert correction.error().cycles == 0
    with pytest.raises(InvalidInputError, match="must have an expert_time per layer"):
        OnlineCorrection(CostModel(0.0, TABLE, 1e-3))
    with pytest.raises(InvalidInputError, match="handling must be a finite number"):
        OnlineCorrection(BASE, handling=1.5)
    with pytest.raises(InvalidInputError, match=r"draft_time\[1\] must be a finite"):
        OnlineCorrection(BASE, (0.1, math.nan))
    with pytest.raises(InvalidInputError, match="level must be a whole number of at least 1"):
        correction.level_time(0)
