# The least maximum-weight closure between two closed sets, at a fixed lambda and node price:
# persistency to a fixpoint, then one minimum cut on what is left.

cdef enum:
    OUT = 0
    OPEN = 1
    IN = 2

# Gains below this share of all the probability are taken for zero: ties go to fewer nodes.
cdef double TIE = 1e-13


cdef Outcome closure(
    const Problem *p, Scratch *s, Answer *answer, double lam, double node_price, Figures *figures
) noexcept nogil:
    """Maximise sum(prob - node_price) - lam * price over closed sets.

    `s.state` says what is IN (a closed set), OPEN and OUT; on return all is IN or OUT.
    """
    cdef const Price *price = p.price
    cdef int64_t words = price.words, n_open = 0, n_rows, kept, i, v, u
    cdef double all, own, eps = TIE * s.total
    cdef uint8_t above
    cdef Outcome outcome
    memset(s.union_row, 0, words * 8)
    for v in range(p.n):
        if s.state[v] == OPEN:
            s.open_nodes[n_open] = <int32_t> v
            n_open += 1
            s.gain[v] = p.prob[v] - node_price
            if p.extra != NULL:
                s.gain[v] -= lam * p.extra[v]
        elif s.state[v] == IN:
            join_row(p, s, v)
    while n_open > 0:  # each round but the last decides a node
        answer.rounds += 1
        # Virtual nodes come last; they have no rows.
        n_rows = n_open
        while n_rows > 0 and s.open_nodes[n_rows - 1] >= p.n_rows:
            n_rows -= 1
        price.ops.survey(p.fresh, s.open_nodes, n_rows, s.union_row, words, s.solo, s.twice)
        for i in range(n_open):
            v = s.open_nodes[i]
            s.upper[v] = 0.0
            s.lower[v] = 0.0
        # Bottom-up: charged for private experts only, a subtree's value is an upper bound;
        # charged for all its experts, a lower bound.
        for i in range(n_open - 1, -1, -1):
            v = s.open_nodes[i]
            price_both(p, s, v, s.union_row, s.solo, &all, &own)
            s.own[v] = s.gain[v] - lam * own
            s.upper[v] += s.own[v]
            s.lower[v] += s.gain[v] - lam * all
            u = p.parent[v]
            if s.state[at(u, p.n)] == OPEN:
                if s.upper[v] > 0.0:
                    s.upper[u] += s.upper[v]
                if s.lower[v] > 0.0:
                    s.lower[u] += s.lower[v]
        outcome = tick(p, s, n_open * (words + 1))
        if outcome != DONE:
            late(p, s, lam, node_price, n_open)
            return outcome
        kept = 0
        for i in range(n_open):
            v = s.open_nodes[i]
            above = s.state[p.parent[v]]
            if above == OUT or s.upper[v] <= eps:
                s.state[v] = OUT
            elif above == IN and s.lower[v] > eps:
                s.state[v] = IN
                join_row(p, s, v)
            else:
                s.open_nodes[kept] = <int32_t> v
                kept += 1
        if kept == n_open:
            kept = share_costs(p, s, answer, lam, n_open)
        if kept == n_open:
            outcome = cut(p, s, answer, lam, n_open)
            if outcome == LATE:
                late(p, s, lam, node_price, n_open)
            if outcome != DONE:
                return outcome
            break
        n_open = kept
    measure(p, s, s.state, IN, figures)
    return DONE


