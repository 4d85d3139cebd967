from __future__ import annotations

import copy
import importlib
import multiprocessing
import pickle
from concurrent.futures import Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor

import numpy as np
import pytest
from strategies import KINDS, random_instance

from specfit_opt import (
    CostModel,
    DraftTree,
    ExpertRouting,
    Instance,
    InvalidInputError,
    MissingExtraError,
    Solution,
    solve_instance,
    solve_many,
)
from specfit_opt.methods import METHODS


@pytest.fixture(scope="module")
def problems():
    return [random_instance(np.random.default_rng(seed)) for seed in range(70)]


@pytest.fixture(scope="module")
def expected(problems):
    return [solve_instance(instance) for instance in problems]


@pytest.fixture(scope="module")
def processes():
    # "spawn" starts from a clean interpreter, as on every platform but Linux: all must be pickled.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        yield executor


class Recorder(Executor):
    """Runs tasks at once, as an executor may, after a round trip through pickle."""

    def __init__(self):
        self.sizes = []

    def submit(self, function, /, *args, **kwargs):
        function, args, kwargs = pickle.loads(pickle.dumps((function, args, kwargs)))
        self.sizes.append(len(args[1]))
        future = Future()
        try:
            future.set_result(pickle.loads(pickle.dumps(function(*args, **kwargs))))
        except Exception as error:
            future.set_exception(error)
        return future


def same(ours: list[Solution], theirs: list[Solution]) -> None:
    assert len(ours) == len(theirs)
    for a, b in zip(ours, theirs, strict=True):
        assert a.nodes.tolist() == b.nodes.tolist()
        assert a.throughput == b.throughput
        assert a.bound == b.bound
        assert a.status is b.status


def test_serial_keeps_the_order(problems, expected):
    same(solve_many(problems), expected)


def test_takes_a_generator_of_tuples(problems, expected):
    tuples = ((i.tree, i.routing, i.cost_model) for i in problems)
    same(solve_many(tuples), expected)


def test_no_problems():
    assert solve_many([]) == []
    assert solve_many([], executor=Recorder()) == []


def test_options_reach_every_problem(problems):
    solutions = solve_many(problems[:20], method="eagle", budget=2, rate=0.5)
    theirs = [solve_instance(i, method="eagle", budget=2, rate=0.5) for i in problems[:20]]
    same(solutions, theirs)
    assert {s.method for s in solutions} == {"eagle"}
    assert {s.rate for s in solutions} == {0.5}


def test_threads(problems, expected):
    with ThreadPoolExecutor(2) as executor:
        same(solve_many(problems, executor=executor), expected)


def test_processes(problems, expected, processes):
    solutions = solve_many(problems, executor=processes)
    same(solutions, expected)
    for instance, solution in zip(problems, solutions, strict=True):
        solution.check(instance.tree, instance.routing, instance.cost_model)


@pytest.mark.parametrize("method", [m for m in METHODS if m != "mip"])
def test_every_method_in_another_process(method, problems, processes):
    solutions = solve_many(problems[:8], method=method, executor=processes)
    same(solutions, [solve_instance(i, method=method) for i in problems[:8]])


@pytest.mark.parametrize(
    ("count", "chunk_size", "sizes"),
    [
        (3, None, [1, 1, 1]),
        (70, None, [3] * 23 + [1]),
        (70, 32, [32, 32, 6]),
        (70, 1000, [70]),
    ],
)
def test_chunks(problems, expected, count, chunk_size, sizes):
    executor = Recorder()
    solutions = solve_many(problems[:count], executor=executor, chunk_size=chunk_size)
    same(solutions, expected[:count])
    assert executor.sizes == sizes


def test_chunks_of_a_large_batch_are_bounded(problems):
    executor = Recorder()
    solve_many([problems[0]] * 3000, executor=executor, method="root")
    assert max(executor.sizes) == 64
    assert sum(executor.sizes) == 3000


@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_bad_chunk_size(value, problems):
    with pytest.raises(InvalidInputError, match="chunk_size must be a whole number of at least 1"):
        solve_many(problems, chunk_size=value)


# --------------------------------------------------------------------------------------------
# errors


def large(name: str) -> Instance:
    """Return an instance that `brute` refuses."""
    n = 40
    return Instance(
        DraftTree([-1] + [0] * (n - 1), [1.0] + [0.5] * (n - 1)),
        ExpertRouting(np.zeros((n, 1, 1), dtype=np.int16), 1),
        CostModel(1.0, 0.1, 0.1),
        name,
    )


@pytest.fixture(params=["serial", "threads", "processes", "recorder"])
def executor(request, processes):
    if request.param == "threads":
        with ThreadPoolExecutor(2) as threads:
            yield threads
    else:
        yield {"serial": None, "processes": processes, "recorder": Recorder()}[request.param]


@pytest.mark.parametrize("chunk_size", [1, 4])
def test_an_error_names_the_problem(executor, chunk_size, problems):
    batch = [*problems[:6], large("the large one"), *problems[6:9]]
    with pytest.raises(
        InvalidInputError, match=r"problem 6 \(the large one\): the tree has 39 nodes"
    ) as info:
        solve_many(batch, method="brute", executor=executor, chunk_size=chunk_size)
    assert isinstance(info.value.__cause__, InvalidInputError)


