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

enum { CHUNK = 32 }; /* numbers that are rounded together */

static void embed(ep_session *s, const int32_t *op, int32_t n) {
  const ep_program *p = &s->program;
  int32_t width = ep_width(p, op[EP_O_OUT]), cols = ep_cols(p, op[EP_O_T0]);
  int narrow = ep_record(p, op[EP_O_T0])[EP_T_TYPE] == EP_I8;
  for (int32_t t = 0; t < n; t++) {
    int32_t at = s->positions[s->length + t], modulo = op[EP_O_P0 + 3];
    size_t row = (size_t)(op[EP_O_P0 + 1] ? (modulo ? at % modulo : at) + op[EP_O_P0 + 2] : s->tokens[t]);
    const int8_t *w = narrow ? ep_i8(p, op[EP_O_T0]) + row * (size_t)cols : NULL;
    const int16_t *wide = narrow ? NULL : ep_i16(p, op[EP_O_T0]) + row * (size_t)cols;
    const int16_t *g = op[EP_O_T1] >= 0 ? ep_i16(p, op[EP_O_T1]) + row * (size_t)(cols / 32) : NULL;
    const int32_t *scale = ep_i32(p, op[EP_O_T2]) + 2 * row;
    int32_t *y = ep_value(s, op[EP_O_OUT], t);
    for (int32_t k = 0; k < width; k++)
      y[k] = ep_requant(wide ? wide[k] : g ? w[k] * g[k / 32] : w[k], scale[0], scale[1] + op[EP_O_P0], &s->saturations);
  }
}

static void norm(ep_session *s, const int32_t *op, int32_t n) {
  const ep_program *p = &s->program;
  int32_t groups = op[EP_O_P0 + 4];
  ep_norm how = {.gamma = ep_i32(p, op[EP_O_T0]),
                 .beta = op[EP_O_T1] >= 0 ? ep_i32(p, op[EP_O_T1]) : NULL,
                 .d = ep_width(p, op[EP_O_IN0]) / groups,
                 .center = op[EP_O_P0],
                 .eps_m = op[EP_O_P0 + 1],
                 .eps_shift = op[EP_O_P0 + 2],
                 .out_shift = op[EP_O_P0 + 3]};
  for (int32_t t = 0; t < n; t++) {
    const int32_t *x = ep_value(s, op[EP_O_IN0], t);
    int32_t *y = ep_value(s, op[EP_O_OUT], t);
    for (int32_t g = 0; g < groups; g++) s->kernels.norm(y + g * how.d, x + g * how.d, &how, &s->saturations);
  }
}

static void add(ep_session *s, const int32_t *op, int32_t n) {
  int32_t width = ep_width(&s->program, op[EP_O_OUT]);
  for (int32_t t = 0; t < n; t++) {
    const int32_t *a = ep_value(s, op[EP_O_IN0], t), *b = ep_value(s, op[EP_O_IN1], t);
    s->kernels.add(ep_value(s, op[EP_O_OUT], t), a, b, op + EP_O_P0, width, &s->saturations);
  }
}

static void mul(ep_session *s, const int32_t *op, int32_t n) {
  int32_t width = ep_width(&s->program, op[EP_O_OUT]);
  for (int32_t t = 0; t < n; t++) {
    const int32_t *a = ep_value(s, op[EP_O_IN0], t), *b = ep_value(s, op[EP_O_IN1], t);
    s->kernels.mul(ep_value(s, op[EP_O_OUT], t), a, b, op[EP_O_P0], width, &s->saturations);
  }
}

int64_t ep_softcap(const int32_t *cap, int32_t x) { return ep_curve_at(cap + 2, ep_sat32(ep_rshift_round(x, cap[0])), cap[1]); }

static void act(ep_session *s, const int32_t *op, int32_t n) {
  ep_curve how = {.table = ep_i32(&s->program, op[EP_O_T0]),
                  .in_shift = op[EP_O_P0],
                  .out_shift = op[EP_O_P0 + 1],
                  .left = op[EP_O_P0 + 2],
                  .right = op[EP_O_P0 + 3],
                  .id_shift = op[EP_O_P0 + 4]};
  int32_t width = ep_width(&s->program, op[EP_O_OUT]);
  for (int32_t t = 0; t < n; t++) s->kernels.act(ep_value(s, op[EP_O_OUT], t), ep_value(s, op[EP_O_IN0], t), &how, width, &s->saturations);
}

