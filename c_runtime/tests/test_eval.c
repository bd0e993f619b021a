/* Evaluation: every split, batch size and thread count gives the same bits; errors change nothing; state comes back. */
#include "edgepos.h"
#include "edgepos_cpu.h"
#include "image.h"

enum { N = 20 };

typedef struct run {
  ep_model model;
  ep_session *s;
  uint8_t *image;
  void *arena;
  size_t image_bytes, arena_bytes;
} run;

/* Backwards, so that an order that matters shows. */
static void backwards(void *pool, ep_task fn, void *arg, int32_t n) {
  (void)pool;
  for (int32_t i = n - 1; i >= 0; i--) fn(arg, i);
}

static run start(const shape *s, int32_t n_batch, int32_t threads) {
  run r = {0};
  ep_config cfg = {.n_batch = n_batch, .threads = threads, .parallel = backwards};
  uint64_t where;
  if (threads != 1) cfg.cpu = ep_cpu_detect(); /* whatever the order of its KV cache */
  r.image = image_of(s, &r.image_bytes);
  CHECK(ep_open(&r.model, r.image, r.image_bytes, &where) == EP_OK);
  r.arena = arena_for(&r.model, &cfg, &r.arena_bytes);
  CHECK(r.arena && ep_session_init(&r.s, &r.model, &cfg, r.arena, r.arena_bytes) == EP_OK);
  return r;
}

static void stop(run *r) {
  free(r->arena);
  free(r->image);
}

static void choose_tokens(const shape *s, int32_t *ids) {
  uint64_t random = s->seed + 1;
  for (int i = 0; i < N; i++) ids[i] = (int32_t)(draw(&random) % (uint64_t)s->vocab);
}

static size_t row_bytes(const shape *s, size_t rows) { return rows * (size_t)s->vocab * sizeof(int32_t); }

static void test_splits(const shape *s) {
  int32_t ids[N], *want = (int32_t *)malloc(row_bytes(s, N)), *got = (int32_t *)malloc(row_bytes(s, N));
  static const int32_t batches[] = {1, 3, 16, 0, 64}, threads[] = {0, 1, 2, 5, 40};
  uint64_t saturations = 0;
  choose_tokens(s, ids);
  for (int i = 0; i < 25; i++) {
    run r = start(s, batches[i / 5], threads[i % 5]);
    int32_t step = i % 5 == 0 ? N : i % 5, token = -1, best = 0;
    for (int32_t at = 0; at < N; at += step)
      CHECK(ep_eval(r.s, ids + at, NULL, N - at < step ? N - at : step, got + (size_t)at * (size_t)s->vocab) == EP_OK);
    if (i == 0) memcpy(want, got, row_bytes(s, N)), saturations = ep_saturations(r.s);
    CHECK(memcmp(want, got, row_bytes(s, N)) == 0 && ep_saturations(r.s) == saturations);
    CHECK(ep_length(r.s) == N && ep_next_position(r.s) == N);
    const int32_t *last = want + (size_t)(N - 1) * (size_t)s->vocab;
    for (int32_t v = 0; v < s->vocab; v++)
      if (last[v] > last[best]) best = v;
    CHECK(ep_argmax(r.s, &token) == EP_OK && token == best);
    CHECK(ep_logits(r.s, got) == EP_OK && memcmp(got, last, row_bytes(s, 1)) == 0);
    ep_reset(r.s);
    CHECK(ep_length(r.s) == 0 && ep_saturations(r.s) == 0 && ep_logits(r.s, got) == EP_ERR_STATE);
    stop(&r);
  }
  free(want);
  free(got);
}

