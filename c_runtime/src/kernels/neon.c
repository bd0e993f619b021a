/* aarch64 with Advanced SIMD, and with its dot products of bytes (SDOT) where the processor has them.
 *
 * One token is read row by row. For more tokens a group of eight rows is turned so that a vector holds one column (or four bytes of
 * each row for SDOT); it then serves all tokens of the tile. SDOT takes |x| <= 32639 as two signed bytes, x = high * 256 + low. */
#include "edgepos.h"
#include "kernels.h"

#if defined(__GNUC__) && defined(__aarch64__) && defined(__ARM_NEON) && !defined(EDGEPOS_GENERIC_ONLY)
#include <arm_neon.h>
#if __STDC_HOSTED__
#include <string.h>
#else
void *memset(void *to, int value, size_t n);
#endif

#include "../fixed.h"

/* Clang before 16 knows the dot products only where the whole file may use them. */
#if !defined(__clang__) || __clang_major__ >= 16
#define DOTPROD __attribute__((target("arch=armv8.2-a+dotprod")))
#elif defined(__ARM_FEATURE_DOTPROD)
#define DOTPROD
#endif
#define INLINE static inline __attribute__((always_inline))
#ifdef __clang__
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

enum { W8, W8G32, W4G32 };

/* ---- LINEAR, one token ------------------------------------------------------------------------------------------ */

/* 32 weights of a group in the order of columns. */
INLINE int8x16x2_t weights(const int8_t *w, int form) {
  if (form != W4G32) return (int8x16x2_t){{vld1q_s8(w), vld1q_s8(w + 16)}};
  uint8x16_t v = vreinterpretq_u8_s8(vld1q_s8(w));
  int8x16_t low = vreinterpretq_s8_u8(vandq_u8(v, vdupq_n_u8(15))), high = vreinterpretq_s8_u8(vshrq_n_u8(v, 4));
  return (int8x16x2_t){{vzip1q_s8(low, high), vzip2q_s8(low, high)}};
}

INLINE size_t group_bytes(int form) { return form == W4G32 ? 16 : 32; }

INLINE int32x4_t add_products(int32x4_t sum, int16x8_t w, int16x8_t x) {
  return vmlal_high_s16(vmlal_s16(sum, vget_low_s16(w), vget_low_s16(x)), w, x);
}

/* The 32 products of a group as four sums of eight, each below 2^25. */
INLINE int32x4_t group(const int8_t *w, const int16_t *x, int form) {
  int8x16x2_t v = weights(w, form);
  int32x4_t a = vdupq_n_s32(0), b = a;
  a = add_products(a, vmovl_s8(vget_low_s8(v.val[0])), vld1q_s16(x));
  b = add_products(b, vmovl_high_s8(v.val[0]), vld1q_s16(x + 8));
  a = add_products(a, vmovl_s8(vget_low_s8(v.val[1])), vld1q_s16(x + 16));
  b = add_products(b, vmovl_high_s8(v.val[1]), vld1q_s16(x + 24));
  return vaddq_s32(a, b);
}

/* acc + sums times lane i of g. */
#define ADD_SCALED(acc, sums, g, i) \
  vmlal_high_laneq_s32(vmlal_laneq_s32(acc, vget_low_s32(sums), g, i), sums, g, i)

/* Sums times scales of a row from its group i on: four groups. */
INLINE int64x2_t four_groups(int64x2_t acc, const int32x4_t sums[4], int32x4_t g) {
  acc = ADD_SCALED(acc, sums[0], g, 0);
  acc = ADD_SCALED(acc, sums[1], g, 1);
  acc = ADD_SCALED(acc, sums[2], g, 2);
  return ADD_SCALED(acc, sums[3], g, 3);
}

/* Scales of four groups; with w4g32 their minima times the sums of x are added to acc. */
INLINE int32x4_t scales4(int64x2_t *acc, const int16_t *g, const int32_t *sums, int form) {
  if (form == W8) return vdupq_n_s32(1);
  if (form == W8G32) return vmovl_s16(vld1_s16(g));
  int16x4x2_t both = vld2_s16(g);
  int32x4_t u = vmovl_s16(both.val[1]), x = vld1q_s32(sums);
  *acc = vmlal_high_s32(vmlal_s32(*acc, vget_low_s32(u), vget_low_s32(x)), u, x);
  return vmovl_s16(both.val[0]);
}

