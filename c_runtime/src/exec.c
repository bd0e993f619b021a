/* The operators of docs/arithmetic.md section 3, each for the n tokens of a batch. */
#include "fixed.h"
#include "kernels/elements.h"
#include "session.h"

void ep_run_lanes(ep_session *s, ep_task fn, void *arg, int32_t lanes) {
  if (lanes > 1)
    s->cfg.parallel(s->cfg.pool, fn, arg, lanes);
  else
    fn(arg, 0);
  for (int32_t i = 0; i < lanes; i++) {
    s->saturations += s->lanes[i].saturations;
    s->lanes[i].saturations = 0;
  }
}

typedef struct job {
  ep_session *s;
  const int32_t *op;
  ep_token_fn *fn;
  int32_t n, lanes;
} job;

static void task(void *arg, int32_t i) {
  const job *j = (const job *)arg;
  uint64_t count = 0;
  j->fn(j->s, j->op, (int32_t)((int64_t)j->n * i / j->lanes), (int32_t)((int64_t)j->n * (i + 1) / j->lanes), &count);
  j->s->lanes[i].saturations += count;
}

enum { COST = 64 }; /* of a number that is written, in products of LINEAR */

void ep_each_token(ep_session *s, const int32_t *op, ep_token_fn *fn, int32_t n, int32_t width) {
  job j = {s, op, fn, n, ep_lanes_for(s, (int64_t)COST * n * width)};
  if (j.lanes > n) j.lanes = n;
  ep_run_lanes(s, task, &j, j.lanes);
}

static void embed_tokens(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count) {
  const ep_program *p = &s->program;
  int32_t width = ep_width(p, op[EP_O_OUT]), cols = ep_cols(p, op[EP_O_T0]);
  int narrow = ep_record(p, op[EP_O_T0])[EP_T_TYPE] == EP_I8;
  for (int32_t t = from; t < to; t++) {
    int32_t at = s->positions[s->length + t], modulo = op[EP_O_P0 + 3];
    size_t row = (size_t)(op[EP_O_P0 + 1] ? (modulo ? at % modulo : at) + op[EP_O_P0 + 2] : s->tokens[t]);
    const int8_t *w = narrow ? ep_i8(p, op[EP_O_T0]) + row * (size_t)cols : NULL;
    const int16_t *wide = narrow ? NULL : ep_i16(p, op[EP_O_T0]) + row * (size_t)cols;
    const int16_t *g = op[EP_O_T1] >= 0 ? ep_i16(p, op[EP_O_T1]) + row * (size_t)(cols / 32) : NULL;
    const int32_t *scale = ep_i32(p, op[EP_O_T2]) + 2 * row;
    int32_t *y = ep_value(s, op[EP_O_OUT], t);
    for (int32_t k = 0; k < width; k++)
      y[k] = ep_requant(wide ? wide[k] : g ? w[k] * g[k / 32] : w[k], scale[0], scale[1] + op[EP_O_P0], count);
  }
}

static void norm_tokens(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count) {
  const ep_program *p = &s->program;
  int32_t groups = op[EP_O_P0 + 4];
  ep_norm how = {.gamma = ep_i32(p, op[EP_O_T0]),
                 .beta = op[EP_O_T1] >= 0 ? ep_i32(p, op[EP_O_T1]) : NULL,
                 .d = ep_width(p, op[EP_O_IN0]) / groups,
                 .center = EP_HAS(EP_FEATURE_CENTER) && op[EP_O_P0],
                 .eps_m = op[EP_O_P0 + 1],
                 .eps_shift = op[EP_O_P0 + 2],
                 .out_shift = op[EP_O_P0 + 3]};
  for (int32_t t = from; t < to; t++) {
    const int32_t *x = ep_value(s, op[EP_O_IN0], t);
    int32_t *y = ep_value(s, op[EP_O_OUT], t);
    for (int32_t g = 0; g < groups; g++) s->kernels.norm(y + g * how.d, x + g * how.d, &how, count);
  }
}

static void add_tokens(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count) {
  int32_t width = ep_width(&s->program, op[EP_O_OUT]);
  for (int32_t t = from; t < to; t++) {
    const int32_t *a = ep_value(s, op[EP_O_IN0], t), *b = ep_value(s, op[EP_O_IN1], t);
    s->kernels.add(ep_value(s, op[EP_O_OUT], t), a, b, op + EP_O_P0, width, count);
  }
}

static void mul_tokens(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count) {
  int32_t width = ep_width(&s->program, op[EP_O_OUT]);
  for (int32_t t = from; t < to; t++) {
    const int32_t *a = ep_value(s, op[EP_O_IN0], t), *b = ep_value(s, op[EP_O_IN1], t);
    s->kernels.mul(ep_value(s, op[EP_O_OUT], t), a, b, op[EP_O_P0], width, count);
  }
}

int64_t ep_softcap(const int32_t *cap, int32_t x) { return ep_curve_at(cap + 2, ep_sat32(ep_rshift_round(x, cap[0])), cap[1]); }

static void act_tokens(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count) {
  ep_curve how = {.table = ep_i32(&s->program, op[EP_O_T0]),
                  .in_shift = op[EP_O_P0],
                  .out_shift = op[EP_O_P0 + 1],
                  .left = op[EP_O_P0 + 2],
                  .right = op[EP_O_P0 + 3],
                  .id_shift = op[EP_O_P0 + 4]};
  int32_t width = ep_width(&s->program, op[EP_O_OUT]);
  for (int32_t t = from; t < to; t++) s->kernels.act(ep_value(s, op[EP_O_OUT], t), ep_value(s, op[EP_O_IN0], t), &how, width, count);
}

