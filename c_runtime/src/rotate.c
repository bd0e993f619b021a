/* Rotation of int16 and int8 vectors in place: rope_rotate of docs/arithmetic.md over the pairs of many heads. */
#include "edgepos.h"

#include "fixed.h"
#include "kernels/rotate.h"

typedef struct pair {
  int32_t a, b;
} pair;

/* Where the pairs of a vector lie: pair j is at j * step and `apart` elements further. */
typedef struct places {
  size_t step, apart;
} places;

static ep_status check(const void *x, const void *cosine, const void *sine, const ep_rotation *how, places *where) {
  if (!how || how->heads < 0 || how->head_dim < 0 || how->stride < how->head_dim || how->pairs < 0 ||
      how->pairs > how->head_dim / 2 || (how->layout != EP_ROPE_HALF && how->layout != EP_ROPE_INTERLEAVED) ||
      how->amp_shift < 1 || how->amp_shift > 63)
    return EP_ERR_ARGUMENT;
  if (how->heads > 0 && how->pairs > 0 && (!x || !cosine || !sine)) return EP_ERR_ARGUMENT;
  *where = how->layout == EP_ROPE_HALF ? (places){1, (size_t)how->pairs} : (places){2, 1};
  return EP_OK;
}

static int32_t scaled(int64_t sum, const ep_rotation *how, int32_t limit) { /* |sum| <= 2^31: the product fits */
  int64_t y = ep_rshift_round_by(sum * how->amp_m, how->amp_shift);
  return y > limit ? limit : y < -limit ? -limit : (int32_t)y;
}

static pair rotated(int32_t a, int32_t b, int32_t c, int32_t s, const ep_rotation *how, int32_t limit) {
  return (pair){scaled((int64_t)a * c - (int64_t)b * s, how, limit), scaled((int64_t)a * s + (int64_t)b * c, how, limit)};
}

ep_status ep_rope_rotate_s16(int16_t *x, const int16_t *cosine, const int16_t *sine, const ep_rotation *how) {
  places at;
  ep_status st = check(x, cosine, sine, how, &at);
  if (st != EP_OK) return st;
  if (how->heads == 0 || how->pairs == 0) return EP_OK;
  size_t done = (size_t)EP_ROTATE_S16(x, cosine, sine, how);
  for (size_t h = 0; h < (size_t)how->heads; h++)
    for (size_t j = done; j < (size_t)how->pairs; j++) {
      int16_t *a = x + h * (size_t)how->stride + j * at.step, *b = a + at.apart;
      pair y = rotated(*a, *b, cosine[j], sine[j], how, INT16_MAX);
      *a = (int16_t)y.a;
      *b = (int16_t)y.b;
    }
  return EP_OK;
}

ep_status ep_rope_rotate_s8(int8_t *x, const int16_t *cosine, const int16_t *sine, const ep_rotation *how) {
  places at;
  ep_status st = check(x, cosine, sine, how, &at);
  if (st != EP_OK) return st;
  if (how->heads == 0 || how->pairs == 0) return EP_OK;
  size_t done = (size_t)EP_ROTATE_S8(x, cosine, sine, how);
  for (size_t h = 0; h < (size_t)how->heads; h++)
    for (size_t j = done; j < (size_t)how->pairs; j++) {
      int8_t *a = x + h * (size_t)how->stride + j * at.step, *b = a + at.apart;
      pair y = rotated(*a, *b, cosine[j], sine[j], how, INT8_MAX);
      *a = (int8_t)y.a;
      *b = (int8_t)y.b;
    }
  return EP_OK;
}
