"""Figures of routing predictors, worked out by hand, and what a predictor gets to see."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hand_worked import tree as hand_worked_tree
from numpy.typing import NDArray
from random_trace import random_trace

from specfit_opt.control.acceptance_calibration import AcceptanceCalibrator
from specfit_opt.files import Trace
from specfit_opt.profiles import HardwareProfile
from specfit_opt.routing_predictor import DraftNodes, RoutingPredictor
from specfit_runtime.errors import InvalidInputError
from specfit_runtime.predictor_evaluation import evaluate_predictor, teach
from specfit_runtime.predictor_evaluation.accuracy import node_recall, recall_by_depth
from specfit_runtime.predictor_evaluation.table import evaluation_table

#: A second per expert; two drafted levels take the second that `hand_worked` calls fixed.
MACHINE = HardwareProfile("by-hand", 0.0, 0.25, 0.5, bandwidth=1.0, expert_bytes=1)

#: What is predicted for the tree of `hand_worked`: nodes 2 and 4 seem to be free.
GUESS = [[[0, -1]], [[1, 2]], [[0, -1]], [[1, 1]], [[0, -1]]]


def hand_trace(positions: int = 2) -> Trace:
    """Return positions that all have the tree of `hand_worked`, of which 0, 1, 3 are accepted."""
    instance = hand_worked_tree()
    n, tree = positions, instance.tree
    return Trace(
        cycle_start=5 * np.arange(n + 1),
        prompt=np.zeros(n, np.int32),
        position=np.arange(n),
        parent=np.tile(tree.parent, n),
        token=np.arange(5 * n),
        path_prob=np.tile(tree.path_prob, n),
        depth=np.tile(tree.depth, n),
        accepted=np.tile([True, True, False, True, False], n),
        experts=np.tile(instance.routing.experts, (n, 1, 1)),
        n_experts=4,
        states=np.arange(10 * n).reshape(5 * n, 2),
        name="hand",
    )


class Scripted(RoutingPredictor):
    """Says what it was told, and takes note of what it sees."""

    name = "scripted"

    def __init__(self, experts: Any) -> None:
        self.experts = np.array(experts)
        self.log: list[Any] = []
        self.nodes: list[DraftNodes] = []

    def start(self, n_layers: int, n_experts: int, top_k: int) -> None:
        self.log.append(("start", n_layers, n_experts, top_k))

    def predict(self, nodes: DraftNodes) -> NDArray[np.int32]:
        self.log.append(("predict", *nodes.token.tolist()))
        self.nodes.append(nodes)
        return self.experts[nodes.token % len(self.experts)].astype(np.int32)

    def observe(self, tokens: Any, experts: NDArray[Any]) -> None:
        self.log.append(("observe", *np.asarray(tokens).tolist()))
        self.observed = experts


def by_hand(**options: Any) -> Any:
    options = {"profiles": [MACHINE], "cache": [4], "warmup": 0, **options}
    return evaluate_predictor(hand_trace(), Scripted(GUESS), **options)


class TestByHand:
    @pytest.fixture(autouse=True)
    def trusting(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have path probabilities be the recorded ones, which nothing that is accepted corrects."""

        def product(self: Any, parent: Any, prob: Any, above: Any, depth: int) -> Any:
            return above[parent] * prob

        monkeypatch.setattr(AcceptanceCalibrator, "path_prob", product)
        monkeypatch.setattr(AcceptanceCalibrator, "observe", lambda *given: None)

    def test_recall(self) -> None:
        result = by_hand()
        # Nodes: 1, 1, 1/2 (expert 3 is missed), 1, 0.
        np.testing.assert_allclose(result.recall_by_depth, [1.0, 0.75, 0.5])
        np.testing.assert_allclose(result.recall_by_layer, [0.625])
        np.testing.assert_allclose(result.accepted_recall[:, 0], [1.0, 1.0, 1.0])
        assert result.nodes.tolist() == [2, 4, 4]
        assert result.accepted_nodes.tolist() == [2, 2, 2]

    def test_union(self) -> None:
        (pool,) = by_hand().unions  # no tree of eight nodes in a pool of five
        assert pool.tree == "pool"
        assert pool.error == 0.25  # experts 0, 1, 2 instead of 0, 1, 2, 3
        assert pool.bias == -0.25

    def test_decisions(self) -> None:
        """First pass: {0, 2, 4} for 1.75 / 3.75 instead of {0, 1, 3} for 2.4 / 4.75.

        It leaves experts 0 and 3, emits one token, and at the second position {0, 2} is best and
        chosen.
        """
        (cell,) = by_hand().decisions
        first = (1.75 / 3.75) / (2.4 / 4.75)
        assert (cell.profile, cell.slots, cell.cycles) == ("by-hand", 4, 2)
        assert cell.share == pytest.approx(math.sqrt(first))
        assert cell.worst_decile == pytest.approx(first + 0.1 * (1.0 - first))
        assert cell.misses == 0.5  # one of the two of the first pass was foreseen

    def test_plain_positions_are_not_counted(self) -> None:
        (cell,) = by_hand(warmup=1).decisions
        # The root was run before, so expert 0 is there. {0, 2} is chosen, which seems to load
        # nothing; it takes 2.5 for 1.5, and the root alone 1.25 for 1 is best.
        assert cell.cycles == 1
        assert cell.share == cell.worst_decile == pytest.approx((1.5 / 2.5) / (1.0 / 1.25))
        assert cell.misses == 0.0

    def test_a_text_of_plain_positions_alone_has_no_share(self) -> None:
        (cell,) = by_hand(warmup=2).decisions
        assert cell.cycles == 0
        assert math.isnan(cell.share)
        assert math.isnan(cell.misses)

    def test_every_machine_and_size_is_a_cell(self) -> None:
        result = by_hand(profiles=[MACHINE, MACHINE.replace(name="other")], cache=["50%", 4])
        assert [(d.profile, d.slots) for d in result.decisions] == [
            ("by-hand", 2),
            ("by-hand", 4),
            ("other", 2),
            ("other", 4),
        ]

    def test_tables_and_json_hold_the_figures(self) -> None:
        result = by_hand(name="my name")
        text = evaluation_table([result])
        assert "my name" in text
        assert "0.750" in text
        assert "-25.0%" in text
        data = result.to_dict()
        assert data["predictor"] == "my name"
        assert data["unions"][0]["error"] == 0.25
        assert data["decisions"][0]["misses"] == 0.5
        assert data["recall_by_depth"].tolist() == [1.0, 0.75, 0.5]
        assert len(data["predict_seconds"]) == 3