enum { PAIRS = 32 }; /* that are turned together */

/* Pairs from `from` on of one head, n at most PAIRS. */
static void turn_pairs(const ep_session *s, const int32_t *op, int32_t *y, int32_t from, int32_t n, const int32_t *cosine,
                       const int32_t *sine, uint64_t *count) {
  int32_t pairs = ep_rows(&s->program, op[EP_O_T0]), m = op[EP_O_P0 + 3], shift = op[EP_O_P0 + 4];
  int64_t wide[2 * PAIRS];
  if (EP_HAS(EP_FEATURE_ROPE_INTERLEAVED) && (!EP_HAS(EP_FEATURE_ROPE_HALF) || op[EP_O_P0 + 2])) { /* interleaved */
    y += 2 * from;
    for (int32_t j = 0; j < n; j++) {
      int64_t a = y[2 * j], b = y[2 * j + 1];
      wide[2 * j] = a * cosine[j] - b * sine[j];
      wide[2 * j + 1] = a * sine[j] + b * cosine[j];
    }
    s->kernels.requant(y, wide, m, shift, 2 * n, count);
    return;
  }
  y += from;
  s->kernels.turn(wide, y, y + pairs, cosine, sine, n);
  s->kernels.requant(y, wide, m, shift, n, count);
  s->kernels.requant(y + pairs, wide + n, m, shift, n, count);
}

static void rope_token(const ep_session *s, const int32_t *op, uint32_t position, int32_t *y, uint64_t *count) {
  const int32_t *increments = ep_i32(&s->program, op[EP_O_T0]);
  int32_t pairs = ep_rows(&s->program, op[EP_O_T0]), heads = op[EP_O_P0], dim = op[EP_O_P0 + 1];
  for (int32_t from = 0; from < pairs; from += PAIRS) {
    int32_t cosine[PAIRS], sine[PAIRS], n = pairs - from < PAIRS ? pairs - from : PAIRS;
    for (int32_t j = 0; j < n; j++, increments += 2) {
      uint64_t increment = (uint64_t)(uint32_t)increments[0] | (uint64_t)(uint32_t)increments[1] << 32;
      ep_sincos_q15(ep_rope_phase(position, increment), cosine + j, sine + j);
    }
    for (int32_t h = 0; h < heads; h++) turn_pairs(s, op, y + h * dim, from, n, cosine, sine, count);
  }
}

static void rope_tokens(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count) {
  int32_t width = ep_width(&s->program, op[EP_O_OUT]);
  for (int32_t t = from; t < to; t++) {
    const int32_t *x = ep_value(s, op[EP_O_IN0], t);
    int32_t *y = ep_value(s, op[EP_O_OUT], t);
    memcpy(y, x, (size_t)width * sizeof *y);
    rope_token(s, op, (uint32_t)s->positions[s->length + t], y, count);
  }
}

void ep_report(ep_session *s, int32_t i, int32_t n, const int32_t *data, uint64_t saturations) {
  if (!s->trace) return;
  const int32_t *op = ep_op(&s->program, i), *value = s->program.values + (size_t)op[EP_O_OUT] * EP_VALUE_WORDS;
  ep_trace_event event = {i, op[EP_O_CODE], op[EP_O_OUT], s->call_token, n, value[EP_V_WIDTH], value[EP_V_F], data, saturations};
  s->trace(s->trace_user, &event);
}

void ep_exec(ep_session *s, int32_t i, int32_t n) {
  const int32_t *op = ep_op(&s->program, i);
  uint64_t before = s->saturations;
  int32_t width = op[EP_O_OUT] < 0 ? 0 : ep_width(&s->program, op[EP_O_OUT]);
  switch (op[EP_O_CODE]) {
    case EP_EMBED:
      if (EP_HAS_OPERATOR(EP_EMBED)) ep_each_token(s, op, embed_tokens, n, width);
      break;
    case EP_NORM:
      if (EP_HAS_OPERATOR(EP_NORM)) ep_each_token(s, op, norm_tokens, n, width);
      break;
    case EP_LINEAR:
      if (EP_HAS_OPERATOR(EP_LINEAR)) ep_linear(s, op, n, ep_value(s, op[EP_O_OUT], 0));
      break;
    case EP_ADD:
      if (EP_HAS_OPERATOR(EP_ADD)) ep_each_token(s, op, add_tokens, n, width);
      break;
    case EP_MUL:
      if (EP_HAS_OPERATOR(EP_MUL)) ep_each_token(s, op, mul_tokens, n, width);
      break;
    case EP_ACT:
      if (EP_HAS_OPERATOR(EP_ACT)) ep_each_token(s, op, act_tokens, n, width);
      break;
    case EP_ROPE:
      if (EP_HAS_OPERATOR(EP_ROPE)) ep_each_token(s, op, rope_tokens, n, width);
      break;
    case EP_KV_WRITE:
      if (EP_HAS_OPERATOR(EP_KV_WRITE)) ep_kv_write(s, op, n);
      return;
    case EP_ATTENTION:
      if (EP_HAS_OPERATOR(EP_ATTENTION)) ep_attention(s, op, n);
      break;
    case EP_PATCHES:
      if (EP_HAS_OPERATOR(EP_PATCHES)) ep_patches(s, op, n);
      break;
  }
  ep_report(s, i, n, ep_value(s, op[EP_O_OUT], 0), s->saturations - before);
}
