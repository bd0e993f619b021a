/* x86-64 with AVX2: what its other files leave. */
#include "avx2.h"
#include "elements.h"

#ifdef EP_HAS_AVX2
#include "../constants.h"
#include "avx2_linear.h"

INLINE __m128i low_dwords(__m256i v) { /* of each 64 bits */
  return _mm256_castsi256_si128(_mm256_permutevar8x32_epi32(v, _mm256_set_epi32(6, 4, 2, 0, 6, 4, 2, 0)));
}

INLINE int32_t add_across32(__m256i v) {
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  s = _mm_hadd_epi32(s, s);
  return _mm_cvtsi128_si32(_mm_hadd_epi32(s, s));
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

/* Pairs of products fit int32 (2 * 32639^2 < 2^31), sums of them do not: their halves are added up apart, the low one
 * without a sign. */
AVX2 static int64_t dot16(const int16_t *q, const int16_t *k, int32_t dim) {
  const __m256i low_half = _mm256_set1_epi32(0xffff);
  __m256i low = _mm256_setzero_si256(), high = low;
  int64_t sum = 0;
  for (; dim >= 8; dim -= 16, q += 16, k += 16) {
    __m256i v = dim >= 16 ? _mm256_madd_epi16(load(q), load(k)) : _mm256_zextsi128_si256(_mm_madd_epi16(load128(q), load128(k)));
    low = _mm256_add_epi32(low, _mm256_and_si256(v, low_half));
    high = _mm256_add_epi32(high, _mm256_srai_epi32(v, 16));
    if (dim < 16) {
      q += 8, k += 8, dim -= 8;
      break;
    }
  }
  for (int32_t i = 0; i < dim; i++) sum += (int64_t)(q[i] * k[i]);
  __m256i pairs = _mm256_hadd_epi32(low, high); /* 32 sums of 16 bits in 8 dwords: far below 2^31 */
  __m128i fours = _mm_add_epi32(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
  fours = _mm_hadd_epi32(fours, fours);
  return sum + _mm_cvtsi128_si32(fours) + (int64_t)_mm_extract_epi32(fours, 1) * 65536;
}

AVX2 static void score_kv16(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, k += dim) out[j] = dot16(q, k, dim);
}

/* 512 products of int8 and |q| <= 32639 stay below 2^31. */
AVX2 static int32_t dot8(const int16_t *q, const int8_t *k, int32_t dim) {
  __m256i acc = _mm256_setzero_si256();
  int32_t sum = 0, i = 0;
  for (; i + 16 <= dim; i += 16) acc = _mm256_add_epi32(acc, _mm256_madd_epi16(load(q + i), widen(k + i)));
  if (i + 8 <= dim) {
    __m128i eight = _mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(k + i)));
    acc = _mm256_add_epi32(acc, _mm256_zextsi128_si256(_mm_madd_epi16(load128(q + i), eight)));
    i += 8;
  }
  for (; i < dim; i++) sum += q[i] * k[i];
  return sum + add_across32(acc);
}

AVX2 static void score_kv8(int64_t *out, const int16_t *q, const int8_t *k, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, k += dim) out[j] = dot8(q, k, dim);
}

INLINE __m256i four(const void *v, int bytes) {
  int32_t bits;
  if (bytes == 2) return _mm256_cvtepi16_epi64(_mm_loadl_epi64((const __m128i *)v));
  __builtin_memcpy(&bits, v, sizeof bits);
  return _mm256_cvtepi8_epi64(_mm_cvtsi32_si128(bits));
}

/* acc[0 ... 4 * vectors) of mix; v elements of `bytes` bytes. */
INLINE void strip(int64_t *acc, const int32_t *p, const int8_t *v, size_t stride, int32_t n, int vectors, int bytes) {
  __m256i s[8];
  UNROLL for (int i = 0; i < vectors; i++) s[i] = load(acc + 4 * i);
  for (int32_t j = 0; j < n; j++, v += stride) {
    __m256i weight = _mm256_set1_epi32(p[j]);
    UNROLL for (int i = 0; i < vectors; i++) s[i] = _mm256_add_epi64(s[i], _mm256_mul_epi32(weight, four(v + 4 * i * bytes, bytes)));
  }
  UNROLL for (int i = 0; i < vectors; i++) store(acc + 4 * i, s[i]);
}