static void test_rewind_and_state(const shape *s) {
  run r = start(s, 4, 1), other = start(s, 16, 3);
  int32_t ids[N], positions[N], *want = (int32_t *)malloc(row_bytes(s, 1)), *got = (int32_t *)malloc(row_bytes(s, 1));
  choose_tokens(s, ids);
  for (int i = 0; i < N; i++) positions[i] = 5 * i * i + (i == N - 1 ? 1 << 30 : 0);
  CHECK(ep_eval(r.s, ids, positions, N, NULL) == EP_OK && ep_logits(r.s, want) == EP_OK);
  CHECK(ep_next_position(r.s) == positions[N - 1] + 1);

  size_t size = ep_state_size(r.s);
  uint8_t *state = (uint8_t *)malloc(size + 1), *again = (uint8_t *)malloc(size + 1);
  CHECK(ep_state_save(r.s, state + 1, size - 1) == EP_ERR_BUFFER);
  CHECK(ep_state_save(r.s, state + 1, size) == EP_OK);
  CHECK(ep_state_restore(other.s, state + 1, size) == EP_OK && ep_length(other.s) == N);
  CHECK(ep_logits(other.s, got) == EP_OK && memcmp(want, got, row_bytes(s, 1)) == 0);
  CHECK(ep_state_size(other.s) == size && ep_state_save(other.s, again, size) == EP_OK && memcmp(again, state + 1, size) == 0);

  CHECK(ep_rewind(r.s, N + 1) == EP_ERR_ARGUMENT && ep_rewind(r.s, -1) == EP_ERR_ARGUMENT && ep_length(r.s) == N);
  CHECK(ep_rewind(r.s, 7) == EP_OK && ep_logits(r.s, got) == EP_ERR_STATE && ep_argmax(r.s, got) == EP_ERR_STATE);
  size_t shorter = ep_state_size(r.s);
  CHECK(shorter < size && ep_state_save(r.s, again, shorter) == EP_OK);
  CHECK(ep_eval(r.s, ids + 7, positions + 7, N - 7, NULL) == EP_OK && ep_logits(r.s, got) == EP_OK);
  CHECK(memcmp(want, got, row_bytes(s, 1)) == 0);
  CHECK(ep_state_restore(other.s, again, shorter) == EP_OK && ep_length(other.s) == 7 && ep_logits(other.s, got) == EP_ERR_STATE);
  CHECK(ep_eval(other.s, ids + 7, positions + 7, N - 7, NULL) == EP_OK && ep_logits(other.s, got) == EP_OK);
  CHECK(memcmp(want, got, row_bytes(s, 1)) == 0);

  for (size_t n = 0; n < size; n++) CHECK(ep_state_restore(other.s, state + 1, n) == EP_ERR_STATE);
  for (size_t i = 1; i <= size; i++) { /* refused and nothing changed, or the session still computes */
    uint8_t kept = state[i];
    state[i] ^= (uint8_t)(i % 3 ? 0x80 : 0xff);
    ep_status st = ep_state_restore(other.s, state + 1, size);
    CHECK(st == EP_OK || st == EP_ERR_STATE || st == EP_ERR_CONTEXT);
    if (st != EP_OK) CHECK(ep_logits(other.s, got) == EP_OK && memcmp(want, got, row_bytes(s, 1)) == 0);
    if (i <= 28) CHECK(st != EP_OK);
    if (st == EP_OK) {
      CHECK(ep_eval(other.s, ids, NULL, 1, got) == EP_OK || ep_next_position(other.s) == INT32_MAX);
      state[i] = kept;
      CHECK(ep_state_restore(other.s, state + 1, size) == EP_OK);
    }
    state[i] = kept;
  }
  free(state);
  free(again);
  free(want);
  free(got);
  stop(&r);
  stop(&other);
}

