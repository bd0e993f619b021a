/* KV_WRITE and ATTENTION: scores in log2 units, the maximum first, then exact sums and one division per output. */
#include "fixed.h"
#include "session.h"

static const ep_layer *layer_of(const ep_session *s, const int32_t *op) { return &s->layers[op[EP_O_P0]]; }

/* Where head h keeps the slot: an index of scales, and times dim of data. */
static size_t slot_of(const ep_session *s, int32_t h, int32_t slot) {
  return (size_t)h * (size_t)s->cfg.context + (size_t)slot;
}

/* One vector into the cache. */
static void store(const ep_session *s, void *data, void *scales, size_t at, const int32_t *x, int32_t dim) {
  if (ep_kv_wide(s))
    ((uint8_t *)scales)[at] = (uint8_t)s->kernels.narrow16((int16_t *)data + at * (size_t)dim, x, dim);
  else
    ((int32_t *)scales)[at] = ep_quant8((int8_t *)data + at * (size_t)dim, x, dim);
}

static void keep_tokens(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count) {
  const ep_layer *l = layer_of(s, op);
  (void)count; /* narrow16 and quant8 saturate nothing */
  for (int32_t t = from; t < to; t++) {
    const int32_t *k = ep_value(s, op[EP_O_IN0], t), *v = ep_value(s, op[EP_O_IN1], t);
    for (int32_t h = 0; h < l->heads; h++) {
      size_t at = slot_of(s, h, s->length + t);
      store(s, l->k, l->k_scales, at, k + h * l->k_dim, l->k_dim);
      store(s, l->v, l->v_scales, at, v + h * l->v_dim, l->v_dim);
    }
  }
}

void ep_kv_write(ep_session *s, const int32_t *op, int32_t n) {
  const ep_layer *l = layer_of(s, op);
  ep_each_token(s, op, keep_tokens, n, l->heads * (l->k_dim + l->v_dim));
}

/* One query of one head against the slots it sees. */
typedef struct query {
  const ep_session *s;
  ep_lane *lane;
  const ep_layer *layer;
  const int32_t *op;
  const int32_t *positions; /* of the visible slots */
  size_t first;             /* index of the first visible slot in its KV head */
  int32_t head, visible, position;
} query;

/* sigma_j, 16 fractional bits, log2 units. */
static void score(const query *a, const int32_t *x) {
  const ep_kernels *kernels = &a->s->kernels;
  int32_t dim = a->layer->k_dim, m = a->op[EP_O_P0 + 2], wide = ep_kv_wide(a->s);
  int32_t shift = a->op[EP_O_P0 + 3] - kernels->narrow16(a->lane->q, x, dim), *sigma = a->lane->scores;
  uint64_t count = 0;
  for (int32_t j = 0; j < a->visible; j += EP_TILE) {
    int32_t n = a->visible - j < EP_TILE ? a->visible - j : EP_TILE;
    size_t at = a->first + (size_t)j;
    const int64_t *dot = a->lane->acc;
    if (wide) {
      const uint8_t *sk = (const uint8_t *)a->layer->k_scales + at;
      kernels->score_kv16(a->lane->acc, a->lane->q, (const int16_t *)a->layer->k + at * (size_t)dim, dim, n);
      kernels->scale_kv16(sigma + j, dot, sk, m, shift, n, &count);
    } else {
      const int32_t *ak = (const int32_t *)a->layer->k_scales + at;
      kernels->score_kv8(a->lane->acc, a->lane->q, (const int8_t *)a->layer->k + at * (size_t)dim, dim, n);
      kernels->scale_kv8(sigma + j, dot, ak, m, shift, n, &count);
    }
  }
  a->lane->saturations += count;
}

static void cap_scores(const query *a) {
  if (!EP_HAS(EP_FEATURE_SOFTCAP) || a->op[EP_O_T2] < 0) return;
  const int32_t *cap = ep_i32(&a->s->program, a->op[EP_O_T2]);
  for (int32_t j = 0; j < a->visible; j++) a->lane->scores[j] = ep_sat32(ep_softcap(cap, a->lane->scores[j]));
}

static void add_alibi(const query *a) {
  if (!EP_HAS(EP_FEATURE_ALIBI) || a->op[EP_O_T0] < 0) return;
  uint32_t slope = (uint32_t)ep_i32(&a->s->program, a->op[EP_O_T0])[a->head];
  for (int32_t j = 0; j < a->visible; j++) {
    uint32_t distance = (uint32_t)ep_abs(a->position - a->positions[j]); /* positions ascend: causal ones are never negative */
    a->lane->scores[j] = ep_sat32(a->lane->scores[j] - ep_alibi_bias(slope, distance, a->op[EP_O_P0 + 6]));
  }
}