/* What is left of a row behind the last four groups. */
INLINE int64_t last_groups(const int8_t *w, const int16_t *g, const int16_t *x, const int32_t *sums, size_t groups, int form) {
  int64_t acc = 0;
  for (size_t i = 0; i < groups; i++) {
    int64_t sum = vaddlvq_s32(group(w + i * group_bytes(form), x + 32 * i, form));
    if (form == W8) acc += sum;
    if (form == W8G32) acc += sum * g[i];
    if (form == W4G32) acc += sum * g[2 * i] + (int64_t)sums[i] * g[2 * i + 1];
  }
  return acc;
}

/* A row of the tile: where its weights and scales lie, and those of a group. */
INLINE const int8_t *weights_at(const ep_tile *tile, size_t r, size_t i, int form) {
  return tile->w + (r * ((size_t)tile->cols / 32) + i) * group_bytes(form);
}
INLINE const int16_t *scales_at(const ep_tile *tile, size_t r, size_t i, int form) {
  return form == W8 ? NULL : tile->g + (r * ((size_t)tile->cols / 32) + i) * (form == W4G32 ? 2 : 1);
}
INLINE const int32_t *sums_at(const ep_tile *tile, size_t t, size_t i, int form) {
  return form == W4G32 ? tile->sums + t * ((size_t)tile->cols / 32) + i : NULL;
}

INLINE int64_t row(const ep_tile *tile, size_t r, size_t t, int form) {
  size_t groups = (size_t)tile->cols / 32, i = 0;
  const int16_t *x = tile->x + t * (size_t)tile->cols;
  int64x2_t acc = vdupq_n_s64(0);
  for (; i + 4 <= groups; i += 4) {
    const int8_t *w = weights_at(tile, r, i, form);
    int32x4_t sums[4], g = scales4(&acc, scales_at(tile, r, i, form), sums_at(tile, t, i, form), form);
    UNROLL for (size_t k = 0; k < 4; k++) sums[k] = group(w + k * group_bytes(form), x + 32 * (i + k), form);
    acc = four_groups(acc, sums, g);
  }
  if (i == groups) return vaddvq_s64(acc);
  return vaddvq_s64(acc) + last_groups(weights_at(tile, r, i, form), scales_at(tile, r, i, form), x + 32 * i,
                                       sums_at(tile, t, i, form), groups - i, form);
}

/* ---- LINEAR, eight rows and several tokens ---------------------------------------------------------------------- */

/* Scales of a group of eight rows, and minima; rows 0 to 3 and 4 to 7. */
typedef struct scales8 {
  int32x4_t g[2], u[2];
} scales8;

INLINE int32x4_t every(const int16_t *g, size_t stride) {
  const int32_t four[4] = {g[0], g[stride], g[2 * stride], g[3 * stride]};
  return vld1q_s32(four);
}

INLINE scales8 take_scales(const ep_tile *tile, size_t r, size_t i, int form) {
  size_t groups = (size_t)tile->cols / 32, stride = form == W4G32 ? 2 * groups : groups;
  int32x4_t one = vdupq_n_s32(1);
  if (form == W8) return (scales8){{one, one}, {one, one}};
  const int16_t *g = scales_at(tile, r, i, form);
  scales8 s = {{every(g, stride), every(g + 4 * stride, stride)}, {one, one}};
  if (form == W4G32) s.u[0] = every(g + 1, stride), s.u[1] = every(g + 4 * stride + 1, stride);
  return s;
}

/* acc of eight rows of a token + sums of a group times scales. */
INLINE void finish(int64_t *acc, int32x4_t low, int32x4_t high, const scales8 *s, const int32_t *x, int form) {
  int32x4_t sums[2] = {low, high};
  UNROLL for (int k = 0; k < 2; k++) {
    int64x2_t a = vmlal_s32(vld1q_s64(acc + 4 * k), vget_low_s32(sums[k]), vget_low_s32(s->g[k]));
    int64x2_t b = vmlal_high_s32(vld1q_s64(acc + 4 * k + 2), sums[k], s->g[k]);
    if (form == W4G32) a = vmlal_n_s32(a, vget_low_s32(s->u[k]), *x), b = vmlal_high_n_s32(b, s->u[k], *x);
    vst1q_s64(acc + 4 * k, a);
    vst1q_s64(acc + 4 * k + 2, b);
  }
}