INLINE void mix(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n, int bytes) {
  size_t stride = (size_t)dim * (size_t)bytes, size = (size_t)bytes;
  int32_t i = 0;
  for (; i + 32 <= dim; i += 32) strip(acc + i, p, v + (size_t)i * size, stride, n, 8, bytes);
  for (; i + 8 <= dim; i += 8) strip(acc + i, p, v + (size_t)i * size, stride, n, 2, bytes);
  for (; i + 4 <= dim; i += 4) strip(acc + i, p, v + (size_t)i * size, stride, n, 1, bytes);
  for (int32_t j = 0; j < n && i < dim; j++, v += stride)
    for (int32_t k = i; k < dim; k++) acc[k] += (int64_t)p[j] * (bytes == 1 ? v[k] : ((const int16_t *)(const void *)v)[k]);
}

AVX2 static void mix_kv16(int64_t *acc, const int32_t *p, const int16_t *v, int32_t dim, int32_t n) {
  mix(acc, p, (const int8_t *)v, dim, n, 2);
}

AVX2 static void mix_kv8(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n) { mix(acc, p, v, dim, n, 1); }

INLINE int32_t highest(const int32_t *p, int32_t n) {
  int32_t most = p[0], each[8], j = 0;
  __m256i v = _mm256_set1_epi32(most);
  for (; j + 8 <= n; j += 8) v = _mm256_max_epi32(v, load(p + j));
  store(each, v);
  for (int32_t k = 0; k < 8; k++)
    if (each[k] > most) most = each[k];
  for (; j < n; j++)
    if (p[j] > most) most = p[j];
  return most;
}

/* exp2_neg of four distances of 32 bits without sign: below 2^38 before the last shift, so that those of 40 * 2^16 and more
 * become 0 by themselves. */
INLINE __m256i exponentials4(__m128i r, int32_t W) {
  __m128i i = _mm_and_si128(_mm_srli_epi32(r, 8), _mm_set1_epi32(255)), f = _mm_and_si128(r, _mm_set1_epi32(255));
  __m128i from = _mm_i32gather_epi32(EP_EXP2, i, 4), to = _mm_i32gather_epi32(EP_EXP2 + 1, i, 4);
  __m256i fall = _mm256_cvtepi32_epi64(_mm_mullo_epi32(_mm_sub_epi32(from, to), f)); /* below 2^30 */
  __m256i e = _mm256_sub_epi64(_mm256_slli_epi64(_mm256_cvtepi32_epi64(from), 8), fall);
  __m256i n = _mm256_cvtepu32_epi64(_mm_add_epi32(_mm_srli_epi32(r, 16), _mm_set1_epi32(37 - W)));
  return _mm256_srli_epi64(_mm256_add_epi64(_mm256_srlv_epi64(e, n), _mm256_set1_epi64x(1)), 1);
}

AVX2 static uint64_t exponentials(int32_t *p, int32_t n, int32_t W) {
  if (n < 1) return 0;
  int32_t most = highest(p, n), j = 0;
  __m256i sum = _mm256_setzero_si256();
  uint64_t rest = 0;
  for (; j + 4 <= n; j += 4) {
    __m256i e = exponentials4(_mm_sub_epi32(_mm_set1_epi32(most), load128(p + j)), W);
    sum = _mm256_add_epi64(sum, e);
    _mm_storeu_si128((__m128i *)(p + j), low_dwords(e));
  }
  for (; j < n; j++) {
    p[j] = ep_exp2_neg((int64_t)most - p[j], W);
    rest += (uint64_t)p[j];
  }
  return (uint64_t)add_across64(sum) + rest;
}

/* ---- rounding --------------------------------------------------------------------------------------------------- */

AVX2 static int64_t largest(const int32_t *x, int32_t n) {
  __m256i most = _mm256_setzero_si256();
  uint32_t each[8], a = 0;
  int32_t i = 0;
  for (; i + 8 <= n; i += 8) most = _mm256_max_epu32(most, _mm256_abs_epi32(load(x + i))); /* |-2^31| is 2^31 without sign */
  store(each, most);
  for (int32_t k = 0; k < 8; k++)
    if (each[k] > a) a = each[k];
  for (; i < n; i++)
    if (ep_abs(x[i]) > a) a = (uint32_t)ep_abs(x[i]);
  return a;
}

INLINE __m256i shift_round(__m256i x, __m128i less_one) {
  __m256i v = _mm256_sra_epi32(x, less_one);
  return _mm256_add_epi32(_mm256_srai_epi32(v, 1), _mm256_and_si256(v, _mm256_set1_epi32(1)));
}

