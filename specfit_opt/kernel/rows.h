/* Loops over bit rows, in one version per instruction set.
 *
 * A row is `words` 64-bit words. Weights are per word, so that the price of a set of experts is a
 * sum of population counts. The caller picks a version once (sf_row_ops) and passes it along. */
#ifndef SPECFIT_ROWS_H
#define SPECFIT_ROWS_H

#include <stdint.h>
#include <string.h>

typedef struct {
    const char *name;
    /* bits & ~gone that one of the rows named has (solo), and that several have (twice) */
    void (*survey)(const uint64_t *rows, const int32_t *names, int64_t count, const uint64_t *gone,
                   int64_t words, uint64_t *solo, uint64_t *twice);
    /* bits & ~gone that exactly one, two or three of the rows named have, or more: four rows */
    void (*planes)(const uint64_t *rows, const int32_t *names, int64_t count, const uint64_t *gone,
                   int64_t words, uint64_t *out);
    /* |row & plane| for each of four planes, and the same in weights per word */
    void (*count4)(const uint64_t *row, const uint64_t *planes, int64_t words, int64_t *out);
    void (*weigh4)(const uint64_t *row, const uint64_t *planes, const double *weight, int64_t words,
                   double *out);
    /* fresh = row & mask & ~above; used = row & mask | above */
    void (*index)(const uint64_t *row, const uint64_t *mask, const uint64_t *above, int64_t words,
                  uint64_t *fresh, uint64_t *used);
    /* all = |row & ~gone|, own = |row & solo| */
    void (*count)(const uint64_t *row, const uint64_t *gone, const uint64_t *solo, int64_t words,
                  int64_t *all, int64_t *own);
    /* the same in weights per word */
    void (*weigh)(const uint64_t *row, const uint64_t *gone, const uint64_t *solo, const double *weight,
                  int64_t words, double *all, double *own);
    /* lists the bits of a row, ascending, returns how many there are */
    int64_t (*list)(const uint64_t *row, int64_t words, int32_t *bits);
    /* of listed bits, in weights per bit: all of ~gone, and own of solo & ~gone */
    void (*weigh_bits)(const int32_t *bits, int64_t count, const uint64_t *gone, const uint64_t *solo,
                       const double *weight, double *all, double *own);
    /* into |= row; returns |into| */
    int64_t (*join)(uint64_t *into, const uint64_t *row, int64_t words);
} sf_ops;

/* Words of which those with a bit are found before their bits are listed. */
#define SF_FOUND 128

static inline int sf_popcount(uint64_t x) {
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_popcountll(x);
#else
    x = x - ((x >> 1) & 0x5555555555555555ULL);
    x = (x & 0x3333333333333333ULL) + ((x >> 2) & 0x3333333333333333ULL);
    x = (x + (x >> 4)) & 0x0f0f0f0f0f0f0f0fULL;
    return (int)((x * 0x0101010101010101ULL) >> 56);
#endif
}

static inline int sf_lowest(uint64_t x) { /* index of the lowest set bit, x != 0 */
#if defined(__GNUC__) || defined(__clang__)
    return __builtin_ctzll(x);
#else
    return sf_popcount((x & (0 - x)) - 1);
#endif
}