/* Eight columns of eight rows: panel[8 * column + row]. */
INLINE void turn8(int16_t *panel, const int8x8_t row[8]) {
  int8x16_t a = vcombine_s8(row[0], row[4]), b = vcombine_s8(row[1], row[5]), c = vcombine_s8(row[2], row[6]),
            d = vcombine_s8(row[3], row[7]);
  int8x16_t ac_low = vzip1q_s8(a, c), ac_high = vzip2q_s8(a, c), bd_low = vzip1q_s8(b, d), bd_high = vzip2q_s8(b, d);
  int16x8_t q[4] = {vreinterpretq_s16_s8(vzip1q_s8(ac_low, bd_low)), vreinterpretq_s16_s8(vzip2q_s8(ac_low, bd_low)),
                    vreinterpretq_s16_s8(vzip1q_s8(ac_high, bd_high)), vreinterpretq_s16_s8(vzip2q_s8(ac_high, bd_high))};
  UNROLL for (int k = 0; k < 2; k++) { /* q[0], q[1]: rows 0 to 3 of columns 0 to 3 and 4 to 7; q[2], q[3]: rows 4 to 7 */
    int32x4_t low = vreinterpretq_s32_s16(q[k]), high = vreinterpretq_s32_s16(q[k + 2]);
    int8x16_t first = vreinterpretq_s8_s32(vzip1q_s32(low, high)), second = vreinterpretq_s8_s32(vzip2q_s32(low, high));
    vst1q_s16(panel + 32 * k, vmovl_s8(vget_low_s8(first)));
    vst1q_s16(panel + 32 * k + 8, vmovl_high_s8(first));
    vst1q_s16(panel + 32 * k + 16, vmovl_s8(vget_low_s8(second)));
    vst1q_s16(panel + 32 * k + 24, vmovl_high_s8(second));
  }
}

INLINE void turn(int16_t *panel, const ep_tile *tile, size_t r, size_t i, int form) {
  int8x16x2_t w[8];
  UNROLL for (size_t k = 0; k < 8; k++) w[k] = weights(weights_at(tile, r + k, i, form), form);
  UNROLL for (int half = 0; half < 2; half++) {
    int8x8_t low[8], high[8];
    UNROLL for (int k = 0; k < 8; k++) low[k] = vget_low_s8(w[k].val[half]), high[k] = vget_high_s8(w[k].val[half]);
    turn8(panel + 128 * half, low);
    turn8(panel + 128 * half + 64, high);
  }
}

/* One column of eight rows times one activation of each token. */
#define COLUMN(c)                                                                         \
  do {                                                                                    \
    int16x8_t w = vld1q_s16(panel + 8 * (c));                                             \
    UNROLL for (int k = 0; k < n; k++) {                                                  \
      low[k] = vmlal_laneq_s16(low[k], vget_low_s16(w), x[k], c);                         \
      high[k] = vmlal_high_laneq_s16(high[k], w, x[k], c);                                \
    }                                                                                     \
  } while (0)

/* Group i of rows r to r + 7 against n <= 8 tokens from t on: added to acc. */
INLINE void block(int64_t *acc, const ep_tile *tile, const int16_t *panel, const scales8 *s, size_t r, size_t i, size_t t, int n,
                  int form) {
  size_t cols = (size_t)tile->cols, rows = (size_t)tile->rows;
  int32x4_t low[8], high[8];
  UNROLL for (int k = 0; k < n; k++) low[k] = high[k] = vdupq_n_s32(0);
  for (size_t c = 0; c < 32; c += 8, panel += 64) {
    int16x8_t x[8];
    UNROLL for (int k = 0; k < n; k++) x[k] = vld1q_s16(tile->x + (t + (size_t)k) * cols + 32 * i + c);
    COLUMN(0);
    COLUMN(1);
    COLUMN(2);
    COLUMN(3);
    COLUMN(4);
    COLUMN(5);
    COLUMN(6);
    COLUMN(7);
  }
  UNROLL for (int k = 0; k < n; k++) {
    size_t token = t + (size_t)k;
    finish(acc + token * rows + r, low[k], high[k], s, sums_at(tile, token, i, form), form);
  }
}

