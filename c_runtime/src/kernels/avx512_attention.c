/* Attention with AVX-512 VNNI: vpdpwssd takes pairs of int16. One factor is cut into pieces so small that exact sums fit int32. */
#include "avx512.h"

#ifdef EP_HAS_AVX512
#include "../constants.h"

/* ---- scores ----------------------------------------------------------------------------------------------------- */

enum { PART = 128 }; /* components of a query that stay in registers, four vectors */

INLINE __m512i key(const void *k, __mmask32 there, int bytes) {
  if (bytes == 2) return _mm512_maskz_loadu_epi16(there, k);
  return _mm512_cvtepi8_epi16(_mm256_maskz_loadu_epi8(there, k));
}

/* What a query's component is multiplied as. kv16: high * 256 + low, both signed bytes, so that 128 products with a key's stay
 * below 2^29; kv8: as it is, 512 products stay below 2^31. */
typedef struct query {
  __m512i low[4], high[4];
  __mmask32 there[4];
} query;

/* Eight keys; those from n on are the last one again and are not stored. */
INLINE void score8(int64_t *out, const query *q, const int8_t *k, size_t stride, size_t n, int vectors, int bytes, int more) {
  __m512i low[8], high[8];
  UNROLL for (size_t j = 0; j < 8; j++) {
    const int8_t *at = k + (j < n ? j : n - 1) * stride;
    low[j] = high[j] = _mm512_setzero_si512();
    UNROLL for (int i = 0; i < vectors; i++) {
      __m512i v = key(at + 32 * i * bytes, q->there[i], bytes);
      low[j] = _mm512_dpwssd_epi32(low[j], v, q->low[i]);
      if (bytes == 2) high[j] = _mm512_dpwssd_epi32(high[j], v, q->high[i]);
    }
  }
  __m512i both = fold(quarters(low), quarters(low + 4));
  both = fold(both, bytes == 2 ? fold(quarters(high), quarters(high + 4)) : both);
  __m512i sum = _mm512_cvtepi32_epi64(_mm512_castsi512_si256(both));
  if (bytes == 2) sum = _mm512_add_epi64(sum, _mm512_slli_epi64(_mm512_cvtepi32_epi64(_mm512_extracti64x4_epi64(both, 1)), 8));
  __mmask8 stored = (__mmask8)first(n);
  if (more) sum = _mm512_add_epi64(sum, _mm512_maskz_loadu_epi64(stored, out));
  _mm512_mask_storeu_epi64(out, stored, sum);
}

INLINE void score_part(int64_t *out, const query *q, const int8_t *k, size_t stride, size_t n, int vectors, int bytes, int more) {
  for (size_t j = 0; j < n; j += 8) score8(out + j, q, k + j * stride, stride, n - j < 8 ? n - j : 8, vectors, bytes, more);
}

INLINE void score(int64_t *out, const int16_t *q, const int8_t *k, size_t dim, size_t n, int bytes) {
  size_t stride = dim * (size_t)bytes;
  for (size_t from = 0; from < dim; from += PART) {
    size_t part = dim - from < PART ? dim - from : PART;
    const int8_t *at = k + from * (size_t)bytes;
    query x;
    UNROLL for (size_t i = 0; i < 4; i++) {
      x.there[i] = part > 32 * i ? (__mmask32)first(part - 32 * i) : 0;
      x.low[i] = _mm512_maskz_loadu_epi16(x.there[i], q + from + 32 * i);
      if (bytes == 1) continue;
      x.high[i] = high_byte(x.low[i]);
      x.low[i] = _mm512_srai_epi16(_mm512_slli_epi16(x.low[i], 8), 8);
    }
    if (part > 96) score_part(out, &x, at, stride, n, 4, bytes, from > 0);
    else if (part > 64) score_part(out, &x, at, stride, n, 3, bytes, from > 0);
    else if (part > 32) score_part(out, &x, at, stride, n, 2, bytes, from > 0);
    else score_part(out, &x, at, stride, n, 1, bytes, from > 0);
  }
}

AVX512 static void score_kv16(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t n) {
  score(out, q, (const int8_t *)k, (size_t)dim, (size_t)n, 2);
}

