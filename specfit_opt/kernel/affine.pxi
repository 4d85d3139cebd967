# The driver, and affine node time: Dinkelbach's method over nested closures.

# An excess over the incumbent below this share of its tokens is rounding, not improvement.
cdef double PROOF = 1e-12


cdef Outcome scratch_open(Scratch *s, int64_t n, int64_t words) noexcept nogil:
    """Take every array of a solve; `scratch_close` gives them back."""
    cdef size_t room = 0
    memset(s, 0, sizeof(Scratch))
    s.n = n
    s.words = words
    room += 5 * sf_arena_room(words * 8) + sf_arena_room(words * 32)
    room += 2 * sf_arena_room(n * 8) + 6 * sf_arena_room(n * 8)
    room += 5 * sf_arena_room(n * 4) + 6 * sf_arena_room(n)
    room += 2 * sf_arena_room((n + 1) * 8) + 2 * sf_arena_room(n + 1) + sf_arena_room((n + 1) * 4)
    if sf_arena_open(&s.arena, room) != 0:
        return NO_MEMORY
    s.union_row = <uint64_t *> sf_arena_take(&s.arena, words * 8)
    s.twice = <uint64_t *> sf_arena_take(&s.arena, words * 8)
    s.solo = <uint64_t *> sf_arena_take(&s.arena, words * 8)
    s.planned = <uint64_t *> sf_arena_take(&s.arena, words * 8)
    s.planes = <uint64_t *> sf_arena_take(&s.arena, words * 32)
    s.zero = <uint64_t *> sf_arena_take(&s.arena, words * 8)
    s.order = <int32_t *> sf_arena_take(&s.arena, n * 8)
    s.gain = <double *> sf_arena_take(&s.arena, n * 8)
    s.own = <double *> sf_arena_take(&s.arena, n * 8)
    s.upper = <double *> sf_arena_take(&s.arena, n * 8)
    s.lower = <double *> sf_arena_take(&s.arena, n * 8)
    s.loss = <double *> sf_arena_take(&s.arena, n * 8)
    s.trail_bound = <double *> sf_arena_take(&s.arena, n * 8)
    s.open_nodes = <int32_t *> sf_arena_take(&s.arena, n * 4)
    s.part = <int32_t *> sf_arena_take(&s.arena, n * 4)
    s.core_index = <int32_t *> sf_arena_take(&s.arena, n * 4)
    s.entry = <int32_t *> sf_arena_take(&s.arena, n * 4)
    s.trail_node = <int32_t *> sf_arena_take(&s.arena, n * 4)
    s.state = <uint8_t *> sf_arena_take(&s.arena, n)
    s.alive = <uint8_t *> sf_arena_take(&s.arena, n)
    s.best = <uint8_t *> sf_arena_take(&s.arena, n)
    s.decided = <uint8_t *> sf_arena_take(&s.arena, n)
    s.trail_inside = <uint8_t *> sf_arena_take(&s.arena, n)
    s.cap = <double *> sf_arena_take(&s.arena, (n + 1) * 8)
    s.worth = <double *> sf_arena_take(&s.arena, (n + 1) * 8)
    s.is_point = <uint8_t *> sf_arena_take(&s.arena, n + 1)
    s.is_tight = <uint8_t *> sf_arena_take(&s.arena, n + 1)
    s.hull = <int32_t *> sf_arena_take(&s.arena, (n + 1) * 4)
    if s.arena.failed:
        return NO_MEMORY
    memset(s.zero, 0, words * 8)
    return DONE


cdef void scratch_close(Scratch *s) noexcept nogil:
    sf_arena_close(&s.arena)


cdef inline double node_time(const Problem *p, int64_t size) noexcept nogil:
    return p.slope * <double> size if p.table == NULL else p.table[at(size, p.n + 1)]


cdef inline double terms(const Scratch *s) noexcept nogil:
    """Tokens that the incumbent's objective is made of: its rounding is relative to them.

    A surplus is a difference, P - rate * T, and this is the sum.
    """
    cdef double tokens = s.best_figures.tokens
    return tokens if s.is_ratio else 2.0 * tokens - s.best_objective