INLINE void clear8(int64_t *acc, const ep_tile *tile, size_t r) {
  for (size_t t = 0; t < (size_t)tile->tokens; t++) memset(acc + t * (size_t)tile->rows + r, 0, 8 * sizeof *acc);
}

INLINE void rows8(int64_t *acc, const ep_tile *tile, size_t r, int form) {
  size_t groups = (size_t)tile->cols / 32, tokens = (size_t)tile->tokens;
  int16_t panel[256];
  clear8(acc, tile, r);
  for (size_t i = 0; i < groups; i++) {
    size_t t = 0;
    scales8 s = take_scales(tile, r, i, form);
    turn(panel, tile, r, i, form);
    for (; t + 8 <= tokens; t += 8) block(acc, tile, panel, &s, r, i, t, 8, form);
    for (; t + 4 <= tokens; t += 4) block(acc, tile, panel, &s, r, i, t, 4, form);
    for (; t < tokens; t++) block(acc, tile, panel, &s, r, i, t, 1, form);
  }
}

/* Rows from r on, one by one. */
INLINE void rows_left(int64_t *acc, const ep_tile *tile, size_t r, int form) {
  size_t rows = (size_t)tile->rows;
  for (; r < rows; r++)
    for (size_t t = 0; t < (size_t)tile->tokens; t++) acc[t * rows + r] = row(tile, r, t, form);
}

INLINE void linear(int64_t *acc, const ep_tile *tile, int form) {
  size_t r = 0;
  if (tile->tokens >= 4)
    for (; r + 8 <= (size_t)tile->rows; r += 8) rows8(acc, tile, r, form);
  rows_left(acc, tile, r, form);
}

static void linear_w8(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8); }
static void linear_w8g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8G32); }
static void linear_w4g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W4G32); }

/* ---- LINEAR with dot products ----------------------------------------------------------------------------------- */

#ifdef DOTPROD
/* |x| <= 32639 of 16 columns as signed bytes: x = high * 256 + low. */
typedef struct split16 {
  int8x16_t high, low;
} split16;

INLINE split16 split(const int16_t *x) {
  int16x8_t a = vld1q_s16(x), b = vld1q_s16(x + 8);
  return (split16){vrshrn_high_n_s16(vrshrn_n_s16(a, 8), b, 8), vuzp1q_s8(vreinterpretq_s8_s16(a), vreinterpretq_s8_s16(b))};
}

INLINE int32x4_t join(int32x4_t high, int32x4_t low) { return vaddq_s32(vshlq_n_s32(high, 8), low); }

DOTPROD INLINE int32x4_t group_dot(const int8_t *w, split16 a, split16 b, int form) {
  int8x16x2_t v = weights(w, form);
  const int32x4_t zero = vdupq_n_s32(0);
  return join(vdotq_s32(vdotq_s32(zero, v.val[0], a.high), v.val[1], b.high), vdotq_s32(vdotq_s32(zero, v.val[0], a.low), v.val[1], b.low));
}

/* Four rows at a time, so that the activations are split once for them. */
DOTPROD INLINE void rows4_dot(int64_t *acc, const ep_tile *tile, size_t r, size_t t, int form) {
  size_t groups = (size_t)tile->cols / 32, i = 0;
  const int16_t *x = tile->x + t * (size_t)tile->cols;
  int64x2_t sum[4] = {vdupq_n_s64(0), vdupq_n_s64(0), vdupq_n_s64(0), vdupq_n_s64(0)};
  for (; i + 4 <= groups; i += 4) {
    int32x4_t s[4][4];
    UNROLL for (size_t k = 0; k < 4; k++) {
      split16 a = split(x + 32 * (i + k)), b = split(x + 32 * (i + k) + 16);
      UNROLL for (size_t n = 0; n < 4; n++) s[n][k] = group_dot(weights_at(tile, r + n, i + k, form), a, b, form);
    }
    UNROLL for (size_t n = 0; n < 4; n++) {
      int32x4_t g = scales4(&sum[n], scales_at(tile, r + n, i, form), sums_at(tile, t, i, form), form);
      sum[n] = four_groups(sum[n], s[n], g);
    }
  }
  UNROLL for (size_t n = 0; n < 4; n++) {
    acc[r + n] = vaddvq_s64(sum[n]);
    if (i < groups)
      acc[r + n] += last_groups(weights_at(tile, r + n, i, form), scales_at(tile, r + n, i, form), x + 32 * i,
                                sums_at(tile, t, i, form), groups - i, form);
  }
}