/* Pairs from `from` on of one head, n at most CHUNK / 2. */
static void turn_pairs(ep_session *s, const int32_t *op, int32_t *y, int32_t from, int32_t n, const int32_t *cosine,
                       const int32_t *sine) {
  int32_t pairs = ep_rows(&s->program, op[EP_O_T0]), m = op[EP_O_P0 + 3], shift = op[EP_O_P0 + 4];
  int32_t interleaved = op[EP_O_P0 + 2], step = interleaved ? 2 : 1, apart = interleaved ? 1 : pairs;
  int64_t wide[CHUNK]; /* the first ones of the pairs, then the second ones; interleaved as in y */
  int32_t *first = y + step * from, second = interleaved ? 1 : n;
  for (int32_t j = 0; j < n; j++) {
    int64_t a = first[step * j], b = first[step * j + apart];
    wide[step * j] = a * cosine[j] - b * sine[j];
    wide[step * j + second] = a * sine[j] + b * cosine[j];
  }
  s->kernels.requant(first, wide, m, shift, step * n, &s->saturations);
  if (!interleaved) s->kernels.requant(first + apart, wide + n, m, shift, n, &s->saturations);
}

static void rope_token(ep_session *s, const int32_t *op, uint32_t position, int32_t *y) {
  const int32_t *increments = ep_i32(&s->program, op[EP_O_T0]);
  int32_t pairs = ep_rows(&s->program, op[EP_O_T0]), heads = op[EP_O_P0], dim = op[EP_O_P0 + 1];
  for (int32_t from = 0; from < pairs; from += CHUNK / 2) {
    int32_t cosine[CHUNK / 2], sine[CHUNK / 2], n = pairs - from < CHUNK / 2 ? pairs - from : CHUNK / 2;
    for (int32_t j = 0; j < n; j++, increments += 2) {
      uint64_t increment = (uint64_t)(uint32_t)increments[0] | (uint64_t)(uint32_t)increments[1] << 32;
      ep_sincos_q15(ep_rope_phase(position, increment), cosine + j, sine + j);
    }
    for (int32_t h = 0; h < heads; h++) turn_pairs(s, op, y + h * dim, from, n, cosine, sine);
  }
}

static void rope(ep_session *s, const int32_t *op, int32_t n) {
  int32_t width = ep_width(&s->program, op[EP_O_OUT]);
  for (int32_t t = 0; t < n; t++) {
    const int32_t *x = ep_value(s, op[EP_O_IN0], t);
    int32_t *y = ep_value(s, op[EP_O_OUT], t);
    memcpy(y, x, (size_t)width * sizeof *y);
    rope_token(s, op, (uint32_t)s->positions[s->length + t], y);
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
  switch (op[EP_O_CODE]) {
    case EP_EMBED:
      if (EP_HAS_OPERATOR(EP_EMBED)) embed(s, op, n);
      break;
    case EP_NORM:
      if (EP_HAS_OPERATOR(EP_NORM)) norm(s, op, n);
      break;
    case EP_LINEAR:
      if (EP_HAS_OPERATOR(EP_LINEAR)) ep_linear(s, op, n, ep_value(s, op[EP_O_OUT], 0));
      break;
    case EP_ADD:
      if (EP_HAS_OPERATOR(EP_ADD)) add(s, op, n);
      break;
    case EP_MUL:
      if (EP_HAS_OPERATOR(EP_MUL)) mul(s, op, n);
      break;
    case EP_ACT:
      if (EP_HAS_OPERATOR(EP_ACT)) act(s, op, n);
      break;
    case EP_ROPE:
      if (EP_HAS_OPERATOR(EP_ROPE)) rope(s, op, n);
      break;
    case EP_KV_WRITE:
      if (EP_HAS_OPERATOR(EP_KV_WRITE)) ep_kv_write(s, op, n);
      return;
    case EP_ATTENTION:
      if (EP_HAS_OPERATOR(EP_ATTENTION)) ep_attention(s, op, n);
      break;
  }
  ep_report(s, i, n, ep_value(s, op[EP_O_OUT], 0), s->saturations - before);
}
