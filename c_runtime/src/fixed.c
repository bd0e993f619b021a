#define EP_FIXED_C
#include "fixed.h"

#define EP_TABLES
#include "constants.h"

#if UINTPTR_MAX > 0xffffffff
/* Newton from above, where a division of 64 bits is an instruction: each root is at least the right one until it falls no more. */
uint32_t ep_isqrt64(uint64_t a) {
  if (a == 0) return 0;
  uint64_t root = (uint64_t)1 << (ep_bitlen(a) + 1) / 2, next = root;
  do {
    root = next;
    next = (root + a / root) / 2;
  } while (next < root);
  return (uint32_t)root;
}
#else
uint32_t ep_isqrt64(uint64_t a) {
  uint64_t root = 0, bit = (uint64_t)1 << 62;
  while (bit) {
    if (a >= root + bit) {
      a -= root + bit;
      root = (root >> 1) + bit;
    } else {
      root >>= 1;
    }
    bit >>= 2;
  }
  return (uint32_t)root;
}
#endif

static ep_scale reciprocal(uint32_t top, int32_t e) { /* top in [2^31, 2^32) */
  int64_t m = ep_div_round_half_up((int64_t)1 << 62, top);
  return (ep_scale){m > INT32_MAX ? INT32_MAX : (int32_t)m, e};
}

ep_scale ep_rsqrt(uint64_t a) {
  if (a == 0) a = 1;
  int32_t z = (64 - ep_bitlen(a)) & ~1;
  return reciprocal(ep_isqrt64(a << z), 62 - z / 2);
}

ep_scale ep_recip(uint64_t d) {
  if (d == 0) d = 1;
  int32_t z = 64 - ep_bitlen(d);
  return reciprocal((uint32_t)((d << z) >> 32), 94 - z);
}

int32_t ep_exp2_neg(int64_t r, int32_t W) {
  if (r < 0) r = 0;
  if (r >= (int64_t)40 << 16) return 0;
  int32_t n = (int32_t)(r >> 16), i = (int32_t)(r >> 8) & 255, f = (int32_t)r & 255;
  int64_t e = 256 * (int64_t)EP_EXP2[i] - (int64_t)(EP_EXP2[i] - EP_EXP2[i + 1]) * f;
  return (int32_t)ep_rshift_round(e, n + 38 - W);
}

uint64_t ep_pow2(uint64_t d) {
  int32_t n = (int32_t)(d >> 32);
  if (n >= 41) return 0;
  uint64_t x = (d & 0xffffff) * 744261118 >> 30; /* ln 2, 30 fractional bits */
  uint64_t y = ((uint64_t)1 << 32) - x + (x * x >> 33);
  return (uint64_t)ep_rshift_round((int64_t)((uint64_t)EP_EXP2[d >> 24 & 255] * y), n + 23);
}

uint64_t ep_log2(uint64_t s) {
  int32_t n = ep_bitlen(s) - 1;
  uint64_t m = n < 31 ? s << (31 - n) : s >> (n - 31), fraction = 0;
  for (int bit = 0; bit < 32; bit++) {
    m = m * m >> 31;
    fraction = fraction << 1 | m >> 32;
    m >>= m >> 32;
  }
  return ((uint64_t)(uint32_t)n << 32) + fraction;
}

static int64_t largest(const int32_t *x, int32_t n) {
  uint32_t a = 0;
  for (int32_t i = 0; i < n; i++) {
    uint32_t b = x[i] < 0 ? 0 - (uint32_t)x[i] : (uint32_t)x[i];
    if (b > a) a = b;
  }
  return a;
}

int32_t ep_narrow16(int16_t *q, const int32_t *x, int32_t n) {
  int32_t s = ep_narrow16_shift(largest(x, n));
  for (int32_t i = 0; i < n; i++) q[i] = (int16_t)(s ? ep_rshift_round_word(x[i], s) : x[i]);
  return s;
}

static void quantize_group(int8_t *q, const int32_t *x, int32_t n, int32_t d, int32_t s) {
  for (int32_t i = 0; i < 32; i++) {
    int32_t twice = ep_quant8g32_twice(i < n ? x[i] : 0, s) + 255 * d; /* n_i and 127 times 2 * d: not negative */
    q[i] = (int8_t)((int32_t)((uint32_t)twice / (uint32_t)(2 * d)) - 127);
  }
}

int32_t ep_quant8g32(int8_t *q, int32_t *d, const int32_t *x, int32_t n) {
  int32_t s = ep_quant8g32_shift(largest(x, n));
  for (int32_t i = 0; i < n; i += 32, q += 32, d++) {
    int32_t there = n - i < 32 ? n - i : 32;
    *d = ep_quant8g32_scale(largest(x + i, there), s);
    quantize_group(q, x + i, there, *d, s);
  }
  return s;
}

int32_t ep_quant8(int8_t *q, const int32_t *x, int32_t n) {
  int64_t a = largest(x, n);
  if (a > INT32_MAX) a = INT32_MAX;
  for (int32_t i = 0; i < n; i++) q[i] = (int8_t)(a ? ep_div_round_half_up(127 * (int64_t)x[i], a) : 0);
  return (int32_t)a;
}
