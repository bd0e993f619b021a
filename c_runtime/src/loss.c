/* How unlikely a token was: the measure behind the perplexity of a text. */
#include "edgepos.h"
#include "fixed.h"

enum { LOG2E = 1549082005 }; /* 30 fractional bits */

static uint64_t distance(int32_t most, int32_t logit, int32_t f) {
  int64_t d = ep_rshift_round(((int64_t)most - logit) * LOG2E, f - 2);
  return d < (int64_t)1 << 62 ? (uint64_t)d : (uint64_t)1 << 62;
}

ep_status ep_loss(const int32_t *logits, int32_t vocab, int32_t f, int32_t token, uint64_t *bits) {
  if (!logits || !bits || vocab < 1 || vocab > 1 << 24 || f < -16 || f > 30) return EP_ERR_ARGUMENT;
  if (token < 0 || token >= vocab) return EP_ERR_TOKEN;
  int32_t most = logits[0];
  uint64_t sum = 0;
  for (int32_t i = 1; i < vocab; i++)
    if (logits[i] > most) most = logits[i];
  for (int32_t i = 0; i < vocab; i++) sum += ep_pow2(distance(most, logits[i], f));
  *bits = distance(most, logits[token], f) + ep_log2(sum) - ((uint64_t)39 << 32);
  return EP_OK;
}