def test_the_unions_of_eight_nodes_are_of_the_most_probable() -> None:
    trace = random_trace(np.random.default_rng(5), max_nodes=20)
    result = evaluate_predictor(trace, Scripted(np.zeros((1, 3, 3))), profiles=["pcie4"], cache=[3])
    eagle, pool = result.unions
    sizes = []
    for cycle in trace.cycles():
        if len(cycle.token) >= 8:
            order = sorted(range(len(cycle.token)), key=lambda v: (-cycle.tree.path_prob[v], v))
            ids = cycle.experts[order[:8]]
            sizes.append(sum(len(set(ids[:, layer].ravel()) - {-1}) for layer in range(3)))
    assert sizes
    assert eagle.tree == "eagle-8"
    assert eagle.bias == pytest.approx(np.mean([3 / size - 1 for size in sizes]))
    assert pool.tree == "pool"


class TestOracle:
    @pytest.mark.parametrize("seed", [0, 1])
    def test_recall_and_share_are_one(self, seed: int) -> None:
        trace = random_trace(np.random.default_rng(seed))
        result = evaluate_predictor(trace, "oracle", profiles=["pcie4", "nvme"], cache=[2, 5])
        assert np.nanmin(result.recall) == 1.0
        assert [union.error for union in result.unions] == [0.0] * len(result.unions)
        assert len(result.decisions) == 4
        for cell in result.decisions:
            assert cell.cycles > 0
            assert cell.share == pytest.approx(1.0, abs=1e-12)
            assert cell.worst_decile == pytest.approx(1.0, abs=1e-12)
            assert cell.misses == 1.0

    def test_no_prediction_beats_it(self) -> None:
        trace = random_trace(np.random.default_rng(2))
        for cell in evaluate_predictor(trace, "frequency", profiles=["nvme"], cache=[2]).decisions:
            assert cell.share < 1.0

    def test_where_nothing_was_recorded_it_knows_nothing(self) -> None:
        from specfit_runtime.predictors import make_predictor

        oracle = make_predictor("oracle")
        oracle.start(1, 4, 2)
        nodes = DraftNodes(np.array([1]), np.array([-1]), np.array([0]))
        with pytest.raises(InvalidInputError, match="recorded nodes alone"):
            oracle.predict(nodes)


