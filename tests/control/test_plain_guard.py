"""What keeps speculation from losing against plain decoding."""

from __future__ import annotations

import numpy as np
import pytest
from fake_view import FakeView
from hypothesis import given
from hypothesis import strategies as st

from specfit_opt.control.plain_guard import PlainGuard
from specfit_opt.control.speculation_budget import SpeculationBudget
from specfit_opt.control.waste_bias import WasteBias
from specfit_opt.policies import Choice, Outcome, SpecFitPolicy


class TestBudget:
    def test_rests_double_while_tries_fail(self) -> None:
        budget = SpeculationBudget()
        rests = []
        for _ in range(4):
            while budget.allows:
                budget.enter(-0.7, 1.0, True)
            rests.append(rested(budget))
        assert rests == [48, 96, 192, 384]

    def test_a_try_that_gains_ends_the_doubling(self) -> None:
        budget = SpeculationBudget()
        for _ in range(2):
            lose(budget)
            rested(budget)
        for _ in range(40):
            assert budget.allows
            budget.enter(0.1, 1.0, True)
        lose(budget)
        assert rested(budget) == 48

    def test_a_small_gain_is_kept_through_noise(self) -> None:
        rng = np.random.default_rng(5)
        budget = SpeculationBudget()
        allowed = 0
        for _ in range(2000):
            allowed += budget.allows
            # A mean gain of 15 % of a pass under noise of 40 %.
            budget.enter(0.15 + 0.4 * rng.standard_normal(), 1.0, budget.allows)
        assert allowed > 1800

    def test_a_small_loss_is_found_through_noise(self) -> None:
        rng = np.random.default_rng(6)
        budget = SpeculationBudget()
        lost = 0.0
        for _ in range(2000):
            loss = 0.15 if budget.allows else 0.0
            lost += loss
            budget.enter(-loss + 0.4 * rng.standard_normal(), 1.0, budget.allows)
        assert lost < 0.02 * 2000

    def test_gains_of_long_ago_do_not_pay_for_losses_now(self) -> None:
        budget = SpeculationBudget()
        for _ in range(1000):
            budget.enter(1.0, 1.0, True)
        n = 0
        while budget.allows:
            budget.enter(-0.5, 1.0, True)
            budget.start()  # as if every cycle were a text of its own
            n += 1
        assert n < 128

    def test_a_text_that_loses_is_decoded_plainly_and_the_next_begins_afresh(self) -> None:
        budget = SpeculationBudget()
        for _ in range(200):
            budget.enter(0.5, 1.0, True)
        budget.start()
        n = 0
        while budget.allows:
            budget.enter(-0.25, 1.0, True)
            n += 1
        assert n == 9
        for _ in range(20):
            assert not budget.allows
            budget.enter(0.0, 1.0, False)
        budget.start()
        assert budget.allows

    def test_a_rest_ends_when_what_was_lost_is_made_good(self) -> None:
        budget = SpeculationBudget()
        budget.enter(-2.0, 1.0, True)
        rests = []
        for gain in (0.3, 0.0):
            # What speculation left in the cache makes plain passes shorter.
            rests.append(rested(budget, gain))
            lose(budget)
        # The first try did not fail, so its rest is no reason for a longer one.
        assert rests == [7, 48]

    def test_a_rest_of_a_text_ends_when_what_was_lost_is_made_good(self) -> None:
        budget = SpeculationBudget()
        for _ in range(200):
            budget.enter(0.5, 1.0, True)
        budget.start()
        while budget.allows:
            budget.enter(-0.25, 1.0, True)
        assert rested(budget, 0.5) == 5  # 2.25 were lost

    def test_losses_in_a_rest_have_to_be_made_good_too(self) -> None:
        budget = SpeculationBudget()
        budget.enter(-2.0, 1.0, True)
        for gain in (-1.0, 1.0, 1.0):
            budget.enter(gain, 1.0, False)
            assert not budget.allows
        budget.enter(1.0, 1.0, False)
        assert budget.allows

    def test_a_pass_on_a_cold_cache_does_not_make_the_allowance_large(self) -> None:
        budget = SpeculationBudget()
        budget.enter(-3.0, 10.0, True)
        assert budget.allows
        n = 0
        while budget.allows:
            budget.enter(0.0, 1.0, True)
            n += 1
            assert n < 24

    @given(losses=st.lists(st.floats(0.1, 0.6), min_size=1, max_size=400), n=st.integers(200, 800))
    def test_speculation_that_always_loses_costs_little(self, losses: list[float], n: int) -> None:
        budget = SpeculationBudget()
        lost = 0.0
        for i in range(n):
            loss = losses[i % len(losses)] if budget.allows else 0.0
            lost += loss
            budget.enter(-loss, 1.0, budget.allows)
        # The allowance, then that of each try, each overdrawn by at most one cycle and by what is
        # forgotten meanwhile.
        tries = sum(48 * (2**k - 1) < n for k in range(1, 20))
        assert lost <= 1.15 * 1.5 + 0.6 + tries * (1.15 * 1.0 + 0.6)


