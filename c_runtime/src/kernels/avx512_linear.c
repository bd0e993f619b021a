/* LINEAR with AVX-512 VNNI and IFMA.
 *
 * One token is read row by row, two rows at a time. A Narrow number is high * 256 + low in signed bytes; vpdpbusd multiplies signed
 * bytes by unsigned ones, so 128 is added to the weights and taken away again as 128 * (sum of x), which is known per group. A group's
 * sum also carries a bias that keeps it from going below zero, so that vpmadd52luq can multiply it by the scale and add it up in one
 * step: that gives the low 52 bits, and the sum over STRIPE columns is known to have no more.
 *
 * For more tokens, sixteen rows are turned into a panel of int16 in which a vector holds a pair of columns of every row; vpdpwssd
 * takes pairs of x as they are, and the sums of eight tokens stay in registers over all groups of the panel. */
#include "avx512.h"

#ifdef EP_HAS_AVX512

enum { W8, W8G32, W4G32 };
enum { STRIPE = 4096 }; /* columns at a time: their group products add up to less than 2^7 * 2^42 */
enum { AHEAD = 8192 };  /* bytes of weights that are asked for before they are needed, into L2: L1 can wait for too few lines */

/* ---- one token -------------------------------------------------------------------------------------------------- */

/* Bytes of one token. w4g32 keeps even columns before odd ones, of 128 at a time, as the codes come out of their bytes. */
typedef struct token {
  _Alignas(64) int8_t high[STRIPE], low[STRIPE];
  int64_t fix[STRIPE / 16]; /* what a scale (and a minimum) is multiplied by besides the sum */
  int64_t sum;              /* w8: of x */
} token;

enum { BIAS_W8 = 1 << 18, BIAS_W4 = 1 << 16 }; /* of a sum of four, then eight products of bytes, before it is shifted by 8 */

INLINE int32_t split_w8(token *to, const int16_t *x, size_t c) {
  __m512i v = load(x + c), high = high_byte(v);
  _mm256_storeu_si256((__m256i *)(to->high + c), _mm512_cvtepi16_epi8(high));
  _mm256_storeu_si256((__m256i *)(to->low + c), _mm512_cvtepi16_epi8(v));
  return _mm512_reduce_add_epi32(_mm512_madd_epi16(v, _mm512_set1_epi16(1)));
}

INLINE void split_w4(token *to, const int16_t *x, size_t c) {
  __m512i v = load(x + c), high = high_byte(v);
  size_t even = c / 128 * 128 + c % 128 / 2;
  _mm_storeu_si128((__m128i *)(to->high + even), _mm512_cvtepi32_epi8(high));
  _mm_storeu_si128((__m128i *)(to->high + even + 64), _mm512_cvtepi32_epi8(_mm512_srli_epi32(high, 16)));
  _mm_storeu_si128((__m128i *)(to->low + even), _mm512_cvtepi32_epi8(v));
  _mm_storeu_si128((__m128i *)(to->low + even + 64), _mm512_cvtepi32_epi8(_mm512_srli_epi32(v, 16)));
}

INLINE void split(token *to, const ep_tile *tile, size_t t, size_t from, size_t cols, int form) {
  const int16_t *x = tile->x + t * (size_t)tile->cols + from;
  const int32_t *sums = form == W4G32 ? tile->sums + t * (size_t)(tile->cols / 32) + from / 32 : NULL;
  to->sum = 0;
  for (size_t c = 0, i = 0; c < cols; c += 32, i++) {
    if (form == W4G32) {
      split_w4(to, x, c);
      to->fix[2 * i] = -((int64_t)4 * BIAS_W4 << 8);
      to->fix[2 * i + 1] = sums[i];
      continue;
    }
    int32_t sum = split_w8(to, x, c);
    to->sum += sum;
    to->fix[i] = -((int64_t)8 * BIAS_W8 << 8) - (int64_t)128 * sum;
  }
  if (form != W4G32 && cols % 64) { /* a vector reads on */
    _mm256_storeu_si256((__m256i *)(to->high + cols), _mm256_setzero_si256());
    _mm256_storeu_si256((__m256i *)(to->low + cols), _mm256_setzero_si256());
  }
}

