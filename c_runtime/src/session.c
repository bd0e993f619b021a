/* Sessions: the arena, evaluation, reset and rewind. */
#include "session.h"

/* Hands out the arena front to back; with no base it only measures. */
typedef struct arena {
  uint8_t *base;
  uint64_t used;
} arena;

static void *take(arena *a, uint64_t count, uint64_t size) {
  void *p = a->base ? a->base + a->used : NULL;
  a->used += (count * size + EP_ALIGN - 1) & ~(uint64_t)(EP_ALIGN - 1);
  return p;
}

static void lay_out_layer(const ep_session *s, arena *a, const int32_t *record, ep_layer *l) {
  uint64_t data = s->program.kv_bits == 16 ? 2 : 1, scale = s->program.kv_bits == 16 ? 1 : 4;
  const int blocks = ep_kv_blocks(s);
  l->slots = blocks ? (s->cfg.context + 15) & ~15 : s->cfg.context;
  uint64_t slots = (uint64_t)record[EP_KV_HEADS] * (uint64_t)l->slots;
  l->heads = record[EP_KV_HEADS];
  l->k_dim = record[EP_KV_K_DIM];
  l->v_dim = record[EP_KV_V_DIM];
  l->window = record[EP_KV_WINDOW];
  l->k = take(a, slots * (uint64_t)(blocks ? (l->k_dim + 3) & ~3 : l->k_dim), data);
  l->v = take(a, slots * (uint64_t)l->v_dim, data);
  l->k_scales = take(a, slots, scale);
  l->v_scales = take(a, slots, scale);
}

static void lay_out_group(const ep_session *s, arena *a, ep_group_room *g) {
  const ep_program *p = &s->program;
  uint64_t heads = 1, group = 1, slots = ((uint64_t)s->cfg.context + 15) & ~(uint64_t)15;
  for (int32_t i = 0; i < p->n_ops; i++) {
    const int32_t *op = ep_op(p, i);
    if (op[EP_O_CODE] != EP_ATTENTION) continue;
    uint64_t all = (uint64_t)op[EP_O_P0 + 1], kv = (uint64_t)p->kv[(size_t)op[EP_O_P0] * EP_KV_WORDS + EP_KV_HEADS];
    if (all > heads) heads = all;
    if (all / kv > group) group = all / kv;
  }
  uint64_t most = group * (slots + 16), parts = s->cfg.threads > 1 ? heads * (slots / (uint64_t)s->cfg.threads + 48) : 0;
  g->acc = (int64_t *)take(a, EP_GROUP * EP_GROUP_KEYS, sizeof *g->acc);
  g->mixed = (int64_t *)take(a, heads * (uint64_t)p->v_dim, sizeof *g->mixed);
  g->scores = (int32_t *)take(a, most > parts ? most : parts, sizeof *g->scores);
  g->q = (int16_t *)take(a, group * (uint64_t)p->k_dim, sizeof *g->q);
  g->shifts = (int32_t *)take(a, group, sizeof *g->shifts);
  g->tops = (int32_t *)take(a, 2 * heads, sizeof *g->tops);
  g->sums = (uint64_t *)take(a, heads, sizeof *g->sums);
}

static void lay_out_lane(const ep_session *s, arena *a, ep_lane *l) {
  const ep_program *p = &s->program;
  int32_t tokens = s->cfg.n_batch < EP_TILE_TOKENS ? s->cfg.n_batch : EP_TILE_TOKENS, sums = EP_TILE_ROWS * tokens;
  if (sums < EP_TILE) sums = EP_TILE;
  memset(l, 0, sizeof *l);
  l->acc = (int64_t *)take(a, (uint64_t)(p->v_dim > sums ? p->v_dim : sums), sizeof *l->acc);
  l->fine = (int64_t *)take(a, p->two_parts ? (uint64_t)sums : 0, sizeof *l->fine);
  if (ep_kv_blocks(s)) {
    if (p->n_kv) lay_out_group(s, a, &l->group);
  } else {
    l->scores = (int32_t *)take(a, p->n_kv ? (uint64_t)s->cfg.context : 0, sizeof *l->scores);
    l->q = (int16_t *)take(a, (uint64_t)p->k_dim, sizeof *l->q);
  }
  l->tile = (int32_t *)take(a, EP_TILE, sizeof *l->tile);
  l->scratch = take(a, s->kernels.scratch, 1);
}