cdef int64_t share_costs(
    const Problem *p, Scratch *s, Answer *answer, double lam, int64_t n_open
) noexcept nogil:
    """Decide open nodes by a bound in which users share the price of an expert.

    Any split of an expert's price among its users bounds the value of every closed set. The split
    here is the one that would be tight if the incumbent's open part Y were the answer: what Y uses
    is paid by Y, the rest by the other users, in equal shares. Where the bound meets the value of
    Y, Y is a best set and the least one lies inside it; else a node is decided if the bound with it
    forced the other way falls below the value of Y. Returns the number of nodes left open.
    """
    cdef const Price *price = p.price
    cdef int64_t words = price.words, n_part, kept = 0, i, v, u
    cdef double worth = 0.0, bound = 0.0, excess, slack = TIE * s.total
    cdef bint inside
    answer.sharings += 1
    # Y first, with everything that nobody has paid for; then the others, with what Y paid for free.
    memcpy(s.planned, s.union_row, words * 8)
    for i in range(n_open):
        v = s.open_nodes[i]
        if s.best[v] == IN:
            worth += s.gain[v]
            if v < p.n_rows:
                price.ops.join(s.planned, row_of(p, s, v), words)
    worth -= lam * (price_of(price, s.planned) - price_of(price, s.union_row))
    for i in range(n_open):
        s.upper[s.open_nodes[i]] = s.gain[s.open_nodes[i]]
    for inside in (True, False):
        n_part = 0
        for i in range(n_open):
            v = s.open_nodes[i]
            if (s.best[v] == IN) == inside and v < p.n_rows:
                s.part[n_part] = <int32_t> v
                n_part += 1
        price.ops.planes(
            p.fresh, s.part, n_part, s.union_row if inside else s.planned, words, s.planes
        )
        for i in range(n_part):
            v = s.part[i]
            s.upper[v] -= lam * price_shares(p, s, v, s.planes, <double> n_part)
    for i in range(n_open - 1, -1, -1):
        v = s.open_nodes[i]
        u = p.parent[v]
        if s.upper[v] > 0.0:
            if s.state[u] == OPEN:
                s.upper[u] += s.upper[v]
            else:
                bound += s.upper[v]
    excess = bound - worth
    if excess <= slack:
        for i in range(n_open):
            v = s.open_nodes[i]
            if s.best[v] == IN:
                s.open_nodes[kept] = <int32_t> v
                kept += 1
            else:
                s.state[v] = OUT
        return kept
    # lower: what the bound loses when a node, and so its ancestors, is forced in; loss: when it, and
    # so its subtree, is forced out, of which an ancestor passes on no more than it is worth.
    for i in range(n_open):
        v = s.open_nodes[i]
        u = p.parent[v]
        s.lower[v] = max(-s.upper[v], 0.0)
        s.loss[v] = max(s.upper[v], 0.0)
        if s.state[u] == OPEN:
            s.lower[v] += s.lower[u]
            s.loss[v] = min(s.loss[v], s.loss[u])
    for i in range(n_open):
        v = s.open_nodes[i]
        if s.lower[v] > excess + slack:
            s.state[v] = OUT
            continue
        if s.loss[v] > excess + slack and s.state[p.parent[v]] == IN:
            s.state[v] = IN
            join_row(p, s, v)
            continue
        s.open_nodes[kept] = <int32_t> v
        kept += 1
    return kept


cdef inline void join_row(const Problem *p, Scratch *s, int64_t v) noexcept nogil:
    if v < p.n_rows:
        p.price.ops.join(s.union_row, p.fresh + v * p.price.words, p.price.words)


cdef void late(const Problem *p, Scratch *s, double lam, double node_price, int64_t n_open) noexcept nogil:
    """Leave an upper bound on the closure's value: what is in, and the subtrees that may join.

    Roots are not charged for `node_price`.
    """
    cdef double bound = -lam * price_of(p.price, s.union_row)
    cdef int64_t v, i
    for v in range(p.n):
        if s.state[v] == IN:
            bound += p.prob[v]
            if p.parent[v] >= 0:
                bound -= node_price
            if p.extra != NULL:
                bound -= lam * p.extra[v]
    for i in range(n_open):
        v = s.open_nodes[i]
        if s.state[p.parent[v]] == IN and s.upper[v] > 0.0:
            bound += s.upper[v]
    s.late_bound = bound


cdef void measure(
    const Problem *p, Scratch *s, const uint8_t *state, uint8_t chosen, Figures *figures
) noexcept nogil:
    """Figures of the nodes whose state is `chosen`."""
    cdef int64_t v
    memset(s.union_row, 0, p.price.words * 8)
    figures.size = 0
    figures.tokens = 0.0
    figures.price = 0.0
    for v in range(p.n):
        if state[v] == chosen:
            figures.size += 1
            figures.tokens += p.prob[v]
            if p.extra != NULL:
                figures.price += p.extra[v]
            join_row(p, s, v)
    figures.price += price_of(p.price, s.union_row)


