#include "session.h"

/* The tokens or the image of the self-test, in an empty session. */
static ep_status evaluate(ep_session *s, int32_t *logits, uint64_t *digest) {
  const ep_program *p = &s->program;
  int32_t tensor = p->header[EP_H_SELFTEST], n = ep_cols(p, tensor);
  if (EP_HAS_OPERATOR(EP_PATCHES) && p->patches) {
    ep_eval_pixels(s, (const uint8_t *)ep_data(p, tensor), digest);
    return EP_OK;
  }
  ep_status st = ep_check_tokens(s, ep_i32(p, tensor), NULL, n);
  if (st != EP_OK) return st;
  for (int32_t i = 0; i < n; i++) s->positions[i] = i;
  ep_eval_checked(s, ep_i32(p, tensor), n, logits, digest);
  return EP_OK;
}

ep_status ep_eval_selftest(ep_session *s, int32_t *logits) {
  if (!s) return EP_ERR_ARGUMENT;
  if (logits && s->program.embedding) return EP_ERR_OUTPUT;
  if (s->length) return EP_ERR_STATE;
  return evaluate(s, logits, NULL);
}

ep_status ep_selftest(const ep_model *model, const ep_config *cfg, void *arena, size_t bytes, uint64_t *digest) {
  ep_session *s;
  uint64_t got = EP_DIGEST_INIT;
  ep_status st = ep_session_init(&s, model, cfg, arena, bytes);
  if (st == EP_OK) st = evaluate(s, NULL, &got);
  if (st != EP_OK) return st;
  if (digest) *digest = got;
  return got == ep_model_digest(&s->program) ? EP_OK : EP_ERR_SELFTEST;
}
