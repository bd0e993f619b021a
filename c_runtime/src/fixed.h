/* The primitives of docs/arithmetic.md section 2, under the same names. All rounding of the runtime is in this file. */
#ifndef EP_FIXED_H
#define EP_FIXED_H

#include <stdint.h>

/* Compiled for size, the longer ones are functions of fixed.c. */
#if defined(__OPTIMIZE_SIZE__) && !defined(EP_FIXED_C)
#define EP_SHARED
#elif defined(__OPTIMIZE_SIZE__)
#define EP_SHARED_INLINE
#else
#define EP_SHARED_INLINE static inline
#endif

/* A positive multiplier m * 2^-e with 2^30 <= m < 2^31. */
typedef struct ep_scale {
  int32_t m, e;
} ep_scale;

static inline int32_t ep_sat32(int64_t x) { return x > INT32_MAX ? INT32_MAX : x < INT32_MIN ? INT32_MIN : (int32_t)x; }

/* (S): as sat32, counted. */
static inline int32_t ep_sat32_count(int64_t x, uint64_t *count) {
  int32_t y = ep_sat32(x);
  *count += y != x;
  return y;
}

static inline int32_t ep_bitlen(uint64_t a) { return a ? 64 - __builtin_clzll(a) : 0; }

static inline uint64_t ep_abs(int64_t x) { return x < 0 ? 0 - (uint64_t)x : (uint64_t)x; }

/* x * 2^n for n >= 0, clamped to int64. */
static inline int64_t ep_lshift_sat(int64_t x, int32_t n) {
  if (x == 0) return 0;
  if (n < 63) {
    int64_t limit = INT64_MAX >> n;
    if (x <= limit && x >= -limit - 1) return x * ((int64_t)1 << n);
  }
  return x < 0 ? INT64_MIN : INT64_MAX;
}

/* floor(x / 2^n + 1/2) for 1 <= n <= 63. */
static inline int64_t ep_rshift_round_by(int64_t x, int32_t n) {
  int64_t v = x >> (n - 1);
  return (v >> 1) + (v & 1);
}

/* The same of an int32 for 1 <= n <= 31, without 64-bit shifts. */
static inline int32_t ep_rshift_round_word(int32_t x, int32_t n) {
  int32_t v = x >> (n - 1);
  return (v >> 1) + (v & 1);
}

#ifdef __OPTIMIZE_SIZE__
int64_t ep_rshift_round(int64_t x, int32_t n);
int64_t ep_scale_round(int64_t a, int32_t m, int32_t n);
int32_t ep_requant(int64_t a, int32_t m, int32_t n, uint64_t *count);
#endif
#ifndef EP_SHARED
/* floor(x / 2^n + 1/2): the one rounding rule. */
EP_SHARED_INLINE int64_t ep_rshift_round(int64_t x, int32_t n) {
  if (n <= 0) return n == 0 ? x : ep_lshift_sat(x, n > -64 ? -n : 64);
  return n >= 64 ? 0 : ep_rshift_round_by(x, n);
}

/* floor(a * m / 2^n + 1/2) clamped to int64 after it is known to be far outside int32: the exact product, rounded once. */
EP_SHARED_INLINE int64_t ep_scale_round(int64_t a, int32_t m, int32_t n) {
  int64_t low = (int64_t)((uint64_t)a & 0xffffffffu) * m;
  int64_t hi = (a >> 32) * (int64_t)m + (low >> 32); /* the product is hi * 2^32 + lo, 0 <= lo < 2^32 */
  int64_t lo = low & 0xffffffff;
  int64_t far = hi < 0 ? INT64_MIN : INT64_MAX;
  if (n > 32) { /* v = floor(product / 2^(n-1)) */
    int32_t s = n - 33;
    int64_t v = hi >> (s > 63 ? 63 : s);
    return (v >> 1) + (v & 1);
  }
  if (n > 0) {
    int32_t s = n - 1;
    int64_t top = hi >> s;
    if (top < -4 || top > 3) return far;
    int64_t v = hi * ((int64_t)1 << (32 - s)) + (lo >> s);
    return (v >> 1) + (v & 1);
  }
  if (hi < -4 || hi > 3) return far;
  return ep_lshift_sat(hi * ((int64_t)1 << 32) + lo, n > -64 ? -n : 64);
}

EP_SHARED_INLINE int32_t ep_requant(int64_t a, int32_t m, int32_t n, uint64_t *count) {
  return ep_sat32_count(ep_scale_round(a, m, n), count);
}
#endif

/* floor(num / den + 1/2); the only signed division. */
static inline int64_t ep_div_round_half_up(int64_t num, int64_t den) {
  uint64_t d = den > 0 ? (uint64_t)den : 1, a = ep_abs(num), q = a / d, r = a % d;
  if (num >= 0) return (int64_t)(q + (r >= d - r));
  q += r > d - r; /* halves go up, towards zero */
  return q > INT64_MAX ? INT64_MIN : -(int64_t)q;
}

uint32_t ep_isqrt64(uint64_t a);
ep_scale ep_rsqrt(uint64_t a);
ep_scale ep_recip(uint64_t d);
/* 2^(W - r/2^16); at most 2^30. */
int32_t ep_exp2_neg(int64_t r, int32_t W);

/* 2^(39 - d/2^32), good to 10^-8. */
uint64_t ep_pow2(uint64_t d);
/* log2(s) * 2^32 for s > 0. */
uint64_t ep_log2(uint64_t s);

/* The shift of narrow16 for a = max |x_i| <= 2^31. */
static inline int32_t ep_narrow16_shift(int64_t a) {
  int32_t s = ep_bitlen((uint64_t)a) - 15;
  if (s < 0) s = 0;
  return s + (ep_rshift_round(a, s) > 32639);
}
/* int32 vector -> int16 vector, each |q| <= 32639, and the shift s. */
int32_t ep_narrow16(int16_t *q, const int32_t *x, int32_t n);
/* The shift of quant8g32 for a = max |x_i| <= 2^31. */
static inline int32_t ep_quant8g32_shift(int64_t a) {
  int32_t s = 0;
  while (a > (int64_t)127 * 255 << s) s++;
  return s;
}
/* d of a group with a = max |x_i|, at the shift of its vector. */
static inline int32_t ep_quant8g32_scale(int64_t a, int32_t s) {
  int64_t d = (((a - 1) >> s) + 127) / 127; /* ceil(ceil(a / 2^s) / 127) */
  return a ? (int32_t)d : 1;
}
/* floor(2 * x / 2^s) */
static inline int32_t ep_quant8g32_twice(int32_t x, int32_t s) { return s ? x >> (s - 1) : 2 * x; }
/* int32 vector -> int8 vector, padded with zeros to groups of 32, a scale of each in d, and the shift s: x is about q * d * 2^s. */
int32_t ep_quant8g32(int8_t *q, int32_t *d, const int32_t *x, int32_t n);
/* int32 vector -> int8 vector and a >= 0: x is about q * a / 127. */
int32_t ep_quant8(int8_t *q, const int32_t *x, int32_t n);

#endif
