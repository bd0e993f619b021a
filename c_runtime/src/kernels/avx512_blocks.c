/* Attention with AVX-512 VNNI on a KV cache in blocks (kernels.h): what is loaded serves all query heads of its KV head, a vector
 * holds one thing of sixteen keys or components, and nothing has to be added across a vector. */
#include "avx512.h"

#ifdef EP_HAS_AVX512

enum { AHEAD = 8192 }; /* bytes that are asked for before they are needed */

INLINE void ask(const void *p) { _mm_prefetch((const char *)p + AHEAD, _MM_HINT_T1); }
INLINE __m512i widened(__m512i v, int half) {
  return _mm512_cvtepi32_epi64(half ? _mm512_extracti64x4_epi64(v, 1) : _mm512_castsi512_si256(v));
}

/* ---- scores, kv16 ------------------------------------------------------------------------------------------------ */

/* vpdpwssd gives a sum of 128 products modulo 2^32. The high bytes of both factors give it with an error below 2^30 + 2^15: with
 * q = 256 * qh + ql, k = 256 * kh + kl, |qh|, |ql| <= 128, 0 <= kl <= 255, it is q * k = 2^16 * (qh * (kh + 128) - 128 * qh + qh / 2)
 * + 256 * qh * (kl - 128) + ql * k, and the last two are below 2^22 each. */
enum { PART = 128, QUERIES = EP_GROUP };

typedef struct queries {
  int16_t pairs[QUERIES][PART];
  int8_t high[QUERIES][PART]; /* of the components 4c, 4c + 2, 4c + 1, 4c + 3 */
  int32_t start[QUERIES];     /* of the sums of high bytes */
} queries;

INLINE void take_query(queries *to, size_t h, const int16_t *q, size_t n) {
  const __m512i low_bytes = _mm512_set1_epi16(255);
  __m512i sums = _mm512_setzero_si512();
  for (size_t i = 0; i < n; i += 32) {
    __m512i x = _mm512_maskz_loadu_epi16((__mmask32)first(n - i < 32 ? n - i : 32), q + i), high = high_byte(x);
    store(to->pairs[h] + i, x);
    sums = _mm512_dpwssd_epi32(sums, high, _mm512_set1_epi16(1));
    high = _mm512_and_si512(high, low_bytes);
    high = _mm512_or_si512(high, _mm512_slli_epi16(odd(high), 8));
    _mm256_storeu_si256((__m256i *)(to->high[h] + i), _mm512_cvtepi64_epi32(high));
  }
  int32_t sum = _mm512_reduce_add_epi32(sums);
  to->start[h] = (sum >> 1) - 128 * sum;
}

/* What becomes of sums: dots[h * EP_GROUP_KEYS + j], added to what is there where `more`, or sigma[h * stride + j] with m and a shift of
 * each head, and of a key what is less or its factor. */
typedef struct result {
  int64_t *dots;
  int32_t *sigma;
  size_t stride;
  const uint8_t *less;
  const int32_t *factors;
  int32_t m, highest, shifts[QUERIES]; /* highest: of the shifts */
} result;

INLINE result at_block(const result *to, size_t b) {
  result next = *to;
  if (to->dots) next.dots += 16 * b;
  if (to->sigma) next.sigma += 16 * b;
  if (to->less) next.less += 16 * b;
  if (to->factors) next.factors += 16 * b;
  return next;
}

/* All `blocks` blocks, some at a time as long as that many are left, and the components PART by PART, by the function `dots` for the format
 * of its name; four: blocks at a time for four heads. */