/* The portable bodies; compiled again below for the popcnt instruction. */
#define SF_BODY(suffix, attribute)                                                                  \
    attribute static void sf_survey_##suffix(const uint64_t *rows, const int32_t *names,            \
                                             int64_t count, const uint64_t *gone, int64_t words,    \
                                             uint64_t *solo, uint64_t *twice) {                     \
        memset(solo, 0, (size_t)words * 8);                                                         \
        memset(twice, 0, (size_t)words * 8);                                                        \
        for (int64_t i = 0; i < count; i++) {                                                       \
            const uint64_t *row = rows + names[i] * words;                                          \
            for (int64_t j = 0; j < words; j++) {                                                   \
                twice[j] |= solo[j] & row[j];                                                       \
                solo[j] |= row[j];                                                                  \
            }                                                                                       \
        }                                                                                           \
        for (int64_t j = 0; j < words; j++) {                                                       \
            twice[j] &= ~gone[j];                                                                   \
            solo[j] &= ~(twice[j] | gone[j]);                                                       \
        }                                                                                           \
    }                                                                                               \
    attribute static void sf_planes_##suffix(const uint64_t *rows, const int32_t *names,            \
                                             int64_t count, const uint64_t *gone, int64_t words,    \
                                             uint64_t *out) {                                       \
        uint64_t *one = out, *two = out + words, *three = two + words, *more = three + words;       \
        memset(out, 0, (size_t)words * 32);                                                         \
        for (int64_t i = 0; i < count; i++) {                                                       \
            const uint64_t *row = rows + names[i] * words;                                          \
            for (int64_t j = 0; j < words; j++) {                                                   \
                uint64_t carry = one[j] & row[j];                                                   \
                one[j] ^= row[j];                                                                   \
                more[j] |= two[j] & carry;                                                          \
                two[j] ^= carry;                                                                    \
            }                                                                                       \
        }                                                                                           \
        for (int64_t j = 0; j < words; j++) {                                                       \
            uint64_t low = one[j], high = two[j], few = ~(more[j] | gone[j]);                       \
            one[j] = low & ~high & few;                                                             \
            two[j] = high & ~low & few;                                                             \
            three[j] = low & high & few;                                                            \
            more[j] &= ~gone[j];                                                                    \
        }                                                                                           \
    }                                                                                               \
    attribute static void sf_count4_##suffix(const uint64_t *row, const uint64_t *planes,           \
                                             int64_t words, int64_t *out) {                         \
        for (int64_t k = 0; k < 4; k++) {                                                           \
            int64_t a = 0;                                                                          \
            for (int64_t j = 0; j < words; j++) a += sf_popcount(row[j] & planes[k * words + j]);   \
            out[k] = a;                                                                             \
        }                                                                                           \
    }                                                                                               \
    attribute static void sf_weigh4_##suffix(const uint64_t *row, const uint64_t *planes,           \
                                             const double *weight, int64_t words, double *out) {    \
        for (int64_t k = 0; k < 4; k++) {                                                           \
            double a = 0.0;                                                                         \
            for (int64_t j = 0; j < words; j++)                                                     \
                a += weight[j] * (double)sf_popcount(row[j] & planes[k * words + j]);               \
            out[k] = a;                                                                             \
        }                                                                                           \
    }                                                                                               \
    attribute static void sf_index_##suffix(const uint64_t *row, const uint64_t *mask,              \
                                            const uint64_t *above, int64_t words,                   \
                                            uint64_t *fresh, uint64_t *used) {                      \
        for (int64_t j = 0; j < words; j++) {                                                       \
            uint64_t bits = row[j] & mask[j];                                                       \
            fresh[j] = bits & ~above[j];                                                            \
            used[j] = bits | above[j];                                                              \
        }                                                                                           \
    }                                                                                               \
    attribute static void sf_count_##suffix(const uint64_t *row, const uint64_t *gone,              \
                                            const uint64_t *solo, int64_t words, int64_t *all,      \
                                            int64_t *own) {                                         \
        int64_t a = 0, b = 0;                                                                       \
        for (int64_t j = 0; j < words; j++) {                                                       \
            a += sf_popcount(row[j] & ~gone[j]);                                                    \
            b += sf_popcount(row[j] & solo[j]);                                                     \
        }                                                                                           \
        *all = a;                                                                                   \
        *own = b;                                                                                   \
    }                                                                                               \
    attribute static void sf_weigh_##suffix(const uint64_t *row, const uint64_t *gone,              \
                                            const uint64_t *solo, const double *weight,             \
                                            int64_t words, double *all, double *own) {              \
        double a = 0.0, b = 0.0;                                                                    \
        for (int64_t j = 0; j < words; j++) {                                                       \
            a += weight[j] * (double)sf_popcount(row[j] & ~gone[j]);                                \
            b += weight[j] * (double)sf_popcount(row[j] & solo[j]);                                 \
        }                                                                                           \
        *all = a;                                                                                   \
        *own = b;                                                                                   \
    }                                                                                               \
    attribute static int64_t sf_list_##suffix(const uint64_t *row, int64_t words, int32_t *bits) {  \
        int32_t found[SF_FOUND + 1];                                                                \
        int64_t count = 0;                                                                          \
        for (int64_t first = 0; first < words; first += SF_FOUND) {                                 \
            int64_t last = words - first < SF_FOUND ? words : first + SF_FOUND, n = 0;              \
            for (int64_t j = first; j < last; j++) { /* without a branch that would be guessed */   \
                found[n] = (int32_t)j;                                                              \
                n += row[j] != 0;                                                                   \
            }                                                                                       \
            for (int64_t i = 0; i < n; i++) {                                                       \
                uint64_t x = row[found[i]];                                                         \
                do {                                                                                \
                    bits[count++] = 64 * found[i] + sf_lowest(x);                                   \
                    x &= x - 1;                                                                     \
                } while (x);                                                                        \
            }                                                                                       \
        }                                                                                           \
        return count;                                                                               \
    }                                                                                               \
    attribute static inline double sf_if_##suffix(uint64_t bit, double value) {                     \
        uint64_t raw; /* value where the bit is 1, else 0, without a branch that would be guessed */\
        memcpy(&raw, &value, 8);                                                                    \
        raw &= 0 - bit;                                                                             \
        memcpy(&value, &raw, 8);                                                                    \
        return value;                                                                               \
    }                                                                                               \
    attribute static void sf_weigh_bits_##suffix(                                                   \
        const int32_t *bits, int64_t count, const uint64_t *gone, const uint64_t *solo,             \
        const double *weight, double *all, double *own) {                                           \
        double a = 0.0, b = 0.0, c = 0.0, d = 0.0;                                                  \
        int64_t i = 0;                                                                              \
        for (; i + 2 <= count; i += 2) { /* two sums each, so that additions need not wait */       \
            int32_t u = bits[i], v = bits[i + 1];                                                   \
            double x = sf_if_##suffix(~gone[u >> 6] >> (u & 63) & 1, weight[u]);                    \
            double y = sf_if_##suffix(~gone[v >> 6] >> (v & 63) & 1, weight[v]);                    \
            a += x;                                                                                 \
            b += y;                                                                                 \
            c += sf_if_##suffix(solo[u >> 6] >> (u & 63) & 1, x);                                   \
            d += sf_if_##suffix(solo[v >> 6] >> (v & 63) & 1, y);                                   \
        }                                                                                           \
        if (i < count) {                                                                            \
            int32_t u = bits[i];                                                                    \
            double x = sf_if_##suffix(~gone[u >> 6] >> (u & 63) & 1, weight[u]);                    \
            a += x;                                                                                 \
            c += sf_if_##suffix(solo[u >> 6] >> (u & 63) & 1, x);                                   \
        }                                                                                           \
        *all = a + b;                                                                               \
        *own = c + d;                                                                               \
    }                                                                                               \
    attribute static int64_t sf_join_##suffix(uint64_t *into, const uint64_t *row, int64_t words) { \
        int64_t a = 0, b = 0, j = 0;                                                                \
        for (; j + 4 <= words; j += 4) {                                                            \
            uint64_t x = into[j] | row[j], y = into[j + 1] | row[j + 1];                            \
            uint64_t z = into[j + 2] | row[j + 2], w = into[j + 3] | row[j + 3];                    \
            into[j] = x;                                                                            \
            into[j + 1] = y;                                                                        \
            into[j + 2] = z;                                                                        \
            into[j + 3] = w;                                                                        \
            a += sf_popcount(x) + sf_popcount(y);                                                   \
            b += sf_popcount(z) + sf_popcount(w);                                                   \
        }                                                                                           \
        for (; j < words; j++) a += sf_popcount(into[j] |= row[j]);                                 \
        return a + b;                                                                               \
    }                                                                                               \
    static const sf_ops sf_ops_##suffix = {                                                         \
        #suffix,           sf_survey_##suffix, sf_planes_##suffix, sf_count4_##suffix,              \
        sf_weigh4_##suffix, sf_index_##suffix, sf_count_##suffix,  sf_weigh_##suffix,               \
        sf_list_##suffix,   sf_weigh_bits_##suffix, sf_join_##suffix};