cdef struct Shared:
    # The experts that several core nodes use. Some have the same users: one stands for its group.
    int64_t n                   # experts
    int64_t n_words             # words of a row that hold one
    int64_t uses                # pairs of a core node and one of them
    int64_t n_groups
    int32_t *word               # [n_words] where in a row
    int32_t *number             # [n_words * 64] of the expert of each bit of these words
    double *weight              # [n] lambda times price; of a group, at the one that stands for it
    uint64_t *key               # [n] of the set of users: which they are, or a hash of it
    int32_t *n_users            # [n]
    int32_t *start              # [n + 1] into users
    int32_t *users              # [uses] core nodes, by expert
    int32_t *filled             # [n] while users are listed
    int32_t *use_expert         # [uses] the uses in the order of the core nodes
    int32_t *use_node           # [uses]
    int32_t *groups             # [n] the experts that stand for a group
    int32_t *table              # [table_slots(n)] hash table of groups by their key


cdef Outcome cut(const Problem *p, Scratch *s, Answer *answer, double lam, int64_t n_core) noexcept nogil:
    """Decide the `n_core` open nodes, which persistency leaves open, by a minimum cut."""
    cdef Outcome outcome
    cdef Shared shared
    cdef int64_t i, v
    cdef double profits = 0.0
    answer.cuts += 1
    answer.core_nodes = max(answer.core_nodes, n_core)
    for i in range(n_core):
        v = s.open_nodes[i]
        s.core_index[v] = <int32_t> i
        profits += max(s.own[v], 0.0)
    if profits <= 0.0:  # nothing can pay for anything
        for i in range(n_core):
            s.state[s.open_nodes[i]] = OUT
        return DONE
    count_uses(p, s, n_core, &shared)
    if shared.uses > <int64_t> 1 << 29:  # arcs are numbered in 32 bits
        return NO_MEMORY
    if sf_arena_open(&s.flow_arena, cut_room(n_core, &shared)) != 0:
        return NO_MEMORY
    outcome = cut_in_arena(p, s, answer, lam, n_core, &shared, profits)
    sf_arena_close(&s.flow_arena)
    return outcome


cdef void count_uses(const Problem *p, Scratch *s, int64_t n_core, Shared *shared) noexcept nogil:
    """Count the experts that several core nodes use, the words that hold them, and the uses."""
    cdef int64_t i, j, words = p.price.words
    cdef int64_t all, own
    p.price.ops.count(s.twice, s.zero, s.twice, words, &all, &own)
    shared.n = own
    shared.n_words = 0
    for j in range(words):
        shared.n_words += s.twice[j] != 0
    shared.uses = 0
    for i in range(n_core):
        p.price.ops.count(row_of(p, s, s.open_nodes[i]), s.zero, s.twice, words, &all, &own)
        shared.uses += own


cdef size_t cut_room(int64_t n_core, const Shared *shared) noexcept nogil:
    """Bytes of the arrays of cut_in_arena."""
    cdef int64_t nodes = n_core + shared.n
    cdef int64_t arcs = 2 * (n_core + shared.uses)
    cdef size_t room = 0
    room += sf_arena_room(shared.n_words * 4) + sf_arena_room(shared.n_words * 256)
    room += sf_arena_room(shared.n * 8) * 2 + sf_arena_room(shared.n * 4) * 3
    room += sf_arena_room((shared.n + 1) * 4) + sf_arena_room(shared.uses * 4) * 3
    room += sf_arena_room(table_slots(shared.n) * 4)
    room += sf_arena_room(arcs * 4) * 2 + sf_arena_room(arcs * 8)
    room += sf_arena_room((nodes + 1) * 4) * 5 + sf_arena_room(nodes * 8) * 2
    return room


cdef inline int64_t table_slots(int64_t n) noexcept nogil:
    cdef int64_t slots = 8
    while slots < 2 * n:
        slots *= 2
    return slots


cdef inline uint64_t scramble(uint64_t x) noexcept nogil:
    """splitmix64's finaliser."""
    x += <uint64_t> 0x9e3779b97f4a7c15
    x = (x ^ (x >> 30)) * <uint64_t> 0xbf58476d1ce4e5b9
    x = (x ^ (x >> 27)) * <uint64_t> 0x94d049bb133111eb
    return x ^ (x >> 31)