/* Sixteen columns of four rows: four vectors of four bytes of each row. */
INLINE void turn4(int8_t *panel, size_t stride, int32x4_t a, int32x4_t b, int32x4_t c, int32x4_t d) {
  int32x4_t ab_low = vtrn1q_s32(a, b), ab_high = vtrn2q_s32(a, b), cd_low = vtrn1q_s32(c, d), cd_high = vtrn2q_s32(c, d);
  int64x2_t p = vreinterpretq_s64_s32(ab_low), q = vreinterpretq_s64_s32(ab_high), u = vreinterpretq_s64_s32(cd_low),
            v = vreinterpretq_s64_s32(cd_high);
  vst1q_s8(panel, vreinterpretq_s8_s64(vtrn1q_s64(p, u)));
  vst1q_s8(panel + stride, vreinterpretq_s8_s64(vtrn1q_s64(q, v)));
  vst1q_s8(panel + 2 * stride, vreinterpretq_s8_s64(vtrn2q_s64(p, u)));
  vst1q_s8(panel + 3 * stride, vreinterpretq_s8_s64(vtrn2q_s64(q, v)));
}

/* panel: for each four columns 16 bytes of rows 0 to 3, then of rows 4 to 7. */
INLINE void turn_dot(int8_t *panel, const ep_tile *tile, size_t r, size_t i, int form) {
  UNROLL for (size_t half = 0; half < 2; half++) {
    int32x4_t w[4][2];
    UNROLL for (size_t k = 0; k < 4; k++) {
      int8x16x2_t v = weights(weights_at(tile, r + 4 * half + k, i, form), form);
      w[k][0] = vreinterpretq_s32_s8(v.val[0]), w[k][1] = vreinterpretq_s32_s8(v.val[1]);
    }
    turn4(panel + 16 * half, 32, w[0][0], w[1][0], w[2][0], w[3][0]);
    turn4(panel + 16 * half + 128, 32, w[0][1], w[1][1], w[2][1], w[3][1]);
  }
}

/* Four columns of eight rows times those of each token. */
#define FOUR_COLUMNS(c)                                                  \
  do {                                                                   \
    int8x16_t w = vld1q_s8(panel + 32 * (c)), v = vld1q_s8(panel + 32 * (c) + 16); \
    UNROLL for (int k = 0; k < n; k++) {                                 \
      high[k][0] = vdotq_laneq_s32(high[k][0], w, x[k].high, c);         \
      high[k][1] = vdotq_laneq_s32(high[k][1], v, x[k].high, c);         \
      low[k][0] = vdotq_laneq_s32(low[k][0], w, x[k].low, c);            \
      low[k][1] = vdotq_laneq_s32(low[k][1], v, x[k].low, c);            \
    }                                                                    \
  } while (0)

DOTPROD INLINE void block_dot(int64_t *acc, const ep_tile *tile, const int8_t *panel, const scales8 *s, size_t r, size_t i, size_t t,
                              int n, int form) {
  size_t cols = (size_t)tile->cols, rows = (size_t)tile->rows;
  int32x4_t high[4][2], low[4][2];
  UNROLL for (int k = 0; k < n; k++) high[k][0] = high[k][1] = low[k][0] = low[k][1] = vdupq_n_s32(0);
  for (size_t c = 0; c < 32; c += 16, panel += 128) {
    split16 x[4];
    UNROLL for (int k = 0; k < n; k++) x[k] = split(tile->x + (t + (size_t)k) * cols + 32 * i + c);
    FOUR_COLUMNS(0);
    FOUR_COLUMNS(1);
    FOUR_COLUMNS(2);
    FOUR_COLUMNS(3);
  }
  UNROLL for (int k = 0; k < n; k++) {
    size_t token = t + (size_t)k;
    int32x4_t first = join(high[k][0], low[k][0]), second = join(high[k][1], low[k][1]);
    finish(acc + token * rows + r, first, second, s, sums_at(tile, token, i, form), form);
  }
}