static void test_errors(const shape *s) {
  run r = start(s, 4, 1);
  int32_t ids[N], bad[N], *want = (int32_t *)malloc(row_bytes(s, 1)), *got = (int32_t *)malloc(row_bytes(s, 1)), token;
  int32_t many[64] = {0}, positions[3] = {4, 6, 5}, low[2] = {3, 9}, negative[1] = {-1}, top[1] = {INT32_MAX};
  size_t bytes;
  choose_tokens(s, ids);
  CHECK(ep_eval(r.s, ids, negative, 1, NULL) == EP_ERR_POSITION);
  CHECK(ep_eval(r.s, ids, NULL, 4, NULL) == EP_OK && ep_logits(r.s, want) == EP_OK);
  uint64_t saturations = ep_saturations(r.s);
  memcpy(bad, ids, sizeof bad);
  bad[2] = s->vocab;
  CHECK(ep_eval(r.s, bad, NULL, 3, NULL) == EP_ERR_TOKEN);
  bad[2] = -1;
  CHECK(ep_eval(r.s, bad, NULL, 3, NULL) == EP_ERR_TOKEN);
  CHECK(ep_eval(r.s, many, NULL, s->context - 3, NULL) == EP_ERR_CONTEXT);
  CHECK(ep_eval(r.s, ids, positions, 3, NULL) == EP_ERR_POSITION && ep_eval(r.s, ids, low, 2, NULL) == EP_ERR_POSITION);
  CHECK(ep_eval(r.s, ids, NULL, 0, NULL) == EP_ERR_ARGUMENT && ep_eval(r.s, ids, NULL, -1, NULL) == EP_ERR_ARGUMENT);
  CHECK(ep_eval(r.s, NULL, NULL, 1, NULL) == EP_ERR_ARGUMENT && ep_eval(NULL, ids, NULL, 1, NULL) == EP_ERR_ARGUMENT);
  CHECK(ep_length(r.s) == 4 && ep_next_position(r.s) == 4 && ep_saturations(r.s) == saturations);
  CHECK(ep_logits(r.s, got) == EP_OK && memcmp(want, got, row_bytes(s, 1)) == 0);
  CHECK(ep_logits(r.s, NULL) == EP_ERR_ARGUMENT && ep_argmax(NULL, &token) == EP_ERR_ARGUMENT);
  CHECK(ep_eval(r.s, ids, top, 1, NULL) == EP_OK && ep_next_position(r.s) == INT32_MAX);
  CHECK(ep_eval(r.s, ids, NULL, 1, NULL) == EP_ERR_POSITION);
  CHECK(ep_rewind(r.s, 0) == EP_OK && ep_next_position(r.s) == 0);
  CHECK(ep_eval(r.s, many, NULL, s->context, NULL) == EP_OK && ep_eval(r.s, many, NULL, 1, NULL) == EP_ERR_CONTEXT);

  ep_model never = {{0}};
  ep_config cfg = {0}, wrong[] = {{.context = s->context + 1}, {.context = -1}, {.n_batch = -1}, {.threads = -2}};
  ep_session *unused = NULL;
  ep_info info;
  CHECK(ep_arena_size(&never, &cfg, &bytes) == EP_ERR_ARGUMENT && ep_model_info(&never, &info) == EP_ERR_ARGUMENT);
  for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
    CHECK(ep_arena_size(&r.model, &wrong[i], &bytes) == EP_ERR_ARGUMENT);
  CHECK(ep_arena_size(&r.model, &cfg, &bytes) == EP_OK && bytes > 0);
  CHECK(ep_session_init(&unused, &r.model, &cfg, r.arena, 63) == EP_ERR_ARENA);
  CHECK(ep_session_init(&unused, &r.model, &cfg, (uint8_t *)r.arena + 4, bytes) == EP_ERR_ALIGNMENT);
  CHECK(ep_session_init(&unused, &r.model, NULL, r.arena, bytes) == EP_ERR_ARGUMENT && unused == NULL);
  for (int i = 0; i < 20; i++) CHECK(ep_status_text((ep_status)i)[0] != 0);
  free(want);
  free(got);
  stop(&r);
}

typedef struct seen {
  int32_t codes, events, tokens;
  uint64_t saturations;
} seen;

static void watch(void *user, const ep_trace_event *e) {
  seen *n = (seen *)user;
  n->codes |= 1 << e->opcode;
  n->events++;
  n->tokens += e->op == 0 ? e->rows : 0;
  n->saturations += e->saturations;
  CHECK(e->f == 16 && e->width > 0 && e->data && e->token % 6 == 0 && e->rows <= 6);
}

