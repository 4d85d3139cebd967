# The C-level interface of the kernel: plain structs and functions over arrays that the caller owns.
# No function here takes the GIL, raises or keeps state between calls, so an engine can cimport it;
# only where `Scratch.watched` is set does a long solve take the GIL to look for signals.

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t

cdef extern from "rows.h":
    ctypedef struct sf_ops:
        const char *name
        void (*survey)(
            const uint64_t *, const int32_t *, int64_t, const uint64_t *, int64_t,
            uint64_t *, uint64_t *
        ) noexcept nogil
        void (*planes)(
            const uint64_t *, const int32_t *, int64_t, const uint64_t *, int64_t, uint64_t *
        ) noexcept nogil
        void (*count4)(const uint64_t *, const uint64_t *, int64_t, int64_t *) noexcept nogil
        void (*weigh4)(
            const uint64_t *, const uint64_t *, const double *, int64_t, double *
        ) noexcept nogil
        void (*index)(
            const uint64_t *, const uint64_t *, const uint64_t *, int64_t, uint64_t *, uint64_t *
        ) noexcept nogil
        void (*count)(
            const uint64_t *, const uint64_t *, const uint64_t *, int64_t, int64_t *, int64_t *
        ) noexcept nogil
        void (*weigh)(
            const uint64_t *, const uint64_t *, const uint64_t *, const double *, int64_t,
            double *, double *
        ) noexcept nogil
        int64_t (*list)(const uint64_t *, int64_t, int32_t *) noexcept nogil
        void (*weigh_bits)(
            const int32_t *, int64_t, const uint64_t *, const uint64_t *, const double *,
            double *, double *
        ) noexcept nogil
        int64_t (*join)(uint64_t *, const uint64_t *, int64_t) noexcept nogil
    const sf_ops *sf_row_ops(const char *name) noexcept nogil
    int popcount "sf_popcount"(uint64_t) noexcept nogil
    int lowest "sf_lowest"(uint64_t) noexcept nogil

cdef extern from "checks.h":
    ctypedef struct sf_arena:
        int failed
    int sf_arena_open(sf_arena *, size_t) noexcept nogil
    size_t sf_arena_room(size_t) noexcept nogil
    void *sf_arena_take(sf_arena *, size_t) noexcept nogil
    void sf_arena_close(sf_arena *) noexcept nogil
    double sf_now() noexcept nogil
    Py_ssize_t at "SF_AT"(Py_ssize_t i, Py_ssize_t n) noexcept nogil
    const int SF_IS_CHECKED
    const char *SF_COMPILER


# How an expert's weight is found: one for all, one per word of a row, one per bit.
cdef enum Weighing:
    UNIFORM
    PER_WORD
    PER_BIT


# Prices of experts, in seconds, laid out for rows of `words` words: `classes` copies of the packed
# row's `packed_words`, each masked to the experts of one price class (missing, resident).
cdef struct Price:
    const sf_ops *ops
    Weighing weighing
    int64_t packed_words
    int64_t classes
    int64_t words
    double unit                 # UNIFORM
    uint64_t *mask              # [words]
    double *word_weight         # [words], PER_WORD
    const double *bit_weight    # [64 * words], PER_BIT; may be the caller's


cdef struct Problem:
    const Price *price
    int64_t n
    int64_t n_roots
    const int32_t *parent       # [n], parents first, -1 for a root
    const double *prob          # [n]
    const uint64_t *fresh       # [n_rows, words]: priced experts that no ancestor and no root uses
    const int64_t *start        # [n_rows + 1] where the bits of a row of fresh are listed, PER_BIT
    const int32_t *bits         # [start[n_rows]]
    int64_t n_rows              # nodes from here on (virtual ones) have no experts
    const double *extra         # [n] seconds of a node's own, or NULL
    double base                 # seconds: fixed time and the union of the roots
    double slope                # seconds per node, used when table is NULL
    const double *table         # [n + 1] seconds by node count, or NULL
    int64_t max_nodes
    double rate                 # NaN: the ratio
    double deadline             # sf_now() scale, inf for none


cdef struct Figures:
    int64_t size
    double tokens
    double price                # seconds beyond the roots' union


cdef struct Answer:
    int proven
    double objective
    double bound
    Figures figures
    int64_t lambda_steps
    int64_t rounds
    int64_t sharings
    int64_t cuts
    int64_t core_nodes
    int64_t core_elements
    int64_t branches


cdef enum Outcome:
    DONE = 0
    LATE = 1                    # the deadline passed; Scratch.late_bound holds
    STOPPED = 2                 # a signal or a request ended it; Scratch.error says which
    NO_MEMORY = -1


# Arrays that one solve needs, sized for n nodes and rows of `words` words.
cdef struct Scratch:
    sf_arena arena
    sf_arena flow_arena
    int64_t n
    int64_t words
    int watched                 # whether to look for signals
    int64_t work                # words of rows since the last look up
    double next_look            # sf_now() scale; 0 before the first look up
    PyObject *error             # what stopped the solve; a reference of its own
    int is_ratio
    double lam
    double late_bound
    double total                # sum of path probabilities
    uint64_t *union_row         # [words]
    uint64_t *twice             # [words]
    uint64_t *solo              # [words]
    uint64_t *zero              # [words]
    uint64_t *planes            # [4 words]
    uint64_t *planned           # [words]
    int32_t *open_nodes         # [n]
    int32_t *part               # [n]
    int32_t *order              # [2 n]
    double *gain                # [n]
    double *own                 # [n]
    double *upper               # [n]
    double *lower               # [n]
    double *loss                # [n]
    uint8_t *state              # [n]
    uint8_t *alive              # [n]
    uint8_t *best               # [n], not 0 for a chosen node
    int32_t *core_index         # [n]
    # branch and bound
    uint8_t *decided            # [n]
    int32_t *entry              # [n]
    int32_t *trail_node         # [n]
    uint8_t *trail_inside       # [n]
    double *trail_bound         # [n]
    double *cap                 # [n + 1]
    double *worth               # [n + 1]
    uint8_t *is_point           # [n + 1]
    uint8_t *is_tight           # [n + 1]
    int32_t *hull               # [n + 1]
    Figures best_figures
    double best_objective


cdef Outcome price_open(
    Price *price, sf_arena *arena, const sf_ops *ops, const uint8_t *resident,
    const double *expert_time, int per_expert, double resident_time,
    int64_t n_layers, int64_t n_experts) noexcept nogil
cdef double price_of(const Price *price, const uint64_t *row) noexcept nogil
cdef Outcome scratch_open(Scratch *s, int64_t n, int64_t words) noexcept nogil
cdef void scratch_close(Scratch *s) noexcept nogil
cdef Outcome solve_problem(const Problem *p, Scratch *s, Answer *answer) noexcept nogil
