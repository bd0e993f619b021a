/* LINEAR with inputs in groups (a8g32), with AVX-512 VNNI and IFMA: one vpdpbusd for four products of bytes. Its first operand is
 * unsigned, so 128 is added to the weights and taken away again as 128 * (sum of x); codes of four bits are unsigned as they are.
 *
 * One token is read row by row as in avx512_linear.c. For more tokens, sixteen rows are turned into a panel in which a vector holds
 * four columns of every row, and the sums of eight tokens stay in registers over all groups of the panel. */
#include "avx512_linear.h"

#ifdef EP_HAS_AVX512

/* ---- one token -------------------------------------------------------------------------------------------------- */

/* What a token brings besides its bytes, for each factor of a group: one of w8 and w8g32, a scale and a minimum of w4g32. */
typedef struct token {
  _Alignas(64) int8_t split[STRIPE]; /* w4g32: even columns before odd ones, of 128 at a time, as the codes come out of their bytes */
  int64_t d[STRIPE / 16];
  int64_t fix[STRIPE / 16]; /* what the factor is multiplied by besides the sum */
} token;

enum { BIAS_W8 = 1 << 17, BIAS_W4 = 1 << 14 }; /* keep sums of four, then eight products from going below zero */

INLINE void take_token(token *to, const ep_tile *tile, size_t t, size_t from, size_t cols, int form) {
  size_t at = t * (size_t)(tile->cols / 32) + from / 32;
  const int8_t *x = tile->x8 + at * 32;
  for (size_t i = 0; i < cols / 32; i++) {
    int64_t d = tile->d[at + i], sum = tile->sums[at + i];
    if (form != W4G32) {
      to->d[i] = d;
      to->fix[i] = -8 * BIAS_W8 - 128 * sum;
      continue;
    }
    int8_t *even = to->split + i / 4 * 128 + i % 4 * 16;
    __m256i v = load256(x + 32 * i);
    _mm_storeu_si128((__m128i *)even, _mm256_cvtepi16_epi8(v));
    _mm_storeu_si128((__m128i *)(even + 64), _mm256_cvtepi16_epi8(_mm256_srli_epi16(v, 8)));
    to->d[2 * i] = to->d[2 * i + 1] = d;
    to->fix[2 * i] = -4 * BIAS_W4;
    to->fix[2 * i + 1] = sum;
  }
}

/* Two groups, or one, of `rows` rows, with factors k and k + 1 of eight. */
INLINE void pair_w8(__m512i *sum, const int8_t *w, size_t w_stride, const __m512i *factor, const int8_t *x, int64_t k, int whole, int rows) {
  __m512i bytes = whole ? load(x) : _mm512_zextsi256_si512(load256(x)), each = _mm512_setr_epi64(k, k, k, k, k + 1, k + 1, k + 1, k + 1);
  UNROLL for (int r = 0; r < rows; r++) {
    const int8_t *from = w + (size_t)r * w_stride;
    __m512i v = flip(whole ? load(from) : _mm512_zextsi256_si512(load256(from)));
    _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T1);
    __m512i s = add_pairs(_mm512_dpbusd_epi32(_mm512_set1_epi32(BIAS_W8), v, bytes));
    sum[r] = _mm512_madd52lo_epu64(sum[r], s, _mm512_permutexvar_epi64(each, factor[r]));
  }
}

/* n <= 8 groups from group i on; x: of group 0. */
INLINE void groups_w8(__m512i *sum, const int8_t *w, size_t w_stride, const int16_t *g, size_t g_stride, const token *to, const int8_t *x,
                      size_t i, size_t n, int rows) {
  __mmask8 there = (__mmask8)first(n);
  __m512i factor[2], fix = _mm512_maskz_loadu_epi64(there, to->fix + i), d = _mm512_maskz_loadu_epi64(there, to->d + i);
  UNROLL for (int r = 0; r < rows; r++) {
    factor[r] = g ? _mm512_mul_epi32(load16(g + (size_t)r * g_stride + i, n), d) : d;
    sum[r] = _mm512_madd52lo_epu64(sum[r], factor[r], fix);
  }
  w += 32 * i, x += 32 * i;
  if (n == 8) {
    UNROLL for (size_t k = 0; k < 8; k += 2) pair_w8(sum, w + 32 * k, w_stride, factor, x + 32 * k, (int64_t)k, 1, rows);
    return;
  }
  size_t k = 0;
  for (; k + 2 <= n; k += 2) pair_w8(sum, w + 32 * k, w_stride, factor, x + 32 * k, (int64_t)k, 1, rows);
  if (k < n) pair_w8(sum, w + 32 * k, w_stride, factor, x + 32 * k, (int64_t)k, 0, rows);
}