AVX512 static void score_kv8(int64_t *out, const int16_t *q, const int8_t *k, int32_t dim, int32_t n) {
  score(out, q, k, (size_t)dim, (size_t)n, 1);
}

/* ---- mixing ----------------------------------------------------------------------------------------------------- */

/* A weight is p2 * 2^20 + p1 * 2^10 + p0, each below 1025: products with 64 values stay below 2^31. */
enum { KEYS = 64, PIECES = 3 };

INLINE void cut(int16_t pieces[PIECES][KEYS], const int32_t *p, size_t n) {
  const __m512i ten = _mm512_set1_epi32(1023);
  for (size_t j = 0; j < n; j += 16) {
    __m512i v = _mm512_maskz_loadu_epi32((__mmask16)first(n - j < 16 ? n - j : 16), p + j);
    _mm256_storeu_si256((__m256i *)(pieces[0] + j), _mm512_cvtepi32_epi16(_mm512_and_si512(v, ten)));
    _mm256_storeu_si256((__m256i *)(pieces[1] + j), _mm512_cvtepi32_epi16(_mm512_and_si512(_mm512_srli_epi32(v, 10), ten)));
    _mm256_storeu_si256((__m256i *)(pieces[2] + j), _mm512_cvtepi32_epi16(_mm512_srli_epi32(v, 20)));
  }
}

INLINE void add8(int64_t *acc, const __m256i piece[PIECES], __mmask8 there) {
  __m512i sum = _mm512_slli_epi64(_mm512_cvtepi32_epi64(piece[2]), 10);
  sum = _mm512_slli_epi64(_mm512_add_epi64(sum, _mm512_cvtepi32_epi64(piece[1])), 10);
  sum = _mm512_add_epi64(sum, _mm512_cvtepi32_epi64(piece[0]));
  _mm512_mask_storeu_epi64(acc, there, _mm512_add_epi64(sum, _mm512_maskz_loadu_epi64(there, acc)));
}

/* 32 components, or those of the mask, of n <= KEYS values. */
INLINE void strip(int64_t *acc, int16_t pieces[PIECES][KEYS], const int8_t *v, size_t stride, size_t n, __mmask32 there, int bytes) {
  __m512i low[PIECES], high[PIECES];
  UNROLL for (int i = 0; i < PIECES; i++) low[i] = high[i] = _mm512_setzero_si512();
  for (size_t j = 0; j < n; j += 2) {
    const int8_t *at = v + j * stride;
    __m512i a = key(at, there, bytes), b = j + 1 < n ? key(at + stride, there, bytes) : _mm512_setzero_si512();
    __m512i lo = _mm512_unpacklo_epi16(a, b), hi = _mm512_unpackhi_epi16(a, b);
    UNROLL for (int i = 0; i < PIECES; i++) {
      __m512i p = pair_at(pieces[i] + j);
      low[i] = _mm512_dpwssd_epi32(low[i], lo, p);
      high[i] = _mm512_dpwssd_epi32(high[i], hi, p);
    }
  }
  const __m512i front = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
  const __m512i back = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  __m256i piece[4][PIECES];
  UNROLL for (int i = 0; i < PIECES; i++) {
    __m512i one = _mm512_permutex2var_epi32(low[i], front, high[i]), two = _mm512_permutex2var_epi32(low[i], back, high[i]);
    piece[0][i] = _mm512_castsi512_si256(one), piece[1][i] = _mm512_extracti64x4_epi64(one, 1);
    piece[2][i] = _mm512_castsi512_si256(two), piece[3][i] = _mm512_extracti64x4_epi64(two, 1);
  }
  UNROLL for (int i = 0; i < 4; i++) add8(acc + 8 * i, piece[i], (__mmask8)(there >> 8 * i));
}

INLINE void mix(int64_t *acc, const int32_t *p, const int8_t *v, size_t dim, size_t n, int bytes) {
  size_t stride = dim * (size_t)bytes;
  int16_t pieces[PIECES][KEYS];
  for (size_t j = 0; j < n; j += KEYS) {
    size_t keys = n - j < KEYS ? n - j : KEYS, i = 0;
    const int8_t *from = v + j * stride;
    cut(pieces, p + j, keys);
    for (; i + 32 <= dim; i += 32) strip(acc + i, pieces, from + i * (size_t)bytes, stride, keys, ~(__mmask32)0, bytes);
    if (i < dim) strip(acc + i, pieces, from + i * (size_t)bytes, stride, keys, (__mmask32)first(dim - i), bytes);
  }
}

