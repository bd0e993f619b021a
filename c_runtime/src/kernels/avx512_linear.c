/* LINEAR with AVX-512 VNNI and IFMA.
 *
 * One token is read row by row, two rows at a time. A Narrow number is high * 256 + low in signed bytes; vpdpbusd multiplies signed
 * bytes by unsigned ones, so 128 is added to the weights and taken away again as 128 * (sum of x), which is known per group. A group's
 * sum also carries a bias that keeps it from going below zero, so that vpmadd52luq can multiply it by the scale and add it up in one
 * step: that gives the low 52 bits, and the sum over STRIPE columns is known to have no more.
 *
 * For more tokens, sixteen rows are turned into a panel of int16 in which a vector holds a pair of columns of every row; vpdpwssd
 * takes pairs of x as they are, and the sums of eight tokens stay in registers over all groups of the panel. */
#include "avx512_linear.h"

#ifdef EP_HAS_AVX512

/* ---- one token -------------------------------------------------------------------------------------------------- */

/* Bytes of one token. */
typedef struct token {
  _Alignas(64) int8_t high[STRIPE], low[STRIPE];
  int64_t fix[STRIPE / 32]; /* w8g32: what a scale is multiplied by besides the sum */
  int64_t sum;              /* w8: of x */
} token;

enum { BIAS_W8 = 1 << 18 }; /* of a sum of four products of bytes, before it is shifted by 8 */

INLINE int32_t split_w8(token *to, const int16_t *x, size_t c) {
  __m512i v = load(x + c), high = high_byte(v);
  _mm256_storeu_si256((__m256i *)(to->high + c), _mm512_cvtepi16_epi8(high));
  _mm256_storeu_si256((__m256i *)(to->low + c), _mm512_cvtepi16_epi8(v));
  return _mm512_reduce_add_epi32(_mm512_madd_epi16(v, _mm512_set1_epi16(1)));
}

INLINE void split(token *to, const int16_t *x, size_t cols) {
  to->sum = 0;
  for (size_t c = 0; c < cols; c += 32) {
    int32_t sum = split_w8(to, x, c);
    to->sum += sum;
    to->fix[c / 32] = -((int64_t)8 * BIAS_W8 << 8) - (int64_t)128 * sum;
  }
  if (cols % 64) { /* a vector reads on */
    _mm256_storeu_si256((__m256i *)(to->high + cols), _mm256_setzero_si256());
    _mm256_storeu_si256((__m256i *)(to->low + cols), _mm256_setzero_si256());
  }
}

/* 64 weights against a token: four products in a dword. */
INLINE __m512i dot_w8(__m512i w, __m512i high, __m512i low) {
  __m512i s = _mm512_dpbusd_epi32(_mm512_set1_epi32(BIAS_W8), w, high);
  return _mm512_dpbusd_epi32(_mm512_slli_epi32(s, 8), w, low);
}

/* Two groups from group i on, or one, of `rows` rows, with scales k and k + 1 of eight. */
INLINE void pair_w8(__m512i *sum, const int8_t *w, size_t w_stride, const __m512i *scale, const token *x, size_t i, int64_t k, int whole,
                    int rows) {
  __m512i high = load(x->high + 32 * i), low = load(x->low + 32 * i), each = _mm512_setr_epi64(k, k, k, k, k + 1, k + 1, k + 1, k + 1);
  UNROLL for (int r = 0; r < rows; r++) {
    const int8_t *from = w + (size_t)r * w_stride + 32 * i;
    __m512i bytes = whole ? load(from) : _mm512_zextsi256_si512(load256(from));
    _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T1);
    sum[r] = _mm512_madd52lo_epu64(sum[r], add_pairs(dot_w8(flip(bytes), high, low)), _mm512_permutexvar_epi64(each, scale[r]));
  }
}