SF_BODY(generic, )

#if (defined(__x86_64__) || defined(__i386__)) && defined(__GNUC__)
#define SF_X86 1
#include <immintrin.h>
SF_BODY(popcnt, __attribute__((target("popcnt"))))
SF_BODY(avx2, __attribute__((target("avx2,bmi,bmi2,popcnt"))))

#define SF_AVX512 __attribute__((target("avx512f,avx512vpopcntdq,avx512dq,popcnt")))
#define SF_TAIL(words, j) ((__mmask8)((words) - (j) >= 8 ? 0xff : (1u << ((words) - (j))) - 1u))

SF_AVX512 static void sf_survey_avx512(const uint64_t *rows, const int32_t *names, int64_t count,
                                       const uint64_t *gone, int64_t words, uint64_t *solo,
                                       uint64_t *twice) {
    for (int64_t j = 0; j < words; j += 8) {
        __mmask8 m = SF_TAIL(words, j);
        __m512i once = _mm512_setzero_si512(), more = once;
        for (int64_t i = 0; i < count; i++) {
            __m512i row = _mm512_maskz_loadu_epi64(m, rows + names[i] * words + j);
            more = _mm512_or_si512(more, _mm512_and_si512(once, row));
            once = _mm512_or_si512(once, row);
        }
        __m512i g = _mm512_maskz_loadu_epi64(m, gone + j);
        more = _mm512_andnot_si512(g, more);
        _mm512_mask_storeu_epi64(twice + j, m, more);
        _mm512_mask_storeu_epi64(solo + j, m, _mm512_andnot_si512(_mm512_or_si512(more, g), once));
    }
}