static void test_trace_selftest_info(const shape *s) {
  run r = start(s, 6, 1);
  int32_t ids[N], *logits = (int32_t *)malloc(row_bytes(s, N));
  seen n = {0};
  choose_tokens(s, ids);
  ep_set_trace(r.s, watch, &n);
  CHECK(ep_eval(r.s, ids, NULL, N, logits) == EP_OK);
  CHECK(n.tokens == N && n.saturations == ep_saturations(r.s));
  CHECK(n.codes == ((1 << EP_POOL) - 2 - (1 << EP_KV_WRITE)));

  ep_info info;
  CHECK(ep_model_info(&r.model, &info) == EP_OK && info.vocab == s->vocab && info.n_layers == s->layers);
  CHECK(info.kv_bytes_per_token == (uint64_t)s->layers * 2 * (s->kv_bits == 16 ? 16 * 2 + 2 : 16 + 8));
  ep_reset(r.s);
  CHECK(ep_eval(r.s, info.selftest, NULL, info.n_selftest, logits) == EP_OK);
  uint64_t want = ep_digest(EP_DIGEST_INIT, logits, (size_t)info.n_selftest * (size_t)s->vocab), got = 0;
  for (int32_t batch = 1; batch < 7; batch += 4) {
    ep_config cfg = {.n_batch = batch, .context = 8};
    CHECK(ep_selftest(&r.model, &cfg, r.arena, r.arena_bytes, &got) == EP_ERR_SELFTEST && got == want);
  }
  uint8_t *program = (uint8_t *)memchr(r.image, 'E', r.image_bytes);
  while (memcmp(program, "EPPR", 4)) program++;
  memcpy(program + 4 * EP_H_DIGEST_LOW, &want, 8);
  ep_config cfg = {0}, small = {.context = 7};
  ep_model model;
  CHECK(ep_open(&model, r.image, r.image_bytes, NULL) == EP_OK);
  size_t bytes;
  void *arena = arena_for(&model, &cfg, &bytes);
  CHECK(ep_selftest(&model, &cfg, arena, bytes, NULL) == EP_OK);
  CHECK(ep_selftest(&model, &small, arena, bytes, NULL) == EP_ERR_CONTEXT);
  free(arena);
  free(logits);
  stop(&r);
}

static void silent(void *user, const ep_trace_event *e) {
  int *found = (int *)user;
  if (e->opcode != EP_ATTENTION || *found) return; /* the first layer */
  *found = 1;
  for (int32_t i = 0; i < e->rows * e->width; i++) CHECK(e->data[i] == 0);
}

/* Values that are all zero have the largest scale 0. */
static void test_zero_values(const shape *s) {
  builder *b = (builder *)malloc(sizeof *b);
  build(b, s);
  const int32_t *v = b->ops[4];
  memset(b->tensors[v[EP_O_T0]].data, 0, data_bytes(&b->tensors[v[EP_O_T0]]));
  memset(b->tensors[v[EP_O_T3]].data, 0, data_bytes(&b->tensors[v[EP_O_T3]]));
  size_t n, bytes;
  uint8_t *image = finish(b, &n);
  ep_model model;
  ep_session *session = NULL;
  ep_config cfg = {.n_batch = 5};
  int32_t ids[N];
  int found = 0;
  choose_tokens(s, ids);
  CHECK(ep_open(&model, image, n, NULL) == EP_OK);
  void *arena = arena_for(&model, &cfg, &bytes);
  CHECK(ep_session_init(&session, &model, &cfg, arena, bytes) == EP_OK);
  ep_set_trace(session, silent, &found);
  CHECK(ep_eval(session, ids, NULL, N, NULL) == EP_OK && found);
  free(arena);
  free(image);
  discard(b);
  free(b);
}

/* Positions are rows of a table: the last row is the last position. */
static void test_table(const shape *s) {
  shape with = *s;
  with.table = 2 * N + s->grouped; /* rows from 1 on: positions end at table - 2 */
  run r = start(&with, 3, 1);
  int32_t ids[N], last = with.table - 2, positions[3] = {1, last, last + 1}, *got = (int32_t *)malloc(row_bytes(s, N));
  ep_info info;
  choose_tokens(s, ids);
  CHECK(ep_model_info(&r.model, &info) == EP_OK && info.max_position == last);
  CHECK(ep_eval(r.s, ids, positions, 3, NULL) == EP_ERR_POSITION && ep_length(r.s) == 0);
  CHECK(ep_eval(r.s, ids, positions, 2, NULL) == EP_OK && ep_next_position(r.s) == last + 1);
  CHECK(ep_eval(r.s, ids, NULL, 1, NULL) == EP_ERR_POSITION && ep_length(r.s) == 2);
  stop(&r);
  test_splits(&with);
  free(got);
}