/* n <= 8 groups from group i on. */
INLINE void groups_w8(__m512i *sum, const int8_t *w, size_t w_stride, const int16_t *g, size_t g_stride, const token *x, size_t i,
                      size_t n, int rows) {
  __m512i scale[2], fix = load(x->fix + i);
  UNROLL for (int r = 0; r < rows; r++) {
    scale[r] = load16(g + (size_t)r * g_stride + i, n);
    sum[r] = _mm512_madd52lo_epu64(sum[r], scale[r], fix);
  }
  if (n == 8) {
    pair_w8(sum, w, w_stride, scale, x, i, 0, 1, rows);
    pair_w8(sum, w, w_stride, scale, x, i + 2, 2, 1, rows);
    pair_w8(sum, w, w_stride, scale, x, i + 4, 4, 1, rows);
    pair_w8(sum, w, w_stride, scale, x, i + 6, 6, 1, rows);
    return;
  }
  size_t k = 0;
  for (; k + 2 <= n; k += 2) pair_w8(sum, w, w_stride, scale, x, i + k, (int64_t)k, 1, rows);
  if (k < n) pair_w8(sum, w, w_stride, scale, x, i + k, (int64_t)k, 0, rows);
}

/* Without scales: at most STRIPE / 64 sums of four products in a dword. */
INLINE void all_w8(__m512i *sum, const int8_t *w, size_t w_stride, const token *x, size_t cols, int rows) {
  __m512i high[2], low[2];
  UNROLL for (int r = 0; r < rows; r++) high[r] = low[r] = _mm512_setzero_si512();
  for (size_t c = 0; c < cols; c += 64) {
    __m512i x_high = load(x->high + c), x_low = load(x->low + c);
    UNROLL for (int r = 0; r < rows; r++) {
      const int8_t *from = w + (size_t)r * w_stride + c;
      __m512i bytes = flip(cols - c >= 64 ? load(from) : _mm512_zextsi256_si512(load256(from)));
      _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T1);
      high[r] = _mm512_dpbusd_epi32(high[r], bytes, x_high);
      low[r] = _mm512_dpbusd_epi32(low[r], bytes, x_low);
    }
  }
  UNROLL for (int r = 0; r < rows; r++) { /* the low 52 bits of |.| < 2^40, in eight parts */
    __m512i h = _mm512_add_epi64(_mm512_srai_epi64(_mm512_slli_epi64(high[r], 32), 32), _mm512_srai_epi64(high[r], 32));
    __m512i l = _mm512_add_epi64(_mm512_srai_epi64(_mm512_slli_epi64(low[r], 32), 32), _mm512_srai_epi64(low[r], 32));
    sum[r] = _mm512_add_epi64(_mm512_slli_epi64(h, 8), l);
    sum[r] = _mm512_mask_sub_epi64(sum[r], 1, sum[r], _mm512_set1_epi64(128 * x->sum));
  }
}

/* Columns from..from + cols of `rows` rows from r on: stored, or added to what is there. */
INLINE void one_or_two(int64_t *out, const ep_tile *tile, const token *x, size_t r, size_t from, size_t cols, int rows, int form) {
  size_t w_stride = (size_t)tile->cols, g_stride = w_stride / 32;
  const int8_t *w = tile->w + r * w_stride + from;
  __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  if (form == W8) {
    all_w8(sum, w, w_stride, x, cols, rows);
  } else {
    const int16_t *g = tile->g + r * g_stride + from / 32;
    size_t i = 0, groups = cols / 32;
    fetch_scales(g, (size_t)rows * groups, 32);
    for (; i + 8 <= groups; i += 8) groups_w8(sum, w, w_stride, g, g_stride, x, i, 8, rows);
    if (i < groups) groups_w8(sum, w, w_stride, g, g_stride, x, i, groups - i, rows);
  }
  put_rows(out, sum, rows, from != 0);
}

enum { SHORT = 8 }; /* most groups of a row that is taken together with others */

