# cython: language_level=3
"""The compiled kernel. Its Python functions are those of twin.py; its C functions are in _kernel.pxd.

Arguments are taken as valid and contiguous: the classes of specfit_opt see to that.
"""

import os

import numpy as np

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF
from libc.math cimport INFINITY, fabs, isnan
from libc.stdint cimport int16_t, int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, realloc
from libc.string cimport memcmp, memcpy, memset

from ..errors import SpecfitError
from . import interrupt

include "price.pxi"
include "look_up.pxi"
include "maxflow.pxi"
include "closure.pxi"
include "affine.pxi"
include "table.pxi"

NAME = "cython"

#: Name of the environment variable that forces a version of the row loops.
ROW_VARIABLE = "SPECFIT_ROWS"


def row_versions():
    """Return the versions of the row loops that run on this processor, best first."""
    names = []
    for name in (b"avx512", b"avx2", b"popcnt", b"generic"):
        if sf_row_ops(name) != NULL:
            names.append(name.decode())
    return names


cdef const sf_ops *_chosen_ops() except NULL:
    wanted = os.environ.get(ROW_VARIABLE, "").encode()
    cdef const sf_ops *ops = sf_row_ops(wanted)
    if ops == NULL:
        raise SpecfitError(
            f"{ROW_VARIABLE}={wanted.decode()!r} does not run here; use one of "
            f"{', '.join(row_versions())} or unset it"
        )
    return ops


# Set once, on import, and only read afterwards; every problem carries its own pointer to it.
cdef const sf_ops *_OPS = _chosen_ops()

#: The version of the row loops in use.
ROWS = _OPS.name.decode()

#: Whether this is the checked build (index checks on, every array on its own).
CHECKED = bool(SF_IS_CHECKED)

#: What a bug report should say of this build.
BUILD = {
    "compiler": SF_COMPILER.decode(),
    "cython": cython.__version__,
    "row loops": f"{ROWS} (of {', '.join(row_versions())}; {ROW_VARIABLE} selects)",
    "checked build": "yes" if CHECKED else "no",
}

ctypedef fused expert_id:
    int16_t
    int32_t
    int64_t


