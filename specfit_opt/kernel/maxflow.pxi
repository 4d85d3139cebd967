# The least maximum-weight closure of a small problem, by Dinic's maximum flow in scaled integers.
#
# Integers, because augmenting paths in floating point can go on for ever over residues; scaled to
# 2^52, because that is what a double resolves. "Infinite" arcs only need to exceed the profits.


cdef struct Network:
    int64_t n_nodes
    int64_t n_arcs              # directed arcs; arc a is the reverse of a ^ 1
    int32_t *head               # [n_arcs]
    int64_t *residual           # [n_arcs]
    int32_t *start              # [n_nodes + 1] into arcs
    int32_t *arcs               # [n_arcs], by tail
    int64_t *supply             # [n_nodes] what the source can still send
    int64_t *demand             # [n_nodes] what the sink can still take
    int32_t *level              # [n_nodes]
    int32_t *cursor             # [n_nodes]
    int32_t *queue              # [n_nodes]
    int32_t *path               # [n_nodes]


cdef inline void add_arc(
    Network *g, int64_t *count, int64_t tail, int64_t head, int64_t capacity, int64_t back
) noexcept nogil:
    """Append an arc and its reverse. `cursor` counts arcs per tail until `index_arcs`."""
    cdef int64_t a = count[0]
    g.head[at(a + 1, g.n_arcs)] = <int32_t> tail
    g.residual[a + 1] = back
    g.head[a] = <int32_t> head
    g.residual[a] = capacity
    g.cursor[at(tail, g.n_nodes)] += 1
    g.cursor[at(head, g.n_nodes)] += 1
    count[0] = a + 2


cdef void index_arcs(Network *g, int64_t count) noexcept nogil:
    cdef int64_t v, a
    cdef int32_t total = 0, here
    g.n_arcs = count
    for v in range(g.n_nodes):
        here = g.cursor[v]
        g.start[v] = total
        g.cursor[v] = total
        total += here
    g.start[g.n_nodes] = total
    for a in range(count):
        v = g.head[a ^ 1]
        g.arcs[at(g.cursor[v], count)] = <int32_t> a
        g.cursor[v] += 1


cdef bint level_graph(Network *g) noexcept nogil:
    """Levels by breadth from everything with supply; False if no demand is in reach."""
    cdef int64_t v, i, a, done = 0, filled = 0
    cdef int32_t u, deepest = -1
    for v in range(g.n_nodes):
        if g.supply[v] > 0:
            g.level[v] = 0
            g.queue[filled] = <int32_t> v
            filled += 1
        else:
            g.level[v] = -1
    while done < filled:
        v = g.queue[done]
        done += 1
        if deepest >= 0 and g.level[v] > deepest:
            break
        if g.demand[v] > 0:
            deepest = g.level[v]  # finish this level: deeper demand waits for the next phase
        for i in range(g.start[v], g.start[v + 1]):
            a = g.arcs[i]
            u = g.head[a]
            if g.residual[a] > 0 and g.level[u] < 0:
                g.level[u] = g.level[v] + 1
                g.queue[at(filled, g.n_nodes)] = u
                filled += 1
    return deepest >= 0


cdef Outcome blocking_flow(const Problem *p, Scratch *s, Network *g) noexcept nogil:
    """Fill the level graph. Each path fills an arc, a supply or a demand, each retreat ends an arc."""
    cdef int64_t source, v, u, a, i, depth, amount, steps = 0
    cdef Outcome outcome
    for v in range(g.n_nodes):
        g.cursor[v] = g.start[v]
    for source in range(g.n_nodes):
        if g.supply[source] <= 0 or g.level[source] != 0:
            continue
        v = source
        depth = 0
        while g.supply[source] > 0:
            steps += 1
            if steps % 1024 == 0:
                outcome = tick(p, s, 16 * 1024)
                if outcome != DONE:
                    return outcome
            if g.demand[v] > 0:
                steps += depth
                amount = min(g.supply[source], g.demand[v])
                for i in range(depth):
                    amount = min(amount, g.residual[g.path[i]])
                g.supply[source] -= amount
                g.demand[v] -= amount
                for i in range(depth):
                    g.residual[g.path[i]] -= amount
                    g.residual[g.path[i] ^ 1] += amount
                # Go back to the tail of the first arc that is full now.
                for i in range(depth):
                    if g.residual[g.path[i]] == 0:
                        v = g.head[g.path[i] ^ 1]
                        depth = i
                        break
                continue
            while g.cursor[v] < g.start[v + 1]:
                a = g.arcs[g.cursor[v]]
                u = g.head[a]
                if g.residual[a] > 0 and g.level[u] == g.level[v] + 1:
                    break
                g.cursor[v] += 1
            if g.cursor[v] < g.start[v + 1]:
                g.path[at(depth, g.n_nodes)] = <int32_t> a
                depth += 1
                v = u
            elif depth == 0:
                break
            else:
                depth -= 1
                v = g.head[g.path[depth] ^ 1]
                g.cursor[v] += 1
    return DONE


cdef Outcome saturate(const Problem *p, Scratch *s, Network *g) noexcept nogil:
    """Send a maximum flow. Afterwards level >= 0 marks what is still in reach of supply.

    The nearest demand is further away in each phase than in the last: there are at most n phases.
    """
    cdef Outcome outcome
    while level_graph(g):
        outcome = blocking_flow(p, s, g)
        if outcome == DONE:
            outcome = tick(p, s, 4 * g.n_arcs)
        if outcome != DONE:
            return outcome
    return DONE