/* Sizes stay far below 2^64: 2^12 layers of 2^10 heads, 2^18 slots and 2 * 512 components are 2^52 bytes. */
static uint64_t lay_out(ep_session *s, uint8_t *base) {
  const ep_program *p = &s->program;
  uint64_t batch = (uint64_t)s->cfg.n_batch;
  arena a = {base, 0};
  take(&a, 1, sizeof *s);
  s->layers = (ep_layer *)take(&a, (uint64_t)p->n_kv, sizeof *s->layers);
  s->lanes = (ep_lane *)take(&a, (uint64_t)s->cfg.threads, sizeof *s->lanes);
  s->positions = (int32_t *)take(&a, (uint64_t)s->cfg.context, sizeof *s->positions);
  s->values = (int32_t *)take(&a, (uint64_t)p->header[EP_H_PLAN_WIDTH] * batch, sizeof *s->values);
  s->row = (int32_t *)take(&a, (uint64_t)ep_width(p, ep_head_input(s)), sizeof *s->row);
  s->narrow = (int16_t *)take(&a, (uint64_t)p->longest_row * batch, sizeof *s->narrow);
  s->shifts = (int32_t *)take(&a, batch, sizeof *s->shifts);
  s->sums = (int32_t *)take(&a, (uint64_t)(p->longest_summed / 32) * batch, sizeof *s->sums);
  s->group_scales = (int32_t *)take(&a, (uint64_t)(p->longest_in_groups / 32) * batch, sizeof *s->group_scales);
  s->turns = (int16_t *)take(&a, 2 * (uint64_t)p->most_pairs * batch, sizeof *s->turns);
  for (int32_t i = 0; i < p->n_kv; i++) {
    ep_layer measured, *l = base ? &s->layers[i] : &measured;
    lay_out_layer(s, &a, p->kv + (size_t)i * EP_KV_WORDS, l);
  }
  if (!base) { /* all lanes are alike */
    ep_lane measured;
    uint64_t before = a.used;
    lay_out_lane(s, &a, &measured);
    return before + (a.used - before) * (uint64_t)s->cfg.threads;
  }
  for (int32_t i = 0; i < s->cfg.threads; i++) lay_out_lane(s, &a, &s->lanes[i]);
  return a.used;
}

/* An empty session outside its arena, and the bytes it needs. */
static ep_status prepare(ep_session *s, const ep_model *model, const ep_config *cfg, size_t *bytes) {
  memset(s, 0, sizeof *s);
  if (!cfg || !ep_program_of(&s->program, model)) return EP_ERR_ARGUMENT;
  s->cfg = *cfg;
  if (cfg->context < 0 || cfg->context > s->program.context || cfg->n_batch < 0 || cfg->threads < 0) return EP_ERR_ARGUMENT;
  if (s->program.patches) s->cfg.context = s->cfg.n_batch = s->program.context; /* an image is one call, always of as many tokens */
  if (s->cfg.context == 0) s->cfg.context = s->program.context;
  const int small = !(cfg->cpu & ~(EP_CPU_DSP | EP_CPU_MVE)); /* a microcontroller, or any processor in C */
  if (s->cfg.n_batch == 0) s->cfg.n_batch = s->program.one_call ? s->cfg.context : small ? 16 : 128;
  if (s->cfg.n_batch > s->cfg.context) s->cfg.n_batch = s->cfg.context;
  if (cfg->threads == 0 || !cfg->parallel) s->cfg.threads = 1;
  ep_choose_kernels(&s->kernels, cfg->cpu);
  uint64_t need = lay_out(s, NULL);
  if (need > SIZE_MAX) return EP_ERR_ARENA;
  *bytes = (size_t)need;
  return EP_OK;
}

ep_status ep_arena_size(const ep_model *model, const ep_config *cfg, size_t *bytes) {
  ep_session s;
  if (!bytes) return EP_ERR_ARGUMENT;
  return prepare(&s, model, cfg, bytes);
}

