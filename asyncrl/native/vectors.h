/* Vectors of LANES floats, for each instruction set: GCC's vector extensions, and what they lack. */
#ifndef ASYNCRL_VECTORS_H
#define ASYNCRL_VECTORS_H

#if defined(__AVX2__)
#include <immintrin.h>
#endif
#include <stdint.h>

typedef float vec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));
typedef int32_t ivec __attribute__((vector_size(LANES * 4), aligned(4), may_alias));

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define INLINE static inline __attribute__((always_inline))

INLINE vec splat(float x) { return x - (vec){0}; }
INLINE vec load(const float *p) { return *(const vec *)p; }
INLINE void store(float *p, vec v) { *(vec *)p = v; }
INLINE vec choose(ivec mask, vec a, vec b) { return (vec)((mask & (ivec)a) | (~mask & (ivec)b)); }

/* The lanes of one vector, or of two, in the order `at`. */
#if defined(__clang__)
INLINE vec permuted(vec a, ivec at) {
    vec v;
    for (int lane = 0; lane < LANES; lane++) v[lane] = a[at[lane]];
    return v;
}
INLINE vec merged(vec a, vec b, ivec at) {
    vec v;
    for (int lane = 0; lane < LANES; lane++) v[lane] = at[lane] < LANES ? a[at[lane]] : b[at[lane] - LANES];
    return v;
}
#else
#define permuted(a, at) __builtin_shuffle(a, at)
#define merged(a, b, at) __builtin_shuffle(a, b, at)
#endif

/* The first `count` lanes from memory, zeros after them; and back. `count` is at most LANES. */
#if defined(__AVX512F__) && LANES == 16
INLINE vec load_part(const float *p, int64_t count) { return (vec)_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1u), p); }
INLINE void store_part(float *p, vec v, int64_t count) { _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1u), (__m512)v); }
#elif defined(__AVX2__) && LANES == 8
INLINE __m256i first_lanes(int64_t count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
INLINE vec load_part(const float *p, int64_t count) { return (vec)_mm256_maskload_ps(p, first_lanes(count)); }
INLINE void store_part(float *p, vec v, int64_t count) { _mm256_maskstore_ps(p, first_lanes(count), (__m256)v); }
#else
INLINE vec load_part(const float *p, int64_t count) {
    vec v = {0};
    for (int64_t lane = 0; lane < count; lane++) v[lane] = p[lane];
    return v;
}
INLINE void store_part(float *p, vec v, int64_t count) {
    for (int64_t lane = 0; lane < count; lane++) p[lane] = v[lane];
}
#endif

/* Stage of a transposition: exchanges blocks of DISTANCE between vectors that are as far from each other. */
#define STAGE(rows_, DISTANCE)                                                                  \
    do {                                                                                        \
        ivec low_, high_;                                                                       \
        for (int j = 0; j < LANES; j++) {                                                       \
            low_[j] = (j & (DISTANCE)) ? LANES + j - (DISTANCE) : j;                            \
            high_[j] = (j & (DISTANCE)) ? LANES + j : j + (DISTANCE);                           \
        }                                                                                       \
        for (int i = 0; i < LANES; i++)                                                         \
            if (!(i & (DISTANCE))) {                                                            \
                vec a_ = rows_[i], b_ = rows_[i + (DISTANCE)];                                  \
                rows_[i] = merged(a_, b_, low_);                                                \
                rows_[i + (DISTANCE)] = merged(a_, b_, high_);                                  \
            }                                                                                   \
    } while (0)

/* Transposes LANES vectors of LANES lanes. */
#if LANES == 16
#define TRANSPOSE(rows_) STAGE(rows_, 8); STAGE(rows_, 4); STAGE(rows_, 2); STAGE(rows_, 1)
#elif LANES == 8
#define TRANSPOSE(rows_) STAGE(rows_, 4); STAGE(rows_, 2); STAGE(rows_, 1)
#else
#define TRANSPOSE(rows_) STAGE(rows_, 2); STAGE(rows_, 1)
#endif

#endif
