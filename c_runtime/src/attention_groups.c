/* ATTENTION on a KV cache in blocks: what is read of a KV head serves all query heads that share it. Several tokens are shared out among
 * the lanes, of one token the slots: then lanes meet twice, because weights are measured from the largest score of all slots. */
#include "attention.h"

#if EP_HAS_BLOCKS

enum { BLOCK = 16 };

/* The query heads of one KV head for one token, and the slots [from, to) of those that it sees. */
typedef struct part {
  ep_query query;
  int32_t kv, token, group, from, to;
  int32_t base;    /* from, rounded down to a whole block: of scores and of what kernels read */
  int32_t *scores; /* [group][stride] */
  size_t stride;
} part;

static part part_of(ep_session *s, ep_lane *lane, const int32_t *op, int32_t kv, int32_t token, int32_t from, int32_t to) {
  const ep_layer *l = ep_layer_of(s, op);
  part p = {.query = {.s = s, .lane = lane, .layer = l, .op = op, .visible = to - from},
            .kv = kv,
            .token = token,
            .group = op[EP_O_P0 + 1] / l->heads,
            .from = from,
            .to = to,
            .base = from & -BLOCK};
  p.query.positions = s->positions + from;
  p.query.position = s->positions[s->length + token];
  p.query.first = ep_slot(l, kv, from);
  return p;
}

/* The scores of head h of the group, from the first slot of the part on. */
static int32_t *scores_of(part *p, int32_t h) {
  p->query.head = p->kv * p->group + h;
  p->query.scores = p->scores + (size_t)h * p->stride + (p->from - p->base);
  return p->query.scores;
}

/* sigma of `heads` heads of the group from head h on, for n slots from `slot` on, of which the first `skip` are not seen. */
static void score_tile(part *p, int32_t h, int32_t heads, int32_t slot, int32_t n, int32_t skip) {
  const ep_query *a = &p->query;
  const ep_kernels *kernels = &a->s->kernels;
  const ep_group_room *room = &a->lane->group;
  int32_t dim = a->layer->k_dim, padded = (dim + 3) & ~3, m = a->op[EP_O_P0 + 2], blocks = (n + BLOCK - 1) / BLOCK, wide = ep_kv_wide(a->s);
  int32_t *sigma = p->scores + (size_t)h * p->stride + (slot - p->base);
  const int32_t *shifts = room->shifts + h;
  const int16_t *q = room->q + h * dim;
  size_t at = ep_slot(a->layer, p->kv, slot);
  const int16_t *k16 = (const int16_t *)a->layer->k + at * (size_t)padded;
  const int8_t *k8 = (const int8_t *)a->layer->k + at * (size_t)padded;
  const uint8_t *sk = (const uint8_t *)a->layer->k_scales + at;
  const int32_t *ak = (const int32_t *)a->layer->k_scales + at;
  uint64_t count = 0;
  if (wide ? kernels->sigmas_kv16(sigma, p->stride, q, k16, sk, m, shifts, dim, heads, n)
           : kernels->sigmas_kv8(sigma, p->stride, q, k8, ak, m, shifts, dim, heads, n))
    return;
  if (wide)
    kernels->scores_kv16(room->acc, q, k16, dim, heads, blocks);
  else
    kernels->scores_kv8(room->acc, q, k8, dim, heads, blocks);
  for (int32_t i = 0; i < heads; i++, sigma += p->stride) {
    const int64_t *dot = room->acc + i * EP_GROUP_KEYS + skip;
    if (wide)
      kernels->scale_kv16(sigma + skip, dot, sk + skip, m, shifts[i], n - skip, &count);
    else
      kernels->scale_kv8(sigma + skip, dot, ak + skip, m, shifts[i], n - skip, &count);
  }
  a->lane->saturations += count;
}

static void score(part *p) {
  const ep_query *a = &p->query;
  const ep_group_room *room = &a->lane->group;
  int32_t dim = a->layer->k_dim, group = p->group;
  const int32_t *x = ep_value(a->s, a->op[EP_O_IN0], p->token) + p->kv * group * dim;
  for (int32_t h = 0; h < group; h++) room->shifts[h] = a->op[EP_O_P0 + 3] - a->s->kernels.narrow16(room->q + h * dim, x + h * dim, dim);
  for (int32_t slot = p->base; slot < p->to; slot += EP_GROUP_KEYS) {
    int32_t n = p->to - slot < EP_GROUP_KEYS ? p->to - slot : EP_GROUP_KEYS;
    for (int32_t h = 0; h < group; h += EP_GROUP)
      score_tile(p, h, group - h < EP_GROUP ? group - h : EP_GROUP, slot, n, slot < p->from ? p->from - slot : 0);
  }
  for (int32_t h = 0; h < group; h++) {
    scores_of(p, h);
    ep_adjust_scores(a);
  }
}