cdef inline bint allowed(const Problem *p, int64_t size) noexcept nogil:
    return size <= p.max_nodes and node_time(p, size) < INFINITY


cdef inline double objective_of(const Problem *p, const Scratch *s, const Figures *f) noexcept nogil:
    cdef double time = p.base + node_time(p, f.size) + f.price
    return f.tokens / time if s.is_ratio else f.tokens - p.rate * time


cdef Outcome solve_problem(const Problem *p, Scratch *s, Answer *answer) noexcept nogil:
    """Solve; the answer's set is `s.best`. At least one size must be allowed."""
    cdef double shortest, slope
    cdef int64_t largest, v
    cdef Outcome outcome
    cdef bint settled = False
    memset(answer, 0, sizeof(Answer))
    s.is_ratio = isnan(p.rate)
    s.total = 0.0
    for v in range(p.n):
        s.total += p.prob[v]
    outcome = first_set(p, s)
    s.lam = s.best_objective if s.is_ratio else p.rate
    if outcome == DONE and affine_part(p, s, &shortest, &slope, &largest):
        outcome = solve_affine(p, s, answer, shortest, slope, largest, &settled)
    if outcome == DONE and not settled:
        outcome = solve_table(p, s, answer)
    if outcome == NO_MEMORY or outcome == STOPPED:
        return outcome
    answer.proven = outcome == DONE
    answer.figures = s.best_figures
    answer.objective = s.best_objective
    answer.bound = s.best_objective
    if outcome == LATE:
        answer.bound = max(s.late_bound, s.best_objective)
    return DONE


cdef Outcome first_set(const Problem *p, Scratch *s) noexcept nogil:
    """Make the best allowed prefix in the order of path probability the incumbent.

    Past the deadline the first one that is allowed has to do; what comes next finds it LATE.
    """
    cdef int64_t i, v, count = 0, size = 0
    cdef Figures f
    cdef double value, best = -INFINITY, extra = 0.0, added = 0.0, all, own
    cdef const Price *price = p.price
    cdef Outcome outcome
    prefix_order(p, s)
    memset(s.union_row, 0, price.words * 8)
    f.tokens = 0.0
    for i in range(p.n):
        v = s.order[i]
        f.tokens += p.prob[v]
        if p.extra != NULL:
            extra += p.extra[v]
        f.size = i + 1
        if price.weighing == PER_BIT:
            # Bit by bit, so that each expert is looked at once.
            price_both(p, s, v, s.union_row, s.zero, &all, &own)
            added += all
            join_row(p, s, v)
        else:
            count = price.ops.join(s.union_row, row_of(p, s, v), price.words)
        if f.size < p.n_roots or not allowed(p, f.size):
            continue
        if price.weighing == UNIFORM:
            f.price = extra + price.unit * <double> count
        elif price.weighing == PER_WORD:
            f.price = extra + price_of(price, s.union_row)
        else:
            f.price = extra + added
        value = objective_of(p, s, &f)
        if value > best:
            best = value
            size = f.size
            s.best_figures = f
        outcome = tick(p, s, price.words)
        if outcome == STOPPED:
            return STOPPED
        if outcome == LATE:
            break
    s.best_objective = best
    for v in range(p.n):
        s.best[v] = OUT
    for i in range(size):
        s.best[s.order[i]] = IN
    return DONE


cdef void prefix_order(const Problem *p, Scratch *s) noexcept nogil:
    """Sort the nodes into s.order: roots first, falling probability, earlier first (merge sort)."""
    cdef int32_t *source = s.order
    cdef int32_t *target = s.order + p.n
    cdef int32_t *swap
    cdef int64_t v, n = p.n, width, low, mid, high, i, j, k
    for v in range(n):
        # Runs of eight by insertion, then merges.
        k = v
        low = v - v % 8
        while k > low and comes_first(p, v, source[k - 1]):
            source[k] = source[k - 1]
            k -= 1
        source[k] = <int32_t> v
    width = 8
    while width < n:
        low = 0
        while low < n:
            mid = min(low + width, n)
            high = min(low + 2 * width, n)
            i = low
            j = mid
            for k in range(low, high):
                if i < mid and (j >= high or not comes_first(p, source[j], source[i])):
                    target[k] = source[i]
                    i += 1
                else:
                    target[k] = source[j]
                    j += 1
            low = high
        swap = source
        source = target
        target = swap
        width *= 2
    if source != s.order:
        memcpy(s.order, source, n * sizeof(int32_t))


