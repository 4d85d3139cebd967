# Prices of sets of experts, and the rows that they are applied to.


cdef Outcome price_open(
    Price *price, sf_arena *arena, const sf_ops *ops, const uint8_t *resident,
    const double *expert_time, int per_expert, double resident_time,
    int64_t n_layers, int64_t n_experts,
) noexcept nogil:
    """Lay out the prices; the arrays come from `arena`, which this opens."""
    cdef int64_t per_layer = (n_experts + 63) // 64
    cdef int64_t packed = n_layers * per_layer
    cdef int classes = 2 if resident_time > 0.0 and not per_expert else 1
    cdef int64_t words = packed * classes
    cdef int64_t layer, w, j, last
    cdef uint64_t here, all_bits
    cdef double unit = 0.0, weight
    cdef bint uniform = True
    price.ops = ops
    price.packed_words = packed
    price.classes = classes
    price.words = words
    # Where the caller's prices lie as bits do, they serve as they are.
    cdef bint as_given = per_expert and n_experts % 64 == 0 and resident_time == 0.0
    cdef size_t room = sf_arena_room(words * 8) * 2
    if per_expert and not as_given:
        room += sf_arena_room(words * 512)
    if sf_arena_open(arena, room) != 0:
        return NO_MEMORY
    price.mask = <uint64_t *> sf_arena_take(arena, words * 8)
    price.word_weight = <double *> sf_arena_take(arena, words * 8)
    price.bit_weight = expert_time
    if per_expert and not as_given:
        price.bit_weight = <double *> sf_arena_take(arena, words * 512)
    if arena.failed:
        return NO_MEMORY
    for layer in range(n_layers):
        for w in range(per_layer):
            j = layer * per_layer + w
            last = min(64, n_experts - 64 * w)
            all_bits = <uint64_t> 0xffffffffffffffff if last == 64 else (<uint64_t> 1 << last) - 1
            here = mask_word(resident + layer * n_experts + 64 * w, last)
            if per_expert:
                if not as_given:
                    fill_bit_weights(
                        <double *> price.bit_weight + 64 * j, expert_time + layer * n_experts + 64 * w,
                        resident + layer * n_experts + 64 * w, resident_time, last,
                    )
                price.mask[j] = positive_word(price.bit_weight + 64 * j)
                if resident_time == 0.0:
                    price.mask[j] &= ~here
                continue
            weight = expert_time[layer]
            price.word_weight[j] = weight
            price.mask[j] = (all_bits & ~here) if weight > 0.0 else 0
            if weight > 0.0:
                if unit == 0.0:
                    unit = weight
                elif weight != unit:
                    uniform = False
            if classes == 2:
                price.word_weight[packed + j] = resident_time
                price.mask[packed + j] = here
    if per_expert:
        price.weighing = PER_BIT
    elif uniform and classes == 1:
        price.weighing = UNIFORM
        price.unit = unit
    else:
        price.weighing = PER_WORD
    return DONE


cdef inline void fill_bit_weights(
    double *weight, const double *missing, const uint8_t *resident, double resident_time, int64_t last
) noexcept nogil:
    cdef int64_t e
    for e in range(last):
        weight[e] = resident_time if resident[e] else missing[e]
    for e in range(last, 64):
        weight[e] = 0.0


cdef inline uint64_t positive_word(const double *weight) noexcept nogil:
    """Return which of 64 weights are positive, as bits."""
    cdef uint8_t flags[64]
    cdef int64_t e
    for e in range(64):
        flags[e] = weight[e] > 0.0
    return mask_word(flags, 64)


cdef inline uint64_t mask_word(const uint8_t *flags, int64_t count) noexcept nogil:
    """Return up to 64 bytes of 0 or 1 as bits."""
    cdef uint64_t word = 0, chunk
    cdef int64_t i = 0
    while i + 8 <= count:
        # Multiplying gathers the lowest bit of each of eight bytes in the top byte.
        memcpy(&chunk, flags + i, 8)
        word |= ((chunk * <uint64_t> 0x0102040810204080) >> 56) << i
        i += 8
    while i < count:
        word |= <uint64_t> flags[i] << i
        i += 1
    return word


cdef inline void price_row(const Price *price, const uint64_t *packed, uint64_t *row) noexcept nogil:
    """Lay a packed row out by price class."""
    cdef int64_t j, c, inner = price.packed_words
    for c in range(price.classes):
        for j in range(inner):
            row[c * inner + j] = packed[j] & price.mask[c * inner + j]