def lose(budget: SpeculationBudget) -> None:
    while budget.allows:
        budget.enter(-1.0, 1.0, True)


def rested(budget: SpeculationBudget, gain: float = 0.0) -> int:
    n = 0
    while not budget.allows:
        budget.enter(gain, 1.0, False)
        n += 1
    return n


class TestBias:
    def test_it_begins_with_a_share_of_the_roots_loads(self) -> None:
        bias = WasteBias()
        assert bias.seconds == 0.0
        bias.expect(10.0)
        assert bias.seconds == pytest.approx(2.0)
        bias.expect(1000.0)
        assert bias.seconds == pytest.approx(2.0)

    def test_it_learns_seconds_per_rejected_node(self) -> None:
        bias = WasteBias()
        bias.expect(10.0)
        for _ in range(300):
            bias.learn(excess=0.6, rejected=2.0)
        assert bias.seconds == pytest.approx(0.3, rel=0.05)

    def test_it_is_never_negative(self) -> None:
        bias = WasteBias()
        bias.expect(1.0)
        for _ in range(10):
            bias.learn(excess=-5.0, rejected=0.5)
        assert bias.seconds == 0.0

    def test_an_estimate_that_forbids_everything_fades(self) -> None:
        bias = WasteBias()
        bias.expect(10.0)
        for _ in range(100):
            bias.fade()
        assert bias.seconds < 0.2


def plain(view: FakeView, experts: np.ndarray, misses: int, seconds: float) -> Outcome:
    return Outcome(
        choice=Choice(np.zeros(1, dtype=np.int64)),
        levels=0,
        accepted=np.zeros(1, dtype=np.int64),
        committed=1,
        experts=experts,
        misses=np.array([misses, 0]),
        seconds=seconds,
        transfer_seconds=0.1 * misses,
    )


class TestGuard:
    def test_plain_passes_gain_and_lose_nothing_whatever_they_take(self) -> None:
        view = FakeView()
        guard = PlainGuard()
        experts = np.array([[[0, 1], [-1, -1]]])
        balances = []
        for i in range(30):
            guard.look(view)
            misses = 2 if i == 0 else 0
            guard.learn(plain(view, experts, misses, seconds=1.02 + 0.5 * (i % 3)))
            balances.append(guard.budget.balance)
        assert guard.allows
        assert balances[3:] == [balances[2]] * 27

    def test_a_cycle_is_held_to_plain_decoding_of_its_tokens(self) -> None:
        view = FakeView([[(0, 0.9), (0, 0.1)]])
        guard = PlainGuard()
        one = np.array([[[0, 1], [-1, -1]]])
        for misses in (2, 0, 0):
            guard.look(view)
            guard.learn(plain(view, one, misses, 1.02 + 0.1 * misses))
        before = guard.budget.balance
        view.grow(2, 2)
        guard.look(view)
        guard.learn(
            Outcome(
                choice=Choice(np.array([0, 1, 2])),
                levels=1,
                accepted=np.array([0, 1]),
                committed=2,
                # The accepted child needs two experts that are not there, the other two more.
                experts=np.array([[[0, 1], [-1, -1]], [[2, 3], [-1, -1]], [[4, 5], [-1, -1]]]),
                misses=np.array([4, 0]),
                seconds=1.06 + 0.05 + 0.4,
                transfer_seconds=0.4,
            ),
            drafting=0.05,
        )
        # Plain: two passes and two loads. Here: one pass of three nodes, a level, four loads.
        gained = (2 * 1.02 + 2 * 0.1) - (1.06 + 0.05 + 4 * 0.1)
        # In plain passes, of which the two tokens take 1.12 seconds each.
        # In plain passes: 1.22 seconds at first, then twice 1.02, then two tokens of 1.12.
        unit = 1.22
        for seconds in (1.02, 1.02, 1.12):
            unit += (seconds - unit) / 8
        assert before == 0.0
        assert guard.budget.balance == pytest.approx(gained / unit, rel=1e-3)

    def drafted(self, guard: PlainGuard, seconds: float) -> None:
        """Let the guard see a cycle of two tokens whose price is 1.04 + 0.05."""
        view = FakeView([[(0, 0.9)]], resident=np.ones((2, 6), dtype=np.bool_))
        view.grow(1, 1)
        guard.look(view)
        guard.learn(
            Outcome(
                choice=Choice(np.array([0, 1])),
                levels=1,
                accepted=np.array([0, 1]),
                committed=2,
                experts=np.array([[[0, 1], [-1, -1]]] * 2),
                misses=np.array([0, 0]),
                seconds=seconds,
            ),
            drafting=0.05,
        )

    def test_times_that_scatter_are_no_loss(self) -> None:
        # A second process takes the processor away: cycles take up to four times as long.
        rng = np.random.default_rng(3)
        guard = PlainGuard()
        for _ in range(300):
            self.drafted(guard, 1.09 * (1.0 + rng.exponential(1.0)))
            assert guard.allows
        assert guard.budget.balance > 20.0

    def test_drafting_that_takes_more_than_its_price_is_found_out(self) -> None:
        rng = np.random.default_rng(4)
        guard = PlainGuard()
        view = FakeView(resident=np.ones((2, 6), dtype=np.bool_))
        experts = np.array([[[0, 1], [-1, -1]]])
        for _ in range(12):
            guard.look(view)
            guard.learn(plain(view, experts, 0, 1.02 * (1.0 + 0.2 * rng.random())))
            # Two plain passes take 2.04, so this loses; at its price it would gain nearly one.
            self.drafted(guard, 3.0 * (1.0 + 0.2 * rng.random()))
        assert guard.price_error > 1.0
        n = 0
        while guard.allows:
            self.drafted(guard, 3.0 * (1.0 + 0.2 * rng.random()))
            n += 1
            assert n < 64

    def test_it_goes_on_from_its_state(self) -> None:
        guard = PlainGuard()
        for _ in range(6):
            self.drafted(guard, 1.2)
        other = PlainGuard()
        other.from_state(guard.to_state())
        assert other.to_state() == guard.to_state()
        assert other.budget.balance == guard.budget.balance > 0.0

    def test_loads_in_vain_show_later_too(self) -> None:
        # Two slots: what the rejected node brought in has pushed out what the next token needs.
        view = FakeView()
        guard = PlainGuard()
        guard.look(view)
        for i in range(3):
            guard.look(view)
            guard.learn(plain(view, np.array([[[0, 1], [-1, -1]]]), 2 if i == 0 else 0, 1.02))
        before = guard.budget.balance
        guard.look(view)
        guard.learn(plain(view, np.array([[[0, 1], [-1, -1]]]), 2, 1.22))
        assert guard.budget.balance < before