/* Weights and their sums, and acc [group][v_dim]; tops: the largest scores of all parts, NULL if there is only one. */
static void mix(part *p, const int32_t *tops, int32_t most, int64_t *acc, uint64_t *sums) {
  const ep_query *a = &p->query;
  const ep_kernels *kernels = &a->s->kernels;
  int32_t n = a->visible, dim = a->layer->v_dim, blocks = (p->to - p->base + BLOCK - 1) / BLOCK;
  size_t at = ep_slot(a->layer, p->kv, p->base) * (size_t)dim;
  const uint8_t *values = (const uint8_t *)a->layer->v + at * (ep_kv_wide(a->s) ? 2 : 1);
  memset(acc, 0, (size_t)p->group * (size_t)dim * sizeof *acc);
  for (int32_t h = 0; h < p->group; h++) {
    int32_t *weights = scores_of(p, h);
    if (tops) weights[n] = tops[h]; /* as one more score, so that all are measured from it */
    sums[h] = kernels->weights(weights, n + (tops != NULL), a->op[EP_O_P0 + 4], values);
    values += 8 * (size_t)n;
    if (tops) sums[h] -= (uint64_t)weights[n];
    ep_align_weights(a, most);
    int32_t *all = weights - (p->from - p->base);
    for (int32_t j = 0; j < p->from - p->base; j++) all[j] = 0;
    for (int32_t j = p->to - p->base; j < blocks * BLOCK; j++) all[j] = 0;
  }
  for (int32_t h = 0; h < p->group; h += EP_GROUP) {
    int32_t heads = p->group - h < EP_GROUP ? p->group - h : EP_GROUP;
    const int32_t *weights = p->scores + (size_t)h * p->stride;
    if (ep_kv_wide(a->s))
      kernels->mixes_kv16(acc + h * dim, weights, p->stride, (const int16_t *)a->layer->v + at, dim, heads, blocks * BLOCK);
    else if (most > 0)
      kernels->mixes_kv8(acc + h * dim, weights, p->stride, (const int8_t *)a->layer->v + at, dim, heads, blocks * BLOCK);
  }
}

typedef struct job {
  ep_session *s;
  const int32_t *op;
  int32_t tokens, lanes;
} job;

static int32_t *output_of(const job *b, int32_t head, int32_t token) {
  return ep_value(b->s, b->op[EP_O_OUT], token) + head * ep_layer_of(b->s, b->op)->v_dim;
}

/* ---- several tokens ---------------------------------------------------------------------------------------------- */

static void whole(const job *b, ep_lane *lane, int32_t kv, int32_t token) {
  const ep_group_room *room = &lane->group;
  int32_t from, to = ep_visible(b->s, b->op, token, b->tokens, &from);
  part p = part_of(b->s, lane, b->op, kv, token, from, to);
  p.scores = room->scores;
  p.stride = (size_t)p.query.layer->slots + BLOCK;
  score(&p);
  int32_t most = ep_largest_scale(&p.query), dim = p.query.layer->v_dim;
  mix(&p, NULL, most, room->mixed, room->sums);
  for (int32_t h = 0; h < p.group; h++)
    ep_divide(&p.query, room->mixed + h * dim, most, room->sums[h], output_of(b, kv * p.group + h, token));
}

/* Every lane has early tokens, which see little, and late ones. */
static void token_task(void *arg, int32_t i) {
  const job *b = (const job *)arg;
  for (int32_t kv = 0; kv < ep_layer_of(b->s, b->op)->heads; kv++)
    for (int32_t t = 0; t < b->tokens; t++)
      if ((t + kv) % b->lanes == i) whole(b, &b->s->lanes[i], kv, t);
}

/* ---- one token --------------------------------------------------------------------------------------------------- */