/* Eight rows of a few groups, two at a time: the sums of both groups of all rows fill a vector, as do their scales. */
INLINE void eight_short(int64_t *out, const int8_t *w, const int16_t *g, const token *x, size_t groups) {
  const __m512i order = _mm512_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15), rows = _mm512_setr_epi64(0, 1, 8, 9, 4, 5, 12, 13);
  const __m256i apart = _mm256_mullo_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32((int32_t)groups));
  __m512i even = _mm512_setzero_si512(), uneven = even;
  for (size_t i = 0; i < groups; i += 2, w += 64, g += 2) {
    const __m512i high = load(x->high + 32 * i), low = load(x->low + 32 * i);
    __m512i s[8];
    UNROLL for (size_t r = 0; r < 8; r++) s[r] = dot_w8(flip(load(w + r * 32 * groups)), high, low);
    /* rows 0 to 3 of the first group, of the second, rows 4 to 7 of the first, of the second; with fix a group's sum is below 2^28 */
    const __m256i pairs = groups == 2 ? load256(g) : _mm256_i32gather_epi32((const int *)(const void *)g, apart, 2);
    const __m512i scale = _mm512_permutexvar_epi32(order, _mm512_cvtepi16_epi32(pairs));
    const __m256i fix = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_set1_epi32((int32_t)x->fix[i])), _mm_set1_epi32((int32_t)x->fix[i + 1]), 1);
    const __m512i sum = _mm512_add_epi32(fold(quarters(s), quarters(s + 4)), _mm512_broadcast_i64x4(fix));
    even = _mm512_add_epi64(even, _mm512_mul_epi32(sum, scale));
    uneven = _mm512_add_epi64(uneven, _mm512_mul_epi32(odd(sum), odd(scale)));
  }
  even = _mm512_add_epi64(even, _mm512_shuffle_i64x2(even, even, 0xb1));
  uneven = _mm512_add_epi64(uneven, _mm512_shuffle_i64x2(uneven, uneven, 0xb1));
  store(out, _mm512_permutex2var_epi64(_mm512_unpacklo_epi64(even, uneven), rows, _mm512_unpackhi_epi64(even, uneven)));
}

INLINE void one_token(int64_t *acc, const ep_tile *tile, size_t r, size_t t, int form) {
  token *x = (token *)tile->scratch;
  size_t rows = (size_t)tile->rows, all = (size_t)tile->cols;
  int64_t *out = acc + t * rows;
  for (size_t from = 0; from < all; from += STRIPE) {
    size_t cols = all - from < STRIPE ? all - from : STRIPE, row = r;
    if (!tile->again || all > STRIPE) split(x, tile->x + t * all + from, cols);
    for (; form == W8G32 && all <= 32 * SHORT && all % 64 == 0 && row + 8 <= rows; row += 8)
      eight_short(out + row, tile->w + all * row, tile->g + all / 32 * row, x, all / 32);
    for (; row + 2 <= rows; row += 2) one_or_two(out + row, tile, x, row, from, cols, 2, form);
    if (row < rows) one_or_two(out + row, tile, x, row, from, cols, 1, form);
  }
}

/* ---- one token against 4-bit codes ------------------------------------------------------------------------------ */

enum { BLOCK = 128, BLOCKS = 8, SPREAD = 14 }; /* columns; blocks that dwords can add up, and that are spread at a time */

/* What a block's codes are multiplied by. The codes of four rows are turned so that vector k holds in dword i of quarter q dword k of
 * row i in group q; each dword of x is repeated for four rows. Of half a block, groups 2 and 3 are groups 0 and 1 again: there they are
 * those of four more rows. */
typedef struct spread {
  _Alignas(64) int8_t even_high[4][64], odd_high[4][64], even_low[4][64], odd_low[4][64];
  int32_t sum_high[16], sum_low[16]; /* x's sum of the group is high * 2^12 + low; in the upper half, beside the minimum */
} spread;

INLINE void repeat(int8_t to[4][64], __m256i a, __m256i b) {
  __m512i v = _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
  store(to[0], _mm512_shuffle_epi32(v, 0x00));
  store(to[1], _mm512_shuffle_epi32(v, 0x55));
  store(to[2], _mm512_shuffle_epi32(v, 0xaa));
  store(to[3], _mm512_shuffle_epi32(v, 0xff));
}

/* Every other byte of 64 columns' 16 bits, from byte `at` of each four. */
INLINE __m256i bytes(__m512i a, __m512i b, unsigned at) {
  __m128i count = _mm_cvtsi32_si128((int)(8 * at));
  __m128i low = _mm512_cvtepi32_epi8(_mm512_srl_epi32(a, count)), high = _mm512_cvtepi32_epi8(_mm512_srl_epi32(b, count));
  return _mm256_inserti128_si256(_mm256_castsi128_si256(low), high, 1);
}

