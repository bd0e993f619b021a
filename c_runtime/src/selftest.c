#include "session.h"

ep_status ep_selftest(const ep_model *model, const ep_config *cfg, void *arena, size_t bytes, uint64_t *digest) {
  ep_session *s;
  ep_info info;
  uint64_t got = EP_DIGEST_INIT;
  ep_status st = ep_session_init(&s, model, cfg, arena, bytes);
  if (st == EP_OK) st = ep_model_info(model, &info);
  if (st != EP_OK) return st;
  st = ep_check_tokens(s, info.selftest, NULL, info.n_selftest);
  if (st != EP_OK) return st;
  for (int32_t i = 0; i < info.n_selftest; i++) s->positions[i] = i;
  ep_eval_checked(s, info.selftest, info.n_selftest, NULL, &got);
  if (digest) *digest = got;
  return got == info.digest ? EP_OK : EP_ERR_SELFTEST;
}
