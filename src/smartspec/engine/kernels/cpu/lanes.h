/* Vectors as wide as the processor's, in the words of gcc; any width computes the same. */
#pragma once

#include <stdint.h>
#ifdef __AVX2__
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
#define LANES 16
#elif defined(__AVX2__)
#define LANES 8
#else
#define LANES 4
#endif

#define ALIGNED __attribute__((aligned(64))) /* a vector that crosses a cache line takes twice as long */
#define INLINE static inline __attribute__((always_inline))

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint32_t unsigned_ints __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef uint8_t bytes __attribute__((vector_size(LANES), aligned(1), may_alias));
typedef uint16_t words __attribute__((vector_size(2 * LANES), aligned(1), may_alias));
typedef int8_t signed_bytes __attribute__((vector_size(LANES), aligned(1), may_alias));

/* LANES bytes or 16-bit words as integers. gcc 12 takes them one by one where it is not told the instruction. */
#if LANES == 16
INLINE ints widen(const uint8_t *from) { return (ints)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)from)); }
INLINE ints widen_signed(const uint8_t *from) {
    return (ints)_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)from));
}
INLINE ints widen_words(const uint8_t *from) {
    return (ints)_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)from));
}
#elif LANES == 8
INLINE ints widen(const uint8_t *from) { return (ints)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)from)); }
INLINE ints widen_signed(const uint8_t *from) {
    return (ints)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)from));
}
INLINE ints widen_words(const uint8_t *from) {
    return (ints)_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)from));
}
#else
INLINE ints widen(const uint8_t *from) { return __builtin_convertvector(*(const bytes *)from, ints); }
INLINE ints widen_signed(const uint8_t *from) { return __builtin_convertvector(*(const signed_bytes *)from, ints); }
INLINE ints widen_words(const uint8_t *from) { return __builtin_convertvector(*(const words *)from, ints); }
#endif
INLINE lanes as_floats(ints v) { return __builtin_convertvector(v, lanes); }

/* 16-bit floats of IEEE 754. Shifted into place, one is a float whose exponent is 112 too small, unless it is infinite
 * or no number. */
INLINE lanes widen_halves(const uint8_t *from) {
#if LANES == 16
    return (lanes)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)from));
#elif LANES == 8 && defined(__F16C__)
    return (lanes)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)from));
#else
    const ints bits = widen_words(from), shifted = (bits & 0x7fff) << 13, is_finite = shifted < 0x7c00 << 13;
    const lanes finite = (lanes)shifted * 0x1p112f;
    const ints magnitude = ((ints)finite & is_finite) | ((shifted + 0x70000000) & ~is_finite);
    return (lanes)(magnitude | (bits & 0x8000) << 16);
#endif
}

/* a * b + c, rounded once where the processor can. */
INLINE lanes multiply_add(lanes a, lanes b, lanes c) {
#if LANES == 16
    return (lanes)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif LANES == 8 && defined(__FMA__)
    return (lanes)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#else
    return a * b + c;
#endif
}

/* The same, rounded once on every processor: where it has no such instruction, slowly. */
INLINE lanes fused_multiply_add(lanes a, lanes b, lanes c) {
#if LANES == 16 || (LANES == 8 && defined(__FMA__))
    return multiply_add(a, b, c);
#else
    lanes sums;
    for (int i = 0; i < LANES; i++) sums[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return sums;
#endif
}

INLINE float sum_of(lanes v) {
#if LANES == 16
    return _mm512_reduce_add_ps((__m512)v);
#elif LANES == 8
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128((__m256)v), _mm256_extractf128_ps((__m256)v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
#else
    return v[0] + v[1] + (v[2] + v[3]);
#endif
}

INLINE int32_t sum_of_ints(ints v) {
#if LANES == 16
    return _mm512_reduce_add_epi32((__m512i)v);
#elif LANES == 8
    const __m128i four = _mm_add_epi32(_mm256_castsi256_si128((__m256i)v), _mm256_extracti128_si256((__m256i)v, 1));
    const __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
#else
    return v[0] + v[1] + v[2] + v[3];
#endif
}

/* to [LANES, LANES] = from [num_rows, LANES] transposed; its last row stands for those it lacks. Strides are of rows. */
#if LANES == 16
INLINE void transpose_square(const float *from, int64_t num_rows, int64_t from_stride, float *to, int64_t to_stride) {
    __m512 a[16], b[16];
#pragma GCC unroll 16
    for (int i = 0; i < 16; i++) a[i] = _mm512_loadu_ps(from + (i < num_rows ? i : num_rows - 1) * from_stride);
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) { /* pairs of rows */
        b[i] = _mm512_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm512_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) /* four rows: within each quarter of a vector they are columns now */
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m512d first = (__m512d)b[i + j], second = (__m512d)b[i + 2 + j];
            a[i + 2 * j] = (__m512)_mm512_unpacklo_pd(first, second);
            a[i + 2 * j + 1] = (__m512)_mm512_unpackhi_pd(first, second);
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* columns i, i + 4, i + 8 and i + 12 */
        const __m512 even_low = _mm512_shuffle_f32x4(a[i], a[i + 4], 0x88), odd_low = _mm512_shuffle_f32x4(a[i], a[i + 4], 0xdd);
        const __m512 even_high = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0x88);
        const __m512 odd_high = _mm512_shuffle_f32x4(a[i + 8], a[i + 12], 0xdd);
        _mm512_storeu_ps(to + i * to_stride, _mm512_shuffle_f32x4(even_low, even_high, 0x88));
        _mm512_storeu_ps(to + (i + 8) * to_stride, _mm512_shuffle_f32x4(even_low, even_high, 0xdd));
        _mm512_storeu_ps(to + (i + 4) * to_stride, _mm512_shuffle_f32x4(odd_low, odd_high, 0x88));
        _mm512_storeu_ps(to + (i + 12) * to_stride, _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd));
    }
}
#elif LANES == 8
INLINE void transpose_square(const float *from, int64_t num_rows, int64_t from_stride, float *to, int64_t to_stride) {
    __m256 a[8], b[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(from + (i < num_rows ? i : num_rows - 1) * from_stride);
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) { /* pairs of rows */
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) /* four rows: within each half of a vector they are columns now */
#pragma GCC unroll 2
        for (int j = 0; j < 2; j++) {
            const __m256d first = (__m256d)b[i + j], second = (__m256d)b[i + 2 + j];
            a[i + 2 * j] = (__m256)_mm256_unpacklo_pd(first, second);
            a[i + 2 * j + 1] = (__m256)_mm256_unpackhi_pd(first, second);
        }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) { /* columns i and i + 4 */
        _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x20));
        _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(a[i], a[i + 4], 0x31));
    }
}
#else
INLINE void transpose_square(const float *from, int64_t num_rows, int64_t from_stride, float *to, int64_t to_stride) {
    const float *rows[LANES];
    for (int i = 0; i < LANES; i++) rows[i] = from + (i < num_rows ? i : num_rows - 1) * from_stride;
    for (int d = 0; d < LANES; d++)
        for (int i = 0; i < LANES; i++) to[d * to_stride + i] = rows[i][d];
}
#endif
