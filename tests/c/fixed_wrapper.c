/* The primitives of fixed.h over arrays, for comparison with edgepos/fixedpoint.py. */
#include "edgepos.h"
#include "fixed.h"

void w_rshift_round(const int64_t *x, const int32_t *n, int64_t *y, int32_t count) {
  for (int32_t i = 0; i < count; i++) y[i] = ep_rshift_round(x[i], n[i]);
}
void w_requant(const int64_t *a, const int32_t *m, const int32_t *n, int32_t *y, uint64_t *saturated, int32_t count) {
  for (int32_t i = 0; i < count; i++) y[i] = ep_requant(a[i], m[i], n[i], saturated);
}
void w_div_round_half_up(const int64_t *a, const int64_t *b, int64_t *y, int32_t count) {
  for (int32_t i = 0; i < count; i++) y[i] = ep_div_round_half_up(a[i], b[i]);
}
void w_isqrt64(const uint64_t *a, uint32_t *y, int32_t count) {
  for (int32_t i = 0; i < count; i++) y[i] = ep_isqrt64(a[i]);
}
void w_rsqrt(const uint64_t *a, int32_t *m, int32_t *e, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    ep_scale s = ep_rsqrt(a[i]);
    m[i] = s.m, e[i] = s.e;
  }
}
void w_recip(const uint64_t *a, int32_t *m, int32_t *e, int32_t count) {
  for (int32_t i = 0; i < count; i++) {
    ep_scale s = ep_recip(a[i]);
    m[i] = s.m, e[i] = s.e;
  }
}
void w_exp2_neg(const int64_t *r, const int32_t *w, int32_t *y, int32_t count) {
  for (int32_t i = 0; i < count; i++) y[i] = ep_exp2_neg(r[i], w[i]);
}
void w_sincos(const uint64_t *phase, int32_t *c, int32_t *s, int32_t count) {
  for (int32_t i = 0; i < count; i++) ep_sincos_q15(phase[i], &c[i], &s[i]);
}
void w_alibi(const uint32_t *slope, const uint32_t *distance, const int32_t *n, int64_t *y, int32_t count) {
  for (int32_t i = 0; i < count; i++) y[i] = ep_alibi_bias(slope[i], distance[i], n[i]);
}
void w_narrow16(const int32_t *x, int16_t *q, int32_t *s, int32_t rows, int32_t width) {
  for (int32_t i = 0; i < rows; i++) s[i] = ep_narrow16(q + (size_t)i * (size_t)width, x + (size_t)i * (size_t)width, width);
}
void w_quant8g32(const int32_t *x, int8_t *q, int32_t *d, int32_t *s, int32_t rows, int32_t width) {
  for (size_t i = 0; i < (size_t)rows; i++) s[i] = ep_quant8g32(q + i * (size_t)width, d + i * (size_t)(width / 32), x + i * (size_t)width, width);
}
void w_quant8(const int32_t *x, int8_t *q, int32_t *a, int32_t rows, int32_t width) {
  for (int32_t i = 0; i < rows; i++) a[i] = ep_quant8(q + (size_t)i * (size_t)width, x + (size_t)i * (size_t)width, width);
}
