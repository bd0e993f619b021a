/* LINEAR: one narrowing per token, rows outside, tokens inside, cut by rows for several threads. */
#include "fixed.h"
#include "session.h"

#define EP_HAS_IN8 EP_HAS_ANY(EP_FEATURES_IN8)
#define EP_HAS_W4 EP_HAS_ANY(EP_FEATURE_W4G32 | EP_FEATURE_IN8_W4G32)

/* w4g32 multiplies the minimum of a group by the sum of its activations, the same for every row. */
static void sum_groups(int32_t *sums, const int16_t *q, int32_t groups) {
  for (int32_t i = 0; i < groups; i++, q += 32) {
    sums[i] = 0;
    for (int32_t c = 0; c < 32; c++) sums[i] += q[c];
  }
}

static void sum_groups8(int32_t *sums, const int8_t *q, int32_t groups) {
  for (int32_t i = 0; i < groups; i++, q += 32) {
    int16_t sum = 0; /* compilers add more of these at a time */
    for (int32_t c = 0; c < 32; c++) sum = (int16_t)(sum + q[c]);
    sums[i] = sum;
  }
}

/* Codes [tokens][cols], scales and sums [tokens][cols/32]. */
static void narrow_in_groups(const ep_session *s, const int32_t *op, int32_t from, int32_t to) {
  int32_t width = ep_width(&s->program, op[EP_O_IN0]), groups = ep_linear_cols(&s->program, op) / 32;
  for (int32_t t = from; t < to; t++) {
    size_t at = (size_t)t * (size_t)groups;
    int8_t *q = (int8_t *)s->narrow + at * 32;
    s->shifts[t] = s->kernels.quant8g32(q, s->group_scales + at, ep_value(s, op[EP_O_IN0], t), width);
    sum_groups8(s->sums + at, q, groups);
  }
  if (s->kernels.arrange8) s->kernels.arrange8((int8_t *)s->narrow + (size_t)from * (size_t)groups * 32, groups * 32, to - from);
}

void ep_linear_narrow(const ep_session *s, const int32_t *op, int32_t from, int32_t to) {
  if (EP_HAS_IN8 && ep_linear_in_groups(op)) {
    narrow_in_groups(s, op, from, to);
    return;
  }
  int32_t width = ep_width(&s->program, op[EP_O_IN0]), cols = ep_linear_cols(&s->program, op);
  for (int32_t t = from; t < to; t++) {
    int16_t *q = s->narrow + (size_t)t * (size_t)cols;
    s->shifts[t] = s->kernels.narrow16(q, ep_value(s, op[EP_O_IN0], t), width);
    memset(q + width, 0, (size_t)(cols - width) * sizeof *q);
    if (EP_HAS(EP_FEATURE_W4G32) && op[EP_O_P0 + 2] == EP_W4G32) sum_groups(s->sums + (size_t)t * (size_t)(cols / 32), q, cols / 32);
  }
  if (s->kernels.arrange) s->kernels.arrange(s->narrow + (size_t)from * (size_t)cols, cols, to - from);
}

/* The LINEAR before this one in its part of the program has left the same input narrowed in the same way, as with q, k and v. */
static int is_narrowed(const ep_session *s, const int32_t *op) {
  const int32_t *head = ep_op(&s->program, s->program.head_start), *first = op < head ? s->program.ops : head;
  for (const int32_t *before = op; before > first;) {
    before -= EP_OP_WORDS;
    if (before[EP_O_CODE] == EP_LINEAR)
      return before[EP_O_IN0] == op[EP_O_IN0] && before[EP_O_P0 + 2] == op[EP_O_P0 + 2] && before[EP_O_P0 + 3] == op[EP_O_P0 + 3];
  }
  return 0;
}

static void cap_logits(const ep_session *s, const int32_t *op, int32_t *y, int32_t n, uint64_t *count) {
  const int32_t *cap = ep_i32(&s->program, op[EP_O_P0 + 1]);
  for (int32_t i = 0; i < n; i++) y[i] = ep_sat32_count(ep_softcap(cap, y[i]), count);
}

