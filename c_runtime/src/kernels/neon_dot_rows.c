/* LINEAR with dot products of bytes (SDOT): two rows of weights against one token.
 *
 * Nobody clears the accumulators: each takes the products of a group to what it was, or for 16 bits to 256 times that, and what was is
 * subtracted afterwards, modulo 2^32; the sum of a group is below 2^27. Four groups of a row make a vector by pairwise additions. */
#include "neon_dot.h"

#if defined(EP_HAS_NEON) && defined(DOTPROD)

typedef struct row {
  const int8_t *w;
  const int16_t *g; /* scales; with w4g32 a minimum follows each */
  int32x4_t s[4], before; /* before: of the sums of the accumulators, what they have had before */
  int64x2_t sum;
} row;

/* Of a token. */
typedef struct inputs {
  const int8_t *x;
  const int32_t *d, *totals;
} inputs;

DOTPROD INLINE int32x4_t dot(int32x4_t s, int8x16_t w0, int8x16_t w1, int8x16_t x0, int8x16_t x1) {
  return vdotq_s32(vdotq_s32(s, w0, x0), w1, x1);
}

/* The weights of two groups, in the order of columns or, of w4g32 against bytes, the even columns of each and then the odd ones. */
INLINE int8x16x4_t two_weights(const int8_t *w, int form, int in) {
  if (form != W4G32) return vld1q_s8_x4(w);
  int8x16x2_t v = vld1q_s8_x2(w), a = nibbles(v.val[0]), b = nibbles(v.val[1]);
  if (in == IN8) return (int8x16x4_t){{a.val[0], a.val[1], b.val[0], b.val[1]}};
  return (int8x16x4_t){{vzip1q_s8(a.val[0], a.val[1]), vzip2q_s8(a.val[0], a.val[1]), vzip1q_s8(b.val[0], b.val[1]), vzip2q_s8(b.val[0], b.val[1])}};
}

/* Groups k and k + 1 of the accumulators. */
DOTPROD INLINE void add_two(row *r, int k, const int8x16x4_t x[2], int form, int in) {
  int8x16x4_t w = two_weights(r->w, form, in);
  ADVANCE(r->w, form == W4G32 ? 32 : 64);
  r->s[k] = dot(r->s[k], w.val[0], w.val[1], x[0].val[0], x[0].val[1]);
  if (in == IN16) r->s[k] = dot(vshlq_n_s32(r->s[k], 8), w.val[0], w.val[1], x[0].val[2], x[0].val[3]);
  int8x16_t next0 = in == IN8 ? x[0].val[2] : x[1].val[0], next1 = in == IN8 ? x[0].val[3] : x[1].val[1];
  r->s[k + 1] = dot(r->s[k + 1], w.val[2], w.val[3], next0, next1);
  if (in == IN16) r->s[k + 1] = dot(vshlq_n_s32(r->s[k + 1], 8), w.val[2], w.val[3], x[1].val[2], x[1].val[3]);
}

INLINE void take_two(int8x16x4_t x[2], inputs *from, int form, int in) {
  if (form == W4G32 && in == IN8) {
    int8x16x2_t a = vld2q_s8(from->x), b = vld2q_s8(from->x + 32);
    x[0] = (int8x16x4_t){{a.val[0], a.val[1], b.val[0], b.val[1]}};
    ADVANCE(from->x, 64);
    return;
  }
  x[0] = vld1q_s8_x4(from->x);
  ADVANCE(from->x, 64);
  if (in == IN8) return;
  x[1] = vld1q_s8_x4(from->x);
  ADVANCE(from->x, 64);
}

INLINE int64x2_t add_products(int64x2_t sum, int32x4_t a, int32x4_t b) { return vmlal_high_s32(vmlal_s32(sum, vget_low_s32(a), vget_low_s32(b)), a, b); }

/* Four of eight scales or minima, times those of the inputs. */
INLINE int32x4_t factors(int16x8_t g, int16x8_t d, int upper, int in) {
  if (in == IN8) return upper ? vmull_high_s16(g, d) : vmull_s16(vget_low_s16(g), vget_low_s16(d));
  return upper ? vmovl_high_s16(g) : vmovl_s16(vget_low_s16(g));
}

