"""Many problems at once, over any executor."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from .checks import Whole
from .cost import CostModel
from .errors import InvalidInputError
from .instance import Instance
from .kernel.interrupt import FolderGone, Stop, look_up, stopped_by
from .limits import RATE, TIME_LIMIT
from .methods import METHODS
from .methods.method import COMMON
from .routing import ExpertRouting
from .solution import Solution
from .solve import check_options, solve_instance
from .tree import DraftTree

#: Most problems that are handed to a worker at once.
LARGEST_CHUNK = 64

Problem = Instance | tuple[DraftTree, ExpertRouting, CostModel]


def solve_many(
    problems: Iterable[Problem],
    *,
    executor: Executor | None = None,
    chunk_size: int | None = None,
    **solve_options: Any,
) -> list[Solution]:
    """Solve many independent problems, in this process or over an executor.

    Parameters
    ----------
    problems : iterable of Instance, or of (DraftTree, ExpertRouting, CostModel)
    executor : concurrent.futures.Executor, optional
        Runs the work; the caller opens and closes it. A ThreadPoolExecutor uses all cores, since
        the compiled kernel releases the GIL; a ProcessPoolExecutor suits the methods in Python;
        the executors of Dask (``client.get_executor()``), Ray or MPI reach a cluster. None solves
        one after the other.
    chunk_size : int, optional
        Problems per task. When omitted, about 32 tasks are made, with at most 64 problems each, so
        that shipping a task costs little beside its work.
    **solve_options
        As for :func:`specfit_opt.solve`: ``method``, ``rate``, ``max_nodes``, ``time_limit``
        (seconds per problem) and the method's options.

    Returns
    -------
    list of Solution
        In the order of ``problems``.

    Raises
    ------
    InvalidInputError
        If an option is unknown or out of range, or a problem cannot be accepted; the message then
        tells its index and name.

    Notes
    -----
    Whatever is raised, an interrupt (Ctrl-C) too, tasks that have not started are cancelled, and
    those that run in a ThreadPoolExecutor or a ProcessPoolExecutor end at once. Another executor's
    workers finish the tasks that they have.

    Examples
    --------
    >>> from specfit_opt import CostModel, DraftTree, ExpertRouting, solve_many
    >>> tree = DraftTree([-1, 0], [1.0, 0.8])
    >>> routing = ExpertRouting([[[0]], [[1]]], n_experts=2)
    >>> costs = [CostModel(1.0, 0.0, price) for price in (0.1, 10.0)]
    >>> [s.n_selected for s in solve_many((tree, routing, cost) for cost in costs)]
    [2, 1]
    """
    if chunk_size is not None:
        chunk_size = Whole(1)(chunk_size, "chunk_size")
    _check_solve_options(solve_options)
    instances = [_instance(i, problem) for i, problem in enumerate(problems)]
    if chunk_size is None:
        chunk_size = min(LARGEST_CHUNK, -(-len(instances) // 32) or 1)
    chunks = [
        (first, instances[first : first + chunk_size])
        for first in range(0, len(instances), chunk_size)
    ]
    if executor is None:
        return [s for chunk in chunks for s in _unwrap(_solve_chunk(*chunk, solve_options))]
    futures: list[Future[list[Solution] | _Refusal]] = []
    with _stop_at_the_end(executor) as stop:
        try:
            futures.extend(
                executor.submit(_solve_chunk, *chunk, solve_options, stop) for chunk in chunks
            )
            return [solution for future in futures for solution in _unwrap(future.result())]
        finally:
            for future in futures:
                future.cancel()


@contextmanager
def _stop_at_the_end(executor: Executor) -> Iterator[Stop | None]:
    """Yield what tells the workers that nobody waits for them any more once the block is left.

    Worker processes get a folder's name: to workers elsewhere, which do not see it, it would be
    gone from the start, so those are told nothing.
    """
    from concurrent.futures import ProcessPoolExecutor

    if isinstance(executor, ThreadPoolExecutor):
        event = threading.Event()
        try:
            yield event
        finally:
            event.set()
    elif isinstance(executor, ProcessPoolExecutor):
        with tempfile.TemporaryDirectory(prefix="specfit-") as folder:
            yield FolderGone(folder)
    else:
        yield None


@dataclass(frozen=True)
class _Refusal:
    """An InvalidInputError on its way back from a worker."""

    index: int
    name: str
    error: InvalidInputError


def _solve_chunk(
    first: int,
    instances: list[Instance],
    options: dict[str, Any],
    stop: Stop | None = None,
) -> list[Solution] | _Refusal:
    solutions = []
    with stopped_by(stop):
        for index, instance in enumerate(instances, first):
            look_up()
            try:
                solutions.append(solve_instance(instance, **options))
            except InvalidInputError as error:
                return _Refusal(index, instance.name, error)
            except Exception as error:
                error.add_note(f"while solving {_label(index, instance.name)}")
                raise
    return solutions


def _unwrap(result: list[Solution] | _Refusal) -> list[Solution]:
    if isinstance(result, _Refusal):
        raise InvalidInputError(
            f"{_label(result.index, result.name)}: {result.error}"
        ) from result.error
    return result


def _instance(index: int, problem: Any) -> Instance:
    if isinstance(problem, Instance):
        return problem
    if not isinstance(problem, tuple) or len(problem) != 3:
        raise InvalidInputError(
            f"{_label(index)} must be an Instance or a tuple (tree, routing, cost_model), got "
            f"{type(problem).__name__}"
        )
    try:
        return Instance(*problem)
    except InvalidInputError as error:
        raise InvalidInputError(f"{_label(index)}: {error}") from error


def _label(index: int, name: str = "") -> str:
    return f"problem {index} ({name})" if name else f"problem {index}"


def _check_solve_options(options: dict[str, Any]) -> None:
    """Refuse, before any work, what no problem could be solved with."""
    method = options.get("method", "exact")
    METHODS.find(method)
    RATE(options.get("rate"), "rate")
    TIME_LIMIT(options.get("time_limit"), "time_limit")
    check_options(method, {k: v for k, v in options.items() if k not in ("method", *COMMON)})