cdef Outcome cut_in_arena(
    const Problem *p, Scratch *s, Answer *answer, double lam, int64_t n_core, Shared *shared,
    double profits,
) noexcept nogil:
    """Decide the core by a network of its nodes and of the groups of experts that they share.

    A closure of maximum weight is a minimum cut (Picard 1976): the source supplies a node with what
    it brings, the sink demands what it costs; arcs that no cut can afford lead from a node to its
    parent and to its experts. Experts that the same nodes use are bought together or not at all, so
    a group is one vertex. What the source still reaches, past a maximum flow, is the least closure.
    """
    cdef Network g
    cdef Outcome outcome
    cdef int64_t i
    if shared_open(&s.flow_arena, shared) != DONE:
        return NO_MEMORY
    number_experts(p, s, lam, shared)
    list_users(p, s, n_core, shared)
    group_by_users(n_core, shared)
    answer.core_elements = max(answer.core_elements, shared.n_groups)
    if network_open(&s.flow_arena, &g, n_core + shared.n_groups, 2 * (n_core + shared.uses)) != DONE:
        return NO_MEMORY
    build_network(p, s, n_core, shared, profits, &g)
    outcome = saturate(p, s, &g)
    if outcome != DONE:
        return outcome
    for i in range(n_core):
        s.state[s.open_nodes[i]] = IN if g.level[i] >= 0 else OUT
    return DONE


cdef Outcome shared_open(sf_arena *arena, Shared *e) noexcept nogil:
    e.word = <int32_t *> sf_arena_take(arena, e.n_words * 4)
    e.number = <int32_t *> sf_arena_take(arena, e.n_words * 256)
    e.key = <uint64_t *> sf_arena_take(arena, e.n * 8)
    e.weight = <double *> sf_arena_take(arena, e.n * 8)
    e.n_users = <int32_t *> sf_arena_take(arena, e.n * 4)
    e.filled = <int32_t *> sf_arena_take(arena, e.n * 4)
    e.groups = <int32_t *> sf_arena_take(arena, e.n * 4)
    e.start = <int32_t *> sf_arena_take(arena, (e.n + 1) * 4)
    e.use_expert = <int32_t *> sf_arena_take(arena, e.uses * 4)
    e.use_node = <int32_t *> sf_arena_take(arena, e.uses * 4)
    e.users = <int32_t *> sf_arena_take(arena, e.uses * 4)
    e.table = <int32_t *> sf_arena_take(arena, table_slots(e.n) * 4)
    return NO_MEMORY if arena.failed else DONE


cdef void number_experts(const Problem *p, Scratch *s, double lam, Shared *shared) noexcept nogil:
    """Number the shared experts in the order of their bits, and weigh them."""
    cdef int64_t j, e = 0, w = 0
    cdef uint64_t x
    for j in range(p.price.words):
        x = s.twice[j]
        if x == 0:
            continue
        shared.word[at(w, shared.n_words)] = <int32_t> j
        while x:
            shared.number[64 * w + lowest(x)] = <int32_t> e
            shared.weight[at(e, shared.n)] = lam * bit_price(p.price, j, lowest(x))
            e += 1
            x &= x - 1
        w += 1


cdef void list_users(const Problem *p, Scratch *s, int64_t n_core, Shared *shared) noexcept nogil:
    """List the users of every shared expert.

    One pass over the rows writes the uses by node and counts them by expert; a second one sorts them
    by expert, for a row costs more to read than the list.
    """
    cdef const uint64_t *row
    cdef uint64_t x, key
    cdef int64_t i, e, w, count = 0
    memset(shared.key, 0, shared.n * 8)
    memset(shared.n_users, 0, shared.n * 4)
    for i in range(n_core):
        row = row_of(p, s, s.open_nodes[i])
        key = <uint64_t> 1 << i if n_core <= 64 else scramble(i)
        for w in range(shared.n_words):
            x = row[shared.word[w]] & s.twice[shared.word[w]]
            while x:
                e = shared.number[64 * w + lowest(x)]
                shared.key[at(e, shared.n)] ^= key
                shared.n_users[e] += 1
                shared.use_expert[at(count, shared.uses)] = <int32_t> e
                shared.use_node[count] = <int32_t> i
                count += 1
                x &= x - 1
    count = 0
    for e in range(shared.n):
        shared.start[e] = <int32_t> count
        shared.filled[e] = <int32_t> count
        count += shared.n_users[e]
    shared.start[shared.n] = <int32_t> count
    for i in range(shared.uses):
        e = shared.use_expert[i]
        shared.users[at(shared.filled[e], shared.uses)] = shared.use_node[i]
        shared.filled[e] += 1


