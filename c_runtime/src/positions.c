/* Position primitives: exact range reduction for RoPE, sine and cosine, ALiBi. */
#include "edgepos.h"

#include "constants.h"
#include "fixed.h"

/* sin(j * pi/2 / 2^26) for 0 <= j <= 2^26, scaled by 32767. */
static int32_t quarter(uint32_t j) {
  uint32_t i = j >> 18, f = j & 0x3ffff, next = i < 256 ? i + 1 : i;
  int64_t q = EP_QUARTER[i];
  return (int32_t)ep_rshift_round_by(q * 0x40000 + (EP_QUARTER[next] - q) * (int64_t)f, 33);
}

static int32_t sine_of(uint32_t p) { /* p: 28-bit phase */
  uint32_t j = p & 0x3ffffff, half = (p >> 26) & 1;
  int32_t s = quarter(half ? 0x4000000 - j : j);
  return p >> 27 & 1 ? -s : s;
}

void ep_sincos_q15(uint64_t phase, int32_t *cosine, int32_t *sine) {
  uint32_t p = (uint32_t)((phase + ((uint64_t)1 << 35)) >> 36);
  *sine = sine_of(p);
  *cosine = sine_of(p + 0x4000000);
}

uint64_t ep_rope_phase(uint32_t position, uint64_t increment) { return position * increment; }

int64_t ep_alibi_bias(uint32_t slope, uint32_t distance, int32_t shift) {
  if (distance > INT32_MAX) distance = INT32_MAX;
  int64_t bias = ep_rshift_round((int64_t)slope * (int64_t)distance, shift);
  return bias < (int64_t)1 << 30 ? bias : (int64_t)1 << 30;
}

static void put(uint64_t phase, int16_t *cosine, int16_t *sine) {
  int32_t c, s;
  ep_sincos_q15(phase, &c, &s);
  *cosine = (int16_t)c;
  *sine = (int16_t)s;
}

ep_status ep_rope_row(int32_t position, const uint64_t *increments, int32_t pairs, int16_t *cosine, int16_t *sine) {
  if (pairs < 0 || (pairs > 0 && (!increments || !cosine || !sine))) return EP_ERR_ARGUMENT;
  if (position < 0) return EP_ERR_POSITION;
  for (int32_t j = 0; j < pairs; j++) put(ep_rope_phase((uint32_t)position, increments[j]), cosine + j, sine + j);
  return EP_OK;
}

ep_status ep_rope_row_axes(const int32_t *positions, int32_t n_axes, const uint8_t *axis, const uint64_t *increments,
                           int32_t pairs, int16_t *cosine, int16_t *sine) {
  if (pairs < 0 || n_axes < 0 || (n_axes > 0 && !positions) || (pairs > 0 && (!axis || !increments || !cosine || !sine)))
    return EP_ERR_ARGUMENT;
  for (int32_t j = 0; j < pairs; j++)
    if (axis[j] >= n_axes) return EP_ERR_ARGUMENT;
  for (int32_t a = 0; a < n_axes; a++)
    if (positions[a] < 0) return EP_ERR_POSITION;
  for (int32_t j = 0; j < pairs; j++)
    put(ep_rope_phase((uint32_t)positions[axis[j]], increments[j]), cosine + j, sine + j);
  return EP_OK;
}

ep_status ep_sinusoidal_row(int32_t position, const uint64_t *increments, const ep_sinusoid *how, int32_t *out) {
  if (!how || how->pairs < 0 || how->pairs > INT32_MAX / 2 || how->start < 0 || (how->pairs > 0 && (!increments || !out)) ||
      (how->layout != EP_ROPE_HALF && how->layout != EP_ROPE_INTERLEAVED))
    return EP_ERR_ARGUMENT;
  if (position < 0 || position > INT32_MAX - how->start) return EP_ERR_POSITION;
  size_t pairs = (size_t)how->pairs, step = how->layout == EP_ROPE_HALF ? 1 : 2, apart = how->layout == EP_ROPE_HALF ? pairs : 1;
  for (size_t j = 0; j < pairs; j++) {
    int32_t c, s;
    ep_sincos_q15(ep_rope_phase((uint32_t)(position + how->start), increments[j]), &c, &s);
    int32_t first = how->cosine_first ? c : s, second = how->cosine_first ? s : c;
    out[j * step] = ep_sat32(ep_rshift_round((int64_t)first * how->m, how->shift));
    out[j * step + apart] = ep_sat32(ep_rshift_round((int64_t)second * how->m, how->shift));
  }
  return EP_OK;
}
