/* KV_WRITE and ATTENTION: scores in log2 units, the maximum first, then exact sums and one division per output. */
#include "attention.h"

/* One vector into the cache. */
static void store(const ep_session *s, void *data, void *scales, size_t at, const int32_t *x, int32_t dim, int keys) {
  if (ep_kv_blocks(s))
    ep_blocks_store(s, data, scales, at, x, dim, keys);
  else if (ep_kv_wide(s))
    ((uint8_t *)scales)[at] = (uint8_t)s->kernels.narrow16((int16_t *)data + at * (size_t)dim, x, dim);
  else
    ((int32_t *)scales)[at] = ep_quant8((int8_t *)data + at * (size_t)dim, x, dim);
}

static void keep_tokens(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count) {
  const ep_layer *l = ep_layer_of(s, op);
  (void)count; /* narrow16 and quant8 saturate nothing */
  for (int32_t t = from; t < to; t++) {
    const int32_t *k = ep_value(s, op[EP_O_IN0], t), *v = ep_value(s, op[EP_O_IN1], t);
    for (int32_t h = 0; h < l->heads; h++) {
      size_t at = ep_slot(l, h, s->length + t);
      store(s, l->k, l->k_scales, at, k + h * l->k_dim, l->k_dim, 1);
      store(s, l->v, l->v_scales, at, v + h * l->v_dim, l->v_dim, 0);
    }
  }
}

void ep_kv_write(ep_session *s, const int32_t *op, int32_t n) {
  const ep_layer *l = ep_layer_of(s, op);
  ep_each_token(s, op, keep_tokens, n, l->heads * (l->k_dim + l->v_dim));
}