/* Both sums over their eight parts. */
INLINE __m128i add_across(__m512i a, __m512i b) {
  __m512i s = _mm512_add_epi64(_mm512_unpacklo_epi64(a, b), _mm512_unpackhi_epi64(a, b));
  __m256i t = _mm256_add_epi64(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
  return _mm_add_epi64(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
}

/* Sums of pairs of dwords where vpmadd52luq reads them, nothing beside them. */
INLINE __m512i add_pairs(__m512i s) { return _mm512_maskz_add_epi32(0x5555, s, odd(s)); }

/* 64 weights against a token: four products in a dword. */
INLINE __m512i dot_w8(__m512i w, __m512i high, __m512i low) {
  __m512i s = _mm512_dpbusd_epi32(_mm512_set1_epi32(BIAS_W8), w, high);
  return _mm512_dpbusd_epi32(_mm512_slli_epi32(s, 8), w, low);
}

INLINE __m512i flip(__m512i w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }

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

/* n <= 4 groups likewise; a byte holds two columns. */
INLINE void groups_w4(__m512i *sum, const int8_t *w, size_t w_stride, const int16_t *g, size_t g_stride, const token *x, size_t i,
                      size_t n, int rows) {
  const __m512i fifteen = _mm512_set1_epi8(15), take = _mm512_setr_epi64(0, 0, 2, 2, 4, 4, 6, 6);
  const int8_t *high = x->high + 32 * i, *low = x->low + 32 * i;
  __m512i high0 = load(high), high1 = load(high + 64), low0 = load(low), low1 = load(low + 64), fix = load(x->fix + 2 * i);
  UNROLL for (int r = 0; r < rows; r++) {
    const int8_t *from = w + (size_t)r * w_stride + 16 * i;
    __m512i scale = load16(g + (size_t)r * g_stride + 2 * i, 2 * n);
    __m512i pairs = n == 4 ? load(from) : _mm512_maskz_loadu_epi8(first(16 * n), from);
    _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T1);
    __m512i even = _mm512_and_si512(pairs, fifteen), uneven = _mm512_and_si512(_mm512_srli_epi16(pairs, 4), fifteen);
    __m512i s = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(_mm512_set1_epi32(BIAS_W4), even, high0), uneven, high1);
    s = _mm512_slli_epi32(s, 8);
    s = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(s, even, low0), uneven, low1);
    sum[r] = _mm512_madd52lo_epu64(sum[r], scale, fix);
    sum[r] = _mm512_madd52lo_epu64(sum[r], add_pairs(s), _mm512_permutexvar_epi64(take, scale));
  }
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
  size_t w_stride = (size_t)tile->cols >> (form == W4G32), g_stride = (size_t)tile->cols / (form == W4G32 ? 16 : 32);
  const int8_t *w = tile->w + r * w_stride + (from >> (form == W4G32));
  const int16_t *g = form == W8 ? NULL : tile->g + r * g_stride + from / (form == W4G32 ? 16 : 32);
  __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  size_t i = 0, groups = cols / 32;
  if (form == W8) all_w8(sum, w, w_stride, x, cols, rows);
  if (form == W8G32) {
    for (; i + 8 <= groups; i += 8) groups_w8(sum, w, w_stride, g, g_stride, x, i, 8, rows);
    if (i < groups) groups_w8(sum, w, w_stride, g, g_stride, x, i, groups - i, rows);
  }
  if (form == W4G32) {
    for (; i + 4 <= groups; i += 4) groups_w4(sum, w, w_stride, g, g_stride, x, i, 4, rows);
    if (i < groups) groups_w4(sum, w, w_stride, g, g_stride, x, i, groups - i, rows);
  }
  __m128i all = _mm_srai_epi64(_mm_slli_epi64(add_across(sum[0], sum[1]), 12), 12);
  __mmask8 there = (__mmask8)first((size_t)rows);
  if (from) all = _mm_add_epi64(all, _mm_maskz_loadu_epi64(there, out));
  _mm_mask_storeu_epi64(out, there, all);
}