/* A relative bias: by the distance back, or bidirectional by the distance either way around the middle column. */
static void add_bias(const query *a) {
  const ep_program *p = &a->s->program;
  int32_t tensor = a->op[EP_O_T1], both = a->op[EP_O_P0 + 7];
  if (!EP_HAS(EP_FEATURE_BIAS) || tensor < 0) return;
  int32_t n = ep_cols(p, tensor), low = both ? -(n / 2) : 0, high = n - 1 + low;
  const int32_t *bias = ep_i32(p, tensor) + (size_t)a->head * (size_t)n;
  for (int32_t j = 0; j < a->visible; j++) {
    int32_t d = both ? a->positions[j] - a->position : a->position - a->positions[j];
    int32_t i = d < low ? low : d > high ? high : d;
    a->lane->scores[j] = ep_sat32((int64_t)a->lane->scores[j] + bias[i - low]);
  }
}

static void mix16(const query *a, uint64_t sum, int32_t *out) {
  const uint8_t *sv = (const uint8_t *)a->layer->v_scales + a->first;
  int32_t *p = a->lane->scores, dim = a->layer->v_dim, most = 0;
  uint64_t count = 0;
  for (int32_t j = 0; j < a->visible; j++)
    if (sv[j] > most) most = sv[j];
  a->s->kernels.align_kv16(p, sv, most, a->visible);
  a->s->kernels.mix_kv16(a->lane->acc, p, (const int16_t *)a->layer->v + a->first * (size_t)dim, dim, a->visible);
  ep_scale r = ep_recip(sum);
  a->s->kernels.requant(out, a->lane->acc, r.m, r.e + a->op[EP_O_P0 + 5] - most, dim, &count);
  a->lane->saturations += count;
}

static void mix8(const query *a, uint64_t sum, int32_t *out) {
  const int32_t *av = (const int32_t *)a->layer->v_scales + a->first;
  int32_t *p = a->lane->scores, dim = a->layer->v_dim, most = 0;
  uint64_t count = 0;
  for (int32_t j = 0; j < a->visible; j++)
    if (av[j] > most) most = av[j];
  if (most == 0) {
    memset(out, 0, (size_t)dim * sizeof *out);
    return;
  }
  ep_scale r = ep_recip((uint64_t)most);
  a->s->kernels.align_kv8(p, av, r.m, r.e, a->visible);
  a->s->kernels.mix_kv8(a->lane->acc, p, (const int8_t *)a->layer->v + a->first * (size_t)dim, dim, a->visible);
  r = ep_recip(127 * sum);
  int64_t gain = (int64_t)most * r.m;
  int32_t k = ep_bitlen((uint64_t)gain) - 31;
  if (k < 0) k = 0;
  int32_t m = ep_sat32(ep_rshift_round(gain, k));
  a->s->kernels.requant(out, a->lane->acc, m, r.e + a->op[EP_O_P0 + 5] - k, dim, &count);
  a->lane->saturations += count;
}

static void attend(const query *a, const int32_t *x, int32_t *out) {
  score(a, x);
  cap_scores(a);
  add_alibi(a);
  add_bias(a);
  uint64_t sum = a->s->kernels.exponentials(a->lane->scores, a->visible, a->op[EP_O_P0 + 4]);
  memset(a->lane->acc, 0, (size_t)a->layer->v_dim * sizeof *a->lane->acc);
  if (ep_kv_wide(a->s))
    mix16(a, sum, out);
  else
    mix8(a, sum, out);
}

typedef struct job {
  ep_session *s;
  const int32_t *op;
  int32_t tokens, lanes;
} job;

/* Part i of all pairs of a head and a token, head by head. */
static void task(void *arg, int32_t i) {
  const job *b = (const job *)arg;
  const ep_layer *l = layer_of(b->s, b->op);
  int32_t heads = b->op[EP_O_P0 + 1], both = b->op[EP_O_P0 + 7];
  int64_t pairs = (int64_t)heads * b->tokens, end = pairs * (i + 1) / b->lanes;
  for (int64_t pair = pairs * i / b->lanes; pair < end; pair++) {
    int32_t h = (int32_t)(pair / b->tokens), t = (int32_t)(pair % b->tokens), slot = b->s->length + t;
    int32_t to = both ? b->s->length + b->tokens : slot + 1, from = l->window && to > l->window ? to - l->window : 0;
    query a = {.s = b->s, .lane = &b->s->lanes[i], .layer = l, .op = b->op, .head = h, .visible = to - from};
    a.first = slot_of(b->s, h / (heads / l->heads), from);
    a.positions = b->s->positions + from;
    a.position = b->s->positions[slot];
    attend(&a, ep_value(b->s, b->op[EP_O_IN0], t) + h * l->k_dim, ep_value(b->s, b->op[EP_O_OUT], t) + h * l->v_dim);
  }
}

void ep_attention(ep_session *s, const int32_t *op, int32_t n) {
  const ep_layer *l = layer_of(s, op);
  int32_t slots = s->length + n;
  if (l->window && slots > l->window) slots = l->window;
  int64_t products = (int64_t)op[EP_O_P0 + 1] * n * (l->k_dim + l->v_dim) * slots;
  job b = {s, op, n, ep_lanes_for(s, products)};
  ep_run_lanes(s, task, &b, b.lanes);
}