/* sigma_j, 16 fractional bits, log2 units. */
static void score(const ep_query *a, const int32_t *x) {
  const ep_kernels *kernels = &a->s->kernels;
  int32_t dim = a->layer->k_dim, m = a->op[EP_O_P0 + 2], wide = ep_kv_wide(a->s);
  int32_t shift = a->op[EP_O_P0 + 3] - kernels->narrow16(a->lane->q, x, dim), *sigma = a->scores;
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

static void cap_scores(const ep_query *a) {
  if (!EP_HAS(EP_FEATURE_SOFTCAP) || a->op[EP_O_T2] < 0) return;
  const int32_t *cap = ep_i32(&a->s->program, a->op[EP_O_T2]);
  for (int32_t j = 0; j < a->visible; j++) a->scores[j] = ep_sat32(ep_softcap(cap, a->scores[j]));
}

static void add_alibi(const ep_query *a) {
  if (!EP_HAS(EP_FEATURE_ALIBI) || a->op[EP_O_T0] < 0) return;
  uint32_t slope = (uint32_t)ep_i32(&a->s->program, a->op[EP_O_T0])[a->head];
  for (int32_t j = 0; j < a->visible; j++) {
    uint32_t distance = (uint32_t)ep_abs(a->position - a->positions[j]); /* positions ascend: causal ones are never negative */
    a->scores[j] = ep_sat32(a->scores[j] - ep_alibi_bias(slope, distance, a->op[EP_O_P0 + 6]));
  }
}

/* A relative bias: by the distance back, or bidirectional by the distance either way around the middle column. */
static void add_bias(const ep_query *a) {
  const ep_program *p = &a->s->program;
  int32_t tensor = a->op[EP_O_T1], both = a->op[EP_O_P0 + 7];
  if (!EP_HAS(EP_FEATURE_BIAS) || tensor < 0) return;
  int32_t n = ep_cols(p, tensor), low = both ? -(n / 2) : 0, high = n - 1 + low;
  const int32_t *bias = ep_i32(p, tensor) + (size_t)a->head * (size_t)n;
  for (int32_t j = 0; j < a->visible; j++) {
    int32_t d = both ? a->positions[j] - a->position : a->position - a->positions[j];
    int32_t i = d < low ? low : d > high ? high : d;
    a->scores[j] = ep_sat32((int64_t)a->scores[j] + bias[i - low]);
  }
}

void ep_adjust_scores(const ep_query *a) {
  cap_scores(a);
  add_alibi(a);
  add_bias(a);
}

int32_t ep_largest_scale(const ep_query *a) {
  int32_t most = 0;
  if (ep_kv_wide(a->s)) {
    const uint8_t *sv = (const uint8_t *)a->layer->v_scales + a->first;
    for (int32_t j = 0; j < a->visible; j++)
      if (sv[j] > most) most = sv[j];
  } else {
    const int32_t *av = (const int32_t *)a->layer->v_scales + a->first;
    for (int32_t j = 0; j < a->visible; j++)
      if (av[j] > most) most = av[j];
  }
  return most;
}

void ep_align_weights(const ep_query *a, int32_t most) {
  if (ep_kv_wide(a->s)) {
    a->s->kernels.align_kv16(a->scores, (const uint8_t *)a->layer->v_scales + a->first, most, a->visible);
  } else if (most > 0) {
    ep_scale r = ep_recip((uint64_t)most);
    a->s->kernels.align_kv8(a->scores, (const int32_t *)a->layer->v_scales + a->first, r.m, r.e, a->visible);
  }
}

void ep_divide(const ep_query *a, const int64_t *acc, int32_t most, uint64_t sum, int32_t *out) {
  int32_t dim = a->layer->v_dim, shift = a->op[EP_O_P0 + 5];
  uint64_t count = 0;
  if (ep_kv_wide(a->s)) {
    ep_scale r = ep_recip(sum);
    a->s->kernels.requant(out, acc, r.m, r.e + shift - most, dim, &count);
  } else if (most == 0) {
    memset(out, 0, (size_t)dim * sizeof *out);
  } else {
    ep_scale r = ep_recip(127 * sum);
    int64_t gain = (int64_t)most * r.m;
    int32_t k = ep_bitlen((uint64_t)gain) - 31;
    if (k < 0) k = 0;
    int32_t m = ep_sat32(ep_rshift_round(gain, k));
    a->s->kernels.requant(out, acc, m, r.e + shift - k, dim, &count);
  }
  a->lane->saturations += count;
}

static void mix(const ep_query *a, uint64_t sum, int32_t *out) {
  int64_t *acc = a->lane->acc;
  int32_t dim = a->layer->v_dim, most = ep_largest_scale(a);
  size_t at = a->first * (size_t)dim;
  memset(acc, 0, (size_t)dim * sizeof *acc);
  ep_align_weights(a, most);
  if (ep_kv_wide(a->s))
    a->s->kernels.mix_kv16(acc, a->scores, (const int16_t *)a->layer->v + at, dim, a->visible);
  else if (most > 0)
    a->s->kernels.mix_kv8(acc, a->scores, (const int8_t *)a->layer->v + at, dim, a->visible);
  ep_divide(a, acc, most, sum, out);
}

static void attend(const ep_query *a, const int32_t *x, int32_t *out) {
  score(a, x);
  ep_adjust_scores(a);
  mix(a, a->s->kernels.exponentials(a->scores, a->visible, a->op[EP_O_P0 + 4]), out);
}

typedef struct job {
  ep_session *s;
  const int32_t *op;
  int32_t tokens, lanes;
} job;

/* Part i of all pairs of a head and a token, head by head. */
static void task(void *arg, int32_t i) {
  const job *b = (const job *)arg;
  const ep_layer *l = ep_layer_of(b->s, b->op);
  int32_t heads = b->op[EP_O_P0 + 1];
  int64_t pairs = (int64_t)heads * b->tokens, end = pairs * (i + 1) / b->lanes;
  for (int64_t pair = pairs * i / b->lanes; pair < end; pair++) {
    int32_t h = (int32_t)(pair / b->tokens), t = (int32_t)(pair % b->tokens), slot = b->s->length + t, from;
    int32_t to = ep_visible(b->s, b->op, t, b->tokens, &from);
    ep_query a = {.s = b->s, .lane = &b->s->lanes[i], .layer = l, .op = b->op, .head = h, .visible = to - from};
    a.first = ep_slot(l, h / (heads / l->heads), from);
    a.scores = a.lane->scores;
    a.positions = b->s->positions + from;
    a.position = b->s->positions[slot];
    attend(&a, ep_value(b->s, b->op[EP_O_IN0], t) + h * l->k_dim, ep_value(b->s, b->op[EP_O_OUT], t) + h * l->v_dim);
  }
}

void ep_attention(ep_session *s, const int32_t *op, int32_t n) {
  const ep_layer *l = ep_layer_of(s, op);
  int32_t slots = s->length + n;
  if (l->window && slots > l->window) slots = l->window;
  int64_t products = (int64_t)op[EP_O_P0 + 1] * n * (l->k_dim + l->v_dim) * slots;
  job b = {s, op, n, ep_lanes_for(s, products)};
  if (ep_kv_blocks(s))
    ep_attention_groups(s, op, n, b.lanes);
  else
    ep_run_lanes(s, task, &b, b.lanes);
}