class TestPolicy:
    def lose(self, policy: SpecFitPolicy, cycles: int) -> list[int]:
        """Run cycles whose drafts are never accepted, and return the levels of each."""
        levels = []
        for i in range(cycles):
            view = FakeView(
                [[(0, 0.97), (0, 0.01)]], seed=i, acceptance=(0.9,), level_time=0.2,
                resident=np.ones((2, 6), dtype=np.bool_),
            )
            choice = policy.choose(view)
            levels.append(view.levels)
            policy.observe(
                Outcome(
                    choice=choice,
                    levels=view.levels,
                    accepted=np.zeros(1, dtype=np.int64),
                    committed=1,
                    experts=view.all_experts[choice.nodes],
                    misses=np.zeros(2, dtype=np.int64),
                    seconds=1.0 + 0.02 * len(choice.nodes) + view.draft_time,
                )
            )
        return levels

    def test_a_drafter_that_is_never_right_is_tried_ever_less(self) -> None:
        levels = np.array(self.lose(SpecFitPolicy(), 1000))
        assert levels[0] == 1
        tries = np.flatnonzero(levels)
        assert len(tries) < 30
        assert (tries >= 700).sum() <= 5
        assert (tries >= 100).any()  # but never given up
        lost = 0.22 * levels.sum()
        assert lost < 0.02 * 1.02 * 1000

    def test_without_the_guard_it_goes_on(self) -> None:
        assert sum(self.lose(SpecFitPolicy(guard=False), 50)) == 50

    def test_resting_asks_neither_drafter_nor_predictor(self) -> None:
        policy = SpecFitPolicy()
        self.lose(policy, 20)
        view = FakeView([[(0, 0.97)]])
        choice = policy.choose(view)
        assert choice.nodes.tolist() == [0]
        assert view.calls["grow"] == view.calls["experts"] == 0

    def test_what_was_learned_outlasts_a_text_but_not_fresh(self) -> None:
        policy = SpecFitPolicy()
        self.lose(policy, 20)
        policy.start()
        assert sum(self.lose(policy, 10)) == 0
        fresh = policy.fresh()
        assert isinstance(fresh, SpecFitPolicy)
        assert sum(self.lose(fresh, 10)) > 0
