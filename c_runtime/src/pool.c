/* POOL and what follows it: one row of numbers for a whole text. */
#include "fixed.h"
#include "session.h"

enum { MEAN, FIRST, LAST, MAXIMUM, TOKEN, LARGEST_ID };

static int32_t pooled(const int32_t *x, int32_t n, size_t width, int32_t kind) {
  int64_t sum = 0;
  int32_t largest = x[0];
  for (int32_t t = 0; t < n; t++, x += width) {
    sum += *x;
    if (*x > largest) largest = *x;
  }
  return kind == MEAN ? (int32_t)ep_div_round_half_up(sum, n) : largest;
}

/* The token whose row is taken by the kinds that take one. */
static int32_t chosen(const int32_t *ids, int32_t n, int32_t kind, int32_t id) {
  int32_t at = 0;
  if (kind == LAST) return n - 1;
  if (kind == TOKEN)
    for (int32_t t = 0; t < n; t++)
      if (ids[t] == id) return t;
  if (kind == LARGEST_ID)
    for (int32_t t = 1; t < n; t++)
      if (ids[t] > ids[at]) at = t;
  return at;
}

void ep_pool_rows(ep_session *s, int32_t n) {
  const ep_program *p = &s->program;
  const int32_t *op = ep_op(p, p->head_start), *x = ep_value(s, op[EP_O_IN0], 0);
  int32_t width = ep_width(p, op[EP_O_IN0]), *y = ep_value(s, op[EP_O_OUT], 0), kind = op[EP_O_P0];
  if (kind == MEAN || kind == MAXIMUM) {
    for (int32_t i = 0; i < width; i++) y[i] = pooled(x + i, n, (size_t)width, kind);
  } else {
    memcpy(y, x + (size_t)chosen(s->tokens, n, kind, op[EP_O_P0 + 1]) * (size_t)width, (size_t)width * sizeof *y);
  }
  ep_report(s, p->head_start, 1, y, 0);
  memcpy(s->row, y, (size_t)width * sizeof *y);
}

const int32_t *ep_embedding_row(ep_session *s) {
  const ep_program *p = &s->program;
  int32_t first = ep_op(p, p->head_start)[EP_O_OUT];
  memcpy(ep_value(s, first, 0), s->row, (size_t)ep_width(p, first) * sizeof *s->row);
  s->call_token = 0;
  for (int32_t i = p->head_start + 1; i < p->n_ops; i++) ep_exec(s, i, 1);
  return ep_value(s, p->n_values - 1, 0);
}

ep_status ep_embedding(ep_session *s, int32_t *embedding) {
  if (!s || !embedding) return EP_ERR_ARGUMENT;
  if (!s->program.embedding) return EP_ERR_OUTPUT;
  if (!s->has_row) return EP_ERR_STATE;
  memcpy(embedding, ep_embedding_row(s), (size_t)s->program.embedding * sizeof *embedding);
  return EP_OK;
}
