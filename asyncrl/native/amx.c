/* Matrix products by AMX, which multiplies tiles of bfloat16 and sums in float32.
 *
 * An operand x is split into two bfloat16 numbers, high = round(x) and low = round(x - high), which hold 16 of its 24
 * significant bits. A product is high high + high low + low high; its relative error is at most 3 2^-16.
 *
 * Operands are packed into 32-bit words of two bfloat16 with consecutive k, the even one in the low half:
 *
 *     rows    [part, 32, pairs]        of A, 32 rows at a time; word (m, p) has A[m, 2p] and A[m, 2p + 1]
 *     panels  [N / 32][part, 2, pairs, 16]  of B, all columns; word (p, n) has B[2p, n] and B[2p + 1, n]
 *
 * The part is high or low. What is beyond M, N or K is zero. */
#include "core.h"
#include "vectors.h"

#define BLOCK 32 /* rows and columns of C that are computed together: two tiles by two */

typedef struct {
    vec high, low;
} Split;

INLINE __m512i bits_of(vec x) { return _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)x)); }

/* Words of two vectors: the first has the even k, the second the odd ones. */
INLINE Split interleaved(vec even, vec odd) {
    __m512i high_even = _mm512_slli_epi32(bits_of(even), 16), high_odd = _mm512_slli_epi32(bits_of(odd), 16);
    __m512i low_even = bits_of(even - (vec)high_even), low_odd = bits_of(odd - (vec)high_odd);
    return (Split){(vec)_mm512_or_si512(_mm512_srli_epi32(high_even, 16), high_odd),
                   (vec)_mm512_or_si512(low_even, _mm512_slli_epi32(low_odd, 16))};
}

/* Words of 32 consecutive k. */
INLINE Split consecutive(vec first, vec second) {
    __m512i high = (__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first);
    vec high_first = (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(high)), 16);
    vec high_second = (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(high, 1)), 16);
    __m512i low = (__m512i)_mm512_cvtne2ps_pbh((__m512)(second - high_second), (__m512)(first - high_first));
    return (Split){(vec)high, (vec)low};
}

/* LANES floats, zeros from `count` on, which may be anything. */
INLINE vec load_some(const float *p, int64_t count) {
    return count >= LANES ? load(p) : count > 0 ? load_part(p, count) : (vec){0};
}

/* Words of row `row` from k = 2 `pair` on; k is contiguous. */
INLINE Split words_of(const float *row, int64_t pair, int64_t K) {
    return consecutive(load_some(row + 2 * pair, K - 2 * pair), load_some(row + 2 * pair + LANES, K - 2 * pair - LANES));
}

/* Words of the pair of rows k = 2 `pair` and its next, from the first column on; columns are contiguous. */
INLINE Split words_across(const float *column, int64_t stride, int64_t pair, int64_t K, int64_t count) {
    const float *at = column + 2 * pair * stride;
    return interleaved(2 * pair < K ? load_some(at, count) : (vec){0}, 2 * pair + 1 < K ? load_some(at + stride, count) : (vec){0});
}

/* Writes a transposed block of 16 x 16 words. */
INLINE void store_transposed(Split *words, float *out, int64_t stride, int64_t part_stride) {
    vec rows[LANES];
    for (int part = 0; part < 2; part++) {
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) rows[i] = part ? words[i].low : words[i].high;
        TRANSPOSE(rows);
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) store(out + part * part_stride + i * stride, rows[i]);
    }
}

/* Packs rows [0, 32) of A, of which there are `count`. */
static void pack_rows(Matrix a, int64_t count, int64_t K, int64_t pairs, float *rows) {
    int64_t part = BLOCK * pairs;
    if (a.column_stride == 1) {
        for (int64_t m = 0; m < BLOCK; m++)
            for (int64_t pair = 0; pair < pairs; pair += LANES) {
                Split words = words_of(a.at + m * a.row_stride, pair, m < count ? K : 0);
                store(rows + m * pairs + pair, words.high);
                store(rows + part + m * pairs + pair, words.low);
            }
        return;
    }
    for (int64_t m = 0; m < BLOCK; m += LANES)
        for (int64_t pair = 0; pair < pairs; pair += LANES) {
            Split words[LANES];
            for (int i = 0; i < LANES; i++) words[i] = words_across(a.at + m, a.column_stride, pair + i, K, count - m);
            store_transposed(words, rows + m * pairs + pair, pairs, part);
        }
}