ep_status ep_session_init(ep_session **session, const ep_model *model, const ep_config *cfg, void *memory, size_t bytes) {
  ep_session s;
  size_t need;
  if (!session || !memory) return EP_ERR_ARGUMENT;
  if ((uintptr_t)memory % EP_ALIGN) return EP_ERR_ALIGNMENT;
  ep_status st = prepare(&s, model, cfg, &need);
  if (st != EP_OK) return st;
  if (need > bytes) return EP_ERR_ARENA;
  lay_out(&s, (uint8_t *)memory);
  memcpy(memory, &s, sizeof s);
  *session = (ep_session *)memory;
  return EP_OK;
}

ep_status ep_check_tokens(const ep_session *s, const int32_t *tokens, const int32_t *positions, int32_t n) {
  if (s->program.patches) return EP_ERR_INPUT;
  if (n < 1) return EP_ERR_ARGUMENT;
  if (n > s->cfg.context - s->length) return EP_ERR_CONTEXT;
  if (s->program.one_call && (s->length > 0 || n > s->cfg.n_batch)) return EP_ERR_CONTEXT;
  for (int32_t i = 0; i < n; i++)
    if (tokens[i] < 0 || tokens[i] >= s->program.vocab) return EP_ERR_TOKEN;
  int64_t last = s->length ? s->positions[s->length - 1] : -1;
  if (!positions) last += n;
  for (int32_t i = 0; i < n && positions; i++) {
    if (positions[i] <= last) return EP_ERR_POSITION;
    last = positions[i];
  }
  return last > s->program.max_position ? EP_ERR_POSITION : EP_OK;
}

void ep_eval_checked(ep_session *s, const int32_t *tokens, int32_t n, int32_t *logits, uint64_t *digest) {
  const ep_program *p = &s->program;
  for (int32_t from = 0; from < n; from += s->cfg.n_batch) {
    int32_t m = n - from < s->cfg.n_batch ? n - from : s->cfg.n_batch;
    s->tokens = tokens ? tokens + from : NULL;
    s->call_token = from;
    s->turns_of = -1;
    for (int32_t i = 0; i < p->head_start; i++) ep_exec(s, i, m);
    if (EP_HAS_OPERATOR(EP_POOL) && p->embedding) { /* the only batch: it holds the whole text */
      ep_pool_rows(s, m);
      if (digest) *digest = ep_digest(*digest, ep_embedding_row(s), (size_t)p->embedding);
      s->length += m;
      continue;
    }
    int32_t v = ep_head_input(s);
    memcpy(s->row, ep_value(s, v, m - 1), (size_t)ep_width(p, v) * sizeof *s->row);
    if (logits) ep_head_logits(s, m, logits + (size_t)from * (size_t)p->vocab);
    if (digest) ep_head_digest(s, m, digest);
    s->length += m;
  }
  s->tokens = NULL;
  s->has_row = 1;
}

ep_status ep_eval(ep_session *s, const int32_t *tokens, const int32_t *positions, int32_t n, int32_t *logits) {
  if (!s || !tokens) return EP_ERR_ARGUMENT;
  if (logits && s->program.embedding) return EP_ERR_OUTPUT;
  ep_status st = ep_check_tokens(s, tokens, positions, n);
  if (st != EP_OK) return st;
  int32_t next = ep_next_position(s);
  for (int32_t i = 0; i < n; i++) s->positions[s->length + i] = positions ? positions[i] : next + i;
  ep_eval_checked(s, tokens, n, logits, NULL);
  return EP_OK;
}

const char *ep_kernels_name(const ep_session *s) { return s ? s->kernels.name : ""; }

int32_t ep_length(const ep_session *s) { return s ? s->length : 0; }

int32_t ep_next_position(const ep_session *s) {
  if (!s || s->length == 0) return 0;
  int32_t last = s->positions[s->length - 1];
  return last < INT32_MAX ? last + 1 : INT32_MAX;
}

uint64_t ep_saturations(const ep_session *s) { return s ? s->saturations : 0; }

void ep_reset(ep_session *s) {
  if (!s) return;
  s->length = s->has_row = 0;
  s->saturations = 0;
}

ep_status ep_rewind(ep_session *s, int32_t n) {
  if (!s || n < 0 || n > s->length) return EP_ERR_ARGUMENT;
  s->length = n;
  s->has_row = 0;
  return EP_OK;
}

void ep_set_trace(ep_session *s, ep_trace trace, void *user) {
  if (!s) return;
  s->trace = trace;
  s->trace_user = user;
}