/* Sums of a tile to Fixed values, with the row scales, the bias and the softcap. */
static void finish(const ep_session *s, ep_lane *lane, const int32_t *op, const ep_tile *tile, int32_t t, int32_t row,
                   int32_t *out, size_t stride) {
  const ep_program *p = &s->program;
  const int32_t *scales = ep_i32(p, op[EP_O_T2]) + 2 * (size_t)row;
  const int32_t *bias = EP_HAS(EP_FEATURE_LINEAR_BIAS) && op[EP_O_T3] >= 0 ? ep_i32(p, op[EP_O_T3]) + row : NULL;
  uint64_t count = 0;
  s->kernels.requant_rows(out, stride, lane->acc, scales, op[EP_O_P0], s->shifts + t, tile->rows, tile->tokens, &count);
  const int capped = EP_HAS(EP_FEATURE_SOFTCAP) && op[EP_O_P0 + 1] >= 0;
  for (int32_t i = 0; i < tile->tokens && (bias || capped); i++) {
    int32_t *y = out + (size_t)i * stride;
    for (int32_t r = 0; r < tile->rows && bias; r++) y[r] = ep_sat32_count((int64_t)y[r] + bias[r], &count);
    if (capped) cap_logits(s, op, y, tile->rows, &count);
  }
  lane->saturations += count;
}

/* Rows of weights from `row` on against tokens from t on; cols, rows and tokens of the tile are set. */
static void multiply(const ep_session *s, int64_t *acc, const int32_t *op, ep_tile *tile, int32_t row, int32_t t) {
  const ep_program *p = &s->program;
  const ep_kernels *kernels = &s->kernels;
  size_t cols = (size_t)tile->cols, groups = cols / 32, at = (size_t)row;
  const int16_t *g = op[EP_O_T1] >= 0 ? ep_i16(p, op[EP_O_T1]) : NULL;
  int w4 = EP_HAS_W4 && op[EP_O_P0 + 2] == EP_W4G32, in_groups = EP_HAS_IN8 && ep_linear_in_groups(op);
  tile->w = ep_i8(p, op[EP_O_T0]) + at * (w4 ? cols / 2 : cols);
  if (g) tile->g = g + at * (w4 ? 2 * groups : groups);
  if (w4 || in_groups) tile->sums = s->sums + (size_t)t * groups;
  if (in_groups) {
    tile->x8 = (const int8_t *)s->narrow + (size_t)t * cols;
    tile->d = s->group_scales + (size_t)t * groups;
    (w4 ? kernels->linear8_w4g32 : g ? kernels->linear8_w8g32 : kernels->linear8_w8)(acc, tile);
  } else {
    tile->x = s->narrow + (size_t)t * cols;
    (w4 ? kernels->linear_w4g32 : g ? kernels->linear_w8g32 : kernels->linear_w8)(acc, tile);
  }
}

/* w16g32: the fine parts are as many rows behind the coarse ones. */
static void add_fine(const ep_session *s, ep_lane *lane, const int32_t *op, ep_tile *tile, int32_t row, int32_t t) {
  multiply(s, lane->fine, op, tile, ep_rows(&s->program, op[EP_O_T2]) + row, t);
  for (int32_t i = 0; i < tile->rows * tile->tokens; i++) lane->acc[i] += lane->fine[i];
}

void ep_linear_rows(const ep_session *s, ep_lane *lane, const int32_t *op, int32_t t, int32_t tokens, int32_t from, int32_t to,
                    int32_t *out, size_t stride) {
  int32_t cols = ep_linear_cols(&s->program, op), most_tokens = tokens < EP_TILE_TOKENS ? tokens : EP_TILE_TOKENS;
  int32_t most_rows = EP_TILE / most_tokens & -EP_TILE_ROWS; /* kernels take several rows at a time */
  if (most_rows == 0) most_rows = EP_TILE_ROWS;
  if (EP_HAS_FETCH && tokens == 1 && s->kernels.few) most_rows = s->kernels.few;
  for (int32_t row = from; row < to; row += most_rows) {
    for (int32_t i = 0; i < tokens; i += most_tokens) {
      ep_tile tile = {.cols = cols,
                      .rows = to - row < most_rows ? to - row : most_rows,
                      .tokens = tokens - i < most_tokens ? tokens - i : most_tokens,
                      .scratch = lane->scratch,
                      .again = lane->again};
      multiply(s, lane->acc, op, &tile, row, t + i);
      lane->again = tokens == 1;
      if (EP_HAS(EP_FEATURE_W16G32) && op[EP_O_P0 + 2] == EP_W16G32) add_fine(s, lane, op, &tile, row, t + i);
      finish(s, lane, op, &tile, t + i, row, out + (size_t)i * stride + (row - from), stride);
    }
  }
}