DOTPROD INLINE void eight_groups(row r[2], inputs *from, size_t step, int form, int in) {
  int16x8_t g[2], u[2], d = {0};
  UNROLL for (int upper = 0; upper < 2; upper++) {
    UNROLL for (int k = 0; k < 4; k += 2) {
      int8x16x4_t x[2];
      take_two(x, from, form, in);
      add_two(&r[0], k, x, form, in);
      PAUSE;
      add_two(&r[1], k, x, form, in);
      PAUSE;
    }
    int32x4_t totals = form == W4G32 ? vld1q_s32(from->totals + 4 * upper) : vdupq_n_s32(0);
    if (in == IN8 && !upper) d = vuzp1q_s16(vreinterpretq_s16_s32(vld1q_s32(from->d)), vreinterpretq_s16_s32(vld1q_s32(from->d + 4)));
    UNROLL for (int n = 0; n < 2; n++) {
      if (!upper) {
        int16x8x2_t both = form == W4G32 ? vld2q_s16(r[n].g) : (int16x8x2_t){{vld1q_s16(r[n].g), d}};
        g[n] = both.val[0], u[n] = both.val[1];
      }
      int32x4_t now = vpaddq_s32(vpaddq_s32(r[n].s[0], r[n].s[1]), vpaddq_s32(r[n].s[2], r[n].s[3]));
      r[n].sum = add_products(r[n].sum, vsubq_s32(now, r[n].before), factors(g[n], d, upper, in));
      if (form == W4G32) r[n].sum = add_products(r[n].sum, totals, factors(u[n], d, upper, in));
      r[n].before = in == IN8 ? now : vshlq_n_s32(now, 8);
      SETTLE(r[n].sum); /* its operands are gone before the next ones come: registers are few */
    }
  }
  r[0].g += 8 * step, r[1].g += 8 * step;
  if (in == IN8) from->d += 8;
  if (form == W4G32) from->totals += 8;
}

/* Two groups of two rows make a vector. */
DOTPROD INLINE void two_groups(row r[2], inputs *from, size_t step, int form, int in) {
  const int32x4_t none = vdupq_n_s32(0);
  int8x16x4_t x[2];
  int32x4_t s[2];
  int16x4_t g[2], u, d = {0};
  take_two(x, from, form, in);
  UNROLL for (int n = 0; n < 2; n++) {
    row one = r[n];
    one.s[0] = one.s[1] = none;
    add_two(&one, 0, x, form, in);
    s[n] = vpaddq_s32(one.s[0], one.s[1]);
    r[n].w = one.w;
    int64_t word = 0;
    __builtin_memcpy(&word, r[n].g, form == W4G32 ? 8 : 4);
    g[n] = vreinterpret_s16_s64(vdup_n_s64(word));
    ADVANCE(r[n].g, 2 * step);
  }
  s[0] = vpaddq_s32(s[0], s[1]);
  u = vuzp2_s16(g[0], g[1]);
  g[0] = form == W4G32 ? vuzp1_s16(g[0], g[1]) : vreinterpret_s16_s32(vzip1_s32(vreinterpret_s32_s16(g[0]), vreinterpret_s32_s16(g[1])));
  if (in == IN8) {
    d = vreinterpret_s16_s32(vld1_s32(from->d));
    d = vuzp1_s16(d, d);
    from->d += 2;
  }
  int32x4_t by = in == IN8 ? vmull_s16(g[0], d) : vmovl_s16(g[0]);
  r[0].sum = vmlal_s32(r[0].sum, vget_low_s32(s[0]), vget_low_s32(by));
  r[1].sum = vmlal_high_s32(r[1].sum, s[0], by);
  if (form == W4G32) {
    int32x2_t totals = vld1_s32(from->totals);
    by = in == IN8 ? vmull_s16(u, d) : vmovl_s16(u);
    r[0].sum = vmlal_s32(r[0].sum, totals, vget_low_s32(by));
    r[1].sum = vmlal_s32(r[1].sum, totals, vget_high_s32(by));
    from->totals += 2;
  }
}

/* Of a group alone. */
DOTPROD INLINE int64_t one_group(const int8_t *w, const int16_t *g, const inputs *from, int form, int in) {
  int8x16x2_t v = weights(w, form);
  int32x4_t s = dot(vdupq_n_s32(0), v.val[0], v.val[1], vld1q_s8(from->x), vld1q_s8(from->x + 16));
  int64_t d = in == IN8 ? *from->d : 1;
  if (in == IN16) s = dot(vshlq_n_s32(s, 8), v.val[0], v.val[1], vld1q_s8(from->x + 32), vld1q_s8(from->x + 48));
  return vaddvq_s32(s) * (*g * d) + (form == W4G32 ? *from->totals * (g[1] * d) : 0);
}

