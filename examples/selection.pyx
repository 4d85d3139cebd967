# cython: language_level=3
"""The selection called from Cython: no Python object between the engine's arrays and the answer.

One layer of at most 64 experts and one root, so that a node's experts are one 64-bit word.
"""

from libc.math cimport INFINITY, NAN
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

from specfit_opt.kernel._kernel cimport (
    DONE, Answer, Price, Problem, Scratch, price_of, price_open, scratch_close, scratch_open,
    sf_arena, sf_arena_close, sf_row_ops, solve_problem,
)


cdef int choose(
    const int32_t *parent, const double *prob, const uint64_t *experts, int64_t n,
    const uint8_t *resident, int64_t n_experts, double expert_time, double fixed_time,
    double node_time, uint64_t *used, uint64_t *fresh, uint8_t *chosen, double *throughput,
) noexcept nogil:
    """Set `chosen` [n] and the tokens per second; return 0, or -1 if memory ran out.

    `experts`, `used` and `fresh` have one word per node; the latter two are the caller's room.
    """
    cdef Price price
    cdef sf_arena arena
    cdef Problem problem
    cdef Scratch scratch
    cdef Answer answer
    cdef int64_t v
    cdef int result = -1
    if price_open(
        &price, &arena, sf_row_ops(NULL), resident, &expert_time, False, 0.0, 1, n_experts
    ) == DONE:
        # What a node adds to its ancestors; the root's experts are paid whatever is chosen.
        for v in range(n):
            used[v] = experts[v] & price.mask[0]
            fresh[v] = 0
            if parent[v] >= 0:
                fresh[v] = used[v] & ~used[parent[v]]
                used[v] |= used[parent[v]]
        problem.price = &price
        problem.n = problem.n_rows = problem.max_nodes = n
        problem.n_roots = 1
        problem.parent = parent
        problem.prob = prob
        problem.fresh = fresh
        problem.extra = NULL
        problem.base = fixed_time + price_of(&price, used)
        problem.slope = node_time
        problem.table = NULL
        problem.rate = NAN       # the ratio
        problem.deadline = INFINITY
        if scratch_open(&scratch, n, price.words) == DONE:
            scratch.watched = False  # never take the GIL
            if solve_problem(&problem, &scratch, &answer) == DONE:
                for v in range(n):
                    chosen[v] = scratch.best[v] != 0
                throughput[0] = answer.objective
                result = 0
        scratch_close(&scratch)
    sf_arena_close(&arena)
    return result


def select(
    const int32_t[::1] parent, const double[::1] path_prob, const uint64_t[::1] experts,
    const uint8_t[::1] resident, double expert_time, double fixed_time, double node_time,
):
    """Call it from Python, to look at."""
    import numpy as np

    cdef int64_t n = parent.shape[0]
    cdef uint64_t[::1] used = np.empty(n, np.uint64), fresh = np.empty(n, np.uint64)
    chosen = np.zeros(n, np.bool_)
    cdef uint8_t[::1] out = chosen.view(np.uint8)
    cdef double throughput = 0.0
    cdef int failed
    with nogil:
        failed = choose(
            &parent[0], &path_prob[0], &experts[0], n, &resident[0], resident.shape[0],
            expert_time, fixed_time, node_time, &used[0], &fresh[0], &out[0], &throughput,
        )
    if failed:
        raise MemoryError
    return np.flatnonzero(chosen), throughput