INLINE void one_token(int64_t *acc, const ep_tile *tile, size_t r, size_t t, int form) {
  token *x = (token *)tile->scratch;
  size_t rows = (size_t)tile->rows, all = (size_t)tile->cols;
  int64_t *out = acc + t * rows;
  for (size_t from = 0; from < all; from += STRIPE) {
    size_t cols = all - from < STRIPE ? all - from : STRIPE, row = r;
    split(x, tile, t, from, cols, form);
    for (; row + 2 <= rows; row += 2) one_or_two(out + row, tile, x, row, from, cols, 2, form);
    if (row < rows) one_or_two(out + row, tile, x, row, from, cols, 1, form);
  }
}

/* ---- several tokens --------------------------------------------------------------------------------------------- */

enum { PANEL = 16 }; /* groups: 512 products of a dword's rows stay below 2^31 */

/* Sixteen rows of up to PANEL groups. w: for each pair of columns the rows 0, 8, 1, 9, ... 7, 15, so that the even dwords of a sum
 * are rows 0 to 7 and the odd ones rows 8 to 15. */
typedef struct panel {
  _Alignas(64) int16_t w[PANEL][16][32];
  int16_t g[PANEL][16], u[PANEL][16]; /* scales, minima */
} panel;

INLINE __m256i row32(const int8_t *w, int form) {
  if (form != W4G32) return load256(w);
  __m256i v = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)w)); /* two codes in each 16 bits */
  return _mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi16(v, 4)), _mm256_set1_epi8(15));
}

/* Rows a and a + 4 of a panel's order as columns 0 to 15 of both, then 16 to 31 of both. */
INLINE __m512i two_rows(const int8_t *w, size_t stride, size_t a, int form) {
  __m512i v = _mm512_castsi256_si512(row32(w + a * stride, form));
  v = _mm512_inserti64x4(v, row32(w + (a + 4) * stride, form), 1);
  return _mm512_shuffle_i64x2(v, v, 0xd8);
}

INLINE void store_pair(int16_t *to, __m512i v) {
  store(to, _mm512_cvtepi8_epi16(_mm512_castsi512_si256(v)));
  store(to + 8 * 32, _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(v, 1)));
}

/* One group of sixteen rows, turned eight by eight in each quarter: to is [pair of columns][row][2]. */
INLINE void turn(int16_t *to, const int8_t *w, size_t stride, int form) {
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
    store_pair(to + 64 * k, _mm512_unpacklo_epi64(a[k], a[k + 4]));
    store_pair(to + 64 * k + 32, _mm512_unpackhi_epi64(a[k], a[k + 4]));
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
INLINE void products(__m512i *s, const int16_t *w, const int16_t *x, size_t cols, int n) {
  for (size_t p = 0; p < 16; p += 4, w += 4 * 32, x += 8) {
    const int16_t *half[2] = {x, x + 4 * cols};
    KEEP(half[0]);
    KEEP(half[1]);
    UNROLL for (size_t q = 0; q < 4; q++) {
      __m512i pairs = load(w + 32 * q);
      UNROLL for (int k = 0; k < n; k++)
        s[k] = _mm512_dpwssd_epi32(s[k], pairs, pair_at(half[k / 4] + (size_t)(k % 4) * cols + 2 * q));
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
  panel *w = (panel *)tile->scratch;
  for (size_t i = 0; i < all; i += PANEL) {
    size_t groups = all - i < PANEL ? all - i : PANEL, t = 0;
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
  for (size_t t = 0; t < tokens && r < rows; t++) one_token(acc, tile, r, t, form);
}

AVX512 static void linear_w8(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8); }
AVX512 static void linear_w8g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8G32); }
AVX512 static void linear_w4g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W4G32); }

void ep_avx512_linear(ep_kernels *table) {
  table->linear_w8 = linear_w8;
  table->linear_w8g32 = linear_w8g32;
  table->linear_w4g32 = linear_w4g32;
  table->scratch = sizeof(panel) > sizeof(token) ? sizeof(panel) : sizeof(token);
}

#endif