cdef inline bint comes_first(const Problem *p, int64_t v, int64_t u) noexcept nogil:
    """Whether v stands before an earlier node u in the prefix order."""
    cdef bint v_root = p.parent[v] < 0, u_root = p.parent[u] < 0
    if v_root != u_root:
        return v_root
    return p.prob[v] > p.prob[u]


cdef bint affine_part(
    const Problem *p, Scratch *s, double *shortest, double *slope, int64_t *largest
) noexcept nogil:
    """Whether the allowed sizes are n_roots..largest and node time is a line over them.

    The line is given by the node time of the roots, `shortest`, and `slope` per further node: an
    intercept at size 0 would be a difference, in which a short time beside a long one gets lost.
    """
    cdef int64_t first = p.n_roots, last = first, k
    cdef double line
    if p.table == NULL:
        shortest[0] = p.slope * <double> first
        slope[0] = p.slope
        largest[0] = p.max_nodes
        return True
    if not allowed(p, first):
        return False
    while last < p.max_nodes and p.table[last + 1] < INFINITY:
        last += 1
    for k in range(last + 1, p.max_nodes + 1):
        if p.table[k] < INFINITY:
            return False
    slope[0] = (p.table[last] - p.table[first]) / <double> max(last - first, 1)
    if slope[0] < 0.0:
        return False  # past the table the line would fall below zero
    for k in range(first, last + 1):
        line = p.table[first] + slope[0] * <double> (k - first)
        if fabs(p.table[k] - line) > PROOF * (p.base + fabs(line)):
            return False
    shortest[0] = p.table[first]
    largest[0] = last
    return True


cdef void keep(const Problem *p, Scratch *s, const Figures *f) noexcept nogil:
    """Make the set in `s.state` the incumbent."""
    memcpy(s.best, s.state, p.n)
    s.best_figures = f[0]
    s.best_objective = objective_of(p, s, f)


cdef Outcome solve_affine(
    const Problem *p, Scratch *s, Answer *answer, double shortest, double slope, int64_t largest,
    bint *settled,
) noexcept nogil:
    """Solve without the limit on size; `settled` tells whether the answer respects it."""
    cdef double base = p.base + shortest, lam = s.lam, time, excess, slack
    cdef Figures f
    cdef int64_t v, before
    cdef Outcome outcome
    memset(s.alive, 1, p.n)
    f.size = p.n + 1
    while True:  # each step shrinks the set or is the last: at most n of them
        before = f.size
        answer.lambda_steps += 1
        for v in range(p.n):
            s.state[v] = IN if p.parent[v] < 0 else (OPEN if s.alive[v] else OUT)
        outcome = closure(p, s, answer, lam, lam * slope, &f)
        if outcome == LATE:
            # The limit on size only lowers what can be reached, so the bound holds with it too.
            excess = s.late_bound - lam * base
            s.late_bound = lam + max(excess, 0.0) / base if s.is_ratio else excess
        if outcome != DONE:
            return outcome
        time = base + slope * <double> (f.size - p.n_roots) + f.price
        excess = f.tokens - lam * time
        slack = PROOF * f.tokens
        if not s.is_ratio or excess <= slack or f.size >= before:
            break
        # Closures shrink as lambda rises: what is out stays out.
        for v in range(p.n):
            s.alive[v] = s.state[v] == IN
        lam = f.tokens / time
        if f.size <= largest:
            keep(p, s, &f)
    settled[0] = f.size <= largest
    if settled[0] and (not s.is_ratio or excess >= -slack):
        keep(p, s, &f)  # as good as the incumbent and, being the least closure, no larger
    elif s.is_ratio and s.best_objective < lam * (1.0 - PROOF):
        settled[0] = False  # what set this lambda is too large to be the answer
    return DONE