/* All tokens in one call, in whatever lanes; anything else is refused. */
static void test_bidirectional(const shape *s) {
  shape both = *s;
  both.bidirectional = 1;
  int32_t ids[N], *want = (int32_t *)malloc(row_bytes(s, N)), *got = (int32_t *)malloc(row_bytes(s, N));
  static const int32_t batches[] = {0, N, 64}, threads[] = {1, 3};
  choose_tokens(s, ids);
  for (int i = 0; i < 6; i++) {
    run r = start(&both, batches[i % 3], threads[i / 3]);
    CHECK(ep_eval(r.s, ids, NULL, N, got) == EP_OK);
    if (i == 0) memcpy(want, got, row_bytes(s, N));
    CHECK(memcmp(want, got, row_bytes(s, N)) == 0);
    CHECK(ep_eval(r.s, ids, NULL, 1, NULL) == EP_ERR_CONTEXT && ep_length(r.s) == N);
    CHECK(ep_rewind(r.s, 0) == EP_OK && ep_eval(r.s, ids, NULL, N - 1, got) == EP_OK);
    CHECK(memcmp(want, got, row_bytes(s, N - 1)) != 0); /* the last token was seen by all */
    stop(&r);
  }
  run r = start(&both, N - 1, 1);
  ep_config few = {.n_batch = 7}, all = {.n_batch = 8};
  uint64_t digest;
  CHECK(ep_eval(r.s, ids, NULL, N, NULL) == EP_ERR_CONTEXT && ep_length(r.s) == 0);
  CHECK(ep_selftest(&r.model, &few, r.arena, r.arena_bytes, &digest) == EP_ERR_CONTEXT);
  CHECK(ep_selftest(&r.model, &all, r.arena, r.arena_bytes, &digest) == EP_ERR_SELFTEST); /* the image states no digest */
  stop(&r);
  free(want);
  free(got);
}

static int32_t pool_of(const int32_t *x, const int32_t *ids, int32_t n, int32_t width, int32_t kind, int32_t id) {
  int32_t first = 0, most = 0; /* tokens: the first with that id, the first with the largest */
  for (int32_t t = n - 1; t >= 0; t--) {
    if (ids[t] == id) first = t;
    if (ids[t] >= ids[most]) most = t;
  }
  if (kind >= 4) return x[(kind == 4 ? first : most) * width];
  int64_t sum = 0, best = INT64_MIN;
  for (int32_t t = 0; t < n; t++) {
    sum += x[t * width];
    if (x[t * width] > best) best = x[t * width];
  }
  int64_t up = 2 * sum + n, q = up / (2 * n); /* the mean plus a half, whose floor is asked for */
  if (up % (2 * n) < 0) q--;
  return kind == 1 ? x[0] : kind == 2 ? x[(n - 1) * width] : (int32_t)(kind == 3 ? best : q);
}

typedef struct rows {
  int32_t body[N * 44], pooled[44], n_rows, last[70], width;
} rows;

static void keep(void *user, const ep_trace_event *e) {
  rows *r = (rows *)user;
  size_t bytes = (size_t)e->rows * (size_t)e->width * 4;
  if (e->opcode == EP_ADD) memcpy(r->body, e->data, bytes);
  if (e->opcode == EP_POOL) memcpy(r->pooled, e->data, bytes), r->n_rows = e->rows;
  memcpy(r->last, e->data, bytes < sizeof r->last ? bytes : sizeof r->last);
  r->width = e->width;
}

