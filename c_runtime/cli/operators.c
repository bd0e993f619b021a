/* edgepos-run --operators: what every operator computes for the self-test, as one digest each (docs/bundle.md), so that the first
 * one that differs can be named. */
#include <stdio.h>

#include "cli.h"

typedef struct digests {
  uint64_t value;
  int32_t opcode; /* 0: not reported */
} digests;

static void see(void *user, const ep_trace_event *e) {
  digests *of = (digests *)user + e->op;
  if (!of->opcode) of->value = EP_DIGEST_INIT;
  of->opcode = e->opcode;
  of->value = ep_digest(of->value, e->data, (size_t)e->rows * (size_t)e->width);
}

void operators(const ep_model *model, const ep_info *info, ep_config cfg) {
  void *arena;
  size_t bytes;
  cfg.context = info->n_selftest;
  ep_session *session = open_session(model, &cfg, &arena, &bytes);
  const uint64_t rows = info->embedding ? 1 : (uint64_t)info->n_selftest, width = (uint64_t)(info->embedding ? info->embedding : info->vocab);
  int32_t *out = allocate(rows * width * sizeof *out);
  digests *all = allocate((uint64_t)info->n_ops * sizeof *all);
  for (int32_t i = 0; i < info->n_ops; i++) all[i] = (digests){0, 0};
  ep_set_trace(session, see, all);
  check(ep_eval_selftest(session, info->embedding ? NULL : out), "self-test");
  if (info->embedding) check(ep_embedding(session, out), "self-test");
  for (int32_t i = 0; i < info->n_ops; i++)
    if (all[i].opcode) print(stdout, "operator %" PRId32 " digest 0x%016" PRIx64 "\n", i, all[i].value);
  release(all);
  release(out);
  release(arena);
}