/* n <= BLOCK columns, a multiple of 32. */
INLINE void spread_block(spread *to, const int16_t *x, const int32_t *sums, size_t n) {
  const int half = n == BLOCK / 2;
  __m512i v[4], high[4];
  UNROLL for (size_t i = 0; i < 4; i++) {
    size_t c = 32 * (half ? i % 2 : i);
    v[i] = c < n ? load(x + c) : _mm512_setzero_si512();
    high[i] = high_byte(v[i]);
  }
  repeat(to->even_high, bytes(high[0], high[1], 0), bytes(high[2], high[3], 0));
  repeat(to->odd_high, bytes(high[0], high[1], 2), bytes(high[2], high[3], 2));
  repeat(to->even_low, bytes(v[0], v[1], 0), bytes(v[2], v[3], 0));
  repeat(to->odd_low, bytes(v[0], v[1], 2), bytes(v[2], v[3], 2));
  __m128i four = _mm_maskz_loadu_epi32((__mmask8)first(n / 32), sums);
  if (half) four = _mm_unpacklo_epi64(four, four);
  __m512i sum = _mm512_permutexvar_epi32(_mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3), _mm512_castsi128_si512(four));
  store(to->sum_high, _mm512_slli_epi32(_mm512_srai_epi32(sum, 12), 16));
  store(to->sum_low, _mm512_srli_epi32(_mm512_slli_epi32(sum, 20), 4));
}

/* Scales and minima of `groups` <= 4 groups of a row, or of two groups of it and of the fourth row behind it. */
INLINE __m128i pairs_of_row(const int16_t *g, size_t stride, size_t groups, int half) {
  if (half) return _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)g), _mm_loadl_epi64((const __m128i *)(g + 4 * stride)));
  return _mm_maskz_loadu_epi32((__mmask8)first(groups), g);
}

/* Those of four rows: dword i of quarter q is row i's of group q. */
INLINE __m512i pairs_of(const int16_t *g, size_t stride, size_t groups, int half) {
  const __m512i turned = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  __m512i v = _mm512_castsi128_si512(pairs_of_row(g, stride, groups, half));
  v = _mm512_inserti32x4(v, pairs_of_row(g + stride, stride, groups, half), 1);
  v = _mm512_inserti32x4(v, pairs_of_row(g + 2 * stride, stride, groups, half), 2);
  v = _mm512_inserti32x4(v, pairs_of_row(g + 3 * stride, stride, groups, half), 3);
  return _mm512_permutexvar_epi32(turned, v);
}

/* Codes of a row likewise. */
INLINE __m512i codes_of_row(const int8_t *w, size_t stride, size_t groups, int half) {
  if (half) return _mm512_inserti64x4(_mm512_castsi256_si512(load256(w)), load256(w + 4 * stride), 1);
  return groups == 4 ? load(w) : _mm512_maskz_loadu_epi8(first(16 * groups), w);
}

/* Codes of four rows, turned as said above. */
INLINE void turn_codes(__m512i v[4], const int8_t *w, size_t stride, size_t groups, int half) {
  __m512i c[4];
  UNROLL for (size_t r = 0; r < 4; r++) {
    c[r] = codes_of_row(w + r * stride, stride, groups, half);
    _mm_prefetch((const char *)w + r * stride + AHEAD, _MM_HINT_T1);
    if (half) _mm_prefetch((const char *)w + (r + 4) * stride + AHEAD, _MM_HINT_T1);
    KEEP_VECTOR(c[r]);
  }
  UNROLL for (int k = 0; k < 2; k++) {
    __m512i a = k ? _mm512_unpackhi_epi32(c[0], c[1]) : _mm512_unpacklo_epi32(c[0], c[1]);
    __m512i b = k ? _mm512_unpackhi_epi32(c[2], c[3]) : _mm512_unpacklo_epi32(c[2], c[3]);
    v[2 * k] = _mm512_unpacklo_epi64(a, b);
    v[2 * k + 1] = _mm512_unpackhi_epi64(a, b);
  }
}