/* One row for a text: its pooling, its digest, its state, and that logits are refused. */
static void test_embedding(const shape *s, int32_t kind) {
  shape with = *s;
  with.embedding = 1 + kind;
  int32_t ids[N], want[70], got[70], token;
  rows seen = {0};
  choose_tokens(s, ids);
  ids[3] = ids[7] = kind == 4 ? s->vocab / 2 : s->vocab - 1;
  run r = start(&with, 0, 1), few = start(&with, N - 1, 1), lanes = start(&with, N, 3);
  ep_info info;
  CHECK(ep_model_info(&r.model, &info) == EP_OK && info.embedding == (s->more ? 70 : 44) && info.vocab == s->vocab);
  CHECK(ep_embedding(r.s, got) == EP_ERR_STATE && ep_eval(r.s, ids, NULL, N, got) == EP_ERR_OUTPUT);
  ep_set_trace(r.s, keep, &seen);
  CHECK(ep_eval(r.s, ids, NULL, N, NULL) == EP_OK && seen.n_rows == 1);
  for (int32_t i = 0; i < 44; i++) CHECK(seen.pooled[i] == pool_of(seen.body + i, ids, N, 44, kind, s->vocab / 2));
  CHECK(ep_embedding(r.s, want) == EP_OK && (!s->more || seen.width == 70));
  CHECK(memcmp(want, s->more ? seen.last : seen.pooled, (size_t)info.embedding * 4) == 0);
  CHECK(ep_logits(r.s, got) == EP_ERR_OUTPUT && ep_argmax(r.s, &token) == EP_ERR_OUTPUT);
  CHECK(ep_eval(r.s, ids, NULL, 1, NULL) == EP_ERR_CONTEXT && ep_eval(few.s, ids, NULL, N, NULL) == EP_ERR_CONTEXT);
  CHECK(ep_eval(lanes.s, ids, NULL, N, NULL) == EP_OK && ep_embedding(lanes.s, got) == EP_OK);
  CHECK(memcmp(want, got, (size_t)info.embedding * 4) == 0 && ep_saturations(lanes.s) == ep_saturations(r.s));

  size_t size = ep_state_size(r.s);
  void *state = malloc(size);
  CHECK(ep_state_save(r.s, state, size) == EP_OK && ep_rewind(r.s, 0) == EP_OK && ep_embedding(r.s, got) == EP_ERR_STATE);
  CHECK(ep_eval(r.s, ids, NULL, 1, NULL) == EP_OK && ep_embedding(r.s, got) == EP_OK);
  CHECK(memcmp(want, got, (size_t)info.embedding * 4) != 0 || s->extreme || kind == 1); /* the first row may hardly see the others */
  CHECK(ep_state_restore(few.s, state, size) == EP_OK && ep_embedding(few.s, got) == EP_OK);
  CHECK(memcmp(want, got, (size_t)info.embedding * 4) == 0);
  free(state);

  ep_reset(r.s);
  CHECK(ep_eval(r.s, info.selftest, NULL, info.n_selftest, NULL) == EP_OK && ep_embedding(r.s, want) == EP_OK);
  uint64_t digest = 0;
  ep_config cfg = {.context = info.n_selftest};
  CHECK(ep_selftest(&r.model, &cfg, r.arena, r.arena_bytes, &digest) == EP_ERR_SELFTEST);
  CHECK(digest == ep_digest(EP_DIGEST_INIT, want, (size_t)info.embedding));
  stop(&r), stop(&few), stop(&lanes);
  r = start(s, 0, 1);
  CHECK(ep_eval(r.s, ids, NULL, 1, NULL) == EP_OK && ep_embedding(r.s, got) == EP_ERR_OUTPUT && ep_embedding(NULL, got) == EP_ERR_ARGUMENT);
  stop(&r);
}

typedef struct cut {
  int32_t rows[(2 + IMAGE_PATCHES) * 48], n, classes;
} cut;

static void keep_patches(void *user, const ep_trace_event *e) {
  cut *c = (cut *)user;
  if (e->opcode == EP_PATCHES) memcpy(c->rows, e->data, (size_t)e->rows * (size_t)e->width * 4), c->n = e->rows;
}