int32_t ep_lanes_for(const ep_session *s, int64_t products) {
  int64_t lanes = products >> 15; /* handing out less work than this costs more than it saves */
  if (lanes > s->cfg.threads) lanes = s->cfg.threads;
  return lanes > 1 ? (int32_t)lanes : 1;
}

int32_t ep_part(int32_t total, int32_t i, int32_t lanes) {
  int32_t blocks = total / 16; /* whole blocks of rows for kernels that take several at a time */
  return i == lanes ? total : (int32_t)((int64_t)blocks * i / lanes) * 16;
}

typedef struct job {
  ep_session *s;
  const int32_t *op;
  int32_t *out;
  int32_t tokens, rows, lanes;
} job;

/* Where part i of the tokens begins: kernels may lay out four together. */
static int32_t some_tokens(int32_t tokens, int32_t i, int32_t lanes) {
  return i == lanes ? tokens : (int32_t)((int64_t)(tokens / 4) * i / lanes) * 4;
}

static void narrow_task(void *arg, int32_t i) {
  const job *j = (const job *)arg;
  ep_linear_narrow(j->s, j->op, some_tokens(j->tokens, i, j->lanes), some_tokens(j->tokens, i + 1, j->lanes));
}

/* Ask for what lane i reads first in the next LINEAR, while the operators before it work in the caches. */
static void fetch_next(const ep_session *s, const int32_t *op, int32_t i) {
  const ep_program *p = &s->program;
  for (const int32_t *end = ep_op(p, p->n_ops - 1); op < end;) {
    op += EP_OP_WORDS;
    if (op[EP_O_CODE] != EP_LINEAR) continue;
    int32_t rows = ep_rows(p, op[EP_O_T2]), lanes = ep_lanes_for(s, (int64_t)rows * ep_linear_cols(p, op));
    size_t bytes = (size_t)ep_cols(p, op[EP_O_T0]); /* of a row */
    if (i >= lanes) return;
    int32_t from = ep_part(rows, i, lanes), to = ep_part(rows, i + 1, lanes);
    s->kernels.fetch(ep_i8(p, op[EP_O_T0]) + (size_t)from * bytes, (size_t)(to - from) * bytes);
    return;
  }
}

static void task(void *arg, int32_t i) {
  const job *j = (const job *)arg;
  int32_t from = ep_part(j->rows, i, j->lanes), to = ep_part(j->rows, i + 1, j->lanes);
  j->s->lanes[i].again = 0;
  ep_linear_rows(j->s, &j->s->lanes[i], j->op, 0, j->tokens, from, to, j->out + from, (size_t)j->rows);
  if (EP_HAS_FETCH && j->tokens == 1 && j->s->kernels.fetch) fetch_next(j->s, j->op, i);
}

void ep_linear(ep_session *s, const int32_t *op, int32_t n, int32_t *out) {
  int32_t rows = ep_rows(&s->program, op[EP_O_T2]), cols = ep_linear_cols(&s->program, op);
  job j = {s, op, out, n, rows, ep_lanes_for(s, (int64_t)rows * cols * n)};
  if (!is_narrowed(s, op)) {
    if (n / 4 >= j.lanes)
      ep_run_lanes(s, narrow_task, &j, j.lanes);
    else
      ep_linear_narrow(s, op, 0, n);
  }
  ep_run_lanes(s, task, &j, j.lanes);
}
