/* Switches of the checked build, a monotonic clock, and an arena for scratch arrays. */
#ifndef SPECFIT_CHECKS_H
#define SPECFIT_CHECKS_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef _WIN32
#include <windows.h>
#endif

/* Index i into an array of n entries. The checked build (SPECFIT_CHECKED) stops at a bad one. */
#ifdef SPECFIT_CHECKED
static inline ptrdiff_t sf_checked_index(ptrdiff_t i, ptrdiff_t n, const char *file, int line) {
    if (i < 0 || i >= n) {
        fprintf(stderr, "specfit: index %td outside [0, %td) at %s:%d\n", i, n, file, line);
        abort();
    }
    return i;
}
#define SF_AT(i, n) sf_checked_index((ptrdiff_t)(i), (ptrdiff_t)(n), __FILE__, __LINE__)
#define SF_IS_CHECKED 1
#else
#define SF_AT(i, n) (i)
#define SF_IS_CHECKED 0
#endif

#if defined(__clang__)
#define SF_COMPILER __VERSION__
#elif defined(__GNUC__)
#define SF_COMPILER "gcc " __VERSION__
#else
#define SF_COMPILER "unknown"
#endif

static inline double sf_now(void) {
#ifdef _WIN32
    LARGE_INTEGER count, frequency;
    QueryPerformanceCounter(&count);
    QueryPerformanceFrequency(&frequency);
    return (double)count.QuadPart / (double)frequency.QuadPart;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
#endif
}

/* Arrays that live and die together. A release build cuts them out of one block. The checked build
   gives each its own, so that the address sanitizer sees a write past the end of any of them. */
typedef struct {
    char *block;
    size_t used;
    size_t size;
    int failed;
} sf_arena;

#define SF_ALIGN 64

static inline int sf_arena_open(sf_arena *arena, size_t size) {
    memset(arena, 0, sizeof(*arena));
#ifndef SPECFIT_CHECKED
    arena->block = (char *)malloc(size + SF_ALIGN);
    arena->size = size;
    if (!arena->block) return -1;
    arena->used = (SF_ALIGN - (uintptr_t)arena->block % SF_ALIGN) % SF_ALIGN;
    arena->size += arena->used;
#else
    (void)size;
#endif
    return 0;
}

static inline size_t sf_arena_room(size_t bytes) { return (bytes + SF_ALIGN - 1) / SF_ALIGN * SF_ALIGN; }

static inline void *sf_arena_take(sf_arena *arena, size_t bytes) {
#ifdef SPECFIT_CHECKED
    /* A header in front links the blocks, so that they can be freed together. */
    char *block = (char *)malloc(SF_ALIGN + bytes);
    if (!block) {
        arena->failed = 1;
        return NULL;
    }
    memcpy(block, &arena->block, sizeof(char *));
    arena->block = block;
    return block + SF_ALIGN;
#else
    void *start = arena->block + arena->used;
    if (arena->used + sf_arena_room(bytes) > arena->size) {
        arena->failed = 1;
        return NULL;
    }
    arena->used += sf_arena_room(bytes);
    return start;
#endif
}

static inline void sf_arena_close(sf_arena *arena) {
#ifdef SPECFIT_CHECKED
    char *block = arena->block;
    while (block) {
        char *next;
        memcpy(&next, block, sizeof(char *));
        free(block);
        block = next;
    }
#else
    free(arena->block);
#endif
    memset(arena, 0, sizeof(*arena));
}

#endif