class TestWhatAPredictorSees:
    def test_levels_in_turn_then_the_committed_token(self) -> None:
        predictor = Scripted(GUESS)
        evaluate_predictor(hand_trace(), predictor, profiles=[MACHINE], cache=[4])
        assert predictor.log == [
            ("start", 1, 4, 2),
            ("predict", 0),
            ("predict", 1, 2),
            ("predict", 3, 4),
            ("observe", 0),
            ("predict", 5),
            ("predict", 6, 7),
            ("predict", 8, 9),
            ("observe", 5),
        ]

    def test_all_that_was_recorded_of_the_nodes(self) -> None:
        predictor = Scripted(GUESS)
        evaluate_predictor(hand_trace(), predictor, profiles=[MACHINE], cache=[4])
        nodes = predictor.nodes[1]
        assert nodes.parent.tolist() == [0, 0]
        assert nodes.depth.tolist() == [1, 1]
        assert nodes.prob is not None
        np.testing.assert_allclose(nodes.prob, [0.8, 0.5])
        assert nodes.states is not None
        assert nodes.states.tolist() == [[2.0, 3.0], [4.0, 5.0]]
        assert nodes.truth is not None
        assert nodes.truth.tolist() == [[[1, 2]], [[0, 3]]]

    def test_each_text_starts_anew(self) -> None:
        trace = random_trace(np.random.default_rng(0), prompts=3)
        predictor = Scripted(np.zeros((1, 3, 3)))
        evaluate_predictor(trace, predictor, profiles=["pcie4"], cache=[2])
        assert sum(entry[0] == "start" for entry in predictor.log) == 3
        observed = [entry[1] for entry in predictor.log if entry[0] == "observe"]
        assert observed == trace.token[trace.cycle_start[:-1]].tolist()

    def test_teaching_shows_the_text_alone(self) -> None:
        predictor, trace = Scripted(GUESS), hand_trace(3)
        teach(predictor, trace)
        assert predictor.log == [("start", 1, 4, 2), ("observe", 0, 5, 10)]
        assert predictor.observed.tolist() == trace.experts[::5].tolist()


class TestRecall:
    def test_order_and_padding(self) -> None:
        true = np.array([[[3, 1]], [[2, -1]], [[-1, -1]]])
        guess = np.array([[[1, 3]], [[-1, 2]], [[0, 1]]])
        found = node_recall(guess, true)
        assert found[:2].tolist() == [[1.0], [1.0]]
        assert math.isnan(found[2, 0])
        assert node_recall(np.full((1, 1, 2), -1), true[:1]).tolist() == [[0.0]]

    def test_means_leave_out_what_is_not_known(self) -> None:
        recall = np.array([[1.0], [np.nan], [0.5], [0.0]], dtype=np.float32)
        table = recall_by_depth(recall, np.array([0, 1, 1, 3]), 4)
        assert table[[0, 1, 3], 0].tolist() == [1.0, 0.5, 0.0]
        assert np.isnan(table[[2, 4], 0]).all()


class TestRefusals:
    def test_a_predictor_of_another_shape(self) -> None:
        with pytest.raises(InvalidInputError, match=r"scripted returned shape \(1, 1, 3\) for 1"):
            evaluate_predictor(
                hand_trace(), Scripted(np.zeros((5, 1, 3))), profiles=[MACHINE], cache=[4]
            )

    @pytest.mark.parametrize(
        ("options", "message"),
        [
            ({"warmup": -1}, "warmup must be a whole number of at least 0"),
            ({"cache": ["75 slots"]}, "unit 'slots' is unknown"),
            ({"profiles": ["no-such"]}, "profile 'no-such' is unknown"),
            ({"profiles": ["hbm"], "expert_bytes": 1}, "keeps all experts resident"),
            ({"profiles": [MACHINE.replace(expert_bytes=None)]}, "expert_bytes is unknown"),
            ({"layer_repeat": 0}, "layer_repeat must be a whole number"),
        ],
    )
    def test_options(self, options: dict[str, Any], message: str) -> None:
        with pytest.raises(InvalidInputError, match=message):
            by_hand(**options)