/* n <= 4 groups likewise; a byte holds two columns. */
INLINE void groups_w4(__m512i *sum, const int8_t *w, size_t w_stride, const int16_t *g, size_t g_stride, const token *to, size_t i, size_t n,
                      int rows) {
  const __m512i fifteen = _mm512_set1_epi8(15), take = _mm512_setr_epi64(0, 0, 2, 2, 4, 4, 6, 6);
  __mmask8 there = (__mmask8)first(2 * n);
  __m512i x0 = load(to->split + 32 * i), x1 = load(to->split + 32 * i + 64);
  __m512i fix = _mm512_maskz_loadu_epi64(there, to->fix + 2 * i), d = _mm512_maskz_loadu_epi64(there, to->d + 2 * i);
  UNROLL for (int r = 0; r < rows; r++) {
    const int8_t *from = w + (size_t)r * w_stride + 16 * i;
    __m512i factor = _mm512_mul_epi32(load16(g + (size_t)r * g_stride + 2 * i, 2 * n), d);
    __m512i pairs = n == 4 ? load(from) : _mm512_maskz_loadu_epi8(first(16 * n), from);
    _mm_prefetch((const char *)from + AHEAD, _MM_HINT_T1);
    __m512i s = _mm512_dpbusd_epi32(_mm512_set1_epi32(BIAS_W4), _mm512_and_si512(pairs, fifteen), x0);
    s = _mm512_dpbusd_epi32(s, _mm512_and_si512(_mm512_srli_epi16(pairs, 4), fifteen), x1);
    sum[r] = _mm512_madd52lo_epu64(sum[r], factor, fix);
    sum[r] = _mm512_madd52lo_epu64(sum[r], add_pairs(s), _mm512_permutexvar_epi64(take, factor));
  }
}