/* high * 2^12 + low += one block of `sets` times four rows: the sums of products with codes are below 2^24, high and low parts of those
 * and of the sums of x (2^20) int16. vpdpwssd multiplies them by scale and minimum: at most 2^15 * (2^12 + 2^12), which BLOCKS may add
 * up. The sets share what is loaded of x. half: two groups of eight rows, in one set. */
INLINE void block_w4(__m512i *high, __m512i *low, const int8_t *w, size_t w_stride, const int16_t *g, size_t g_stride, const spread *x,
                     size_t groups, int sets, int half) {
  const __m512i fifteen = _mm512_set1_epi8(15);
  __m512i v[2][4], h[2], l[2];
  UNROLL for (int n = 0; n < sets; n++) {
    turn_codes(v[n], w + (size_t)n * 4 * w_stride, w_stride, groups, half);
    h[n] = l[n] = _mm512_setzero_si512();
  }
  UNROLL for (int k = 0; k < 4; k++) {
    __m512i even_high = load(x->even_high[k]), even_low = load(x->even_low[k]);
    __m512i odd_high = load(x->odd_high[k]), odd_low = load(x->odd_low[k]);
    KEEP_VECTOR(even_high);
    KEEP_VECTOR(even_low);
    KEEP_VECTOR(odd_high);
    KEEP_VECTOR(odd_low);
    UNROLL for (int n = 0; n < sets; n++) {
      __m512i even = _mm512_and_si512(v[n][k], fifteen), uneven = _mm512_and_si512(_mm512_srli_epi16(v[n][k], 4), fifteen);
      h[n] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(h[n], even, even_high), uneven, odd_high);
      l[n] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(l[n], even, even_low), uneven, odd_low);
    }
  }
  UNROLL for (int n = 0; n < sets; n++) {
    enum { AND_OR = 0xea }; /* (a & b) | c */
    __m512i s = _mm512_add_epi32(_mm512_slli_epi32(h[n], 8), l[n]);
    __m512i scales = pairs_of(g + (size_t)n * 4 * g_stride, g_stride, groups, half);
    __m512i upper = _mm512_ternarylogic_epi32(_mm512_srai_epi32(s, 12), _mm512_set1_epi32(0xffff), load(x->sum_high), AND_OR);
    __m512i lower = _mm512_ternarylogic_epi32(s, _mm512_set1_epi32(0xfff), load(x->sum_low), AND_OR);
    high[n] = _mm512_dpwssd_epi32(high[n], upper, scales);
    low[n] = _mm512_dpwssd_epi32(low[n], lower, scales);
  }
}

/* Sums of four rows, dword i of each quarter is of row i. */
INLINE __m256i four_sums(__m512i high, __m512i low) {
  const __m512i one = _mm512_set1_epi64(1);
  __m512i even = _mm512_add_epi64(_mm512_slli_epi64(_mm512_mul_epi32(high, one), 12), _mm512_mul_epi32(low, one));
  __m512i uneven = _mm512_add_epi64(_mm512_slli_epi64(_mm512_srai_epi64(high, 32), 12), _mm512_srai_epi64(low, 32));
  __m512i a = _mm512_unpacklo_epi64(even, uneven), b = _mm512_unpackhi_epi64(even, uneven); /* rows 0 and 1, 2 and 3 */
  a = _mm512_add_epi64(_mm512_shuffle_i64x2(a, b, 0x88), _mm512_shuffle_i64x2(a, b, 0xdd));
  a = _mm512_add_epi64(a, _mm512_shuffle_i64x2(a, a, 0xb1)); /* quarters 0 and 2 */
  return _mm512_castsi512_si256(_mm512_shuffle_i64x2(a, a, 0x08));
}

/* Half a block of eight rows, as one of each of two sets of four. */
INLINE void half_w4(__m512i high[2], __m512i low[2], const int8_t *w, size_t w_stride, const int16_t *g, size_t g_stride, const spread *x) {
  __m512i h = _mm512_setzero_si512(), l = h;
  block_w4(&h, &l, w, w_stride, g, g_stride, x, 2, 1, 1);
  UNROLL for (int i = 0; i < 2; i++) {
    const __mmask16 own = i ? 0xff00 : 0x00ff;
    high[i] = _mm512_mask_add_epi32(high[i], own, high[i], h);
    low[i] = _mm512_mask_add_epi32(low[i], own, low[i], l);
  }
}