AVX512 static void mix_kv16(int64_t *acc, const int32_t *p, const int16_t *v, int32_t dim, int32_t n) {
  mix(acc, p, (const int8_t *)v, (size_t)dim, (size_t)n, 2);
}

AVX512 static void mix_kv8(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n) {
  mix(acc, p, v, (size_t)dim, (size_t)n, 1);
}

/* ---- exponentials ----------------------------------------------------------------------------------------------- */

/* exp2_neg of eight distances of 32 bits without sign: below 2^38 before the last shift, so that those of 40 * 2^16 and more
 * become 0 by themselves. 256 * E[i] - (E[i] - E[i + 1]) * f is E[i] * (256 - f) + E[i + 1] * f. */
INLINE __m512i exponentials8(__m256i r, int32_t W) {
  __m512i both = neighbours(EP_EXP2, _mm256_and_si256(_mm256_srli_epi32(r, 8), _mm256_set1_epi32(255)));
  __m512i f = _mm512_cvtepi32_epi64(_mm256_and_si256(r, _mm256_set1_epi32(255)));
  __m512i e = _mm512_mul_epi32(both, _mm512_sub_epi64(_mm512_set1_epi64(256), f));
  e = _mm512_add_epi64(e, _mm512_mul_epi32(odd(both), f));
  __m512i n = _mm512_cvtepu32_epi64(_mm256_add_epi32(_mm256_srli_epi32(r, 16), _mm256_set1_epi32(37 - W)));
  return _mm512_srli_epi64(_mm512_add_epi64(_mm512_srlv_epi64(e, n), _mm512_set1_epi64(1)), 1);
}

/* Entries i of one of the tables of bytes; upper: those from 128 on. */
INLINE __m512i look_up(const uint8_t *table, __m512i i, __mmask64 upper) {
  __m512i low = _mm512_permutex2var_epi8(load(table), i, load(table + 64));
  return _mm512_mask_mov_epi8(low, upper, _mm512_permutex2var_epi8(load(table + 128), i, load(table + 192)));
}

/* Four vectors of dwords from their bytes, which stand in the order that packing dwords to bytes gives. */
INLINE void unpack(__m512i to[4], const __m512i bytes[4]) {
  UNROLL for (int k = 0; k < 4; k += 2) {
    __m512i low = k ? _mm512_unpackhi_epi8(bytes[0], bytes[1]) : _mm512_unpacklo_epi8(bytes[0], bytes[1]);
    __m512i high = k ? _mm512_unpackhi_epi8(bytes[2], bytes[3]) : _mm512_unpacklo_epi8(bytes[2], bytes[3]);
    to[k] = _mm512_unpacklo_epi16(low, high);
    to[k + 1] = _mm512_unpackhi_epi16(low, high);
  }
}

/* exp2_neg of 64 distances in 32 bits, W <= 29: with e = 256 * E[i] - (E[i] - E[i + 1]) * f, floor(e / 256) is
 * E[i] - ceil((E[i] - E[i + 1]) * f / 256), and what is shifted away after that is shifted away from e too. */
INLINE void exponentials64(__m512i r[4], int32_t W) {
  const __m512i byte = _mm512_set1_epi32(255);
  __m512i i[4], bytes[4], from[4], fall[4];
  UNROLL for (int k = 0; k < 4; k++) i[k] = _mm512_and_si512(_mm512_srli_epi32(r[k], 8), byte);
  __m512i at = _mm512_packus_epi16(_mm512_packus_epi32(i[0], i[1]), _mm512_packus_epi32(i[2], i[3]));
  __mmask64 upper = _mm512_movepi8_mask(at);
  UNROLL for (int c = 0; c < 4; c++) bytes[c] = look_up(EP_EXP2_BYTES[c], at, upper);
  unpack(from, bytes);
  UNROLL for (int c = 0; c < 3; c++) bytes[c] = look_up(EP_EXP2_BYTES[4 + c], at, upper);
  bytes[3] = _mm512_setzero_si512();
  unpack(fall, bytes);
  UNROLL for (int k = 0; k < 4; k++) {
    __m512i less = _mm512_mullo_epi32(fall[k], _mm512_and_si512(r[k], byte)); /* below 2^30 */
    __m512i e = _mm512_sub_epi32(from[k], _mm512_srli_epi32(_mm512_add_epi32(less, byte), 8));
    __m512i n = _mm512_add_epi32(_mm512_srli_epi32(r[k], 16), _mm512_set1_epi32(29 - W));
    r[k] = _mm512_srli_epi32(_mm512_add_epi32(_mm512_srlv_epi32(e, n), _mm512_set1_epi32(1)), 1);
  }
}