/* An image: its patches, one row in every session, and what is refused. */
static void test_image(const shape *s, int32_t first) {
  shape with = *s;
  with.embedding = 1 + (int32_t)(s->seed % 4);
  with.image = 1 + first;
  with.vocab = 1;
  with.context = first + IMAGE_PATCHES;
  with.table = s->more ? 9 : 0;
  uint8_t pixels[IMAGE_BYTES], other[IMAGE_BYTES] = {0};
  int32_t want[70], got[70], id = 0;
  uint64_t random = s->seed, digest = 0;
  for (int i = 0; i < IMAGE_BYTES; i++) pixels[i] = (uint8_t)draw(&random);
  run r = start(&with, 0, 1), lanes = start(&with, 3, 3); /* n_batch is the image's, whatever is asked for */
  cut seen = {0};
  ep_info info;
  CHECK(ep_model_info(&r.model, &info) == EP_OK && info.channels == IMAGE_CHANNELS && info.height == IMAGE_HEIGHT && info.width == IMAGE_WIDTH);
  CHECK(info.n_selftest == with.context && !info.selftest && !info.classes);
  CHECK(ep_embedding(r.s, got) == EP_ERR_STATE && ep_eval(r.s, &id, NULL, 1, NULL) == EP_ERR_INPUT);
  CHECK(ep_eval_image(r.s, pixels, IMAGE_BYTES - 1) == EP_ERR_BUFFER && ep_eval_image(r.s, pixels, IMAGE_BYTES + 1) == EP_ERR_BUFFER);
  CHECK(ep_eval_image(NULL, pixels, IMAGE_BYTES) == EP_ERR_ARGUMENT && ep_eval_image(r.s, NULL, IMAGE_BYTES) == EP_ERR_ARGUMENT);
  ep_set_trace(r.s, keep_patches, &seen);
  CHECK(ep_eval_image(r.s, pixels, IMAGE_BYTES) == EP_OK && ep_embedding(r.s, want) == EP_OK && ep_length(r.s) == with.context);
  CHECK(seen.n == with.context);
  for (int32_t t = 0; t < with.context; t++)
    for (int32_t k = 0; k < 48; k++) {
      int32_t at = t - first, y = at / 3 * 4 + k / 12, x = at % 3 * 4 + k % 12 / 3, c = k % 3;
      CHECK(seen.rows[48 * t + k] == (at < 0 ? 0 : pixels[(y * IMAGE_WIDTH + x) * 3 + c] - IMAGE_ZERO));
    }
  CHECK(ep_eval_image(lanes.s, other, IMAGE_BYTES) == EP_OK && ep_eval_image(lanes.s, pixels, IMAGE_BYTES) == EP_OK);
  CHECK(ep_embedding(lanes.s, got) == EP_OK && memcmp(want, got, (size_t)info.embedding * 4) == 0);
  size_t size = ep_state_size(r.s);
  void *state = malloc(size);
  CHECK(ep_state_save(r.s, state, size) == EP_OK && ep_eval_image(lanes.s, other, IMAGE_BYTES) == EP_OK);
  CHECK(ep_state_restore(lanes.s, state, size) == EP_OK && ep_embedding(lanes.s, got) == EP_OK);
  CHECK(memcmp(want, got, (size_t)info.embedding * 4) == 0);
  free(state);
  CHECK(ep_eval_selftest(r.s, NULL) == EP_ERR_STATE && ep_rewind(r.s, 0) == EP_OK && ep_eval_selftest(r.s, want) == EP_ERR_OUTPUT);
  CHECK(ep_eval_selftest(r.s, NULL) == EP_OK && ep_embedding(r.s, want) == EP_OK);
  CHECK(ep_selftest(&r.model, &(ep_config){0}, r.arena, r.arena_bytes, &digest) == EP_ERR_SELFTEST);
  CHECK(digest == ep_digest(EP_DIGEST_INIT, want, (size_t)info.embedding));
  stop(&r), stop(&lanes);
  r = start(s, 0, 1);
  CHECK(ep_eval_image(r.s, pixels, IMAGE_BYTES) == EP_ERR_INPUT && ep_eval_selftest(r.s, NULL) == EP_OK);
  stop(&r);
}

int main(void) {
  shape s = {.layers = 2, .width = 44, .vocab = 300, .context = 24};
  for (int i = 0; i < 16; i++) {
    s.kv_bits = i & 1 ? 16 : 8;
    s.grouped = i >> 1 & 1;
    s.extreme = i >> 2 & 1;
    s.more = i >> 3;
    s.seed = (uint64_t)i;
    test_splits(&s);
    test_rewind_and_state(&s);
    test_errors(&s);
    test_trace_selftest_info(&s);
    test_zero_values(&s);
    test_table(&s);
    if (!s.extreme) test_bidirectional(&s);
    for (int32_t kind = 0; kind < 6; kind++) test_embedding(&s, kind);
    for (int32_t first = 0; first < 3; first++) test_image(&s, first);
  }
  s.vocab = 2100; /* enough work for several lanes */
  test_splits(&s);
  return failures != 0;
}