/* n <= SPREAD * BLOCK columns from column `from` on of `sets` times four rows from r on, or of row r alone, which then is all four. */
INLINE void sets_of_rows(int64_t *out, const ep_tile *tile, const spread *x, size_t r, size_t from, size_t n, int sets, int alone) {
  size_t w_row = (size_t)tile->cols / 2, g_row = (size_t)tile->cols / 16, w_stride = alone ? 0 : w_row, g_stride = alone ? 0 : g_row;
  const int8_t *w = tile->w + r * w_row + from / 2;
  const int16_t *g = tile->g + r * g_row + from / 16;
  const __mmask8 there = (__mmask8)first(alone ? 1 : 4);
  __m256i sums[2];
  UNROLL for (int i = 0; i < sets; i++) sums[i] = from ? _mm256_maskz_loadu_epi64(there, out + r + 4 * i) : _mm256_setzero_si256();
  fetch_scales(g, alone ? 0 : (size_t)sets * n / 4, 8); /* the rows' lie together */
  while (n) {
    __m512i high[2], low[2];
    UNROLL for (int i = 0; i < sets; i++) high[i] = low[i] = _mm512_setzero_si512();
    int blocks = 0;
    for (; blocks < BLOCKS && n >= BLOCK; blocks++, n -= BLOCK, w += BLOCK / 2, g += BLOCK / 16) {
      block_w4(high, low, w, w_stride, g, g_stride, x++, 4, sets, 0);
    }
    if (n && n < BLOCK && blocks < BLOCKS) {
      if (sets == 2 && n == BLOCK / 2) half_w4(high, low, w, w_stride, g, g_stride, x);
      else block_w4(high, low, w, w_stride, g, g_stride, x, n / 32, sets, 0);
      n = 0;
    }
    UNROLL for (int i = 0; i < sets; i++) sums[i] = _mm256_add_epi64(sums[i], four_sums(high[i], low[i]));
  }
  UNROLL for (int i = 0; i < sets; i++) _mm256_mask_storeu_epi64(out + r + 4 * i, there, sums[i]);
}

INLINE void one_token_w4(int64_t *acc, const ep_tile *tile, size_t r, size_t t) {
  spread *x = (spread *)tile->scratch;
  size_t all = (size_t)tile->cols;
  for (size_t from = 0; from < all; from += SPREAD * BLOCK) {
    size_t n = all - from < SPREAD * BLOCK ? all - from : SPREAD * BLOCK;
    for (size_t i = 0; i < n && (!tile->again || all > SPREAD * BLOCK); i += BLOCK)
      spread_block(x + i / BLOCK, tile->x + t * all + from + i, tile->sums + (t * all + from + i) / 32, n - i < BLOCK ? n - i : BLOCK);
    int64_t *out = acc + t * (size_t)tile->rows;
    size_t row = r, rows = (size_t)tile->rows;
    for (; row + 8 <= rows; row += 8) sets_of_rows(out, tile, x, row, from, n, 2, 0);
    for (; row < rows; row++) sets_of_rows(out, tile, x, row, from, n, 1, 1);
  }
}

/* ---- several tokens --------------------------------------------------------------------------------------------- */

/* Groups of a panel. Without scales 512 products of a dword's rows stay below 2^31. */
enum { PANEL = 24, PANEL_W8 = 16 };

/* Sixteen rows of up to PANEL groups. w: for each pair of columns the rows 0, 8, 1, 9, ... 7, 15, so that the even dwords of a sum
 * are rows 0 to 7 and the odd ones rows 8 to 15; the pairs are 0, 8, 1, 9, ... 7, 15 too. */
typedef struct panel {
  _Alignas(64) int8_t w[PANEL][16][32];
  int16_t g[PANEL][16], u[PANEL][16]; /* scales, minima */
} panel;

typedef union scratch {
  token x;
  spread blocks[SPREAD];
  panel w;
} scratch;

