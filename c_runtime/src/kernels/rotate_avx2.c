/* Rotation with AVX2: pairs of int16 lie side by side, so that one multiply-add gives a sum of two products.
 *
 * An amplitude of 1/32767 = (2^30 + 2^15 + 1) * 2^-45 needs no product: with e = floor(S * (2^15 + 1) / 2^30) = (S + (S >> 15)) >> 15
 * the rounded result floor((S * amp_m + 2^44) / 2^45) is (S + e + 2^14) >> 15, in 32 bits for |S| <= 1.5 * 2^30. */
#include "rotate.h"

#if defined(EP_ROTATE_VECTORS) && defined(__x86_64__)
#include "avx2.h"

enum { STEP = 16 }; /* pairs of a turn of the loops */

typedef struct amplitude {
  __m256i m, half;
  __m128i by;
  int q15;
} amplitude;

INLINE amplitude amplitude_of(const ep_rotation *how, int q15) {
  return (amplitude){_mm256_set1_epi32(how->amp_m), _mm256_set1_epi64x(1ll << (how->amp_shift - 1)),
                     _mm_cvtsi32_si128(how->amp_shift - 32), q15};
}

/* Eight sums times the amplitude, rounded half up. */
INLINE __m256i scaled(__m256i sum, const amplitude *by) {
  if (by->q15) {
    __m256i e = _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_srai_epi32(sum, 15)), 15);
    return _mm256_srai_epi32(_mm256_add_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << 14)), e), 15);
  }
  __m256i even = _mm256_add_epi64(_mm256_mul_epi32(sum, by->m), by->half);
  __m256i odd = _mm256_add_epi64(_mm256_mul_epi32(_mm256_srli_epi64(sum, 32), by->m), by->half);
  return _mm256_sra_epi32(_mm256_blend_epi32(_mm256_srli_epi64(even, 32), odd, 0xaa), by->by);
}

/* Two vectors of eight sums as sixteen int16 in the order of unpack, within +-32767. */
INLINE __m256i joined(__m256i low, __m256i high, const amplitude *by) {
  return _mm256_max_epi16(_mm256_packs_epi32(scaled(low, by), scaled(high, by)), _mm256_set1_epi16(-INT16_MAX));
}

/* |c| + |s| <= EP_ROTATE_SUM in all of the pairs, and no s that has no negative. */
INLINE int fits(const int16_t *c, const int16_t *s, int32_t pairs) {
  __m256i worst = _mm256_setzero_si256(), lowest = _mm256_set1_epi16(INT16_MAX);
  for (int32_t j = 0; j < pairs; j += STEP) {
    __m256i vs = load(s + j);
    worst = _mm256_max_epu16(worst, _mm256_adds_epu16(_mm256_abs_epi16(load(c + j)), _mm256_abs_epi16(vs)));
    lowest = _mm256_min_epi16(lowest, vs);
  }
  __m256i over = _mm256_subs_epu16(worst, _mm256_set1_epi16((int16_t)(EP_ROTATE_SUM - 65536)));
  over = _mm256_or_si256(over, _mm256_cmpeq_epi16(lowest, _mm256_set1_epi16(INT16_MIN)));
  return _mm256_testz_si256(over, over);
}

/* For sixteen pairs: (c, -s) and (s, c) side by side, each in two vectors; half: in the order of unpack, else of the pairs. */
typedef struct turn {
  __m256i first[2], second[2];
} turn;

INLINE turn turn_of(const int16_t *c, const int16_t *s, int half) {
  __m256i vc = load(c), vs = load(s), minus = _mm256_sub_epi16(_mm256_setzero_si256(), vs);
  turn t = {{_mm256_unpacklo_epi16(vc, minus), _mm256_unpackhi_epi16(vc, minus)},
            {_mm256_unpacklo_epi16(vs, vc), _mm256_unpackhi_epi16(vs, vc)}};
  if (half) return t;
  return (turn){{_mm256_permute2x128_si256(t.first[0], t.first[1], 0x20), _mm256_permute2x128_si256(t.first[0], t.first[1], 0x31)},
                {_mm256_permute2x128_si256(t.second[0], t.second[1], 0x20), _mm256_permute2x128_si256(t.second[0], t.second[1], 0x31)}};
}