cdef void group_by_users(int64_t n_core, Shared *shared) noexcept nogil:
    """Let the first expert of every set of users stand for all that have it, with their weight.

    Up to 64 core nodes the key is the set itself; beyond, equal keys call for a comparison.
    """
    cdef int64_t e, r, slot, slots = table_slots(shared.n)
    cdef bint exact = n_core <= 64
    shared.n_groups = 0
    memset(shared.table, 0xff, slots * 4)
    for e in range(shared.n):
        slot = <int64_t> (scramble(shared.key[e]) & <uint64_t> (slots - 1))
        r = e
        while shared.table[slot] >= 0:
            r = shared.table[slot]
            if shared.key[r] == shared.key[e] and (exact or same_users(shared, r, e)):
                break
            slot = (slot + 1) & (slots - 1)
        if shared.table[slot] < 0:
            shared.table[slot] = <int32_t> e
            shared.groups[shared.n_groups] = <int32_t> e
            shared.n_groups += 1
        else:
            shared.weight[r] += shared.weight[e]


cdef inline bint same_users(const Shared *e, int64_t a, int64_t b) noexcept nogil:
    return (
        e.n_users[a] == e.n_users[b]
        and memcmp(e.users + e.start[a], e.users + e.start[b], e.n_users[b] * sizeof(int32_t)) == 0
    )


cdef Outcome network_open(
    sf_arena *arena, Network *g, int64_t n_nodes, int64_t n_arcs
) noexcept nogil:
    g.n_nodes = n_nodes
    g.n_arcs = n_arcs
    g.head = <int32_t *> sf_arena_take(arena, n_arcs * 4)
    g.arcs = <int32_t *> sf_arena_take(arena, n_arcs * 4)
    g.residual = <int64_t *> sf_arena_take(arena, n_arcs * 8)
    g.start = <int32_t *> sf_arena_take(arena, (n_nodes + 1) * 4)
    g.level = <int32_t *> sf_arena_take(arena, n_nodes * 4)
    g.cursor = <int32_t *> sf_arena_take(arena, n_nodes * 4)
    g.queue = <int32_t *> sf_arena_take(arena, n_nodes * 4)
    g.path = <int32_t *> sf_arena_take(arena, n_nodes * 4)
    g.supply = <int64_t *> sf_arena_take(arena, n_nodes * 8)
    g.demand = <int64_t *> sf_arena_take(arena, n_nodes * 8)
    if arena.failed:
        return NO_MEMORY
    memset(g.cursor, 0, n_nodes * 4)
    return DONE


cdef void build_network(
    const Problem *p, Scratch *s, int64_t n_core, const Shared *shared, double profits, Network *g
) noexcept nogil:
    """Add the core nodes, then the groups, with capacities in units of 2^-52 of all profits."""
    cdef int64_t i, j, v, e, n_arcs = 0
    cdef int64_t infinite = <int64_t> 1 << 54
    cdef double scale = 4503599627370496.0 / profits  # 2^52
    for i in range(n_core):
        v = s.open_nodes[i]
        # A node must bring more than rounding could, here as in the bounds.
        g.supply[i] = scaled(s.own[v] - TIE * s.total, scale, infinite)
        g.demand[i] = scaled(TIE * s.total - s.own[v], scale, infinite)
        if s.state[p.parent[v]] == OPEN:
            add_arc(g, &n_arcs, i, s.core_index[p.parent[v]], infinite, 0)
    for i in range(shared.n_groups):
        e = shared.groups[i]
        g.supply[n_core + i] = 0
        g.demand[n_core + i] = scaled(shared.weight[e], scale, infinite)
        for j in range(shared.start[e], shared.start[e + 1]):
            add_arc(g, &n_arcs, shared.users[j], n_core + i, infinite, 0)
    index_arcs(g, n_arcs)


cdef inline int64_t scaled(double value, double scale, int64_t infinite) noexcept nogil:
    if value <= 0.0:
        return 0
    value = value * scale + 0.5
    return infinite if value >= <double> infinite else <int64_t> value