AVX2 static int32_t narrow16(int16_t *q, const int32_t *x, int32_t n) {
  int32_t s = ep_narrow16_shift(largest(x, n)), i = 0;
  __m128i less_one = _mm_cvtsi32_si128(s > 0 ? s - 1 : 0);
  for (; i + 16 <= n; i += 16) {
    __m256i a = load(x + i), b = load(x + i + 8);
    if (s > 0) a = shift_round(a, less_one), b = shift_round(b, less_one);
    store(q + i, _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
  }
  for (; i < n; i++) q[i] = (int16_t)ep_rshift_round(x[i], s);
  return s;
}

/* Four of requant(a, m, n), exactly, where nothing is near an edge: n from 33 to 94, m (even dwords) above -2^31 and results of
 * 32 bits; |a| <= 2^62. Returns 0 elsewhere. less: n - 33 in 64 bits. With hi = floor(a * m / 2^32), |hi| <= 2^61, the result is
 * floor((floor(hi / 2^(n-33)) + 1) / 2); AVX2 shifts 64 bits without sign only, so 2^62 is added before and what becomes of it is
 * taken away after. */
INLINE int requant4(int32_t *y, __m256i a, __m256i m, __m256i less) {
  __m256i edge = _mm256_cmpgt_epi64(less, _mm256_set1_epi64x(61));
  edge = _mm256_or_si256(edge, _mm256_cmpeq_epi32(m, _mm256_set1_epi32(INT32_MIN)));
  __m256i negative = _mm256_cmpgt_epi64(_mm256_setzero_si256(), _mm256_slli_epi64(m, 32));
  a = _mm256_sub_epi64(_mm256_xor_si256(a, negative), negative);
  m = _mm256_abs_epi32(m);
  __m256i hi = _mm256_add_epi64(_mm256_mul_epi32(odd(a), m), odd(_mm256_mul_epu32(a, m)));
  __m256i v = _mm256_srlv_epi64(_mm256_add_epi64(hi, _mm256_set1_epi64x((int64_t)1 << 62)), less);
  v = _mm256_srli_epi64(_mm256_add_epi64(v, _mm256_set1_epi64x(1)), 1);
  v = _mm256_sub_epi64(v, _mm256_srlv_epi64(_mm256_set1_epi64x((int64_t)1 << 61), less));
  edge = _mm256_or_si256(edge, odd(_mm256_add_epi64(v, _mm256_set1_epi64x((int64_t)1 << 31))));
  if (!_mm256_testz_si256(edge, edge)) return 0;
  _mm_storeu_si128((__m128i *)y, low_dwords(v));
  return 1;
}

/* Dwords without sign: a negative n - 33 is large and so an edge. */
INLINE __m256i less33(int32_t n, __m128i minus) {
  return _mm256_cvtepu32_epi64(_mm_sub_epi32(_mm_set1_epi32(n - 33), minus));
}

AVX2 static void scale_kv16(int32_t *y, const int64_t *dot, const uint8_t *less, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  const __m256i factor = _mm256_set1_epi32(m);
  for (int32_t j = 0; j < n; j += 4) {
    int32_t bytes;
    if (j + 4 <= n) {
      __builtin_memcpy(&bytes, less + j, sizeof bytes);
      if (requant4(y + j, load(dot + j), factor, less33(shift, _mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes))))) continue;
    }
    for (int32_t k = j; k < j + 4 && k < n; k++) y[k] = ep_requant(dot[k], m, shift - less[k], count);
  }
}

AVX2 static void scale_kv8(int32_t *y, const int64_t *dot, const int32_t *a, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  const __m256i factor = _mm256_set1_epi32(m), less = less33(shift, _mm_setzero_si128());
  for (int32_t j = 0; j < n; j += 4) {
    if (j + 4 <= n && requant4(y + j, _mm256_mul_epi32(load(dot + j), _mm256_cvtepi32_epi64(load128(a + j))), factor, less)) continue;
    for (int32_t k = j; k < j + 4 && k < n; k++) y[k] = ep_requant(dot[k] * a[k], m, shift, count);
  }
}

/* floor(p / 2^d + 1/2) = (floor(2p / 2^d) + 1) / 2, for d = 0 too. */
AVX2 static void align_kv16(int32_t *p, const uint8_t *s, int32_t most, int32_t n) {
  int32_t j = 0;
  for (; j + 8 <= n; j += 8) {
    __m256i d = _mm256_sub_epi32(_mm256_set1_epi32(most), _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(s + j))));
    __m256i v = _mm256_srlv_epi32(_mm256_slli_epi32(load(p + j), 1), d);
    store(p + j, _mm256_srli_epi32(_mm256_add_epi32(v, _mm256_set1_epi32(1)), 1));
  }
  for (; j < n; j++) p[j] = (int32_t)ep_rshift_round(p[j], most - s[j]);
}