/* Eight interleaved pairs. */
INLINE __m256i interleaved(__m256i x, const turn *t, int k, const amplitude *by) {
  __m256i y = joined(_mm256_madd_epi16(x, t->first[k]), _mm256_madd_epi16(x, t->second[k]), by);
  const __m256i order = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15, 0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
  return _mm256_shuffle_epi8(y, order);
}

/* Sixteen pairs whose components lie apart. */
INLINE void halves(__m256i *a, __m256i *b, const turn *t, const amplitude *by) {
  __m256i low = _mm256_unpacklo_epi16(*a, *b), high = _mm256_unpackhi_epi16(*a, *b);
  *a = joined(_mm256_madd_epi16(low, t->first[0]), _mm256_madd_epi16(high, t->first[1]), by);
  *b = joined(_mm256_madd_epi16(low, t->second[0]), _mm256_madd_epi16(high, t->second[1]), by);
}

/* Sixteen pairs in two vectors, of their components or of eight pairs each. */
INLINE void turn_pairs(__m256i *a, __m256i *b, const turn *t, int half, const amplitude *by) {
  if (half) {
    halves(a, b, t, by);
    return;
  }
  *a = interleaved(*a, t, 0, by);
  *b = interleaved(*b, t, 1, by);
}

/* Two vectors of int16 as int8 within +-127, in order. */
INLINE __m256i narrow(__m256i low, __m256i high) {
  __m256i v = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
  return _mm256_max_epi8(v, _mm256_set1_epi8(-INT8_MAX));
}

/* The pairs of a block in every head. x: the first component of the block's first pair in the first head. */
INLINE void block16(int16_t *x, const turn *turns, int32_t n, const ep_rotation *how, int half, int q15) {
  amplitude by = amplitude_of(how, q15);
  for (size_t h = 0; h < (size_t)how->heads; h++)
    for (int32_t j = 0; j < n; j += STEP) {
      int16_t *a = x + h * (size_t)how->stride + (half ? j : 2 * j), *b = a + (half ? how->pairs : STEP);
      __m256i va = load(a), vb = load(b);
      turn_pairs(&va, &vb, turns + j / STEP, half, &by);
      store(a, va);
      store(b, vb);
    }
}

INLINE void block8(int8_t *x, const turn *turns, int32_t n, const ep_rotation *how, int half, int q15) {
  amplitude by = amplitude_of(how, q15);
  for (size_t h = 0; h < (size_t)how->heads; h++)
    for (int32_t j = 0; j < n; j += STEP) {
      int8_t *a = x + h * (size_t)how->stride + (half ? j : 2 * j), *b = a + (half ? how->pairs : STEP);
      __m256i va = widen(a), vb = widen(b);
      turn_pairs(&va, &vb, turns + j / STEP, half, &by);
      __m256i y = narrow(va, vb);
      _mm_storeu_si128((__m128i *)a, _mm256_castsi256_si128(y));
      _mm_storeu_si128((__m128i *)b, _mm256_extracti128_si256(y, 1));
    }
}

#define ROTATE(name, type, block)                                                                  \
  AVX2 int32_t name(type *x, const int16_t *c, const int16_t *s, const ep_rotation *how) {         \
    int half = how->layout == EP_ROPE_HALF;                                                        \
    int32_t all = how->pairs & -STEP;                                                              \
    turn turns[EP_ROTATE_BLOCK / STEP];                                                            \
    if (!all || how->amp_shift < 32 || !fits(c, s, all)) return 0;                                 \
    for (int32_t j = 0; j < all; j += EP_ROTATE_BLOCK) {                                           \
      int32_t n = all - j < EP_ROTATE_BLOCK ? all - j : EP_ROTATE_BLOCK;                           \
      for (int32_t k = 0; k < n; k += STEP) turns[k / STEP] = turn_of(c + j + k, s + j + k, half); \
      if (half && ep_rotate_is_q15(how)) block(x + j, turns, n, how, 1, 1);                        \
      if (half && !ep_rotate_is_q15(how)) block(x + j, turns, n, how, 1, 0);                       \
      if (!half && ep_rotate_is_q15(how)) block(x + 2 * (size_t)j, turns, n, how, 0, 1);           \
      if (!half && !ep_rotate_is_q15(how)) block(x + 2 * (size_t)j, turns, n, how, 0, 0);          \
    }                                                                                              \
    return all;                                                                                    \
  }

ROTATE(ep_avx2_rotate_s16, int16_t, block16)
ROTATE(ep_avx2_rotate_s8, int8_t, block8)

#else
typedef int ep_nothing; /* C has no empty files */
#endif