#define ALL_DOTS(bits, type, queries, take_query, four)                                                                                     \
  INLINE void part##bits(const result *out, const queries *q, const type *k, size_t stride, size_t n, size_t blocks, int heads,             \
                         int scaled, int more) {                                                                                            \
    const int most = heads == 1 ? 4 : heads < 4 ? 2 : four;                                                                                 \
    for (size_t b = 0; b < blocks;) {                                                                                                       \
      result here = at_block(out, b);                                                                                                       \
      if (b + (size_t)most <= blocks) {                                                                                                     \
        dots##bits(&here, q, k + b * stride, stride, n, heads, most, scaled, more);                                                         \
        b += (size_t)most;                                                                                                                  \
      } else {                                                                                                                              \
        dots##bits(&here, q, k + b * stride, stride, n, heads, 1, scaled, more);                                                            \
        b++;                                                                                                                                \
      }                                                                                                                                     \
    }                                                                                                                                       \
  }                                                                                                                                         \
                                                                                                                                            \
  INLINE void all##bits(const result *out, const int16_t *q, const type *k, int32_t dim, int32_t heads, size_t blocks, int scaled) {        \
    queries x;                                                                                                                              \
    size_t width = (size_t)dim, padded = (width + 3) & ~(size_t)3;                                                                          \
    for (size_t from = 0; from < width; from += PART) {                                                                                     \
      size_t n = padded - from < PART ? padded - from : PART;                                                                               \
      for (size_t h = 0; h < (size_t)heads; h++) take_query(&x, h, q + h * width + from, width - from < n ? width - from : n);              \
      switch (heads) {                                                                                                                      \
        case 1: part##bits(out, &x, k + 16 * from, 16 * padded, n, blocks, 1, scaled, from > 0); break;                                     \
        case 2: part##bits(out, &x, k + 16 * from, 16 * padded, n, blocks, 2, scaled, from > 0); break;                                     \
        case 3: part##bits(out, &x, k + 16 * from, 16 * padded, n, blocks, 3, scaled, from > 0); break;                                     \
        default: part##bits(out, &x, k + 16 * from, 16 * padded, n, blocks, 4, scaled, from > 0);                                           \
      }                                                                                                                                     \
    }                                                                                                                                       \
  }

INLINE __m512i even(__m512i v) { return _mm512_srai_epi64(_mm512_slli_epi64(v, 32), 32); } /* dwords widened to 64 bits; of odd ones: */
INLINE __m512i uneven(__m512i v) { return _mm512_srai_epi64(v, 32); }

/* requant(dot, m, n) for |dot| <= 2^50, 32 <= n <= 52, m >= 0 and results of 32 bits; factor: m * 2^(53 - n), below 2^52. With 52 bits of a
 * product above 52 others, floor((dot + 2^51) * factor / 2^52) is floor(dot * m / 2^(n - 1)) + factor / 2. */
INLINE __m512i requant52(__m512i dot, __m512i factor) {
  __m512i less = _mm512_sub_epi64(_mm512_set1_epi64(1), _mm512_srli_epi64(factor, 1));
  return _mm512_srai_epi64(_mm512_madd52hi_epu64(less, _mm512_add_epi64(dot, _mm512_set1_epi64((int64_t)1 << 51)), factor), 1);
}

/* m * 2^(53 - n) of sixteen keys for the head with the highest shift, even and odd ones; for others it is that times a power of two. */
INLINE void factors16(__m512i to[2], const result *out, const uint8_t *less) {
  const __m512i m = _mm512_set1_epi64(out->m), dwords = _mm512_set1_epi64((int64_t)0xffffffff);
  __m512i by = _mm512_add_epi32(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)less)), _mm512_set1_epi32(53 - out->highest));
  to[0] = _mm512_sllv_epi64(m, _mm512_and_si512(by, dwords));
  to[1] = _mm512_sllv_epi64(m, odd(by));
}

INLINE __m512i sigma16(__m512i high, __m512i rest, const __m512i factors[2], int32_t more) {
  __m128i by = _mm_cvtsi32_si128(more);
  __m512i low = _mm512_add_epi64(_mm512_srai_epi64(_mm512_slli_epi64(high, 32), 16), even(rest));
  __m512i top = _mm512_add_epi64(_mm512_slli_epi64(uneven(high), 16), uneven(rest));
  return joined(requant52(low, _mm512_sll_epi64(factors[0], by)), requant52(top, _mm512_sll_epi64(factors[1], by)));
}

