# Any node time: a Lagrangian envelope over sizes closes most of it, branch and bound the rest.
#
# For a price mu per node, the best closure's value plus mu * k bounds every set of k nodes. The
# closures of rising mu are nested, so they are kept as one number per node (`entry`: the size of
# the smallest of them that holds it).

cdef enum Verdict:
    PRUNED
    BRANCH
    AGAIN


cdef Outcome solve_table(const Problem *p, Scratch *s, Answer *answer) noexcept nogil:
    """Branch and bound from the incumbent on, depth first: forced in, then forced out."""
    cdef int64_t depth = 0, i
    cdef Verdict verdict
    cdef Outcome outcome
    cdef int32_t node = 0
    cdef double bound = 0.0
    if s.is_ratio:
        s.lam = s.best_objective
    while True:  # over a tree of at most 2^n decisions; the deadline and signals are seen in it
        outcome = explore(p, s, answer, depth, &verdict, &node, &bound)
        if outcome == LATE:
            # What is open: the subtrees not entered yet, and the one being explored.
            if depth > 0:
                s.late_bound = s.trail_bound[depth - 1]
            for i in range(depth):
                if s.trail_inside[i]:
                    s.late_bound = max(s.late_bound, s.trail_bound[i])
        if outcome != DONE:
            return outcome
        if verdict == BRANCH:
            answer.branches += 1
            s.trail_node[at(depth, s.n)] = node
            s.trail_inside[depth] = 1
            s.trail_bound[depth] = bound
            depth += 1
            continue
        while depth > 0 and not (s.trail_inside[depth - 1] and matters(s, s.trail_bound[depth - 1])):
            depth -= 1
        if depth == 0:
            return DONE
        s.trail_inside[depth - 1] = 0


cdef inline bint matters(const Scratch *s, double bound) noexcept nogil:
    """Whether a bound on the objective leaves room for a better set, or an equal smaller one."""
    return bound >= s.best_objective - PROOF * (s.lam if s.is_ratio else terms(s))


cdef bint consider(const Problem *p, Scratch *s, const Figures *f) noexcept nogil:
    """Make the set in s.state the incumbent if better, or as good and smaller; True if better."""
    cdef double gain, slack
    if not allowed(p, f.size):
        return False
    gain = objective_of(p, s, f) - s.best_objective
    slack = PROOF * (s.lam if s.is_ratio else terms(s))
    if gain > slack or (gain >= -slack and f.size < s.best_figures.size):
        keep(p, s, f)
        if s.is_ratio:
            s.lam = s.best_objective
        return gain > slack
    return False


cdef Outcome explore(
    const Problem *p, Scratch *s, Answer *answer, int64_t depth,
    Verdict *verdict, int32_t *node, double *bound,
) noexcept nogil:
    """Bound the sets that agree with the trail."""
    cdef Figures least, most
    cdef int64_t v
    cdef Outcome outcome
    decide(p, s, depth)
    memcpy(s.state, s.decided, p.n)
    measure(p, s, s.state, IN, &least)
    consider(p, s, &least)
    for v in range(p.n):
        s.state[v] = OUT if s.decided[v] == OUT else IN
    measure(p, s, s.state, IN, &most)
    consider(p, s, &most)
    if tick(p, s, 2 * p.n * (p.price.words + 1)) == STOPPED:
        return STOPPED
    while True:  # once more whenever the incumbent, and with it lambda, rises
        outcome = envelope(p, s, answer, &least, &most, verdict, node, bound)
        if outcome != DONE or verdict[0] != AGAIN:
            return outcome


cdef void decide(const Problem *p, Scratch *s, int64_t depth) noexcept nogil:
    """Fill s.decided from the trail: in with its ancestors, out with its subtree."""
    cdef int64_t v, i
    for v in range(p.n):
        s.decided[v] = IN if p.parent[v] < 0 else OPEN
    for i in range(depth):
        v = s.trail_node[i]
        if s.trail_inside[i]:
            while s.decided[v] != IN:
                s.decided[v] = IN
                v = p.parent[v]
        else:
            s.decided[v] = OUT
    for v in range(p.n):
        if p.parent[v] >= 0 and s.decided[p.parent[v]] == OUT:
            s.decided[v] = OUT


