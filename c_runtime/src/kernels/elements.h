/* One element of the operators that work number by number, as docs/arithmetic.md section 3 has them; saturations are counted later. */
#ifndef EP_ELEMENTS_H
#define EP_ELEMENTS_H

#include "../fixed.h"
#include "kernels.h"

/* The function of a table at u, 24 fractional bits: steps of 1/64 over [-16, 16), linear between them, exact ends. */
static inline int64_t ep_curve_at(const int32_t *table, int32_t u, int32_t out_shift) {
  int32_t v = u < -(1 << 28) ? 0 : u >= 1 << 28 ? 1 << 29 : u + (1 << 28), i = v >> 18, f = v & 0x3ffff;
  int64_t y = table[i] * (int64_t)0x40000;
  if (f) y += ((int64_t)table[i + 1] - table[i]) * f;
  return ep_rshift_round(y, out_shift);
}

static inline int64_t ep_add_at(int32_t a, int32_t b, const int32_t shift[3]) {
  return ep_rshift_round(a * ((int64_t)1 << shift[0]) + b * ((int64_t)1 << shift[1]), shift[2]);
}

static inline int64_t ep_act_at(const ep_curve *how, int32_t x) {
  int32_t u = ep_sat32(ep_rshift_round(x, how->in_shift));
  int identity = (u < -(1 << 28) && how->left) || (u >= 1 << 28 && how->right);
  return identity ? ep_rshift_round(x, how->id_shift) : ep_curve_at(how->table, u, how->out_shift);
}

static inline void ep_turn(int32_t *a, int32_t *b, int32_t c, int32_t s, int32_t m, int32_t shift, uint64_t *count) {
  int64_t x = *a, y = *b;
  *a = ep_requant(x * c - y * s, m, shift, count);
  *b = ep_requant(x * s + y * c, m, shift, count);
}

/* d * x - sum for LayerNorm, x for RMSNorm. */
static inline int64_t ep_centered(const ep_norm *how, int32_t x, int64_t sum) { return EP_HAS(EP_FEATURE_CENTER) && how->center ? (int64_t)how->d * x - sum : x; }

/* By how much these numbers are shifted so that their squares add up to at most 2^62; largest: of their absolute values. */
static inline int32_t ep_norm_shift(int32_t d, uint64_t largest) {
  int32_t bits = (62 - ep_bitlen((uint64_t)(d - 1))) >> 1, pre = ep_bitlen(largest) - (bits < 30 ? bits : 30);
  return pre > 0 ? pre : 0;
}

/* 1 / sqrt(squares + epsilon). */
static inline ep_scale ep_norm_scale(const ep_norm *how, uint64_t squares, int32_t pre) {
  int64_t epsilon = ep_rshift_round(how->eps_m, how->eps_shift + 2 * pre);
  if (epsilon > (int64_t)1 << 62) epsilon = (int64_t)1 << 62;
  return ep_rsqrt(squares + (uint64_t)epsilon);
}

#endif