INLINE inputs inputs_at(const ep_tile *tile, size_t t, size_t i, int form, int in) {
  size_t at = t * ((size_t)tile->cols / 32) + i;
  return (inputs){in == IN8 ? tile->x8 + at * 32 : (const int8_t *)(tile->x + at * 32), in == IN8 ? tile->d + at : NULL,
                  form == W4G32 ? tile->sums + at : NULL};
}

static const int16_t ones[8] = {1, 1, 1, 1, 1, 1, 1, 1};

DOTPROD INLINE void rows_of(int64_t *acc, const ep_tile *tile, size_t t, int form, int in) {
  const size_t rows = (size_t)tile->rows, groups = (size_t)tile->cols / 32, size = in == IN8 ? 32 : 64;
  const size_t step = form == W4G32 ? 2 : tile->g ? 1 : 0;
  row r[2];
  UNROLL for (int n = 0; n < 2; n++) {
    UNROLL for (int k = 0; k < 4; k++) r[n].s[k] = vdupq_n_s32(0);
    r[n].before = vdupq_n_s32(0);
  }
  for (; t < (size_t)tile->tokens; t++) {
    size_t apart = groups * (form == W4G32 ? 16 : 32), scales_apart = groups * step;
    const inputs token = inputs_at(tile, t, 0, form, in);
    const int8_t *eights = token.x + groups / 8 * 8 * size, *pairs = token.x + groups / 2 * 2 * size;
    int64_t *to = acc + t * rows, *end = to + rows;
    r[0].w = tile->w;
    r[0].g = tile->g ? tile->g : ones;
    while (to < end) {
      int alone = to + 1 == end; /* the second row is the first one again, then */
      if (alone) apart = scales_apart = 0;
      inputs from = token;
      r[1].w = r[0].w + apart;
      r[1].g = r[0].g + scales_apart;
      r[0].sum = r[1].sum = vdupq_n_s64(0);
      while (from.x != eights) eight_groups(r, &from, step, form, in);
      while (from.x != pairs) two_groups(r, &from, step, form, in);
      int64x2_t both = vpaddq_s64(r[0].sum, r[1].sum);
      if (groups % 2) {
        int64_t more[2] = {one_group(r[0].w, r[0].g, &from, form, in), one_group(r[1].w, r[1].g, &from, form, in)};
        both = vaddq_s64(both, vld1q_s64(more));
        r[1].w += form == W4G32 ? 16 : 32;
        r[1].g += step;
      }
      r[0].w = r[1].w, r[0].g = r[1].g;
      if (alone)
        *to = vgetq_lane_s64(both, 0);
      else
        vst1q_s64(to, both);
      to += alone ? 1 : 2;
    }
  }
}

DOTPROD void ep_neon_dot_rows_w8(int64_t *acc, const ep_tile *tile, size_t t) { rows_of(acc, tile, t, W8G32, IN16); }
DOTPROD void ep_neon_dot_rows_w4(int64_t *acc, const ep_tile *tile, size_t t) { rows_of(acc, tile, t, W4G32, IN16); }
DOTPROD void ep_neon_dot8_rows_w8(int64_t *acc, const ep_tile *tile, size_t t) { rows_of(acc, tile, t, W8G32, IN8); }
DOTPROD void ep_neon_dot8_rows_w4(int64_t *acc, const ep_tile *tile, size_t t) { rows_of(acc, tile, t, W4G32, IN8); }

DOTPROD INLINE void last_of(int64_t *acc, const ep_tile *tile, size_t tokens, int form) {
  size_t rows = (size_t)tile->rows, groups = (size_t)tile->cols / 32;
  for (size_t t = 0; t < tokens; t++) {
    const inputs from = inputs_at(tile, t, groups - 1, form, IN8);
    for (size_t r = 0; r < rows; r++)
      acc[t * rows + r] += one_group(weights_at(tile, r, groups - 1, form), tile->g ? scales_at(tile, r, groups - 1, form) : ones, &from, form, IN8);
  }
}

DOTPROD void ep_neon_dot8_last_w8(int64_t *acc, const ep_tile *tile, size_t tokens) { last_of(acc, tile, tokens, W8G32); }
DOTPROD void ep_neon_dot8_last_w4(int64_t *acc, const ep_tile *tile, size_t tokens) { last_of(acc, tile, tokens, W4G32); }

#else
typedef int ep_nothing; /* C has no empty files */
#endif