SF_AVX512 static void sf_planes_avx512(const uint64_t *rows, const int32_t *names, int64_t count,
                                       const uint64_t *gone, int64_t words, uint64_t *out) {
    for (int64_t j = 0; j < words; j += 8) {
        __mmask8 m = SF_TAIL(words, j);
        __m512i low = _mm512_setzero_si512(), high = low, more = low;
        for (int64_t i = 0; i < count; i++) {
            __m512i row = _mm512_maskz_loadu_epi64(m, rows + names[i] * words + j);
            __m512i carry = _mm512_and_si512(low, row);
            low = _mm512_xor_si512(low, row);
            more = _mm512_or_si512(more, _mm512_and_si512(high, carry));
            high = _mm512_xor_si512(high, carry);
        }
        __m512i g = _mm512_maskz_loadu_epi64(m, gone + j);
        __m512i many = _mm512_or_si512(more, g);
        _mm512_mask_storeu_epi64(out + j, m,
                                 _mm512_andnot_si512(_mm512_or_si512(high, many), low));
        _mm512_mask_storeu_epi64(out + words + j, m,
                                 _mm512_andnot_si512(_mm512_or_si512(low, many), high));
        _mm512_mask_storeu_epi64(out + 2 * words + j, m,
                                 _mm512_andnot_si512(many, _mm512_and_si512(low, high)));
        _mm512_mask_storeu_epi64(out + 3 * words + j, m, _mm512_andnot_si512(g, more));
    }
}

SF_AVX512 static void sf_count4_avx512(const uint64_t *row, const uint64_t *planes, int64_t words,
                                       int64_t *out) {
    __m512i a = _mm512_setzero_si512(), b = a, c = a, d = a;
    for (int64_t j = 0; j < words; j += 8) {
        __mmask8 m = SF_TAIL(words, j);
        const uint64_t *p = planes + j;
        __m512i r = _mm512_maskz_loadu_epi64(m, row + j);
#define SF_PART(k) \
    _mm512_popcnt_epi64(_mm512_and_si512(r, _mm512_maskz_loadu_epi64(m, p + (k) * words)))
        a = _mm512_add_epi64(a, SF_PART(0));
        b = _mm512_add_epi64(b, SF_PART(1));
        c = _mm512_add_epi64(c, SF_PART(2));
        d = _mm512_add_epi64(d, SF_PART(3));
    }
    out[0] = _mm512_reduce_add_epi64(a);
    out[1] = _mm512_reduce_add_epi64(b);
    out[2] = _mm512_reduce_add_epi64(c);
    out[3] = _mm512_reduce_add_epi64(d);
}

SF_AVX512 static void sf_weigh4_avx512(const uint64_t *row, const uint64_t *planes,
                                       const double *weight, int64_t words, double *out) {
    __m512d a = _mm512_setzero_pd(), b = a, c = a, d = a;
    for (int64_t j = 0; j < words; j += 8) {
        __mmask8 m = SF_TAIL(words, j);
        const uint64_t *p = planes + j;
        __m512i r = _mm512_maskz_loadu_epi64(m, row + j);
        __m512d w = _mm512_maskz_loadu_pd(m, weight + j);
        a = _mm512_fmadd_pd(w, _mm512_cvtepi64_pd(SF_PART(0)), a);
        b = _mm512_fmadd_pd(w, _mm512_cvtepi64_pd(SF_PART(1)), b);
        c = _mm512_fmadd_pd(w, _mm512_cvtepi64_pd(SF_PART(2)), c);
        d = _mm512_fmadd_pd(w, _mm512_cvtepi64_pd(SF_PART(3)), d);
#undef SF_PART
    }
    out[0] = _mm512_reduce_add_pd(a);
    out[1] = _mm512_reduce_add_pd(b);
    out[2] = _mm512_reduce_add_pd(c);
    out[3] = _mm512_reduce_add_pd(d);
}

