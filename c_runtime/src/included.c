/* What a model needs of a build that was made for another one. */
#include "internal.h"
#include "tokenizer.h"

static uint32_t features_of(const int32_t *op) {
  uint32_t form = EP_FEATURE_W8 << (op[EP_O_P0 + 2] == EP_W4G32 ? 2 : op[EP_O_T1] >= 0 ? 1 : 0) << (op[EP_O_P0 + 3] ? 3 : 0);
  if (op[EP_O_P0 + 2] == EP_W16G32) form |= EP_FEATURE_W16G32;
  switch (op[EP_O_CODE]) {
    case EP_LINEAR: return form | (op[EP_O_P0 + 1] >= 0 ? EP_FEATURE_SOFTCAP : 0) | (op[EP_O_T3] >= 0 ? EP_FEATURE_LINEAR_BIAS : 0);
    case EP_EMBED: return op[EP_O_P0 + 4] == EP_W16G32 ? EP_FEATURE_W16G32 : 0;
    case EP_ROPE: return op[EP_O_P0 + 2] ? EP_FEATURE_ROPE_INTERLEAVED : EP_FEATURE_ROPE_HALF;
    case EP_NORM: return op[EP_O_P0] ? EP_FEATURE_CENTER : 0;
    case EP_ATTENTION: break;
    default: return 0;
  }
  return (op[EP_O_T0] >= 0 ? EP_FEATURE_ALIBI : 0) | (op[EP_O_T1] >= 0 ? EP_FEATURE_BIAS : 0) | (op[EP_O_T2] >= 0 ? EP_FEATURE_SOFTCAP : 0);
}

/* Index of the first header word that asks for something left out, or 0. Words out of their range are left to the checks that follow. */
static int32_t lacking_in_header(const int32_t *h) {
  int32_t kind = h[EP_H_TOKENIZER], pre = h[EP_H_PRETOKENIZER], normalizer = h[EP_H_NORMALIZER];
  if (h[EP_H_KV] && !EP_HAS(h[EP_H_KV_BITS] == 8 ? EP_FEATURE_KV8 : EP_FEATURE_KV16)) return EP_H_KV_BITS;
  if (h[EP_H_CHAT_TEXTS] && !EP_HAS(EP_FEATURE_CHAT)) return EP_H_CHAT_TEXTS;
  if (kind <= 0 || kind > EP_UNIGRAM) return 0;
  if (!EP_HAS_TOKENIZER(kind)) return EP_H_TOKENIZER;
  if (pre >= 0 && pre < 32 && !EP_HAS_PRETOKENIZER(pre)) return EP_H_PRETOKENIZER;
  return normalizer >= 0 && normalizer < 32 && !EP_HAS_NORMALIZER(normalizer) ? EP_H_NORMALIZER : 0;
}

ep_status ep_check_included(const ep_program *p, uint64_t *word) {
  int32_t lacking = lacking_in_header(p->header);
  *word = (uint64_t)lacking;
  if (lacking) return EP_ERR_INCLUDED;
  for (int32_t i = 0; i < p->n_ops; i++) {
    const int32_t *op = ep_op(p, i);
    int32_t code = op[EP_O_CODE], known = code >= 1 && code < EP_OPCODES;
    *word = (uint64_t)(op - p->header);
    if ((known && !EP_HAS_OPERATOR(code)) || !EP_HAS(features_of(op))) return EP_ERR_INCLUDED;
  }
  return EP_OK;
}