DOTPROD INLINE void rows8_dot(int64_t *acc, const ep_tile *tile, size_t r, int form) {
  size_t groups = (size_t)tile->cols / 32, tokens = (size_t)tile->tokens;
  int8_t panel[256];
  clear8(acc, tile, r);
  for (size_t i = 0; i < groups; i++) {
    size_t t = 0;
    scales8 s = take_scales(tile, r, i, form);
    turn_dot(panel, tile, r, i, form);
    for (; t + 4 <= tokens; t += 4) block_dot(acc, tile, panel, &s, r, i, t, 4, form);
    for (; t < tokens; t++) block_dot(acc, tile, panel, &s, r, i, t, 1, form);
  }
}

DOTPROD INLINE void linear_dot(int64_t *acc, const ep_tile *tile, int form) {
  size_t r = 0, rows = (size_t)tile->rows;
  if (tile->tokens >= 4)
    for (; r + 8 <= rows; r += 8) rows8_dot(acc, tile, r, form);
  for (; r + 4 <= rows; r += 4)
    for (size_t t = 0; t < (size_t)tile->tokens; t++) rows4_dot(acc + t * rows, tile, r, t, form);
  rows_left(acc, tile, r, form);
}

DOTPROD static void linear_w8_dot(int64_t *acc, const ep_tile *tile) { linear_dot(acc, tile, W8); }
DOTPROD static void linear_w8g32_dot(int64_t *acc, const ep_tile *tile) { linear_dot(acc, tile, W8G32); }
DOTPROD static void linear_w4g32_dot(int64_t *acc, const ep_tile *tile) { linear_dot(acc, tile, W4G32); }
#endif

/* ---- attention -------------------------------------------------------------------------------------------------- */

/* Sums of two products fit int32: 2 * 32639^2 < 2^31. */
static void score_kv16(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, k += dim) {
    int64x2_t acc = vdupq_n_s64(0);
    int32_t i = 0;
    for (; i + 8 <= dim; i += 8) acc = vpadalq_s32(acc, add_products(vdupq_n_s32(0), vld1q_s16(q + i), vld1q_s16(k + i)));
    out[j] = vaddvq_s64(acc);
    for (; i < dim; i++) out[j] += (int64_t)(q[i] * k[i]);
  }
}

/* 512 products of int8 and |q| <= 32639 stay below 2^31. */
static void score_kv8(int64_t *out, const int16_t *q, const int8_t *k, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, k += dim) {
    int32x4_t acc = vdupq_n_s32(0);
    int32_t i = 0, rest = 0;
    for (; i + 8 <= dim; i += 8) acc = add_products(acc, vld1q_s16(q + i), vmovl_s8(vld1_s8(k + i)));
    for (; i < dim; i++) rest += q[i] * k[i];
    out[j] = (int64_t)vaddvq_s32(acc) + rest;
  }
}

/* Eight components of v, which has elements of `bytes` bytes. */
INLINE int16x8_t eight(const int8_t *v, int bytes) {
  return bytes == 1 ? vmovl_s8(vld1_s8(v)) : vreinterpretq_s16_s8(vld1q_s8(v));
}