cdef void index_rows(
    const Price *price, int64_t first, int64_t m, const int32_t *parent, const uint64_t *packed,
    uint64_t *root_union, uint64_t *used, uint64_t *fresh,
) noexcept nogil:
    """Fill rows first..first+m-1 of `used` (with the ancestors') and `fresh` (without).

    `packed` holds the m new rows only; `parent`, `used` and `fresh` all nodes. Roots are indexed
    first, because their union is free to every other node.
    """
    cdef int64_t words = price.words, v, j, c
    cdef int64_t inner = price.packed_words
    cdef const uint64_t *row
    cdef const uint64_t *above
    for v in range(first, first + m):
        if parent[v] < 0:
            row = packed + (v - first) * inner
            for c in range(price.classes):
                for j in range(inner):
                    root_union[c * inner + j] |= row[j] & price.mask[c * inner + j]
    for v in range(first, first + m):
        row = packed + (v - first) * inner
        above = root_union if parent[v] < 0 else used + at(parent[v], first + m) * words
        for c in range(price.classes):
            j = c * inner
            price.ops.index(
                row, price.mask + j, above + j, inner, fresh + v * words + j, used + v * words + j
            )


cdef inline const uint64_t *row_of(const Problem *p, Scratch *s, int64_t v) noexcept nogil:
    return p.fresh + v * p.price.words if v < p.n_rows else s.zero


cdef inline void price_both(
    const Problem *p, Scratch *s, int64_t v, const uint64_t *gone, const uint64_t *solo,
    double *all, double *own,
) noexcept nogil:
    """Prices of node v's row & ~gone and row & solo, where nothing is both solo and gone."""
    cdef const Price *price = p.price
    cdef const uint64_t *row = row_of(p, s, v)
    cdef int64_t a, b
    if price.weighing == UNIFORM:
        price.ops.count(row, gone, solo, price.words, &a, &b)
        all[0] = price.unit * <double> a
        own[0] = price.unit * <double> b
    elif price.weighing == PER_WORD:
        price.ops.weigh(row, gone, solo, price.word_weight, price.words, all, own)
    elif v < p.n_rows:
        price.ops.weigh_bits(
            p.bits + p.start[v], p.start[v + 1] - p.start[v], gone, solo, price.bit_weight, all, own
        )
    else:
        all[0] = 0.0
        own[0] = 0.0


cdef inline double price_shares(
    const Problem *p, Scratch *s, int64_t v, const uint64_t *planes, double most
) noexcept nogil:
    """Price of node v's row, whose experts on planes 1 to 4 are shared by 1, 2, 3 and `most`."""
    cdef const Price *price = p.price
    cdef const uint64_t *row = row_of(p, s, v)
    cdef int64_t count[4]
    cdef double part[4]
    cdef double all
    cdef int k
    if price.weighing == UNIFORM:
        price.ops.count4(row, planes, price.words, count)
        for k in range(4):
            part[k] = price.unit * <double> count[k]
    elif price.weighing == PER_WORD:
        price.ops.weigh4(row, planes, price.word_weight, price.words, part)
    else:
        for k in range(4):
            price_both(p, s, v, s.zero, planes + k * price.words, &all, &part[k])
    return part[0] + part[1] / 2.0 + part[2] / 3.0 + part[3] / most


cdef double price_of(const Price *price, const uint64_t *row) noexcept nogil:
    """Price of a row in seconds."""
    cdef double all = 0.0, own
    cdef int64_t a, b, j
    cdef uint64_t x
    if price.weighing == UNIFORM:
        price.ops.count(row, row, row, price.words, &a, &b)
        return price.unit * <double> b
    if price.weighing == PER_WORD:
        price.ops.weigh(row, row, row, price.word_weight, price.words, &all, &own)
        return own
    for j in range(price.words):
        x = row[j]
        while x:
            all += price.bit_weight[64 * j + lowest(x)]
            x &= x - 1
    return all


cdef inline double bit_price(const Price *price, int64_t word, int bit) noexcept nogil:
    if price.weighing == UNIFORM:
        return price.unit
    if price.weighing == PER_WORD:
        return price.word_weight[word]
    return price.bit_weight[64 * word + bit]