INLINE __mmask16 there16(int32_t n) { return n > 0 ? (__mmask16)first((size_t)n) : 0; }

enum { LINES = 8 }; /* that are asked for with 64 exponentials */

INLINE uint64_t exponentials_from(int32_t *p, int32_t n, int32_t W, int32_t most, const char *next) {
  const __m512i top = _mm512_set1_epi32(most);
  __m512i sum = _mm512_setzero_si512();
  for (int32_t j = 0; j < n; j += 64) {
    __m512i r[4];
    UNROLL for (int k = 0; k < 4; k++)
      r[k] = _mm512_sub_epi32(top, _mm512_mask_loadu_epi32(top, there16(n - j - 16 * k), p + j + 16 * k));
    UNROLL for (int i = 0; i < LINES && next; i++, next += 64) _mm_prefetch(next, _MM_HINT_T1);
    exponentials64(r, W);
    UNROLL for (int k = 0; k < 4; k++) {
      __mmask16 there = there16(n - j - 16 * k);
      _mm512_mask_storeu_epi32(p + j + 16 * k, there, r[k]);
      r[k] = _mm512_maskz_mov_epi32(there, r[k]);
    }
    __m512i four = _mm512_add_epi32(_mm512_add_epi32(r[0], r[1]), _mm512_add_epi32(r[2], r[3])); /* at most 2^31 */
    sum = _mm512_add_epi64(sum, _mm512_add_epi64(odd(four), _mm512_maskz_mov_epi32(0x5555, four)));
  }
  return (uint64_t)_mm512_reduce_add_epi64(sum);
}

INLINE uint64_t exponentials_asking(int32_t *p, int32_t n, int32_t W, const char *next) {
  if (n < 1) return 0;
  __m512i most = _mm512_set1_epi32(INT32_MIN), sum = _mm512_setzero_si512();
  for (int32_t j = 0; j < n; j += 16) {
    __mmask16 there = there16(n - j);
    most = _mm512_mask_max_epi32(most, there, most, _mm512_maskz_loadu_epi32(there, p + j));
  }
  const int32_t largest = _mm512_reduce_max_epi32(most);
  if (W <= 29) return exponentials_from(p, n, W, largest, next);
  const __m256i top = _mm256_set1_epi32(largest);
  for (int32_t j = 0; j < n; j += 8) {
    __mmask8 there = (__mmask8)first((size_t)(n - j));
    __m512i e = exponentials8(_mm256_sub_epi32(top, _mm256_mask_loadu_epi32(top, there, p + j)), W);
    sum = _mm512_mask_add_epi64(sum, there, sum, e);
    _mm256_mask_storeu_epi32(p + j, there, _mm512_cvtepi64_epi32(e));
  }
  return (uint64_t)_mm512_reduce_add_epi64(sum);
}

AVX512 static uint64_t exponentials(int32_t *p, int32_t n, int32_t W) { return exponentials_asking(p, n, W, NULL); }

AVX512 static uint64_t weights(int32_t *p, int32_t n, int32_t W, const void *values) {
  return exponentials_asking(p, n, W, (const char *)values);
}

void ep_avx512_attention(ep_kernels *table) {
  table->score_kv16 = EP_KERNEL(EP_FEATURE_KV16, score_kv16);
  table->score_kv8 = EP_KERNEL(EP_FEATURE_KV8, score_kv8);
  table->mix_kv16 = EP_KERNEL(EP_FEATURE_KV16, mix_kv16);
  table->mix_kv8 = EP_KERNEL(EP_FEATURE_KV8, mix_kv8);
  table->exponentials = exponentials;
  table->weights = weights;
}

#endif