SF_AVX512 static void sf_index_avx512(const uint64_t *row, const uint64_t *mask, const uint64_t *above,
                                      int64_t words, uint64_t *fresh, uint64_t *used) {
    for (int64_t j = 0; j < words; j += 8) {
        __mmask8 m = SF_TAIL(words, j);
        __m512i bits = _mm512_and_si512(_mm512_maskz_loadu_epi64(m, row + j),
                                        _mm512_maskz_loadu_epi64(m, mask + j));
        __m512i up = _mm512_maskz_loadu_epi64(m, above + j);
        _mm512_mask_storeu_epi64(fresh + j, m, _mm512_andnot_si512(up, bits));
        _mm512_mask_storeu_epi64(used + j, m, _mm512_or_si512(up, bits));
    }
}

SF_AVX512 static void sf_count_avx512(const uint64_t *row, const uint64_t *gone, const uint64_t *solo,
                                      int64_t words, int64_t *all, int64_t *own) {
    __m512i a = _mm512_setzero_si512(), b = _mm512_setzero_si512();
    for (int64_t j = 0; j < words; j += 8) {
        __mmask8 m = SF_TAIL(words, j);
        __m512i r = _mm512_maskz_loadu_epi64(m, row + j);
        __m512i g = _mm512_maskz_loadu_epi64(m, gone + j);
        __m512i s = _mm512_maskz_loadu_epi64(m, solo + j);
        a = _mm512_add_epi64(a, _mm512_popcnt_epi64(_mm512_andnot_si512(g, r)));
        b = _mm512_add_epi64(b, _mm512_popcnt_epi64(_mm512_and_si512(r, s)));
    }
    *all = _mm512_reduce_add_epi64(a);
    *own = _mm512_reduce_add_epi64(b);
}

SF_AVX512 static void sf_weigh_avx512(const uint64_t *row, const uint64_t *gone, const uint64_t *solo,
                                      const double *weight, int64_t words, double *all, double *own) {
    __m512d a = _mm512_setzero_pd(), b = _mm512_setzero_pd();
    for (int64_t j = 0; j < words; j += 8) {
        __mmask8 m = SF_TAIL(words, j);
        __m512i r = _mm512_maskz_loadu_epi64(m, row + j);
        __m512i g = _mm512_maskz_loadu_epi64(m, gone + j);
        __m512i s = _mm512_maskz_loadu_epi64(m, solo + j);
        __m512d w = _mm512_maskz_loadu_pd(m, weight + j);
        a = _mm512_fmadd_pd(w, _mm512_cvtepi64_pd(_mm512_popcnt_epi64(_mm512_andnot_si512(g, r))), a);
        b = _mm512_fmadd_pd(w, _mm512_cvtepi64_pd(_mm512_popcnt_epi64(_mm512_and_si512(r, s))), b);
    }
    *all = _mm512_reduce_add_pd(a);
    *own = _mm512_reduce_add_pd(b);
}

SF_AVX512 static int64_t sf_join_avx512(uint64_t *into, const uint64_t *row, int64_t words) {
    __m512i a = _mm512_setzero_si512();
    for (int64_t j = 0; j < words; j += 8) {
        __mmask8 m = SF_TAIL(words, j);
        __m512i x = _mm512_or_si512(_mm512_maskz_loadu_epi64(m, into + j),
                                    _mm512_maskz_loadu_epi64(m, row + j));
        _mm512_mask_storeu_epi64(into + j, m, x);
        a = _mm512_add_epi64(a, _mm512_popcnt_epi64(x));
    }
    return _mm512_reduce_add_epi64(a);
}

static const sf_ops sf_ops_avx512 = {"avx512",         sf_survey_avx512, sf_planes_avx512,
                                     sf_count4_avx512, sf_weigh4_avx512, sf_index_avx512,
                                     sf_count_avx512,  sf_weigh_avx512,  sf_list_avx2,
                                     sf_weigh_bits_avx2, sf_join_avx512};
#endif

/* The best version for this processor, or the one named; NULL if it does not run here. */
static inline const sf_ops *sf_row_ops(const char *name) {
    int any = name == NULL || name[0] == 0;
#ifdef SF_X86
    __builtin_cpu_init();
    if ((any || strcmp(name, "avx512") == 0) && __builtin_cpu_supports("avx512vpopcntdq") &&
        __builtin_cpu_supports("avx512dq"))
        return &sf_ops_avx512;
    if ((any || strcmp(name, "avx2") == 0) && __builtin_cpu_supports("avx2") &&
        __builtin_cpu_supports("bmi2") && __builtin_cpu_supports("popcnt"))
        return &sf_ops_avx2;
    if ((any || strcmp(name, "popcnt") == 0) && __builtin_cpu_supports("popcnt")) return &sf_ops_popcnt;
#endif
    if (any || strcmp(name, "generic") == 0) return &sf_ops_generic;
    return NULL;
}

#endif