/* `heads` queries against the keys of `blocks` blocks. */
INLINE void dots16(const result *out, const queries *q, const int16_t *k, size_t stride, size_t n, int heads, int blocks, int scaled, int more) {
  const __m512i odd_bytes = _mm512_set1_epi16((short)0xff00), sign = _mm512_set1_epi8((char)0x80);
  __m512i all[4][4], high[4][4];
  UNROLL for (int h = 0; h < heads; h++) {
    UNROLL for (int b = 0; b < blocks; b++) {
      all[h][b] = _mm512_setzero_si512();
      high[h][b] = _mm512_set1_epi32(q->start[h]);
    }
  }
  const int8_t *next = (const int8_t *)k;
  for (size_t i = 0; i < n; i += 4, k += 64) {
    __m512i x[4], y[4], bytes[4];
    UNROLL for (int b = 0; b < 2 * blocks; b++) ask(next + 64 * b);
    next += 128 * blocks;
    UNROLL for (int b = 0; b < blocks; b++) {
      const int16_t *at = k + (size_t)b * stride;
      x[b] = load(at), y[b] = load(at + 32);
      bytes[b] = _mm512_ternarylogic_epi32(odd_bytes, y[b], _mm512_srli_epi16(x[b], 8), 0xca); /* y where odd, else x */
      bytes[b] = _mm512_xor_si512(bytes[b], sign);
    }
    UNROLL for (int h = 0; h < heads; h++) {
      __m512i one = pair_at(q->pairs[h] + i), two = pair_at(q->pairs[h] + i + 2), top = four_at(q->high[h] + i);
      UNROLL for (int b = 0; b < blocks; b++) {
        all[h][b] = _mm512_dpwssd_epi32(all[h][b], x[b], one);
        all[h][b] = _mm512_dpwssd_epi32(all[h][b], y[b], two);
        high[h][b] = _mm512_dpbusd_epi32(high[h][b], bytes[b], top);
        KEEP_VECTOR(all[h][b]);
        KEEP_VECTOR(high[h][b]);
      }
    }
  }
  __m512i factors[4][2];
  UNROLL for (int b = 0; b < blocks && scaled; b++) factors16(factors[b], out, out->less + 16 * b);
  UNROLL for (int h = 0; h < heads; h++) {
    UNROLL for (int b = 0; b < blocks; b++) {
      __m512i rest = _mm512_sub_epi32(all[h][b], _mm512_slli_epi32(high[h][b], 16));
      if (scaled) {
        store(out->sigma + (size_t)h * out->stride + 16 * b, sigma16(high[h][b], rest, factors[b], out->highest - out->shifts[h]));
        continue;
      }
      UNROLL for (int half = 0; half < 2; half++) {
        int64_t *to = out->dots + h * EP_GROUP_KEYS + 16 * b + 8 * half;
        __m512i sum = _mm512_add_epi64(_mm512_slli_epi64(widened(high[h][b], half), 16), widened(rest, half));
        store(to, more ? _mm512_add_epi64(sum, load(to)) : sum);
      }
    }
  }
}

ALL_DOTS(16, int16_t, queries, take_query, 1)

AVX512 static void scores_kv16(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t heads, int32_t blocks) {
  const result dots = {.dots = out};
  all16(&dots, q, k, dim, heads, (size_t)blocks, 0);
}

AVX512 static int32_t sigmas_kv16(int32_t *y, size_t stride, const int16_t *q, const int16_t *k, const uint8_t *less, int32_t m,
                                  const int32_t *shifts, int32_t dim, int32_t heads, int32_t n) {
  result to = {.sigma = y, .stride = stride, .less = less, .m = m};
  int32_t lowest = INT32_MAX, highest = INT32_MIN;
  for (int32_t h = 0; h < heads; h++) {
    to.shifts[h] = shifts[h];
    if (shifts[h] < lowest) lowest = shifts[h];
    if (shifts[h] > highest) highest = shifts[h];
  }
  to.highest = highest;
  __m512i most = _mm512_setzero_si512(), least = _mm512_set1_epi8(-1);
  for (int32_t j = 0; j < n; j += 64) {
    __mmask64 there = first((size_t)(n - j));
    most = _mm512_mask_max_epu8(most, there, most, _mm512_maskz_loadu_epi8(there, less + j));
    least = _mm512_mask_min_epu8(least, there, least, _mm512_maskz_loadu_epi8(there, less + j));
  }
  /* |q . k| < 2^(30 + bits of dim), so that times m < 2^31 and over 2^n it is at most 2^30 */
  int32_t care = lowest - 31 - ep_bitlen((uint64_t)(dim - 1)), wide = highest - 52;
  if (dim > PART || m < 0 || care < 0 || wide > 255) return 0;
  if (_mm512_cmpgt_epu8_mask(most, _mm512_set1_epi8((char)(care < 255 ? care : 255)))) return 0;
  if (wide > 0 && _mm512_cmplt_epu8_mask(least, _mm512_set1_epi8((char)wide))) return 0;
  all16(&to, q, k, dim, heads, (size_t)(n + 15) / 16, 1);
  return 1;
}

