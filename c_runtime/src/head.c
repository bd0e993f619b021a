/* The head: logits into a buffer, or tile by tile where only their maximum or their digest is wanted. */
#include "session.h"

static const int32_t *last_op(const ep_session *s) { return ep_op(&s->program, s->program.n_ops - 1); }

/* Everything before the last LINEAR. */
static void run(ep_session *s, int32_t n) {
  for (int32_t i = s->program.head_start; i < s->program.n_ops - 1; i++) ep_exec(s, i, n);
}

void ep_head_logits(ep_session *s, int32_t n, int32_t *logits) {
  run(s, n);
  uint64_t before = s->saturations;
  ep_linear(s, last_op(s), n, logits);
  ep_report(s, s->program.n_ops - 1, n, logits, s->saturations - before);
}

void ep_head_digest(ep_session *s, int32_t n, uint64_t *digest) {
  ep_lane *lane = &s->lanes[0];
  run(s, n);
  for (int32_t t = 0; t < n; t++) {
    ep_linear_narrow(s, last_op(s), t, t + 1);
    lane->again = 0;
    for (int32_t row = 0; row < s->program.vocab; row += EP_TILE) {
      int32_t end = s->program.vocab - row < EP_TILE ? s->program.vocab : row + EP_TILE;
      ep_linear_rows(s, lane, last_op(s), t, 1, row, end, lane->tile, EP_TILE);
      *digest = ep_digest(*digest, lane->tile, (size_t)(end - row));
    }
  }
  s->saturations += lane->saturations;
  lane->saturations = 0;
}

typedef struct job {
  ep_session *s;
  int32_t lanes;
} job;

static void argmax_task(void *arg, int32_t i) {
  const job *j = (const job *)arg;
  const ep_session *s = j->s;
  ep_lane *lane = &s->lanes[i];
  int32_t from = ep_part(s->program.vocab, i, j->lanes), to = ep_part(s->program.vocab, i + 1, j->lanes);
  lane->token = -1;
  lane->again = 0;
  for (int32_t row = from; row < to; row += EP_TILE) {
    int32_t end = to - row < EP_TILE ? to : row + EP_TILE;
    ep_linear_rows(s, lane, last_op(s), 0, 1, row, end, lane->tile, EP_TILE);
    const int32_t *y = lane->tile, *last = y + (end - row), *found = NULL;
    int32_t best = lane->best;
    if (lane->token < 0) best = *y, found = y;
    while (y < last) {
      if (last - y >= 4 && y[0] <= best && y[1] <= best && y[2] <= best && y[3] <= best) { /* most of them */
        y += 4;
        continue;
      }
      if (*y > best) best = *y, found = y;
      y++;
    }
    if (found) lane->best = best, lane->token = row + (int32_t)(found - lane->tile);
  }
}

/* Bring the last token's row back to where the head reads it. */
static ep_status take_row(ep_session *s) {
  if (s->program.embedding) return EP_ERR_OUTPUT;
  if (!s->has_row) return EP_ERR_STATE;
  int32_t v = ep_head_input(s);
  memcpy(ep_value(s, v, 0), s->row, (size_t)ep_width(&s->program, v) * sizeof *s->row);
  s->call_token = 0;
  return EP_OK;
}

ep_status ep_logits(ep_session *s, int32_t *logits) {
  if (!s || !logits) return EP_ERR_ARGUMENT;
  ep_status st = take_row(s);
  if (st == EP_OK) ep_head_logits(s, 1, logits);
  return st;
}

ep_status ep_argmax(ep_session *s, int32_t *token) {
  if (!s || !token) return EP_ERR_ARGUMENT;
  ep_status st = take_row(s);
  if (st != EP_OK) return st;
  const int32_t *op = last_op(s);
  job j = {s, ep_lanes_for(s, (int64_t)s->program.vocab * ep_linear_cols(&s->program, op))};
  run(s, 1);
  ep_linear_narrow(s, op, 0, 1);
  ep_run_lanes(s, argmax_task, &j, j.lanes);
  const ep_lane *best = &s->lanes[0];
  for (int32_t i = 1; i < j.lanes; i++) { /* parts ascend, so a later one must be larger */
    const ep_lane *lane = &s->lanes[i];
    if (lane->token >= 0 && (best->token < 0 || lane->best > best->best)) best = lane;
  }
  *token = best->token;
  return EP_OK;
}
