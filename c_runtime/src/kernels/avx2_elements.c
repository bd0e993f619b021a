/* ADD and MUL with AVX2, eight numbers at a time: sums and products of 64 bits are those of the even numbers and those of the odd ones. */
#include "avx2.h"

#ifdef EP_HAS_AVX2
#include "elements.h"

/* AVX2 shifts 64 bits without sign only: with 2^(n + 31) added, rshift_round(x, n) + 2^31 comes out, and nothing is in the upper half of
 * those that fit 32 bits. 1 <= n <= 31 and |x| <= 2^62. */
typedef struct rounding {
  __m256i add;
  __m128i by;
} rounding;

INLINE rounding rounding_by(int32_t n) {
  const int64_t add = ((int64_t)1 << (n + 31)) + ((int64_t)1 << (n - 1));
  return (rounding){_mm256_set1_epi64x(add), _mm_cvtsi32_si128(n)};
}

/* Eight results; 0, with nothing stored, if one saturates. */
INLINE int put8(int32_t *y, __m256i even, __m256i uneven, const rounding *round) {
  even = _mm256_srl_epi64(_mm256_add_epi64(even, round->add), round->by);
  uneven = _mm256_srl_epi64(_mm256_add_epi64(uneven, round->add), round->by);
  __m256i both = _mm256_blend_epi32(even, _mm256_slli_epi64(uneven, 32), 0xaa);
  if (!_mm256_testz_si256(_mm256_or_si256(even, uneven), _mm256_set1_epi64x(-((int64_t)1 << 32)))) return 0;
  store(y, _mm256_xor_si256(both, _mm256_set1_epi32(INT32_MIN)));
  return 1;
}

AVX2 static void add(int32_t *y, const int32_t *a, const int32_t *b, const int32_t shift[3], int32_t n, uint64_t *count) {
  /* without a shift to the right both are shifted to the left by one more, where they can be */
  const int32_t more = shift[2] == 0 && shift[0] < 30 && shift[1] < 30, by = shift[2] + more, fits = by >= 1 && by <= 31;
  const int64_t up_a = (int64_t)1 << (shift[0] + more), up_b = (int64_t)1 << (shift[1] + more);
  const __m256i times_a = _mm256_set1_epi64x(up_a), times_b = _mm256_set1_epi64x(up_b);
  const rounding round = rounding_by(fits ? by : 1);
  for (int32_t i = 0; i < n; i += 8) {
    if (fits && i + 8 <= n) {
      __m256i va = load(a + i), vb = load(b + i);
      __m256i even = _mm256_add_epi64(_mm256_mul_epi32(va, times_a), _mm256_mul_epi32(vb, times_b));
      __m256i uneven = _mm256_add_epi64(_mm256_mul_epi32(odd(va), times_a), _mm256_mul_epi32(odd(vb), times_b));
      if (put8(y + i, even, uneven, &round)) continue;
    }
    for (int32_t k = i; k < i + 8 && k < n; k++) y[k] = ep_sat32_count(ep_add_at(a[k], b[k], shift), count);
  }
}

AVX2 static void mul(int32_t *y, const int32_t *a, const int32_t *b, int32_t shift, int32_t n, uint64_t *count) {
  const int fits = shift >= 1 && shift <= 31;
  const rounding round = rounding_by(fits ? shift : 1);
  for (int32_t i = 0; i < n; i += 8) {
    if (fits && i + 8 <= n) {
      __m256i va = load(a + i), vb = load(b + i);
      if (put8(y + i, _mm256_mul_epi32(va, vb), _mm256_mul_epi32(odd(va), odd(vb)), &round)) continue;
    }
    for (int32_t k = i; k < i + 8 && k < n; k++) y[k] = ep_sat32_count(ep_rshift_round((int64_t)a[k] * b[k], shift), count);
  }
}

void ep_avx2_elements(ep_kernels *table) {
  table->add = add;
  table->mul = mul;
}

#else
typedef int ep_nothing; /* C has no empty files */
#endif