/* ---- scores, kv8 ------------------------------------------------------------------------------------------------- */

/* q = 256 * high + low, both signed bytes; k + 128 has no sign. All sums fit int32, and so do the products' (kernels.h). */
typedef struct queries8 {
  int8_t low[QUERIES][PART], high[QUERIES][PART];
  int32_t start[QUERIES];
} queries8;

INLINE void take_query8(queries8 *to, size_t h, const int16_t *q, size_t n) {
  __m512i sums = _mm512_setzero_si512();
  for (size_t i = 0; i < n; i += 32) {
    __m512i x = _mm512_maskz_loadu_epi16((__mmask32)first(n - i < 32 ? n - i : 32), q + i);
    sums = _mm512_dpwssd_epi32(sums, x, _mm512_set1_epi16(1));
    _mm256_storeu_si256((__m256i *)(to->low[h] + i), _mm512_cvtepi16_epi8(x));
    _mm256_storeu_si256((__m256i *)(to->high[h] + i), _mm512_cvtepi16_epi8(high_byte(x)));
  }
  to->start[h] = -128 * _mm512_reduce_add_epi32(sums);
}

INLINE void dots8(const result *out, const queries8 *q, const int8_t *k, size_t stride, size_t n, int heads, int blocks, int scaled, int more) {
  const __m512i sign = _mm512_set1_epi8((char)0x80);
  __m512i low[4][4], high[4][4];
  UNROLL for (int h = 0; h < heads; h++) {
    UNROLL for (int b = 0; b < blocks; b++) {
      low[h][b] = _mm512_set1_epi32(q->start[h]);
      high[h][b] = _mm512_setzero_si512();
    }
  }
  const int8_t *next = k;
  for (size_t i = 0; i < n; i += 4, k += 64) {
    __m512i x[4];
    UNROLL for (int b = 0; b < blocks; b++) ask(next + 64 * b);
    next += 64 * blocks;
    UNROLL for (int b = 0; b < blocks; b++) {
      const int8_t *at = k + (size_t)b * stride;
      x[b] = _mm512_xor_si512(load(at), sign);
    }
    UNROLL for (int h = 0; h < heads; h++) {
      __m512i one = four_at(q->low[h] + i), two = four_at(q->high[h] + i);
      UNROLL for (int b = 0; b < blocks; b++) {
        low[h][b] = _mm512_dpbusd_epi32(low[h][b], x[b], one);
        high[h][b] = _mm512_dpbusd_epi32(high[h][b], x[b], two);
        KEEP_VECTOR(low[h][b]);
        KEEP_VECTOR(high[h][b]);
      }
    }
  }
  UNROLL for (int h = 0; h < heads; h++) {
    UNROLL for (int b = 0; b < blocks; b++) {
      __m512i sum = _mm512_add_epi32(low[h][b], _mm512_slli_epi32(high[h][b], 8));
      if (scaled) {
        store(out->sigma + (size_t)h * out->stride + 16 * b, requant_products16(sum, load(out->factors + 16 * b), out->m, out->shifts[h]));
        continue;
      }
      UNROLL for (int half = 0; half < 2; half++) {
        int64_t *to = out->dots + h * EP_GROUP_KEYS + 16 * b + 8 * half;
        store(to, more ? _mm512_add_epi64(widened(sum, half), load(to)) : widened(sum, half));
      }
    }
  }
}