AVX2 static void align_kv8(int32_t *p, const int32_t *a, int32_t m, int32_t shift, int32_t n) {
  const __m256i factor = _mm256_set1_epi32(m), less = less33(shift, _mm_setzero_si128());
  uint64_t none = 0;
  for (int32_t j = 0; j < n; j += 4) {
    if (j + 4 <= n) {
      __m256i scaled = _mm256_mul_epi32(_mm256_cvtepi32_epi64(load128(p + j)), _mm256_cvtepi32_epi64(load128(a + j)));
      if (requant4(p + j, scaled, factor, less)) continue;
    }
    for (int32_t k = j; k < j + 4 && k < n; k++) p[k] = ep_requant((int64_t)p[k] * a[k], m, shift, &none);
  }
}

AVX2 static void requant(int32_t *y, const int64_t *acc, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  const __m256i factor = _mm256_set1_epi32(m), less = less33(shift, _mm_setzero_si128());
  for (int32_t i = 0; i < n; i += 4) {
    if (i + 4 <= n && requant4(y + i, load(acc + i), factor, less)) continue;
    for (int32_t k = i; k < i + 4 && k < n; k++) y[k] = ep_requant(acc[k], m, shift, count);
  }
}

INLINE __m256i four32(const int32_t *x) { return _mm256_cvtepi32_epi64(load128(x)); }

AVX2 static void turn_pairs(int32_t *a, int32_t *b, const int16_t *c, const int16_t *s, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  const __m256i factor = _mm256_set1_epi32(m), less = less33(shift, _mm_setzero_si128());
  for (int32_t j = 0; j < n; j += 4) {
    if (j + 4 <= n) {
      int32_t first[4];
      __m256i x = four32(a + j), y = four32(b + j), cosine = four(c + j, 2), sine = four(s + j, 2);
      __m256i other = _mm256_add_epi64(_mm256_mul_epi32(x, sine), _mm256_mul_epi32(y, cosine));
      if (requant4(first, _mm256_sub_epi64(_mm256_mul_epi32(x, cosine), _mm256_mul_epi32(y, sine)), factor, less) &&
          requant4(b + j, other, factor, less)) {
        _mm_storeu_si128((__m128i *)(a + j), load128(first));
        continue;
      }
    }
    for (int32_t k = j; k < j + 4 && k < n; k++) ep_turn(a + k, b + k, c[k], s[k], m, shift, count);
  }
}

AVX2 static void requant_row(int32_t *y, const int64_t *acc, const int32_t *scales, int32_t shift, int32_t n, uint64_t *count) {
  int32_t r = 0;
  for (; r + 4 <= n; r += 4) {
    __m256i m = load(scales + 2 * r); /* m, h, ... */
    if (requant4(y + r, load(acc + r), m, odd(_mm256_add_epi32(m, _mm256_set1_epi32(shift - 33))))) continue;
    for (int32_t k = r; k < r + 4; k++) y[k] = ep_requant(acc[k], scales[2 * k], scales[2 * k + 1] + shift, count);
  }
  for (; r < n; r++) y[r] = ep_requant(acc[r], scales[2 * r], scales[2 * r + 1] + shift, count);
}

AVX2 static void requant_rows(int32_t *y, size_t stride, const int64_t *acc, const int32_t *scales, int32_t shift, const int32_t *less,
                         int32_t rows, int32_t tokens, uint64_t *count) {
  for (int32_t t = 0; t < tokens; t++, y += stride, acc += rows) requant_row(y, acc, scales, shift - less[t], rows, count);
}

void ep_avx2_kernels(ep_kernels *table, uint32_t cpu) {
  if (!(cpu & EP_CPU_AVX2)) return;
  table->name = "avx2";
  table->narrow16 = narrow16;
  put_linear(table);
  table->score_kv16 = EP_KERNEL(EP_FEATURE_KV16, score_kv16);
  table->score_kv8 = EP_KERNEL(EP_FEATURE_KV8, score_kv8);
  table->mix_kv16 = EP_KERNEL(EP_FEATURE_KV16, mix_kv16);
  table->mix_kv8 = EP_KERNEL(EP_FEATURE_KV8, mix_kv8);
  table->scale_kv16 = EP_KERNEL(EP_FEATURE_KV16, scale_kv16);
  table->scale_kv8 = EP_KERNEL(EP_FEATURE_KV8, scale_kv8);
  table->exponentials = exponentials;
  table->align_kv16 = EP_KERNEL(EP_FEATURE_KV16, align_kv16);
  table->align_kv8 = EP_KERNEL(EP_FEATURE_KV8, align_kv8);
  table->requant = requant;
  table->requant_rows = requant_rows;
  table->turn = EP_KERNEL_ANY(EP_FEATURES_ROPE, turn_pairs);
  ep_avx2_elements(table);
}

#else

void ep_avx2_kernels(ep_kernels *table, uint32_t cpu) {
  (void)table;
  (void)cpu;
}

#endif