cdef Outcome envelope(
    const Problem *p, Scratch *s, Answer *answer, const Figures *least, const Figures *most,
    Verdict *verdict, int32_t *node, double *bound,
) noexcept nogil:
    cdef double lam = s.lam, price, worth, excess, highest, slack, floor, prob
    cdef int64_t first = least.size, last = most.size, k, v, at_size, below, above
    cdef bint any_allowed = False, is_chord = False, tight, better
    cdef Figures f
    cdef Outcome outcome
    for k in range(first, last + 1):
        s.cap[k] = INFINITY
        s.is_point[k] = 0
        s.is_tight[k] = 0
        any_allowed = any_allowed or allowed(p, k)
    verdict[0] = PRUNED
    if not any_allowed:
        return DONE
    # Either extreme is the only set of its size.
    for v in range(p.n):
        s.entry[v] = <int32_t> (first if s.decided[v] == IN else (last if s.decided[v] == OPEN else p.n + 1))
    s.worth[last] = s.cap[last] = most.tokens - lam * most.price
    s.worth[first] = s.cap[first] = least.tokens - lam * least.price
    s.is_point[first] = s.is_point[last] = 1
    below = first
    above = last
    price = first_price(p, s, first, last)
    while True:  # each pass finds a point, a tight chord or the end: at most 2 n of them
        slack = PROOF * terms(s)
        if last > first:
            for v in range(p.n):
                s.state[v] = IN if s.entry[v] <= below else (OPEN if s.entry[v] <= above else OUT)
            outcome = closure(p, s, answer, lam, price, &f)
            if outcome == LATE:
                s.late_bound = objective_bound(p, s, first, last)
            if outcome != DONE:
                return outcome
            worth = f.tokens - lam * f.price
            for k in range(first, last + 1):
                s.cap[k] = min(s.cap[k], worth + price * <double> (k - f.size))
            better = consider(p, s, &f)
            if better and s.is_ratio:
                verdict[0] = AGAIN
                return DONE
            # With nothing above the chord, the chord is a part of the envelope: no price can tell
            # the sizes inside it apart. (Its ends again, but above it, can only be rounding.)
            tight = is_chord and (
                f.size == below
                or f.size == above
                or worth - price * <double> f.size <= s.worth[below] - price * <double> below + slack
            )
            if tight:
                s.is_tight[below] = 1
            if f.size != below and f.size != above:
                s.is_point[f.size] = 1
                s.is_tight[f.size] = tight
                s.worth[f.size] = worth
                for v in range(p.n):
                    if s.entry[v] == above and s.state[v] == IN:
                        s.entry[v] = <int32_t> f.size
        floor = 0.0 if s.is_ratio else s.best_objective
        at_size = -1
        highest = -INFINITY
        for k in range(first, last + 1):
            if s.is_point[k] or not allowed(p, k):
                continue
            excess = s.cap[k] - lam * (p.base + node_time(p, k))
            # A larger set must be better; a smaller one is welcome when it is as good.
            if excess > highest and excess > (
                floor - slack if k < s.best_figures.size else floor + slack
            ):
                highest = excess
                at_size = k
        if at_size < 0:
            return DONE
        below = at_size - 1
        while not s.is_point[below]:
            below -= 1
        above = at_size + 1
        while not s.is_point[above]:
            above += 1
        if s.is_tight[below]:
            if fill(p, s, below, above, at_size, &better) == STOPPED:
                return STOPPED
            if better and s.is_ratio:
                verdict[0] = AGAIN
                return DONE
            verdict[0] = BRANCH
            bound[0] = objective_bound(p, s, first, last)
            prob = -1.0
            for v in range(p.n):
                if is_door(p, s, v, below, above) and p.prob[v] > prob:
                    prob = p.prob[v]
                    node[0] = <int32_t> v
            return DONE
        price = (s.worth[above] - s.worth[below]) / <double> (above - below)
        is_chord = True