ALL_DOTS(8, int8_t, queries8, take_query8, 2)

AVX512 static void scores_kv8(int64_t *out, const int16_t *q, const int8_t *k, int32_t dim, int32_t heads, int32_t blocks) {
  const result dots = {.dots = out};
  all8(&dots, q, k, dim, heads, (size_t)blocks, 0);
}

AVX512 static int32_t sigmas_kv8(int32_t *y, size_t stride, const int16_t *q, const int8_t *k, const int32_t *a, int32_t m,
                                 const int32_t *shifts, int32_t dim, int32_t heads, int32_t n) {
  result to = {.sigma = y, .stride = stride, .factors = a, .m = m};
  __m512i most = _mm512_setzero_si512();
  for (int32_t j = 0; j < n; j += 16) most = _mm512_max_epi32(most, _mm512_maskz_loadu_epi32((__mmask16)first((size_t)(n - j)), a + j));
  /* |q . k| < 2^(22 + bits of dim), so that times a and m < 2^31 and over 2^n it is at most 2^30 */
  int32_t least = 23 + ep_bitlen((uint64_t)(dim - 1)) + ep_bitlen((uint64_t)_mm512_reduce_max_epi32(most));
  for (int32_t h = 0; h < heads; h++) {
    to.shifts[h] = shifts[h];
    if (dim > PART || m < 0 || shifts[h] > 96 || shifts[h] < 33 || shifts[h] < least) return 0;
  }
  all8(&to, q, k, dim, heads, (size_t)(n + 15) / 16, 1);
  return 1;
}

/* ---- mixing ------------------------------------------------------------------------------------------------------ */

enum { KEYS = 64 }; /* whose weights are cut into pieces together, as few as the largest of them needs */

INLINE int32_t largest_weight(const int32_t *p, size_t stride, size_t n, int heads) {
  __m512i most = load(p);
  UNROLL for (int h = 0; h < heads; h++, p += stride) {
    for (size_t j = 0; j < n; j += 16) most = _mm512_max_epi32(most, load(p + j));
  }
  return _mm512_reduce_max_epi32(most);
}

INLINE void add16(int64_t *acc, const __m512i *sums, int pieces, int bits, __mmask16 there) {
  UNROLL for (int half = 0; half < 2; half++) {
    __mmask8 stored = (__mmask8)(there >> 8 * half);
    __m512i sum = widened(sums[pieces - 1], half);
    UNROLL for (int i = pieces - 2; i >= 0; i--) sum = _mm512_add_epi64(_mm512_slli_epi64(sum, (unsigned)bits), widened(sums[i], half));
    _mm512_mask_storeu_epi64(acc + 8 * half, stored, _mm512_add_epi64(sum, _mm512_maskz_loadu_epi64(stored, acc + 8 * half)));
  }
}

typedef int8_t pieces[QUERIES][4 * KEYS]; /* kv16: two of all keys, or three of a half; kv8: up to four of all, without sign */

/* Sums of n pairs (kv16) or fours (kv8) of keys for some vectors of components, the last of which may be a part of one; pieces of so many
 * bits, eight with kv8, and each so many bytes behind the one before. */
