/* Rounding and the operators that work number by number, with Advanced SIMD. */
#include "elements.h"
#include "neon.h"

#ifdef EP_HAS_NEON
#include "neon_round.h"

NEON static int32_t narrow16(int16_t *q, const int32_t *x, int32_t n) {
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

/* (n_i + 254 * d) / (2 * d) of docs/arithmetic.md, less 127: the dividend is below 2^17, so its product with
 * floor(2^32 / (2 * d)) + 1 has the quotient in its high half. */
INLINE int16x4_t codes(const int32_t *x, int32x4_t twice, int32x4_t zero, uint32x4_t reciprocal) {
  uint32x4_t n = vreinterpretq_u32_s32(vaddq_s32(vshlq_s32(vld1q_s32(x), twice), zero));
  int32x4_t low = vreinterpretq_s32_u64(vmull_u32(vget_low_u32(n), vget_low_u32(reciprocal)));
  return vmovn_s32(vuzp2q_s32(low, vreinterpretq_s32_u64(vmull_high_u32(n, reciprocal))));
}

NEON static int32_t quant8g32(int8_t *q, int32_t *d, const int32_t *x, int32_t n) {
  int32_t rest[32] = {0}, whole = n / 32 * 32; /* the last group, if it is not whole */
  uint32_t most = 0;
  for (int32_t i = whole; i < n; i++) rest[i - whole] = x[i];
  for (int32_t i = 0; i < n; i += 32) {
    const int32_t *from = i < whole ? x + i : rest;
    uint32x4_t a = vdupq_n_u32(0);
    UNROLL for (int k = 0; k < 8; k++) a = vmaxq_u32(a, vreinterpretq_u32_s32(vabsq_s32(vld1q_s32(from + 4 * k))));
    uint32_t b = vmaxvq_u32(a);
    d[i / 32] = (int32_t)b; /* read as unsigned below */
    if (b > most) most = b;
  }
  int32_t s = ep_quant8g32_shift(most);
  const int32x4_t twice = vdupq_n_s32(1 - s);
  for (int32_t i = 0; i < n; i += 32, q += 32, d++) {
    const int32_t *from = i < whole ? x + i : rest;
    *d = ep_quant8g32_scale((uint32_t)*d, s);
    const int32x4_t zero = vdupq_n_s32(255 * *d);
    const uint32x4_t reciprocal = vdupq_n_u32(0x80000000u / (uint32_t)*d + 1);
    UNROLL for (int k = 0; k < 4; k++) {
      int16x8_t both = vcombine_s16(codes(from + 8 * k, twice, zero, reciprocal), codes(from + 8 * k + 4, twice, zero, reciprocal));
      vst1_s8(q + 8 * k, vmovn_s16(vsubq_s16(both, vdupq_n_s16(127))));
    }
  }
  return s;
}

/* ---- requant ---------------------------------------------------------------------------------------------------- */

NEON static void requant(int32_t *y, const int64_t *acc, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  int32x4_t by_m = vdupq_n_s32(m);
  int64x2_t by = right(shift - 32);
  for (int32_t i = 0; i < n; i += 8) {
    int32x4_t odd = vdupq_n_s32(0);
    int32_t end = i + 8 < n ? i + 8 : n;
    if (end == i + 8 && m >= 0 && shift >= 33) {
      int32x4_t a = requant4(vld1q_s64(acc + i), vld1q_s64(acc + i + 2), by_m, by, by, &odd);
      int32x4_t b = requant4(vld1q_s64(acc + i + 4), vld1q_s64(acc + i + 6), by_m, by, by, &odd);
      if (put8(y + i, a, b, odd)) continue;
    }
    for (int32_t k = i; k < end; k++) y[k] = ep_requant(acc[k], m, shift, count);
  }
}

/* What the vectors leave to be looked at in the end: bits of mantissas and of results, and the largest of 32 - the shifts. */
typedef struct doubts {
  int32x4_t m, odd, highest;
} doubts;

/* Four rows: mantissas, and 32 - the shifts without those of the tokens. */
typedef struct row_scales {
  int32x4_t m;
  int64x2_t by[2];
} row_scales;

INLINE row_scales scales_of(const int32_t *scales, int32x4_t less, doubts *all) {
  int32x4_t first = vld1q_s32(scales), second = vld1q_s32(scales + 4), m = vuzp1q_s32(first, second);
  int32x4_t by = vmaxq_s32(vsubq_s32(less, vuzp2q_s32(first, second)), vdupq_n_s32(-100));
  all->m = vorrq_s32(all->m, m), all->highest = vmaxq_s32(all->highest, by);
  return (row_scales){m, {vmovl_s32(vget_low_s32(by)), vmovl_high_s32(by)}};
}

INLINE int32x4_t requant_four(const int64_t *acc, const row_scales *s, int32x2_t less, int alone, doubts *all) {
  int64x2_t first = alone ? s->by[0] : vaddw_s32(s->by[0], less), second = alone ? s->by[1] : vaddw_s32(s->by[1], less);
  return requant4(vld1q_s64(acc), vld1q_s64(acc + 2), s->m, first, second, &all->odd);
}

/* The first rows of all tokens, a multiple of eight of them; whether all were in reach. */
INLINE int some_rows(int32_t *y, size_t stride, const int64_t *acc, const int32_t *scales, int32_t shift, const int32_t *less, int32_t rows,
                     int32_t tokens, int alone) {
  doubts all = {vdupq_n_s32(0), vdupq_n_s32(0), vdupq_n_s32(-100)};
  int32x4_t by = vdupq_n_s32(32 - shift + (alone ? less[0] : 0));
  int32_t most = 0;
  for (int32_t t = 0; t < tokens && !alone; t++) most = less[t] > most ? less[t] : most;
  for (int32_t r = 0; r + 8 <= rows; r += 8) {
    const row_scales a = scales_of(scales + 2 * r, by, &all), b = scales_of(scales + 2 * r + 8, by, &all);
    const int64_t *from = acc + r;
    int32_t *to = y + r;
    for (int32_t t = 0; t < (alone ? 1 : tokens); t++, from += rows, to += stride) {
      int32x2_t more = alone ? vdup_n_s32(0) : vld1_dup_s32(less + t);
      int32x4_t first = requant_four(from, &a, more, alone, &all), second = requant_four(from + 4, &b, more, alone, &all);
      vst1q_s32(to, first);
      vst1q_s32(to + 4, second);
    }
  }
  int32x4_t late = vreinterpretq_s32_u32(vcgeq_s32(all.highest, vdupq_n_s32(-most)));
  return !vmaxvq_u32(vreinterpretq_u32_s32(vorrq_s32(all.odd, vorrq_s32(late, vshrq_n_s32(all.m, 31)))));
}

NEON static void requant_rows(int32_t *y, size_t stride, const int64_t *acc, const int32_t *scales, int32_t shift, const int32_t *less,
                              int32_t rows, int32_t tokens, uint64_t *count) {
  int fit = tokens == 1 ? some_rows(y, stride, acc, scales, shift, less, rows, tokens, 1) : some_rows(y, stride, acc, scales, shift, less, rows, tokens, 0);
  for (int32_t t = 0; t < tokens; t++, y += stride, acc += rows)
    for (int32_t i = fit ? rows & -8 : 0; i < rows; i++) y[i] = ep_requant(acc[i], scales[2 * i], scales[2 * i + 1] + shift - less[t], count);
}

/* ---- number by number ------------------------------------------------------------------------------------------- */

INLINE int32x4_t products4(int32x4_t a, int32x4_t b, int64x2_t by, int32x4_t *odd) {
  return narrowed(vrshlq_s64(vmull_s32(vget_low_s32(a), vget_low_s32(b)), by), vrshlq_s64(vmull_high_s32(a, b), by), odd);
}

NEON static void mul(int32_t *y, const int32_t *a, const int32_t *b, int32_t shift, int32_t n, uint64_t *count) {
  int64x2_t by = right(shift);
  for (int32_t i = 0; i < n; i += 8) {
    int32x4_t odd = vdupq_n_s32(0);
    int32_t end = i + 8 < n ? i + 8 : n;
    if (end == i + 8 && shift >= 0) {
      int32x4_t first = products4(vld1q_s32(a + i), vld1q_s32(b + i), by, &odd);
      int32x4_t second = products4(vld1q_s32(a + i + 4), vld1q_s32(b + i + 4), by, &odd);
      if (put8(y + i, first, second, odd)) continue;
    }
    for (int32_t k = i; k < end; k++) y[k] = ep_sat32_count(ep_rshift_round((int64_t)a[k] * b[k], shift), count);
  }
}

INLINE int32x4_t sums4(int32x4_t a, int32x4_t b, int32x2_t up_a, int32x2_t up_b, int64x2_t by, int32x4_t *odd) {
  int64x2_t low = vmlal_s32(vmull_s32(vget_low_s32(a), up_a), vget_low_s32(b), up_b);
  int64x2_t high = vmlal_s32(vmull_s32(vget_high_s32(a), up_a), vget_high_s32(b), up_b);
  return narrowed(vrshlq_s64(low, by), vrshlq_s64(high, by), odd);
}

NEON static void add(int32_t *y, const int32_t *a, const int32_t *b, const int32_t shift[3], int32_t n, uint64_t *count) {
  int32x2_t up_a = vdup_n_s32(1 << shift[0]), up_b = vdup_n_s32(1 << shift[1]);
  int64x2_t by = right(shift[2]);
  for (int32_t i = 0; i < n; i += 8) {
    int32x4_t odd = vdupq_n_s32(0);
    int32_t end = i + 8 < n ? i + 8 : n;
    if (end == i + 8 && shift[2] >= 0) {
      int32x4_t first = sums4(vld1q_s32(a + i), vld1q_s32(b + i), up_a, up_b, by, &odd);
      int32x4_t second = sums4(vld1q_s32(a + i + 4), vld1q_s32(b + i + 4), up_a, up_b, by, &odd);
      if (put8(y + i, first, second, odd)) continue;
    }
    for (int32_t k = i; k < end; k++) y[k] = ep_sat32_count(ep_add_at(a[k], b[k], shift), count);
  }
}

/* Of four: the table between two of its entries, T[i] * (2^18 - f) + T[i + 1] * f. Lanes beyond an end that is no table's are odd. */
INLINE int32x4_t act4(const int32_t *table, int32x4_t x, int32x4_t in, int32x4_t least, int32x4_t most, int64x2_t out, int32x4_t *odd) {
  int32x4_t u = vqrshlq_s32(x, in), first, second;
  *odd = vorrq_s32(*odd, vreinterpretq_s32_u32(vorrq_u32(vcltq_s32(u, least), vcgtq_s32(u, most))));
  int32x4_t v = vminq_s32(vmaxq_s32(u, vdupq_n_s32(-(1 << 28))), vdupq_n_s32(1 << 28));
  v = vaddq_s32(v, vdupq_n_s32(1 << 28));
  int32x4_t i = vminq_s32(vshrq_n_s32(v, 18), vdupq_n_s32(2047)), f = vsubq_s32(v, vshlq_n_s32(i, 18)), rest = vsubq_s32(vdupq_n_s32(1 << 18), f);
  neighbours(&first, &second, table, i);
  int64x2_t low = vmlal_s32(vmull_s32(vget_low_s32(first), vget_low_s32(rest)), vget_low_s32(second), vget_low_s32(f));
  int64x2_t high = vmlal_high_s32(vmull_high_s32(first, rest), second, f);
  return narrowed(vrshlq_s64(low, out), vrshlq_s64(high, out), odd);
}

NEON static void act(int32_t *y, const int32_t *x, const ep_curve *how, int32_t n, uint64_t *count) {
  int fits = how->out_shift >= 0 && how->in_shift >= -100 && how->in_shift <= 100;
  int32x4_t in = vdupq_n_s32(-how->in_shift), least = vdupq_n_s32(how->left ? -(1 << 28) : INT32_MIN);
  int32x4_t most = vdupq_n_s32(how->right ? (1 << 28) - 1 : INT32_MAX);
  int64x2_t out = right(how->out_shift);
  for (int32_t i = 0; i < n; i += 8) {
    int32x4_t odd = vdupq_n_s32(0);
    int32_t end = i + 8 < n ? i + 8 : n;
    if (end == i + 8 && fits) {
      int32x4_t first = act4(how->table, vld1q_s32(x + i), in, least, most, out, &odd);
      int32x4_t second = act4(how->table, vld1q_s32(x + i + 4), in, least, most, out, &odd);
      if (put8(y + i, first, second, odd)) continue;
    }
    for (int32_t k = i; k < end; k++) y[k] = ep_sat32_count(ep_act_at(how, x[k]), count);
  }
}

NEON static void turn(int32_t *a, int32_t *b, const int16_t *c, const int16_t *s, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  const int32x4_t by_m = vdupq_n_s32(m);
  const int64x2_t by = right(shift - 32);
  for (int32_t j = 0; j < n; j += 4) {
    int32_t end = j + 4 < n ? j + 4 : n;
    if (end == j + 4 && m >= 0 && shift >= 33) {
      int32x4_t odd = vdupq_n_s32(0), x = vld1q_s32(a + j), y = vld1q_s32(b + j), cosine = vmovl_s16(vld1_s16(c + j)), sine = vmovl_s16(vld1_s16(s + j));
      int64x2_t low = vmlsl_s32(vmull_s32(vget_low_s32(x), vget_low_s32(cosine)), vget_low_s32(y), vget_low_s32(sine));
      int64x2_t high = vmlsl_s32(vmull_high_s32(x, cosine), vget_high_s32(y), vget_high_s32(sine));
      int32x4_t first = requant4(low, high, by_m, by, by, &odd);
      low = vmlal_s32(vmull_s32(vget_low_s32(x), vget_low_s32(sine)), vget_low_s32(y), vget_low_s32(cosine));
      high = vmlal_high_s32(vmull_high_s32(x, sine), y, cosine);
      int32x4_t second = requant4(low, high, by_m, by, by, &odd);
      if (!vmaxvq_u32(vreinterpretq_u32_s32(odd))) {
        vst1q_s32(a + j, first);
        vst1q_s32(b + j, second);
        continue;
      }
    }
    for (int32_t k = j; k < end; k++) ep_turn(a + k, b + k, c[k], s[k], m, shift, count);
  }
}

/* ---- NORM ------------------------------------------------------------------------------------------------------- */

/* The largest of the absolute values of x, for LayerNorm of d * x - sum. */
INLINE uint64_t largest_of(const ep_norm *how, const int32_t *x, int64_t sum) {
  uint64_t largest = 0;
  int32_t i = 0;
  if (!how->center) {
    uint32x4_t most = vdupq_n_u32(0);
    for (; i + 4 <= how->d; i += 4) most = vmaxq_u32(most, vreinterpretq_u32_s32(vabsq_s32(vld1q_s32(x + i))));
    largest = vmaxvq_u32(most);
  }
  for (; i < how->d; i++) {
    uint64_t c = ep_abs(ep_centered(how, x[i], sum));
    if (c > largest) largest = c;
  }
  return largest;
}

/* Four of rshift_round(x or d * x - sum, by): below 2^31 in absolute value. */
INLINE int32x4_t centered4(const ep_norm *how, const int32_t *x, int64_t sum, int32_t by) {
  int32x4_t v = vld1q_s32(x);
  if (!how->center) return vrshlq_s32(v, vdupq_n_s32(-by));
  int32x2_t d = vdup_n_s32(how->d);
  int64x2_t less = vdupq_n_s64(sum), shift = vdupq_n_s64(-by);
  int64x2_t low = vsubq_s64(vmull_s32(vget_low_s32(v), d), less), high = vsubq_s64(vmull_s32(vget_high_s32(v), d), less);
  return vcombine_s32(vmovn_s64(vrshlq_s64(low, shift)), vmovn_s64(vrshlq_s64(high, shift)));
}

NEON static void norm(int32_t *y, const int32_t *x, const ep_norm *how, uint64_t *count) {
  int64_t sum = 0;
  int32_t i = 0, d = how->d;
  for (; i < d && how->center; i++) sum += x[i];
  int32_t pre = ep_norm_shift(d, largest_of(how, x, sum));
  int64x2_t both = vdupq_n_s64(0);
  for (i = 0; i + 4 <= d; i += 4) {
    int32x4_t c = centered4(how, x + i, sum, pre);
    both = vmlal_high_s32(vmlal_s32(both, vget_low_s32(c), vget_low_s32(c)), c, c);
  }
  uint64_t squares = (uint64_t)vaddvq_s64(both);
  for (; i < d; i++) {
    int64_t c = ep_rshift_round(ep_centered(how, x[i], sum), pre);
    squares += (uint64_t)(c * c);
  }
  ep_scale r = ep_norm_scale(how, squares, pre);
  int32_t shift = r.e + how->out_shift;
  int32x4_t m = vdupq_n_s32(r.m);
  int64x2_t by = right(shift - 32);
  for (i = 0; i < d; i += 8) {
    int32_t end = i + 8 < d ? i + 8 : d;
    if (end == i + 8 && shift >= 33) {
      int32x4_t odd = vdupq_n_s32(0), out[2];
      UNROLL for (int k = 0; k < 2; k++) {
        int32x4_t c = centered4(how, x + i + 4 * k, sum, pre), gamma = vld1q_s32(how->gamma + i + 4 * k);
        out[k] = requant4(vmull_s32(vget_low_s32(c), vget_low_s32(gamma)), vmull_high_s32(c, gamma), m, by, by, &odd);
        if (how->beta) {
          int32x4_t plain = vaddq_s32(out[k], vld1q_s32(how->beta + i + 4 * k));
          out[k] = vqaddq_s32(out[k], vld1q_s32(how->beta + i + 4 * k));
          odd = vorrq_s32(odd, veorq_s32(plain, out[k]));
        }
      }
      if (put8(y + i, out[0], out[1], odd)) continue;
    }
    for (int32_t k = i; k < end; k++) {
      int64_t c = ep_rshift_round(ep_centered(how, x[k], sum), pre);
      y[k] = ep_requant(c * how->gamma[k], r.m, shift, count);
      if (how->beta) y[k] = ep_sat32_count((int64_t)y[k] + how->beta[k], count);
    }
  }
}

void ep_neon_elements(ep_kernels *table) {
  table->narrow16 = narrow16;
  table->quant8g32 = EP_KERNEL_ANY(EP_FEATURES_IN8, quant8g32);
  table->requant = requant;
  table->requant_rows = requant_rows;
  table->add = add;
  table->mul = mul;
  table->act = act;
  table->turn = EP_KERNEL_ANY(EP_FEATURES_ROPE, turn);
  table->norm = norm;
}

#else
typedef int ep_nothing; /* C has no empty files */
#endif