def pack(experts, Py_ssize_t n_experts):
    """Pack expert ids into bit rows; see twin.py."""
    cdef Py_ssize_t n = experts.shape[0], words = experts.shape[1] * ((n_experts + 63) // 64)
    rows = np.empty((n, words), dtype=np.uint64)
    cdef uint64_t[:, ::1] out = rows
    if n * words == 0:
        return rows, -1
    return rows, pack_ids(experts, n_experts, &out[0, 0])


def union_mask(experts, Py_ssize_t n_experts):
    """Return which experts of each layer some node uses; see twin.py."""
    cdef Py_ssize_t size = experts.itemsize
    mask = np.zeros((experts.shape[1], n_experts), dtype=np.bool_)
    cdef uint8_t[:, ::1] out = mask.view(np.uint8)
    if experts.size and mask.size:
        if size == 2:
            mark_view[int16_t](experts, out)
        elif size == 4:
            mark_view[int32_t](experts, out)
        else:
            mark_view[int64_t](experts, out)
    return mask


def heaviest(history, weight, Py_ssize_t n_experts):
    """Return the experts that weigh most in each history; see twin.py."""
    best = np.empty((history.shape[0], history.shape[2], history.shape[3]), dtype=history.dtype)
    cdef double *score
    if best.size == 0:
        return best
    score = <double *> calloc(n_experts, sizeof(double))
    if score == NULL:
        raise MemoryError
    try:
        if history.itemsize == 2:
            rank_view[int16_t](history, weight, score, n_experts, best)
        elif history.itemsize == 4:
            rank_view[int32_t](history, weight, score, n_experts, best)
        else:
            rank_view[int64_t](history, weight, score, n_experts, best)
    finally:
        free(score)
    return best


cdef int rank_view(
    const expert_id[:, :, :, :] history, const double[::1] weight, double *score,
    Py_ssize_t n_experts, expert_id[:, :, ::1] best,
) except -1:
    """Fill `best`; `score` holds n_experts zeros, and does again at the end."""
    cdef Py_ssize_t v, layer, t, i, j, top, count, times = history.shape[1], k = history.shape[3]
    cdef int64_t e
    cdef int64_t *named = <int64_t *> malloc(times * k * sizeof(int64_t))
    if named == NULL:
        raise MemoryError
    for v in range(history.shape[0]):
        for layer in range(history.shape[2]):
            count = 0
            for t in range(times):
                for j in range(k):
                    e = history[v, t, layer, j]
                    if <uint64_t> e < <uint64_t> n_experts:
                        if score[e] == 0.0:
                            named[count] = e
                            count += 1
                        score[e] += weight[t]
            for i in range(k):
                top = i
                for j in range(i + 1, count):
                    if score[named[j]] > score[named[top]] or (
                        score[named[j]] == score[named[top]] and named[j] < named[top]
                    ):
                        top = j
                if i < count:
                    e = named[top]
                    named[top] = named[i]
                    named[i] = e
                    best[v, layer, i] = <expert_id> e
                else:
                    best[v, layer, i] = -1
            for j in range(count):
                score[named[j]] = 0.0
    free(named)
    return 0


def evict(held, rank, slots):
    """Take out of each layer what is beyond its slots, lowest rank first; see twin.py."""
    cdef uint8_t[:, ::1] here = held.view(np.uint8)
    cdef const double[:, ::1] ranks = rank
    cdef const int64_t[::1] most = slots
    cdef Py_ssize_t layer, e, lowest_one
    cdef int64_t excess
    for layer in range(here.shape[0]):
        excess = -most[layer]
        for e in range(here.shape[1]):
            excess += here[layer, e]
        while excess > 0:
            lowest_one = -1
            for e in range(here.shape[1]):
                if here[layer, e] and (lowest_one < 0 or ranks[layer, e] < ranks[layer, lowest_one]):
                    lowest_one = e
            if lowest_one < 0:
                break
            here[layer, lowest_one] = 0
            excess -= 1


cdef void mark_view(const expert_id[:, :, :] ids, uint8_t[:, ::1] out) noexcept:
    cdef Py_ssize_t v, layer, j
    cdef uint64_t limit = <uint64_t> out.shape[1]
    cdef int64_t e
    for v in range(ids.shape[0]):
        for layer in range(ids.shape[1]):
            for j in range(ids.shape[2]):
                e = ids[v, layer, j]
                if <uint64_t> e < limit:
                    out[layer, e] = 1


cdef Py_ssize_t pack_ids(experts, Py_ssize_t n_experts, uint64_t *rows) except? -2:
    """Pack an array of any of the three id types."""
    cdef Py_ssize_t size = experts.itemsize
    if size == 2:
        return pack_view[int16_t](experts, n_experts, rows)
    if size == 4:
        return pack_view[int32_t](experts, n_experts, rows)
    return pack_view[int64_t](experts, n_experts, rows)


cdef Py_ssize_t pack_view(
    const expert_id[:, :, ::1] ids, Py_ssize_t n_experts, uint64_t *rows
) except? -2:
    cdef const expert_id *first = &ids[0, 0, 0] if ids.shape[2] > 0 else NULL
    cdef Py_ssize_t bad
    with nogil:
        bad = pack_rows(first, ids.shape[0], ids.shape[1], ids.shape[2], n_experts, rows)
    return bad


cdef Py_ssize_t pack_rows(
    const expert_id *ids, Py_ssize_t n, Py_ssize_t n_layers, Py_ssize_t k, Py_ssize_t n_experts,
    uint64_t *rows,
) noexcept nogil:
    """Set the bits of each node's experts; return the flat index of the first bad id, or -1."""
    cdef Py_ssize_t per_layer = (n_experts + 63) // 64, i = 0, j, group
    cdef int64_t e
    cdef uint64_t limit = <uint64_t> n_experts
    memset(rows, 0, n * n_layers * per_layer * sizeof(uint64_t))
    for group in range(n * n_layers):
        for j in range(k):
            e = ids[i]
            if <uint64_t> e < limit:
                rows[at(e >> 6, per_layer)] |= <uint64_t> 1 << (e & 63)
            elif e != -1:
                return i
            i += 1
        rows += per_layer
    return -1


def evaluate(mask, path_prob, rows, resident, expert_time, double resident_time):
    """Evaluate a set of nodes; see twin.py."""
    cdef const uint8_t[::1] chosen = mask.view(np.uint8)
    cdef const double[::1] prob = path_prob
    cdef const uint64_t[:, ::1] packed = rows
    cdef const uint8_t[:, ::1] is_resident = resident.view(np.uint8)
    cdef bint per_expert = expert_time.ndim == 2
    cdef const double[::1] time = expert_time.reshape(-1) if per_expert else expert_time
    return _evaluate(
        &chosen[0], &prob[0], &packed[0, 0], chosen.shape[0], &is_resident[0, 0], &time[0],
        per_expert, resident_time, is_resident.shape[0], is_resident.shape[1],
    )


cdef tuple _evaluate(
    const uint8_t *mask, const double *prob, const uint64_t *rows, Py_ssize_t n,
    const uint8_t *resident, const double *time, bint per_expert, double resident_time,
    Py_ssize_t n_layers, Py_ssize_t n_experts,
):
    loaded = np.empty(n_layers, dtype=np.int64)
    used = np.empty(n_layers, dtype=np.int64)
    cdef int64_t[::1] loaded_out = loaded, used_out = used
    cdef Py_ssize_t per_layer = (n_experts + 63) // 64, words = n_layers * per_layer
    cdef uint64_t *union_row = <uint64_t *> malloc(words * sizeof(uint64_t))
    cdef double tokens = 0.0, transfer = 0.0
    if union_row == NULL:
        raise MemoryError
    with nogil:
        evaluate_rows(
            _OPS, mask, prob, rows, n, resident, time, per_expert, resident_time,
            n_layers, n_experts, union_row, &tokens, &transfer, &loaded_out[0], &used_out[0],
        )
    free(union_row)
    return tokens, transfer, loaded, used


cdef void evaluate_rows(
    const sf_ops *ops, const uint8_t *mask, const double *prob, const uint64_t *rows, Py_ssize_t n,
    const uint8_t *resident, const double *time, bint per_expert, double resident_time,
    Py_ssize_t n_layers, Py_ssize_t n_experts, uint64_t *union_row,
    double *tokens, double *transfer, int64_t *loaded, int64_t *used,
) noexcept nogil:
    """The objective's parts, straight from the packed rows: no topmost use, no price classes."""
    cdef Py_ssize_t per_layer = (n_experts + 63) // 64, words = n_layers * per_layer
    cdef Py_ssize_t v, layer, w, e, last
    cdef uint64_t x, here
    cdef int64_t missing, hits
    memset(union_row, 0, words * sizeof(uint64_t))
    for v in range(n):
        if mask[v]:
            tokens[0] += prob[v]
            ops.join(union_row, rows + v * words, words)
    for layer in range(n_layers):
        missing = hits = 0
        for w in range(per_layer):
            last = min(64, n_experts - 64 * w)
            here = mask_word(resident + layer * n_experts + 64 * w, last)
            x = union_row[layer * per_layer + w]
            missing += popcount(x & ~here)
            hits += popcount(x & here)
            if per_expert:
                x &= ~here
                while x:
                    e = 64 * w + lowest(x)
                    transfer[0] += time[layer * n_experts + at(e, n_experts)]
                    x &= x - 1
        loaded[layer] = missing
        used[layer] = missing + hits
        transfer[0] += resident_time * <double> hits
        if not per_expert:
            transfer[0] += time[layer] * <double> missing


def solve(
    parent, path_prob, rows, resident, expert_time, double resident_time, double fixed_time,
    node_time, double rate, Py_ssize_t max_nodes, double time_limit,
):
    """Find the best ancestor-closed set; see twin.py."""
    cdef TreeState state = TreeState(resident, expert_time, resident_time)
    cdef const int32_t[::1] parents = parent
    cdef const uint64_t[:, ::1] packed = rows
    cdef const double[::1] prob = path_prob
    state.reserve(parents.shape[0], False)
    state.append(&parents[0], &prob[0], &packed[0, 0], parents.shape[0])
    state.borrowed = &packed[0, 0]
    return state.solve(fixed_time, node_time, rate, max_nodes, time_limit)


cdef class TreeState:
    """A tree that grows, with everything that does not depend on the question; see twin.py."""

    cdef Price price
    cdef sf_arena price_arena
    cdef readonly object resident_mask
    cdef const uint8_t[:, ::1] resident
    cdef const double[::1] expert_time
    cdef double[::1] charged    # [L * E] what each expert costs now, where waste alone is charged
    cdef const double[:, :] full_time   # [L, 1 or E] the same of an expert that none uses
    cdef double *met            # [L * E] how likely a committed token uses the expert, or NULL
    cdef bint per_expert
    cdef double resident_time
    cdef Py_ssize_t n_layers, n_experts, n, room, n_roots
    cdef int32_t *parent        # [room]
    cdef double *prob           # [room]
    cdef uint64_t *packed       # [room, packed_words], kept to evaluate with, or NULL
    cdef const uint64_t *borrowed   # the same of a caller that outlives the call, or NULL
    cdef uint64_t *used         # [room, words]
    cdef uint64_t *fresh        # [room, words]
    cdef uint64_t *root_union   # [words]
    cdef int64_t *start         # [room + 1] of each node's bits, where prices are per bit
    cdef int32_t *bits          # [bits_room] those of its row of fresh
    cdef int64_t bits_room
    cdef bint busy              # a solve reads the arrays, which must neither move nor change

    def __cinit__(self, resident, expert_time, double resident_time, waste_share=None):
        self.resident_mask = resident
        self.resident = resident.view(np.uint8)
        self.n_layers = self.resident.shape[0]
        self.n_experts = self.resident.shape[1]
        cdef Py_ssize_t i
        if waste_share is not None:
            times = expert_time if expert_time.ndim == 2 else expert_time[:, None]
            self.full_time = times * waste_share[:, None]
            expert_time = np.empty((self.n_layers, self.n_experts))
            expert_time[:] = times
            self.charged = expert_time.reshape(-1)
            self.met = <double *> calloc(self.n_layers * self.n_experts, sizeof(double))
            if self.met == NULL:
                raise MemoryError
        self.per_expert = expert_time.ndim == 2
        self.expert_time = expert_time.reshape(-1) if self.per_expert else expert_time
        self.resident_time = resident_time
        if price_open(
            &self.price, &self.price_arena, _OPS, &self.resident[0, 0], &self.expert_time[0],
            self.per_expert, resident_time, self.n_layers, self.n_experts,
        ) != DONE:
            raise MemoryError
        if waste_share is not None:
            # An expert counts by its time, whatever share of it is charged.
            expert_time[:] = self.full_time
            if self.price.bit_weight != &self.expert_time[0]:
                for i in range(self.n_layers * self.n_experts):
                    self.set_met(i, 0.0)
        self.root_union = <uint64_t *> malloc(self.price.words * sizeof(uint64_t))
        if self.root_union == NULL:
            raise MemoryError
        memset(self.root_union, 0, self.price.words * sizeof(uint64_t))

    def __dealloc__(self):
        sf_arena_close(&self.price_arena)
        free(self.parent)
        free(self.prob)
        free(self.packed)
        free(self.used)
        free(self.fresh)
        free(self.root_union)
        free(self.start)
        free(self.bits)
        free(self.met)

    @property
    def n_nodes(self):
        """Number of nodes so far."""
        return self.n

    def extend(self, parent, path_prob, experts):
        """Append nodes; return the flat index of the first bad expert id, or -1; see twin.py."""
        cdef const int32_t[::1] parents = parent
        cdef const double[::1] prob = path_prob
        cdef Py_ssize_t m = parents.shape[0], bad
        cdef uint64_t *rows
        self.require_rest()
        self.reserve(self.n + m, True)
        rows = self.packed + self.n * self.price.packed_words
        bad = pack_ids(experts, self.n_experts, rows)
        if bad < 0:
            self.append(&parents[0], &prob[0], rows, m)
        return bad

    def extend_rows(self, parent, path_prob, rows):
        """Append nodes whose experts are packed already; see twin.py."""
        cdef const int32_t[::1] parents = parent
        cdef const double[::1] prob = path_prob
        cdef const uint64_t[:, ::1] packed = rows
        cdef Py_ssize_t m = parents.shape[0], size = m * self.price.packed_words
        self.require_rest()
        if m == 0:
            return
        self.reserve(self.n + m, True)
        memcpy(self.packed + self.n * self.price.packed_words, &packed[0, 0], size * 8)
        self.append(&parents[0], &prob[0], self.packed + self.n * self.price.packed_words, m)

    def truncate(self, Py_ssize_t n):
        """Take back all nodes from the n-th on; see twin.py."""
        cdef Py_ssize_t i
        self.require_rest()
        if n == 0:
            self.n_roots = 0
            memset(self.root_union, 0, self.price.words * 8)
        self.n = n
        if self.met != NULL:
            memset(self.met, 0, self.n_layers * self.n_experts * sizeof(double))
            for i in range(self.n_layers * self.n_experts):
                self.set_met(i, 0.0)
            self.meet(0, n)

    def nodes(self):
        """Return copies of the nodes' parents, probabilities and packed rows; see twin.py."""
        parent = np.empty(self.n, dtype=np.int32)
        prob = np.empty(self.n)
        rows = np.empty((self.n, self.price.packed_words), dtype=np.uint64)
        cdef int32_t[::1] parents = parent
        cdef double[::1] probs = prob
        cdef uint64_t[:, ::1] packed = rows
        if self.n > 0:
            memcpy(&parents[0], self.parent, self.n * sizeof(int32_t))
            memcpy(&probs[0], self.prob, self.n * sizeof(double))
            memcpy(&packed[0, 0], self.packed, self.n * self.price.packed_words * 8)
        return parent, prob, rows

    cdef int append(
        self, const int32_t *parent, const double *prob, const uint64_t *packed, Py_ssize_t m
    ) except -1:
        """Append nodes for which room is reserved."""
        cdef Py_ssize_t first = self.n, i
        memcpy(self.parent + first, parent, m * sizeof(int32_t))
        memcpy(self.prob + first, prob, m * sizeof(double))
        self.index(first, packed, m)
        for i in range(m):
            self.n_roots += parent[i] < 0
        self.n = first + m
        if self.met != NULL:
            self.meet(first, m)
        return 0

    def met_probability(self):
        """Return how likely a committed token uses each expert; see twin.py."""
        met = np.empty((self.n_layers, self.n_experts))
        cdef double[:, ::1] out = met
        memcpy(&out[0, 0], self.met, self.n_layers * self.n_experts * sizeof(double))
        return met

    cdef void meet(self, Py_ssize_t first, Py_ssize_t m) noexcept:
        """Let the m nodes from the first on raise how likely their experts are used."""
        cdef Py_ssize_t j, v
        cdef int64_t i
        cdef uint64_t x
        if first == 0 and m > 0:
            for j in range(self.price.words):
                x = self.root_union[j]
                while x:
                    self.set_met(self.expert_at(64 * j + lowest(x)), 1.0)
                    x &= x - 1
        for v in range(first, first + m):
            for i in range(self.start[v], self.start[v + 1]):
                j = self.expert_at(self.bits[i])
                self.set_met(j, self.met[j] + self.prob[v])

    cdef inline Py_ssize_t expert_at(self, Py_ssize_t bit) noexcept:
        """Return where in [L * E] the expert of a bit is."""
        cdef Py_ssize_t wide = (self.n_experts + 63) // 64 * 64
        return bit if wide == self.n_experts else bit // wide * self.n_experts + bit % wide

    cdef inline void set_met(self, Py_ssize_t expert, double met) noexcept:
        """Set how likely an expert is used, and what it so costs."""
        cdef Py_ssize_t wide = (self.n_experts + 63) // 64 * 64
        cdef Py_ssize_t layer = expert // self.n_experts, e = expert % self.n_experts
        cdef double full = self.full_time[layer, e if self.full_time.shape[1] > 1 else 0]
        self.met[expert] = met
        self.charged[expert] = full * (1.0 - min(met, 1.0))
        if self.price.bit_weight != &self.expert_time[0] and not self.resident[layer, e]:
            (<double *> self.price.bit_weight)[layer * wide + e] = self.charged[expert]

    cdef int index(self, Py_ssize_t first, const uint64_t *packed, Py_ssize_t m) except -1:
        """Fill in what follows from the packed rows of the m nodes from the first on."""
        cdef Py_ssize_t v, words = self.price.words
        cdef int64_t count, size
        with nogil:
            index_rows(
                &self.price, first, m, self.parent, packed, self.root_union, self.used, self.fresh
            )
        if self.price.weighing != PER_BIT:
            return 0
        # Prices per bit are looked up one by one, so the bits are listed once.
        self.start[0] = 0
        for v in range(first, first + m):
            # Room for a row of all bits.
            size = self.start[v] + 64 * words
            if size > self.bits_room:
                size = max(2 * self.bits_room, size)
                self.bits = <int32_t *> _grown(self.bits, size * sizeof(int32_t))
                self.bits_room = size
            count = _OPS.list(self.fresh + v * words, words, self.bits + self.start[v])
            self.start[v + 1] = self.start[v] + count
        return 0

    cdef int require_rest(self) except -1:
        if self.busy:
            raise SpecfitError("this tree is being solved already; wait for that solve to end")
        return 0

    cdef int reserve(self, Py_ssize_t n, bint keep_packed) except -1:
        cdef Py_ssize_t room = self.room
        if n <= room:
            return 0
        # The first call asks for what it needs; a tree that grows doubles from there on.
        room = max(n, 2 * room)
        self.parent = <int32_t *> _grown(self.parent, room * sizeof(int32_t))
        self.prob = <double *> _grown(self.prob, room * sizeof(double))
        if keep_packed:
            self.packed = <uint64_t *> _grown(self.packed, room * self.price.packed_words * 8)
        self.used = <uint64_t *> _grown(self.used, room * self.price.words * 8)
        self.fresh = <uint64_t *> _grown(self.fresh, room * self.price.words * 8)
        self.start = <int64_t *> _grown(self.start, (room + 1) * sizeof(int64_t))
        self.room = room
        return 0

    def novelty(self, nodes):
        """Return the price of the experts that nodes add to their ancestors'; see twin.py."""
        cdef const int32_t[::1] asked = nodes
        out = np.empty(asked.shape[0])
        cdef double[::1] seconds = out
        cdef Py_ssize_t i, v
        cdef uint64_t *row = <uint64_t *> malloc(self.price.words * sizeof(uint64_t))
        if row == NULL:
            raise MemoryError
        for i in range(asked.shape[0]):
            v = asked[i]
            if self.parent[v] >= 0:
                seconds[i] = price_of(&self.price, self.fresh + v * self.price.words)
            else:
                price_row(&self.price, self.packed + v * self.price.packed_words, row)
                seconds[i] = price_of(&self.price, row)
        free(row)
        return out

    def solve(
        self, double fixed_time, node_time, double rate, Py_ssize_t max_nodes, double time_limit,
        virtual_parent=None, virtual_prob=None, virtual_time=None,
    ):
        """Find the best ancestor-closed set, as the function of the same name; see twin.py."""
        cdef Py_ssize_t n = self.n, m = 0
        cdef const int32_t[::1] more_parents
        cdef const double[::1] more_prob, more_time, table
        cdef Problem problem
        cdef Scratch scratch
        cdef Answer answer
        cdef Outcome outcome
        cdef double *extra = NULL
        cdef const uint64_t *rows
        self.require_rest()
        if virtual_parent is not None:
            more_parents = virtual_parent
            more_prob = virtual_prob
            more_time = virtual_time
            m = more_parents.shape[0]
            self.reserve(n + m, self.packed != NULL)
        if isinstance(node_time, float):
            problem.slope = node_time
            problem.table = NULL
        else:
            table = node_time
            problem.slope = 0.0
            problem.table = &table[0]
        mask = np.empty(n + m, dtype=np.bool_)
        cdef uint8_t[::1] out = mask.view(np.uint8)
        cdef Py_ssize_t v
        if m > 0:
            # Past the end of the tree for this call; the next level overwrites them.
            memcpy(self.parent + n, &more_parents[0], m * sizeof(int32_t))
            memcpy(self.prob + n, &more_prob[0], m * sizeof(double))
            extra = <double *> malloc((n + m) * sizeof(double))
            if extra == NULL:
                raise MemoryError
            memset(extra, 0, n * sizeof(double))
            memcpy(extra + n, &more_time[0], m * sizeof(double))
        self.busy = True
        with nogil:
            problem.price = &self.price
            problem.n = n + m
            problem.n_roots = self.n_roots
            problem.parent = self.parent
            problem.prob = self.prob
            problem.fresh = self.fresh
            problem.start = self.start
            problem.bits = self.bits
            problem.n_rows = n
            problem.extra = extra
            problem.base = fixed_time + price_of(&self.price, self.root_union)
            problem.max_nodes = min(max_nodes, n + m)
            problem.rate = rate
            problem.deadline = INFINITY
            if time_limit < INFINITY:
                problem.deadline = sf_now() + time_limit
            outcome = scratch_open(&scratch, n + m, self.price.words)
            if outcome == DONE:
                scratch.watched = True
                outcome = solve_problem(&problem, &scratch, &answer)
                if outcome == DONE:
                    for v in range(n + m):
                        out[v] = scratch.best[v] == IN
            scratch_close(&scratch)
        self.busy = False
        free(extra)
        if outcome == STOPPED:
            raise taken(scratch.error)
        if outcome != DONE:
            raise MemoryError
        stats = {
            "kernel": NAME,
            "lambda_steps": answer.lambda_steps,
            "rounds": answer.rounds,
            "sharings": answer.sharings,
            "cuts": answer.cuts,
            "core_nodes": answer.core_nodes,
            "core_elements": answer.core_elements,
            "branches": answer.branches,
        }
        figures = None
        if virtual_parent is None:
            rows = self.borrowed
            if self.packed != NULL:
                rows = self.packed
            figures = _evaluate(
                &out[0], self.prob, rows, n,
                &self.resident[0, 0], &self.expert_time[0], self.per_expert, self.resident_time,
                self.n_layers, self.n_experts,
            )
        return mask, bool(answer.proven), answer.objective, answer.bound, stats, figures


cdef object taken(PyObject *kept):
    """Return an object whose reference was kept."""
    taken = <object> kept
    Py_DECREF(taken)
    return taken


cdef void *_grown(void *block, size_t size) except NULL:
    cdef void *grown = realloc(block, size)
    if grown == NULL:
        raise MemoryError
    return grown