cdef inline bint is_door(const Problem *p, const Scratch *s, int64_t v, int64_t below, int64_t above) noexcept nogil:
    """Whether v is in the closure of size `above`, not in that of `below`, but its parent is."""
    return below < s.entry[v] <= above and s.entry[p.parent[v]] <= below


cdef double objective_bound(const Problem *p, Scratch *s, int64_t first, int64_t last) noexcept nogil:
    """Turn the bounds by size at the present lambda into one on the objective."""
    cdef double best = -INFINITY, time, worth
    cdef int64_t k
    for k in range(first, last + 1):
        if not allowed(p, k):
            continue
        time = p.base + node_time(p, k)
        worth = min(s.cap[k], s.total)
        if s.is_ratio:
            # P <= worth + lam * price, and a pass takes at least as long as its nodes alone.
            best = max(best, min(s.lam + max(worth - s.lam * time, 0.0) / time, s.total / time))
        else:
            best = max(best, worth - p.rate * time)
    return best


cdef Outcome fill(
    const Problem *p, Scratch *s, int64_t below, int64_t above, int64_t size, bint *improved
) noexcept nogil:
    """Grow the closure of size `below` inside that of `above` to `size`, the best node first.

    `improved` tells whether that gave a better incumbent. Past the deadline it stops half-way.
    """
    cdef Figures f
    cdef int64_t v, best
    cdef double gain, highest, all, own
    cdef Outcome outcome
    improved[0] = False
    for v in range(p.n):
        s.state[v] = IN if s.entry[v] <= below else OUT
    measure(p, s, s.state, IN, &f)
    while f.size < size:
        best = -1
        highest = -INFINITY
        for v in range(p.n):
            if s.state[v] != OUT or s.entry[v] > above or s.state[at(p.parent[v], p.n)] != IN:
                continue
            price_both(p, s, v, s.union_row, s.zero, &all, &own)
            gain = p.prob[v] - s.lam * all
            if p.extra != NULL:
                gain -= s.lam * p.extra[v]
            if best < 0 or gain > highest:
                highest = gain
                best = v
        price_both(p, s, best, s.union_row, s.zero, &all, &own)
        s.state[best] = IN
        join_row(p, s, best)
        f.size += 1
        f.tokens += p.prob[best]
        f.price += all + (p.extra[best] if p.extra != NULL else 0.0)
        if consider(p, s, &f):
            improved[0] = True
        outcome = tick(p, s, p.n * (p.price.words + 1))
        if outcome != DONE:
            return outcome
    return DONE


cdef double first_price(const Problem *p, Scratch *s, int64_t first, int64_t last) noexcept nogil:
    """Return lambda times the slope of the table's lower convex hull at the incumbent's size."""
    cdef int64_t k, n_hull = 0, i, j, h
    cdef double rise
    for k in range(first, last + 1):
        if not allowed(p, k):
            continue
        while n_hull >= 2:
            i = s.hull[n_hull - 2]
            j = s.hull[n_hull - 1]
            rise = node_time(p, j) - node_time(p, i)
            if (node_time(p, k) - node_time(p, i)) * <double> (j - i) > rise * <double> (k - i):
                break
            n_hull -= 1
        s.hull[n_hull] = <int32_t> k
        n_hull += 1
    if n_hull == 1:
        return 0.0
    h = 0
    while h + 2 < n_hull and s.hull[h + 1] <= s.best_figures.size:
        h += 1
    i = s.hull[h]
    j = s.hull[h + 1]
    return s.lam * (node_time(p, j) - node_time(p, i)) / <double> (j - i)