INLINE void strip(int64_t *acc, pieces from, int heads, int count, int bits, size_t apart, const int8_t *v, size_t dim, size_t n, int vectors,
                  __mmask16 last) {
  __m512i s[QUERIES][4][4];
  UNROLL for (int h = 0; h < heads; h++) {
    UNROLL for (int i = 0; i < vectors; i++) {
      UNROLL for (int c = 0; c < count; c++) s[h][i][c] = _mm512_setzero_si512();
    }
  }
  for (size_t j = 0; j < n; j++, v += 4 * dim) {
    __m512i x[4];
    UNROLL for (int i = 0; i < vectors; i++) {
      x[i] = i + 1 < vectors ? load(v + 64 * i) : _mm512_maskz_loadu_epi32(last, v + 64 * i);
      KEEP_VECTOR(x[i]);
      ask(v + 64 * i);
    }
    UNROLL for (int h = 0; h < heads; h++) {
      UNROLL for (int c = 0; c < count; c++) {
        __m512i p = four_at(from[h] + (size_t)c * apart + 4 * j);
        KEEP_VECTOR(p);
        UNROLL for (int i = 0; i < vectors; i++) {
          s[h][i][c] = bits == 8 ? _mm512_dpbusd_epi32(s[h][i][c], p, x[i]) : _mm512_dpwssd_epi32(s[h][i][c], x[i], p);
          KEEP_VECTOR(s[h][i][c]);
        }
      }
    }
  }
  UNROLL for (int h = 0; h < heads; h++) {
    UNROLL for (int i = 0; i < vectors; i++) {
      __m512i *sums = s[h][i];
      int64_t *to = acc + (size_t)h * dim + 16 * i;
      __mmask16 there = i + 1 < vectors ? 0xffff : last;
      if (bits == 8) { /* a sum is below 64 * 255 * 128 = 2^21 */
        UNROLL for (int c = 0; c + 1 < count; c += 2) sums[c / 2] = _mm512_add_epi32(sums[c], _mm512_slli_epi32(sums[c + 1], 8));
        if (count == 3) sums[1] = sums[2];
        add16(to, sums, (count + 1) / 2, 16, there);
      } else {
        add16(to, sums, count, bits, there);
      }
    }
  }
}

/* All components; as many vectors at a time as their sums fit registers. */
INLINE void rows(int64_t *acc, pieces from, int heads, int count, int bits, size_t apart, const int8_t *v, size_t dim, size_t n) {
  const int vectors = heads * count <= 6 ? 4 : heads * count <= 12 ? 2 : 1;
  size_t i = 0, each = 16 * (size_t)vectors;
  for (; i + each <= dim; i += each) strip(acc + i, from, heads, count, bits, apart, v + 4 * i, dim, n, vectors, 0xffff);
  for (; i < dim; i += 16) strip(acc + i, from, heads, count, bits, apart, v + 4 * i, dim, n, 1, (__mmask16)first(dim - i < 16 ? dim - i : 16));
}

INLINE void put_words(int8_t *to, __m512i v) { _mm256_storeu_si256((__m256i *)to, _mm512_cvtepi32_epi16(v)); }

/* 64 products of values and pieces up to 1024 stay below 2^31. */
INLINE void mix16(int64_t *acc, const int32_t *p, size_t stride, const int8_t *v, size_t dim, size_t n, int heads) {
  const __m512i ten = _mm512_set1_epi32(1023);
  pieces cut;
  int32_t most = largest_weight(p, stride, n, heads);
  if (most == 0) return;
  if (most <= 1 << 21) { /* 2^11 * high + low, |low| <= 2^10 */
    UNROLL for (int h = 0; h < heads; h++) {
      for (size_t j = 0; j < n; j += 16) {
        __m512i x = load(p + (size_t)h * stride + j), high = _mm512_srli_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(1024)), 11);
        put_words(cut[h] + 2 * j, _mm512_sub_epi32(x, _mm512_slli_epi32(high, 11)));
        put_words(cut[h] + 2 * (KEYS + j), high);
      }
    }
    if (most < 1024) rows(acc, cut, heads, 1, 11, 2 * KEYS, v, dim, n / 2);
    else rows(acc, cut, heads, 2, 11, 2 * KEYS, v, dim, n / 2);
    return;
  }
  for (size_t from = 0; from < n; from += KEYS / 2) {
    size_t keys = n - from < KEYS / 2 ? n - from : KEYS / 2;
    UNROLL for (int h = 0; h < heads; h++) {
      for (size_t j = 0; j < keys; j += 16) {
        __m512i x = load(p + (size_t)h * stride + from + j);
        put_words(cut[h] + 2 * j, _mm512_and_si512(x, ten));
        put_words(cut[h] + KEYS + 2 * j, _mm512_and_si512(_mm512_srli_epi32(x, 10), ten));
        put_words(cut[h] + 2 * (KEYS + j), _mm512_srli_epi32(x, 20));
      }
    }
    rows(acc, cut, heads, 3, 10, KEYS, v + 2 * from * dim, dim, keys / 2);
  }
}