def test_an_error_without_a_name_gives_the_index(problems):
    with pytest.raises(InvalidInputError, match="problem 1: the tree has"):
        solve_many([problems[0], large("")], method="brute")


def test_other_errors_keep_their_type_and_name_the_problem(monkeypatch, problems):
    def fail(*args, **kwargs):
        raise ZeroDivisionError("the kernel broke")

    # The package exports the function under the name of its module.
    module = importlib.import_module("specfit_opt.solve_many")
    monkeypatch.setattr(module, "solve_instance", fail)
    with pytest.raises(ZeroDivisionError) as info:
        solve_many([Instance(*_parts(problems[0]), name="odd")])
    assert info.value.__notes__ == ["while solving problem 0 (odd)"]


def test_what_has_not_started_is_cancelled(problems):
    class Held(Executor):
        def __init__(self):
            self.futures = []

        def submit(self, function, /, *args, **kwargs):
            future = Future()
            if not self.futures:
                future.set_result(function(*args, **kwargs))
            self.futures.append(future)
            return future

    held = Held()
    with pytest.raises(InvalidInputError, match="problem 0"):
        solve_many([large("x"), *problems[:3]], method="brute", executor=held)
    assert [future.cancelled() for future in held.futures] == [False, True, True, True]


@pytest.mark.parametrize(
    ("problem", "message"),
    [
        (3, r"problem 1 must be an Instance or a tuple \(tree, routing, cost_model\), got int"),
        ((1, 2), "problem 1 must be an Instance or a tuple"),
        ((1, 2, 3), "problem 1: expected a DraftTree, an ExpertRouting"),
    ],
)
def test_bad_problem(problem, message, problems):
    with pytest.raises(InvalidInputError, match=message):
        solve_many([problems[0], problem])


def test_parts_that_disagree(problems):
    tree, _, cost = _parts(problems[0])
    routing = ExpertRouting(np.zeros((tree.n_nodes + 1, 1, 1), dtype=np.int16), 1)
    with pytest.raises(InvalidInputError, match=r"problem 0: the tree has \d+ nodes but the"):
        solve_many([(tree, routing, cost)])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "magic"}, "^method 'magic' is unknown"),
        ({"budget": 3}, "^method 'exact' has no option 'budget'"),
        ({"rate": -1.0}, "^rate must be a finite number"),
    ],
)
def test_bad_options_are_refused_before_any_work(options, message, problems):
    executor = Recorder()
    with pytest.raises(InvalidInputError, match=message):
        solve_many(problems, executor=executor, **options)
    assert executor.sizes == []


# --------------------------------------------------------------------------------------------
# what travels between processes


@pytest.mark.parametrize("protocol", range(2, pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("kind", KINDS)
def test_instances_survive_pickling(kind, protocol):
    instance = random_instance(np.random.default_rng(3), kind=kind)
    back = pickle.loads(pickle.dumps(instance, protocol))
    assert back.name == instance.name
    for ours, theirs in zip(_arrays(back), _arrays(instance), strict=True):
        assert np.array_equal(ours, theirs)
        assert not ours.flags.writeable
    same([solve_instance(back)], [solve_instance(instance)])


@pytest.mark.parametrize(
    "duplicate", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))]
)
def test_solutions_stay_frozen(duplicate, expected):
    back = duplicate(expected[0])
    same([back], expected[:1])
    for name in ("nodes", "mask", "experts_loaded", "experts_used"):
        assert not getattr(back, name).flags.writeable


def test_a_missing_extra_survives_pickling():
    back = pickle.loads(pickle.dumps(MissingExtraError("ortools", "mip")))
    assert str(back) == str(MissingExtraError("ortools", "mip"))
    assert (back.package, back.extra) == ("ortools", "mip")


def _parts(instance):
    return instance.tree, instance.routing, instance.cost_model


def _arrays(instance):
    tree, routing, cost = _parts(instance)
    found = [tree.parent, tree.path_prob, tree.depth]
    found += [routing.experts, routing.rows, routing.resident]
    return found + [t for t in (cost.node_time, cost.expert_time) if isinstance(t, np.ndarray)]


# --------------------------------------------------------------------------------------------
# a cluster


@pytest.mark.parametrize("in_processes", [False, True], ids=["threads", "processes"])
def test_dask_cluster(in_processes, problems, expected):
    distributed = pytest.importorskip("distributed", reason="dask[distributed] is not installed")
    with (
        distributed.LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=in_processes,
            dashboard_address=":0",  # any free port: None would take 8787
            worker_dashboard_address=None,
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        assert len(client.scheduler_info()["workers"]) == 2
        executor = client.get_executor()
        same(solve_many(problems, executor=executor), expected)
        with pytest.raises(InvalidInputError, match=r"problem 2 \(big\): the tree has 39 nodes"):
            solve_many([*problems[:2], large("big")], executor=executor, method="brute")