/* Packs columns [0, 32) of B, of which there are `count`. */
static void pack_panels(Matrix b, int64_t count, int64_t K, int64_t pairs, float *panels) {
    int64_t part = BLOCK * pairs;
    for (int64_t n = 0; n < BLOCK; n += LANES) {
        float *panel = panels + n * pairs;
        if (b.column_stride == 1) {
            for (int64_t pair = 0; pair < pairs; pair++) {
                Split words = words_across(b.at + n, b.row_stride, pair, K, count - n);
                store(panel + pair * LANES, words.high);
                store(panel + part + pair * LANES, words.low);
            }
            continue;
        }
        for (int64_t pair = 0; pair < pairs; pair += LANES) {
            Split words[LANES];
            for (int i = 0; i < LANES; i++)
                words[i] = words_of(b.at + (n + i) * b.column_stride, pair, n + i < count ? K : 0);
            store_transposed(words, panel + pair * LANES, LANES, part);
        }
    }
}

static const struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tiles = {1, 0, {0}, {64, 64, 64, 64, 64, 64, 64, 64}, {16, 16, 16, 16, 16, 16, 16, 16}};

#define LOAD_ROWS(PART)                                               \
    _tile_loadd(4, rows + (PART)*part + pair, pairs * 4);             \
    _tile_loadd(5, rows + (PART)*part + 16 * pairs + pair, pairs * 4)
#define LOAD_PANELS(PART)                                             \
    _tile_loadd(6, panels + (PART)*part + 16 * pair, 64);             \
    _tile_loadd(7, panels + (PART)*part + 16 * (pairs + pair), 64)
#define MULTIPLY()                                                    \
    _tile_dpbf16ps(0, 4, 6);                                          \
    _tile_dpbf16ps(1, 4, 7);                                          \
    _tile_dpbf16ps(2, 5, 6);                                          \
    _tile_dpbf16ps(3, 5, 7)

/* sums [2, 2, 16, 16] = the product of 32 packed rows and columns. */
static void multiply(const float *rows, const float *panels, int64_t pairs, float *sums) {
    int64_t part = BLOCK * pairs;
    /* GCC's intrinsics for tiles do not tell the compiler what they read. */
    __asm__ volatile("" ::: "memory");
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t pair = 0; pair < pairs; pair += 16) {
        LOAD_ROWS(0);
        LOAD_PANELS(1);
        MULTIPLY();
        LOAD_PANELS(0);
        MULTIPLY();
        LOAD_ROWS(1);
        MULTIPLY();
    }
    _tile_stored(0, sums, 64);
    _tile_stored(1, sums + 256, 64);
    _tile_stored(2, sums + 512, 64);
    _tile_stored(3, sums + 768, 64);
    __asm__ volatile("" ::: "memory");
}

/* Writes the part of a tile that is inside of C, at its corner, with the bias of each row. */
static void write_tile(const float *tile, Result c, int64_t num_rows, int64_t num_columns, const float *bias) {
    if (num_rows <= 0 || num_columns <= 0) return;
    vec rows[LANES];
    int64_t rows_in_c = num_rows < LANES ? num_rows : LANES, columns_in_c = num_columns < LANES ? num_columns : LANES;
    for (int i = 0; i < LANES; i++) rows[i] = load(tile + i * LANES);
    if (bias)
        for (int64_t i = 0; i < rows_in_c; i++) rows[i] += splat(bias[i]);
    if (c.column_stride == 1) {
        for (int64_t i = 0; i < rows_in_c; i++) store_part(c.at + i * c.row_stride, rows[i], columns_in_c);
        return;
    }
    TRANSPOSE(rows);
    for (int64_t i = 0; i < columns_in_c; i++) store_part(c.at + i * c.column_stride, rows[i], rows_in_c);
}

void asyncrl_tile_product(Matrix a, Matrix b, int64_t M, int64_t N, int64_t K, const float *bias, Result c, float *scratch) {
    int64_t pairs = tile_pairs(K), block = 2 * BLOCK * pairs;
    float *rows = scratch + (16 - (uintptr_t)scratch / 4 % 16) % 16; /* at the begin of a cache line */
    float *panels = rows + block, sums[4 * 256] __attribute__((aligned(64)));
    for (int64_t n = 0; n < N; n += BLOCK) {
        Matrix columns = {b.at + n * b.column_stride, b.row_stride, b.column_stride};
        pack_panels(columns, N - n, K, pairs, panels + n / BLOCK * block);
    }
    _tile_loadconfig(&tiles);
    for (int64_t m = 0; m < M; m += BLOCK) {
        pack_rows((Matrix){a.at + m * a.row_stride, a.row_stride, a.column_stride}, M - m, K, pairs, rows);
        for (int64_t n = 0; n < N; n += BLOCK) {
            multiply(rows, panels + n / BLOCK * block, pairs, sums);
            for (int i = 0; i < 4; i++) {
                int64_t row = m + i / 2 * 16, column = n + i % 2 * 16;
                Result corner = {c.at + row * c.row_stride + column * c.column_stride, c.row_stride, c.column_stride};
                write_tile(sums + i * 256, corner, M - row, N - column, bias ? bias + row : 0);
            }
        }
    }
    _tile_release();
}