/* Rows a and a + 4 of a panel's order as columns 0 to 15 of both, then 16 to 31 of both. */
INLINE __m512i two_rows(const int8_t *w, size_t stride, size_t a, int form) {
  __m512i v = _mm512_castsi256_si512(row32(w + a * stride, form));
  v = _mm512_inserti64x4(v, row32(w + (a + 4) * stride, form), 1);
  return _mm512_shuffle_i64x2(v, v, 0xd8);
}

/* One group of sixteen rows, turned eight by eight in each quarter: to is [pair of columns][row][2]. */
INLINE void turn(int8_t *to, const int8_t *w, size_t stride, int form) {
  __m512i a[8], b[8];
  UNROLL for (size_t k = 0; k < 8; k++) a[k] = two_rows(w, stride, k / 2 + k % 2 * 8, form); /* rows 0, 8, 1, 9, 2, 10, 3, 11 */
  UNROLL for (int k = 0; k < 8; k += 2) {
    b[k] = _mm512_unpacklo_epi16(a[k], a[k + 1]);
    b[k + 1] = _mm512_unpackhi_epi16(a[k], a[k + 1]);
  }
  UNROLL for (int k = 0; k < 8; k += 4) {
    UNROLL for (int h = 0; h < 2; h++) {
      a[k + 2 * h] = _mm512_unpacklo_epi32(b[k + h], b[k + h + 2]);
      a[k + 2 * h + 1] = _mm512_unpackhi_epi32(b[k + h], b[k + h + 2]);
    }
  }
  UNROLL for (int k = 0; k < 4; k++) {
    store(to + 128 * k, _mm512_unpacklo_epi64(a[k], a[k + 4]));
    store(to + 128 * k + 64, _mm512_unpackhi_epi64(a[k], a[k + 4]));
  }
}

INLINE void fill(panel *to, const ep_tile *tile, size_t r, size_t i, size_t groups, int form) {
  size_t all = (size_t)tile->cols / 32, bytes = form == W4G32 ? 16 : 32, step = form == W4G32 ? 2 : 1;
  for (size_t k = 0; k < groups; k++) {
    const int8_t *w = tile->w + (r * all + i + k) * bytes, *later = w + 16 * all * bytes;
    turn(to->w[k][0], w, all * bytes, form);
    for (size_t row = 0; row < 16; row++, later += all * bytes) _mm_prefetch((const char *)later, _MM_HINT_T1); /* the next panel */
    if (form == W8) continue;
    const int16_t *g = tile->g + (r * all + i + k) * step;
    for (size_t row = 0; row < 16; row++, g += all * step) {
      to->g[k][row] = g[0];
      if (form == W4G32) to->u[k][row] = g[1];
    }
  }
}

/* s[k] += one group of the panel against n <= 8 tokens. */
INLINE void products(__m512i *s, const int8_t *w, const int16_t *x, size_t cols, int n) {
  UNROLL for (size_t p = 0; p < 8; p += 2, w += 4 * 32, x += 4) {
    const int16_t *half[2] = {x, x + 4 * cols};
    KEEP(half[0]);
    KEEP(half[1]);
    UNROLL for (size_t q = 0; q < 4; q++) {
      __m512i pairs = _mm512_cvtepi8_epi16(load256(w + 32 * q));
      UNROLL for (int k = 0; k < n; k++)
        s[k] = _mm512_dpwssd_epi32(s[k], pairs, pair_at(half[k / 4] + (size_t)(k % 4) * cols + q / 2 * 2 + q % 2 * 16));
    }
  }
}

INLINE void widen(__m512i *low, __m512i *high, __m512i s) {
  *low = _mm512_add_epi64(*low, _mm512_srai_epi64(_mm512_slli_epi64(s, 32), 32));
  *high = _mm512_add_epi64(*high, _mm512_srai_epi64(s, 32));
}