/* Part i of the blocks that the token sees. An empty one has from = to. */
static part part_of_lane(const job *b, int32_t kv, int32_t i) {
  ep_group_room *room = &b->s->lanes[i].group;
  int32_t from, to = ep_visible(b->s, b->op, 0, 1, &from), base = from & -BLOCK, blocks = (to - base + BLOCK - 1) / BLOCK;
  int32_t start = base + (int32_t)((int64_t)blocks * i / b->lanes) * BLOCK, end = base + (int32_t)((int64_t)blocks * (i + 1) / b->lanes) * BLOCK;
  if (start < from) start = from;
  if (end > to) end = to;
  part p = part_of(b->s, &b->s->lanes[i], b->op, kv, 0, start, end > start ? end : start);
  p.stride = (size_t)(p.query.layer->slots / b->lanes + 3 * BLOCK);
  p.scores = room->scores + (size_t)kv * (size_t)p.group * p.stride;
  return p;
}

static void score_task(void *arg, int32_t i) {
  const job *b = (const job *)arg;
  const ep_layer *l = ep_layer_of(b->s, b->op);
  int32_t heads = b->op[EP_O_P0 + 1], *tops = b->s->lanes[i].group.tops;
  for (int32_t kv = 0; kv < l->heads; kv++) {
    part p = part_of_lane(b, kv, i);
    score(&p);
    for (int32_t h = 0; h < p.group; h++) {
      const int32_t *sigma = scores_of(&p, h);
      int32_t top = INT32_MIN;
      for (int32_t j = 0; j < p.query.visible; j++)
        if (sigma[j] > top) top = sigma[j];
      tops[p.query.head] = top;
    }
    tops[heads + kv] = ep_largest_scale(&p.query);
  }
}

static void gather_tops(const job *b, int32_t n) {
  int32_t *tops = b->s->lanes[0].group.tops;
  for (int32_t i = 1; i < b->lanes; i++)
    for (int32_t h = 0; h < n; h++)
      if (b->s->lanes[i].group.tops[h] > tops[h]) tops[h] = b->s->lanes[i].group.tops[h];
}

static void mix_task(void *arg, int32_t i) {
  const job *b = (const job *)arg;
  const ep_layer *l = ep_layer_of(b->s, b->op);
  const ep_group_room *room = &b->s->lanes[i].group;
  const int32_t heads = b->op[EP_O_P0 + 1], *tops = b->s->lanes[0].group.tops;
  for (int32_t kv = 0; kv < l->heads; kv++) {
    part p = part_of_lane(b, kv, i);
    int32_t head = kv * p.group;
    mix(&p, tops + head, tops[heads + kv], room->mixed + head * l->v_dim, room->sums + head);
  }
}

static void divide(const job *b) {
  const ep_layer *l = ep_layer_of(b->s, b->op);
  const ep_group_room *room = &b->s->lanes[0].group;
  int32_t heads = b->op[EP_O_P0 + 1], from, to = ep_visible(b->s, b->op, 0, 1, &from);
  for (int32_t i = 1; i < b->lanes; i++) {
    const ep_group_room *other = &b->s->lanes[i].group;
    for (int32_t k = 0; k < heads * l->v_dim; k++) room->mixed[k] += other->mixed[k];
    for (int32_t h = 0; h < heads; h++) room->sums[h] += other->sums[h];
  }
  for (int32_t h = 0; h < heads; h++) {
    int32_t kv = h / (heads / l->heads);
    part p = part_of(b->s, &b->s->lanes[0], b->op, kv, 0, from, to);
    ep_divide(&p.query, room->mixed + h * l->v_dim, room->tops[heads + kv], room->sums[h], output_of(b, h, 0));
  }
}

void ep_attention_groups(ep_session *s, const int32_t *op, int32_t n, int32_t lanes) {
  job b = {s, op, n, lanes};
  if (n > 1 || lanes < 2 || lanes < s->cfg.threads) { /* scores have room for parts of all threads */
    ep_run_lanes(s, token_task, &b, lanes);
    return;
  }
  ep_run_lanes(s, score_task, &b, lanes);
  gather_tops(&b, op[EP_O_P0 + 1] + ep_layer_of(s, op)->heads);
  ep_run_lanes(s, mix_task, &b, lanes);
  divide(&b);
  s->saturations += s->lanes[0].saturations;
  s->lanes[0].saturations = 0;
}

#endif
