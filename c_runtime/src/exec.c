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
    int two = EP_HAS(EP_FEATURE_W16G32) && op[EP_O_P0 + 4] == EP_W16G32;
    const int8_t *fine = two ? w + (size_t)p->vocab * (size_t)cols : NULL;
    const int16_t *fine_g = two ? g + (size_t)p->vocab * (size_t)(cols / 32) : NULL;
    int32_t *y = ep_value(s, op[EP_O_OUT], t);
    for (int32_t k = 0; k < width; k += 32) {
      int32_t n = width - k < 32 ? width - k : 32, by = g ? g[k / 32] : 1;
      int64_t part[32];
      for (int32_t i = 0; i < n; i++) part[i] = (wide ? wide[k + i] : w[k + i]) * by;
      for (int32_t i = 0; i < n && two; i++) part[i] += fine[k + i] * fine_g[k / 32];
      s->kernels.requant(y + k, part, scale[0], scale[1] + op[EP_O_P0], n, count);
    }
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

/* The cosines and sines of tokens: every layer turns by the same ones. */
static void find_turns(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count) {
  int32_t pairs = ep_rows(&s->program, op[EP_O_T0]);
  (void)count; /* nothing saturates */
  for (int32_t t = from; t < to; t++) {
    const int32_t *increments = ep_i32(&s->program, op[EP_O_T0]);
    int16_t *turns = s->turns + 2 * (size_t)t * (size_t)pairs;
    for (int32_t j = 0; j < pairs; j++, increments += 2) {
      uint64_t increment = (uint64_t)(uint32_t)increments[0] | (uint64_t)(uint32_t)increments[1] << 32;
      int32_t cosine, sine;
      ep_sincos_q15(ep_rope_phase((uint32_t)s->positions[s->length + t], increment), &cosine, &sine);
      turns[j] = (int16_t)cosine;
      turns[pairs + j] = (int16_t)sine;
    }
  }
}

enum { PAIRS = 32 }; /* that are turned together */

static void turn_interleaved(const ep_session *s, const int32_t *op, int32_t *y, const int16_t *turns, int32_t pairs, uint64_t *count) {
  int32_t a[PAIRS], b[PAIRS];
  for (int32_t from = 0; from < pairs; from += PAIRS, y += 2 * PAIRS) {
    int32_t n = pairs - from < PAIRS ? pairs - from : PAIRS;
    for (int32_t j = 0; j < n; j++) a[j] = y[2 * j], b[j] = y[2 * j + 1];
    s->kernels.turn(a, b, turns + from, turns + pairs + from, op[EP_O_P0 + 3], op[EP_O_P0 + 4], n, count);
    for (int32_t j = 0; j < n; j++) y[2 * j] = a[j], y[2 * j + 1] = b[j];
  }
}

static void rope_tokens(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count) {
  int32_t width = ep_width(&s->program, op[EP_O_OUT]), pairs = ep_rows(&s->program, op[EP_O_T0]), heads = op[EP_O_P0], dim = op[EP_O_P0 + 1];
  for (int32_t t = from; t < to; t++) {
    const int16_t *turns = s->turns + 2 * (size_t)t * (size_t)pairs;
    int32_t *y = ep_value(s, op[EP_O_OUT], t);
    memcpy(y, ep_value(s, op[EP_O_IN0], t), (size_t)width * sizeof *y);
    for (int32_t h = 0; h < heads; h++, y += dim) {
      if (EP_HAS(EP_FEATURE_ROPE_INTERLEAVED) && (!EP_HAS(EP_FEATURE_ROPE_HALF) || op[EP_O_P0 + 2]))
        turn_interleaved(s, op, y, turns, pairs, count);
      else
        s->kernels.turn(y, y + pairs, turns, turns + pairs, op[EP_O_P0 + 3], op[EP_O_P0 + 4], pairs, count);
    }
  }
}

static void rope(ep_session *s, const int32_t *op, int32_t n, int32_t width) {
  if (s->turns_of != op[EP_O_T0]) ep_each_token(s, op, find_turns, n, ep_rows(&s->program, op[EP_O_T0]));
  s->turns_of = op[EP_O_T0];
  ep_each_token(s, op, rope_tokens, n, width);
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
      if (EP_HAS_OPERATOR(EP_ROPE)) rope(s, op, n, width);
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