/* The panel, whose first group is i, against n <= 8 tokens from t on: out is of the panel's first row. */
INLINE void block(int64_t *out, const ep_tile *tile, const panel *w, size_t i, size_t groups, size_t t, int n, int form) {
  size_t cols = (size_t)tile->cols, rows = (size_t)tile->rows;
  const int16_t *x = tile->x + t * cols + 32 * i;
  __m512i low[8], high[8], s[8];
  UNROLL for (int k = 0; k < n; k++) {
    low[k] = i ? load(out + (size_t)k * rows) : _mm512_setzero_si512();
    high[k] = i ? load(out + (size_t)k * rows + 8) : _mm512_setzero_si512();
    s[k] = _mm512_setzero_si512();
  }
  for (size_t g = 0; g < groups; g++, x += 32) {
    products(s, w->w[g][0], x, cols, n);
    if (form == W8) continue;
    __m512i low_scale = load16(w->g[g], 8), high_scale = load16(w->g[g] + 8, 8);
    UNROLL for (int k = 0; k < n; k++) {
      low[k] = _mm512_add_epi64(low[k], _mm512_mul_epi32(s[k], low_scale));
      high[k] = _mm512_add_epi64(high[k], _mm512_mul_epi32(odd(s[k]), high_scale));
      s[k] = _mm512_setzero_si512();
    }
    if (form != W4G32) continue;
    low_scale = load16(w->u[g], 8), high_scale = load16(w->u[g] + 8, 8);
    const int32_t *sums = tile->sums + t * (cols / 32) + i + g;
    UNROLL for (int k = 0; k < n; k++) {
      __m512i sum = _mm512_set1_epi32(sums[(size_t)k * (cols / 32)]);
      low[k] = _mm512_add_epi64(low[k], _mm512_mul_epi32(sum, low_scale));
      high[k] = _mm512_add_epi64(high[k], _mm512_mul_epi32(sum, high_scale));
    }
  }
  UNROLL for (int k = 0; k < n; k++) {
    if (form == W8) widen(low + k, high + k, s[k]);
    store(out + (size_t)k * rows, low[k]);
    store(out + (size_t)k * rows + 8, high[k]);
  }
}

/* Sixteen rows from r on against all tokens of the tile. */
INLINE void rows16(int64_t *acc, const ep_tile *tile, size_t r, int form) {
  size_t all = (size_t)tile->cols / 32, tokens = (size_t)tile->tokens, rows = (size_t)tile->rows;
  size_t each = part_of_row(all, form == W8 ? PANEL_W8 : PANEL);
  panel *w = (panel *)tile->scratch;
  for (size_t i = 0; i < all; i += each) {
    size_t groups = all - i < each ? all - i : each, t = 0;
    fill(w, tile, r, i, groups, form);
    for (; t + 8 <= tokens; t += 8) block(acc + t * rows + r, tile, w, i, groups, t, 8, form);
    for (; t + 4 <= tokens; t += 4) block(acc + t * rows + r, tile, w, i, groups, t, 4, form);
    for (; t < tokens; t++) block(acc + t * rows + r, tile, w, i, groups, t, 1, form);
  }
}

INLINE void linear(int64_t *acc, const ep_tile *tile, int form) {
  size_t r = 0, rows = (size_t)tile->rows, tokens = (size_t)tile->tokens;
  if (tokens >= 4)
    for (; r + 16 <= rows; r += 16) rows16(acc, tile, r, form);
  for (size_t t = 0; t < tokens && r < rows; t++) {
    if (form == W4G32) one_token_w4(acc, tile, r, t);
    else one_token(acc, tile, r, t, form);
  }
}

AVX512 static void linear_w8(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8); }
AVX512 static void linear_w8g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8G32); }
AVX512 static void linear_w4g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W4G32); }

enum { SMALL = 4 * AHEAD }; /* bytes of a small matrix, which stays in the caches */

AVX512 static void fetch(const void *weights, size_t bytes) {
  if (bytes < SMALL) return;
  for (size_t i = 0; i < AHEAD; i += 64) _mm_prefetch((const char *)weights + i, _MM_HINT_T1);
}

void ep_avx512_linear(ep_kernels *table) {
  table->few = 64;
  table->fetch = fetch;
  table->linear_w8 = EP_KERNEL(EP_FEATURE_W8, linear_w8);
  table->linear_w8g32 = EP_KERNEL(EP_FEATURE_W8G32, linear_w8g32);
  table->linear_w4g32 = EP_KERNEL(EP_FEATURE_W4G32, linear_w4g32);
  table->scratch = sizeof(scratch);
}

#endif