/* Columns from..from + cols of `rows` rows from r on: stored, or added to what is there. */
INLINE void one_or_two(int64_t *out, const ep_tile *tile, const token *to, const int8_t *x, size_t r, size_t from, size_t cols, int rows,
                       int form) {
  int w4 = form == W4G32;
  size_t w_stride = (size_t)tile->cols >> w4, g_stride = (size_t)tile->cols / (w4 ? 16 : 32), i = 0, groups = cols / 32;
  const int8_t *w = tile->w + r * w_stride + (from >> w4);
  const int16_t *g = form == W8 ? NULL : tile->g + r * g_stride + from / (w4 ? 16 : 32);
  __m512i sum[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
  if (g) fetch_scales(g, (size_t)rows * (w4 ? 2 * groups : groups), w4 ? 8 : 32);
  if (w4) {
    for (; i + 4 <= groups; i += 4) groups_w4(sum, w, w_stride, g, g_stride, to, i, 4, rows);
    if (i < groups) groups_w4(sum, w, w_stride, g, g_stride, to, i, groups - i, rows);
  } else {
    for (; i + 8 <= groups; i += 8) groups_w8(sum, w, w_stride, g, g_stride, to, x, i, 8, rows);
    if (i < groups) groups_w8(sum, w, w_stride, g, g_stride, to, x, i, groups - i, rows);
  }
  put_rows(out, sum, rows, from != 0);
}

INLINE void one_token(int64_t *acc, const ep_tile *tile, size_t r, size_t t, int form) {
  token *to = (token *)tile->scratch;
  size_t rows = (size_t)tile->rows, all = (size_t)tile->cols;
  int64_t *out = acc + t * rows;
  for (size_t from = 0; from < all; from += STRIPE) {
    size_t cols = all - from < STRIPE ? all - from : STRIPE, row = r;
    const int8_t *x = tile->x8 + t * all + from;
    if (!tile->again || all > STRIPE) take_token(to, tile, t, from, cols, form);
    for (; row + 2 <= rows; row += 2) one_or_two(out + row, tile, to, x, row, from, cols, 2, form);
    if (row < rows) one_or_two(out + row, tile, to, x, row, from, cols, 1, form);
  }
}

/* ---- several tokens --------------------------------------------------------------------------------------------- */

/* Groups of a panel. A row of w8 without scales is added up in 32 bits: at most 16 of them. */
enum { PANEL = 20, PANEL_W8 = 16 };

/* Sixteen or 32 rows of up to PANEL groups, sixteen in a half. The rows of a vector are 0, 8, 1, 9, ... 7, 15, so that the even dwords
 * of a sum are rows 0 to 7 and the odd ones rows 8 to 15. */
typedef struct panel {
  _Alignas(64) int8_t w[PANEL][2][8][64];   /* four columns of each row, unsigned */
  int32_t g[PANEL][2][16], u[PANEL][2][16]; /* scales, minima */
} panel;

INLINE __m512i two_rows(const int8_t *w, size_t stride, size_t a, int form) { /* a and a + 2 */
  return _mm512_inserti64x4(_mm512_castsi256_si512(row32(w + a * stride, form)), row32(w + (a + 2) * stride, form), 1);
}

/* One group of sixteen rows. */
INLINE void turn(int8_t *to, const int8_t *w, size_t stride, int form) {
  __m512i half[2][4]; /* columns 0 to 15 and 16 to 31 of the rows a, a + 2, a + 4 and a + 6 */
  UNROLL for (size_t k = 0; k < 4; k++) {
    size_t a = k / 2 + k % 2 * 8;
    __m512i low = two_rows(w, stride, a, form), high = two_rows(w, stride, a + 4, form);
    if (form != W4G32) low = flip(low), high = flip(high);
    half[0][k] = _mm512_shuffle_i64x2(low, high, 0x88);
    half[1][k] = _mm512_shuffle_i64x2(low, high, 0xdd);
  }
  UNROLL for (int h = 0; h < 2; h++) {
    __m512i *v = half[h];
    __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpacklo_epi32(v[2], v[3]);
    __m512i c = _mm512_unpackhi_epi32(v[0], v[1]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    store(to + 256 * h, _mm512_unpacklo_epi64(a, b));
    store(to + 256 * h + 64, _mm512_unpackhi_epi64(a, b));
    store(to + 256 * h + 128, _mm512_unpacklo_epi64(c, d));
    store(to + 256 * h + 192, _mm512_unpackhi_epi64(c, d));
  }
}

/* Sixteen rows from r on, groups from i on. */
INLINE void fill(panel *to, size_t half, const ep_tile *tile, size_t r, size_t i, size_t groups, int form) {
  size_t all = (size_t)tile->cols / 32, bytes = form == W4G32 ? 16 : 32, step = form == W4G32 ? 2 : 1;
  for (size_t k = 0; k < groups; k++) {
    const int8_t *w = tile->w + (r * all + i + k) * bytes, *later = w + 32 * all * bytes;
    turn(to->w[k][half][0], w, all * bytes, form);
    for (size_t row = 0; row < 16; row++, later += all * bytes) _mm_prefetch((const char *)later, _MM_HINT_T1); /* the next panel */
  }
  for (size_t row = 0; row < 16 && form != W8; row++) {
    const int16_t *g = tile->g + ((r + row) * all + i) * step;
    size_t at = row % 8 * 2 + row / 8;
    for (size_t k = 0; k < groups; k++, g += step) {
      to->g[k][half][at] = g[0];
      if (form == W4G32) to->u[k][half][at] = g[1];
    }
  }
}

/* The dot products of one group of the panel with n tokens are added to s: halves of rows, one after the other, of each. */
INLINE void products(__m512i *s, const int8_t *w, const int8_t *x, size_t cols, int n, int halves) {
  for (size_t q = 0; q < 8; q += 4, w += 4 * 64, x += 16) {
    const int8_t *part[2] = {x, x + 4 * cols};
    KEEP(part[0]);
    KEEP(part[1]);
    UNROLL for (size_t p = 0; p < 4; p++) {
      __m512i rows[2] = {load(w + 64 * p), halves == 2 ? load(w + 64 * p + 512) : _mm512_setzero_si512()};
      UNROLL for (int k = 0; k < n; k++) {
        __m512i four = four_at(part[k / 4] + (size_t)(k % 4) * cols + 4 * p);
        UNROLL for (int h = 0; h < halves; h++) s[k * halves + h] = _mm512_dpbusd_epi32(s[k * halves + h], rows[h], four);
      }
    }
  }
}

/* The sums of one group, times its scale and d, are added to low and high; for w8 times d to low. */
INLINE void scale(__m512i *low, __m512i *high, __m512i s, __m512i g, __m512i u, __m512i d, __m512i sum, int form) {
  if (form == W8) {
    *low = _mm512_add_epi32(*low, _mm512_mullo_epi32(s, d));
  } else if (form == W8G32) {
    s = _mm512_mullo_epi32(s, d);
    *low = _mm512_add_epi64(*low, _mm512_mul_epi32(s, g));
    *high = _mm512_add_epi64(*high, _mm512_mul_epi32(odd(s), odd(g)));
  } else { /* s is below 2^16 and sum below 2^12: together below 2^31 */
    s = _mm512_add_epi32(_mm512_mullo_epi32(s, g), _mm512_mullo_epi32(sum, u));
    *low = _mm512_add_epi64(*low, _mm512_mul_epi32(s, d));
    *high = _mm512_add_epi64(*high, _mm512_mul_epi32(odd(s), d));
  }
}

/* The panel, whose first group is i, against n tokens from t on, n * halves <= 8; out is of the panel's first row. */
INLINE void block(int64_t *out, const ep_tile *tile, const panel *w, size_t i, size_t groups, size_t t, int n, int halves, int form) {
  size_t all = (size_t)tile->cols / 32, cols = (size_t)tile->cols, rows = (size_t)tile->rows, at = t * all + i;
  const int8_t *x = tile->x8 + 32 * at;
  const int32_t *sums = tile->sums + at, *d = tile->d + at;
  __m512i low[8], high[8], s[8];
  int32_t less[8][PANEL];
  UNROLL for (int k = 0; k < n; k++) {
    for (size_t g = 0; g < groups && form != W4G32; g++) less[k][g] = -128 * sums[(size_t)k * all + g];
    UNROLL for (int h = 0; h < halves; h++) {
      const int64_t *of = out + (size_t)k * rows + 16 * h;
      low[k * halves + h] = i && form != W8 ? load(of) : _mm512_setzero_si512();
      high[k * halves + h] = i && form != W8 ? load(of + 8) : _mm512_setzero_si512();
    }
  }
  for (size_t g = 0; g < groups; g++, x += 32) {
    UNROLL for (int k = 0; k < n; k++)
      UNROLL for (int h = 0; h < halves; h++) s[k * halves + h] = form == W4G32 ? _mm512_setzero_si512() : _mm512_set1_epi32(less[k][g]);
    products(s, w->w[g][0][0], x, cols, n, halves);
    UNROLL for (int h = 0; h < halves; h++) {
      __m512i scales = load(w->g[g][h]), minima = form == W4G32 ? load(w->u[g][h]) : scales;
      UNROLL for (int k = 0; k < n; k++) {
        size_t of = (size_t)k * all + g;
        __m512i by = _mm512_set1_epi32(d[of]), sum = form == W4G32 ? _mm512_set1_epi32(sums[of]) : by;
        scale(low + k * halves + h, high + k * halves + h, s[k * halves + h], scales, minima, by, sum, form);
      }
    }
  }
  UNROLL for (int k = 0; k < n; k++) {
    UNROLL for (int h = 0; h < halves; h++) {
      int64_t *of = out + (size_t)k * rows + 16 * h;
      __m512i even = low[k * halves + h], uneven = high[k * halves + h];
      if (form == W8) {
        uneven = _mm512_srai_epi64(even, 32);
        even = _mm512_srai_epi64(_mm512_slli_epi64(even, 32), 32);
        if (i) even = _mm512_add_epi64(even, load(of)), uneven = _mm512_add_epi64(uneven, load(of + 8));
      }
      store(of, even);
      store(of + 8, uneven);
    }
  }
}

/* Sixteen rows, or twice as many, from r on against all tokens of the tile. */
INLINE void many_rows(int64_t *acc, const ep_tile *tile, size_t r, int halves, int form) {
  size_t all = (size_t)tile->cols / 32, tokens = (size_t)tile->tokens, rows = (size_t)tile->rows;
  size_t each = part_of_row(all, form == W8 ? PANEL_W8 : PANEL);
  panel *w = (panel *)tile->scratch;
  for (size_t i = 0; i < all; i += each) {
    size_t groups = all - i < each ? all - i : each, t = 0;
    for (size_t h = 0; h < (size_t)halves; h++) fill(w, h, tile, r + 16 * h, i, groups, form);
    for (; halves == 1 && t + 8 <= tokens; t += 8) block(acc + t * rows + r, tile, w, i, groups, t, 8, halves, form);
    for (; t + 4 <= tokens; t += 4) block(acc + t * rows + r, tile, w, i, groups, t, 4, halves, form);
    for (; t < tokens; t++) block(acc + t * rows + r, tile, w, i, groups, t, 1, halves, form);
  }
}

INLINE void linear(int64_t *acc, const ep_tile *tile, int form) {
  size_t r = 0, rows = (size_t)tile->rows, tokens = (size_t)tile->tokens;
  if (tokens >= 4) {
    for (; r + 32 <= rows; r += 32) many_rows(acc, tile, r, 2, form);
    for (; r + 16 <= rows; r += 16) many_rows(acc, tile, r, 1, form);
  }
  for (size_t t = 0; t < tokens && r < rows; t++) one_token(acc, tile, r, t, form);
}

AVX512 static void linear8_w8(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8); }
AVX512 static void linear8_w8g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8G32); }
AVX512 static void linear8_w4g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W4G32); }