/* Functions of their own: a compiler that has them in one adds up what each keeps on the stack. */
#define TILES16(heads)                                                                                                                 \
  __attribute__((noinline)) AVX512 static void tiles16_##heads(int64_t *acc, const int32_t *p, size_t stride, const int16_t *v, size_t dim, size_t n) { \
    for (size_t j = 0; j < n; j += KEYS) mix16(acc, p + j, stride, (const int8_t *)(v + j * dim), dim, n - j < KEYS ? n - j : KEYS, heads);                \
  }
TILES16(1)
TILES16(2)
TILES16(3)
TILES16(4)

AVX512 static void mixes_kv16(int64_t *acc, const int32_t *p, size_t stride, const int16_t *v, int32_t dim, int32_t heads, int32_t n) {
  switch (heads) {
    case 1: tiles16_1(acc, p, stride, v, (size_t)dim, (size_t)n); break;
    case 2: tiles16_2(acc, p, stride, v, (size_t)dim, (size_t)n); break;
    case 3: tiles16_3(acc, p, stride, v, (size_t)dim, (size_t)n); break;
    default: tiles16_4(acc, p, stride, v, (size_t)dim, (size_t)n);
  }
}

INLINE void mix8(int64_t *acc, const int32_t *p, size_t stride, const int8_t *v, size_t dim, size_t n, int heads) {
  pieces cut;
  uint32_t most = (uint32_t)largest_weight(p, stride, n, heads);
  if (most == 0) return;
  UNROLL for (int h = 0; h < heads; h++, p += stride) {
    for (size_t j = 0; j < n; j += 16)
      for (unsigned c = 0; c < 4; c++)
        _mm_storeu_si128((__m128i *)(cut[h] + c * KEYS + j), _mm512_cvtepi32_epi8(_mm512_srli_epi32(load(p + j), 8 * c)));
  }
  if (most >> 24) rows(acc, cut, heads, 4, 8, KEYS, v, dim, n / 4);
  else if (most >> 16) rows(acc, cut, heads, 3, 8, KEYS, v, dim, n / 4);
  else if (most >> 8) rows(acc, cut, heads, 2, 8, KEYS, v, dim, n / 4);
  else rows(acc, cut, heads, 1, 8, KEYS, v, dim, n / 4);
}

INLINE void tiles8(int64_t *acc, const int32_t *p, size_t stride, const int8_t *v, size_t dim, size_t n, int heads) {
  for (size_t j = 0; j < n; j += KEYS) mix8(acc, p + j, stride, v + j * dim, dim, n - j < KEYS ? n - j : KEYS, heads);
}

AVX512 static void mixes_kv8(int64_t *acc, const int32_t *p, size_t stride, const int8_t *v, int32_t dim, int32_t heads, int32_t n) {
  switch (heads) {
    case 1: tiles8(acc, p, stride, v, (size_t)dim, (size_t)n, 1); break;
    case 2: tiles8(acc, p, stride, v, (size_t)dim, (size_t)n, 2); break;
    case 3: tiles8(acc, p, stride, v, (size_t)dim, (size_t)n, 3); break;
    default: tiles8(acc, p, stride, v, (size_t)dim, (size_t)n, 4);
  }
}

void ep_avx512_blocks(ep_kernels *table) {
  table->blocks = 1;
  table->scores_kv16 = EP_KERNEL(EP_FEATURE_KV16, scores_kv16);
  table->scores_kv8 = EP_KERNEL(EP_FEATURE_KV8, scores_kv8);
  table->sigmas_kv16 = EP_KERNEL(EP_FEATURE_KV16, sigmas_kv16);
  table->sigmas_kv8 = EP_KERNEL(EP_FEATURE_KV8, sigmas_kv8);
  table->mixes_kv16 = EP_KERNEL(EP_FEATURE_KV16, mixes_kv16);
  table->mixes_kv8 = EP_KERNEL(EP_FEATURE_KV8, mixes_kv8);
}

#endif