/* acc[0 ... 8 * vectors) of mix. */
INLINE void strip(int64_t *acc, const int32_t *p, const int8_t *v, size_t stride, int32_t n, int vectors, int bytes) {
  int64x2_t s[4][4];
  UNROLL for (int i = 0; i < vectors; i++)
    UNROLL for (int k = 0; k < 4; k++) s[i][k] = vld1q_s64(acc + 8 * i + 2 * k);
  for (int32_t j = 0; j < n; j++, v += stride) {
    UNROLL for (int i = 0; i < vectors; i++) {
      int16x8_t x = eight(v + 8 * i * bytes, bytes);
      int32x4_t a = vmovl_s16(vget_low_s16(x)), b = vmovl_high_s16(x);
      s[i][0] = vmlal_n_s32(s[i][0], vget_low_s32(a), p[j]);
      s[i][1] = vmlal_high_n_s32(s[i][1], a, p[j]);
      s[i][2] = vmlal_n_s32(s[i][2], vget_low_s32(b), p[j]);
      s[i][3] = vmlal_high_n_s32(s[i][3], b, p[j]);
    }
  }
  UNROLL for (int i = 0; i < vectors; i++)
    UNROLL for (int k = 0; k < 4; k++) vst1q_s64(acc + 8 * i + 2 * k, s[i][k]);
}

INLINE int32_t mix(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n, int bytes) {
  size_t stride = (size_t)dim * (size_t)bytes, size = (size_t)bytes;
  int32_t i = 0;
  for (; i + 32 <= dim; i += 32) strip(acc + i, p, v + (size_t)i * size, stride, n, 4, bytes);
  for (; i + 8 <= dim; i += 8) strip(acc + i, p, v + (size_t)i * size, stride, n, 1, bytes);
  return i;
}

static void mix_kv16(int64_t *acc, const int32_t *p, const int16_t *v, int32_t dim, int32_t n) {
  int32_t from = mix(acc, p, (const int8_t *)v, dim, n, 2);
  for (int32_t j = 0; j < n && from < dim; j++, v += dim)
    for (int32_t i = from; i < dim; i++) acc[i] += (int64_t)p[j] * v[i];
}

static void mix_kv8(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n) {
  int32_t from = mix(acc, p, v, dim, n, 1);
  for (int32_t j = 0; j < n && from < dim; j++, v += dim)
    for (int32_t i = from; i < dim; i++) acc[i] += (int64_t)p[j] * v[i];
}

/* ---- rounding --------------------------------------------------------------------------------------------------- */

static int32_t narrow16(int16_t *q, const int32_t *x, int32_t n) {
  uint32x4_t most = vdupq_n_u32(0); /* |-2^31| is 2^31 without sign */
  int32_t i = 0;
  for (; i + 4 <= n; i += 4) most = vmaxq_u32(most, vreinterpretq_u32_s32(vabsq_s32(vld1q_s32(x + i))));
  int64_t a = vmaxvq_u32(most);
  for (; i < n; i++)
    if ((int64_t)ep_abs(x[i]) > a) a = (int64_t)ep_abs(x[i]);
  int32_t s = ep_narrow16_shift(a);
  const int32x4_t shift = vdupq_n_s32(-s); /* to the right, rounding halves up */
  for (i = 0; i + 8 <= n; i += 8) {
    int32x4_t low = vrshlq_s32(vld1q_s32(x + i), shift), high = vrshlq_s32(vld1q_s32(x + i + 4), shift);
    vst1q_s16(q + i, vmovn_high_s32(vmovn_s32(low), high));
  }
  for (; i < n; i++) q[i] = (int16_t)ep_rshift_round(x[i], s);
  return s;
}

void ep_neon_kernels(ep_kernels *table, uint32_t cpu) {
  if (!(cpu & EP_CPU_NEON)) return;
  table->name = "neon";
  table->narrow16 = narrow16;
  table->linear_w8 = linear_w8;
  table->linear_w8g32 = linear_w8g32;
  table->linear_w4g32 = linear_w4g32;
  table->score_kv16 = score_kv16;
  table->score_kv8 = score_kv8;
  table->mix_kv16 = mix_kv16;
  table->mix_kv8 = mix_kv8;
#ifdef DOTPROD
  if (!(cpu & EP_CPU_DOTPROD)) return;
  table->name = "dotprod";
  table->linear_w8 = linear_w8_dot;
  table->linear_w8g32 = linear_w8g32_dot;
  table->linear_w4g32 = linear_w4g32_dot;
#endif
}

#else

void ep_neon_kernels(ep_kernels *table, uint32_t cpu) {
  (void)table;
  (void)cpu;
}

#endif