/* ---- the inputs ------------------------------------------------------------------------------------------------- */

INLINE __m512i some(const int32_t *x, int32_t n) { /* the first n of 16, the others 0; n may be below 0 */
  return _mm512_maskz_loadu_epi32((__mmask16)first(n > 0 ? (size_t)n : 0), x);
}

/* (n_i + 254 * d) / (2 * d) of docs/arithmetic.md, less 127: the dividend is below 2^17, so its product with
 * floor(2^32 / (2 * d)) + 1 has the quotient in its high half. */
INLINE __m128i codes(__m512i x, int32_t s, int32_t d, uint32_t reciprocal) {
  __m512i twice = s ? _mm512_sra_epi32(x, _mm_cvtsi32_si128(s - 1)) : _mm512_add_epi32(x, x);
  __m512i n = _mm512_add_epi32(twice, _mm512_set1_epi32(255 * d)), by = _mm512_set1_epi32((int32_t)reciprocal);
  __m512i quotient = _mm512_mask_mov_epi32(odd(_mm512_mul_epu32(n, by)), 0xaaaa, _mm512_mul_epu32(odd(n), by));
  return _mm512_cvtepi32_epi8(_mm512_sub_epi32(quotient, _mm512_set1_epi32(127)));
}

AVX512 static int32_t quant8g32(int8_t *q, int32_t *d, const int32_t *x, int32_t n) {
  uint32_t most = 0;
  for (int32_t i = 0; i < n; i += 32) {
    __m512i a = _mm512_max_epu32(_mm512_abs_epi32(some(x + i, n - i)), _mm512_abs_epi32(some(x + i + 16, n - i - 16)));
    uint32_t largest = _mm512_reduce_max_epu32(a);
    d[i / 32] = (int32_t)largest; /* read as unsigned below */
    if (largest > most) most = largest;
  }
  int32_t s = ep_quant8g32_shift(most);
  for (int32_t i = 0; i < n; i += 32, q += 32, d++) {
    *d = ep_quant8g32_scale((uint32_t)*d, s);
    uint32_t reciprocal = 0x80000000u / (uint32_t)*d + 1;
    _mm_storeu_si128((__m128i *)q, codes(some(x + i, n - i), s, *d, reciprocal));
    _mm_storeu_si128((__m128i *)(q + 16), codes(some(x + i + 16, n - i - 16), s, *d, reciprocal));
  }
  return s;
}

void ep_avx512_groups(ep_kernels *table) {
  size_t scratch = sizeof(panel) > sizeof(token) ? sizeof(panel) : sizeof(token);
  table->quant8g32 = EP_KERNEL_ANY(EP_FEATURES_IN8, quant8g32);
  table->linear8_w8 = EP_KERNEL(EP_FEATURE_IN8_W8, linear8_w8);
  table->linear8_w8g32 = EP_KERNEL(EP_FEATURE_IN8_W8G32, linear8_w8g32);
  table->linear8_w4g32 = EP_KERNEL(EP_FEATURE_IN8_W4G32, linear8_w4g32);
  if (table->scratch < scratch) table->scratch = scratch;
}

#endif
