/* The reference kernels. */
#include "dsp.h"

static int32_t dot32(const int8_t *w, const int16_t *x) {
  int32_t sum = 0;
  for (int32_t c = 0; c < 32; c++) sum += w[c] * x[c];
  return sum;
}

static int64_t row_w8(const int8_t *w, const int16_t *x, int32_t cols) {
  int64_t acc = 0;
  while (cols > 0) { /* 512 products of int8 and |x| <= 32639 stay below 2^31 */
    int32_t n = cols < 512 ? cols : 512, sum = 0;
    for (int32_t c = 0; c < n; c++) sum += w[c] * x[c];
    acc += sum;
    w += n, x += n, cols -= n;
  }
  return acc;
}

static int64_t row_w8g32(const int8_t *w, const int16_t *g, const int16_t *x, int32_t cols) {
  int64_t acc = 0;
  for (int32_t c = 0; c < cols; c += 32) acc += (int64_t)dot32(w + c, x + c) * g[c / 32];
  return acc;
}

static void linear_w8(int64_t *acc, const ep_tile *tile) {
  for (int32_t r = 0; r < tile->rows; r++) {
    const int8_t *w = tile->w + (size_t)r * (size_t)tile->cols;
    for (int32_t t = 0; t < tile->tokens; t++)
      acc[t * tile->rows + r] = row_w8(w, tile->x + (size_t)t * (size_t)tile->cols, tile->cols);
  }
}

static void linear_w8g32(int64_t *acc, const ep_tile *tile) {
  for (int32_t r = 0; r < tile->rows; r++) {
    const int8_t *w = tile->w + (size_t)r * (size_t)tile->cols;
    const int16_t *g = tile->g + (size_t)r * (size_t)(tile->cols / 32);
    for (int32_t t = 0; t < tile->tokens; t++)
      acc[t * tile->rows + r] = row_w8g32(w, g, tile->x + (size_t)t * (size_t)tile->cols, tile->cols);
  }
}

static int32_t dot32_w4(const int8_t *w, const int16_t *x) {
  int32_t sum = 0;
  for (int32_t i = 0; i < 16; i++) {
    uint8_t pair = (uint8_t)w[i];
    sum += (pair & 15) * x[2 * i] + (pair >> 4) * x[2 * i + 1];
  }
  return sum;
}

static int64_t row_w4g32(const int8_t *w, const int16_t *g, const int16_t *x, const int32_t *sums, int32_t groups) {
  int64_t acc = 0;
  for (int32_t i = 0; i < groups; i++, w += 16, g += 2, x += 32)
    acc += (int64_t)dot32_w4(w, x) * g[0] + (int64_t)sums[i] * g[1];
  return acc;
}

static void linear_w4g32(int64_t *acc, const ep_tile *tile) {
  size_t cols = (size_t)tile->cols, groups = cols / 32;
  for (int32_t r = 0; r < tile->rows; r++) {
    const int8_t *w = tile->w + (size_t)r * (cols / 2);
    const int16_t *g = tile->g + (size_t)r * 2 * groups;
    for (int32_t t = 0; t < tile->tokens; t++)
      acc[t * tile->rows + r] = row_w4g32(w, g, tile->x + (size_t)t * cols, tile->sums + (size_t)t * groups, (int32_t)groups);
  }
}

static int64_t row8_w8(const int8_t *w, const int16_t *g, const int8_t *x, const int32_t *d, int32_t groups) {
  int64_t acc = 0;
  for (int32_t i = 0; i < groups; i++, w += 32, x += 32) {
    int32_t sum = 0;
    for (int32_t c = 0; c < 32; c++) sum += w[c] * x[c];
    acc += (int64_t)(sum * d[i]) * (g ? g[i] : 1); /* the sum is below 2^19 */
  }
  return acc;
}

static void linear8_w8g32(int64_t *acc, const ep_tile *tile) {
  size_t cols = (size_t)tile->cols, groups = cols / 32;
  for (int32_t r = 0; r < tile->rows; r++) {
    const int8_t *w = tile->w + (size_t)r * cols;
    const int16_t *g = tile->g ? tile->g + (size_t)r * groups : NULL;
    for (int32_t t = 0; t < tile->tokens; t++)
      acc[t * tile->rows + r] = row8_w8(w, g, tile->x8 + (size_t)t * cols, tile->d + (size_t)t * groups, (int32_t)groups);
  }
}

static int64_t group8_w4(const int8_t *w, const int16_t *g, const int8_t *x, int32_t sum) {
  int32_t dot = 0;
  for (int32_t i = 0; i < 16; i++) {
    uint8_t pair = (uint8_t)w[i];
    dot += (pair & 15) * x[2 * i] + (pair >> 4) * x[2 * i + 1];
  }
  return (int64_t)dot * g[0] + (int64_t)sum * g[1];
}

static void linear8_w4g32(int64_t *acc, const ep_tile *tile) {
  size_t groups = (size_t)tile->cols / 32;
  for (size_t r = 0; r < (size_t)tile->rows; r++) {
    for (size_t t = 0; t < (size_t)tile->tokens; t++) {
      int64_t sum = 0;
      for (size_t i = 0; i < groups; i++) {
        size_t of_row = r * groups + i, of_token = t * groups + i;
        sum += group8_w4(tile->w + of_row * 16, tile->g + of_row * 2, tile->x8 + of_token * 32, tile->sums[of_token]) * tile->d[of_token];
      }
      acc[t * (size_t)tile->rows + r] = sum;
    }
  }
}

static void score_kv16(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, k += dim) {
    int64_t sum = 0;
    for (int32_t i = 0; i < dim; i++) sum += (int64_t)(q[i] * k[i]);
    out[j] = sum;
  }
}

static void score_kv8(int64_t *out, const int16_t *q, const int8_t *k, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, k += dim) {
    int32_t sum = 0;
    for (int32_t i = 0; i < dim; i++) sum += q[i] * k[i];
    out[j] = sum;
  }
}

static void mix_kv16(int64_t *acc, const int32_t *p, const int16_t *v, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, v += dim) {
    if (p[j] == 0) continue;
    for (int32_t i = 0; i < dim; i++) acc[i] += (int64_t)p[j] * v[i];
  }
}

static void mix_kv8(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, v += dim) {
    if (p[j] == 0) continue;
    for (int32_t i = 0; i < dim; i++) acc[i] += (int64_t)p[j] * v[i];
  }
}

static uint64_t exponentials(int32_t *p, int32_t n, int32_t W) {
  int64_t most = INT32_MIN;
  uint64_t sum = 0;
  for (int32_t j = 0; j < n; j++)
    if (p[j] > most) most = p[j];
  for (int32_t j = 0; j < n; j++) {
    p[j] = ep_exp2_neg(most - p[j], W);
    sum += (uint64_t)p[j];
  }
  return sum;
}

static void align_kv16(int32_t *p, const uint8_t *s, int32_t most, int32_t n) {
  for (int32_t j = 0; j < n; j++) p[j] = (int32_t)ep_rshift_round(p[j], most - s[j]);
}

#define EP_REQUANT ep_requant
#include "requant_each.h"

static void add(int32_t *y, const int32_t *a, const int32_t *b, const int32_t shift[3], int32_t n, uint64_t *count) {
  for (int32_t i = 0; i < n; i++) y[i] = ep_sat32_count(ep_add_at(a[i], b[i], shift), count);
}

static void mul(int32_t *y, const int32_t *a, const int32_t *b, int32_t shift, int32_t n, uint64_t *count) {
  for (int32_t i = 0; i < n; i++) y[i] = ep_sat32_count(ep_rshift_round((int64_t)a[i] * b[i], shift), count);
}

static void act(int32_t *y, const int32_t *x, const ep_curve *how, int32_t n, uint64_t *count) {
  for (int32_t i = 0; i < n; i++) y[i] = ep_sat32_count(ep_act_at(how, x[i]), count);
}

static void norm(int32_t *y, const int32_t *x, const ep_norm *how, uint64_t *count) {
  int64_t sum = 0;
  uint64_t largest = 0, squares = 0;
  for (int32_t i = 0; i < how->d && EP_HAS(EP_FEATURE_CENTER) && how->center; i++) sum += x[i];
  for (int32_t i = 0; i < how->d; i++) {
    uint64_t c = ep_abs(ep_centered(how, x[i], sum));
    if (c > largest) largest = c;
  }
  int32_t pre = ep_norm_shift(how->d, largest);
  for (int32_t i = 0; i < how->d; i++) {
    int64_t c = ep_rshift_round(ep_centered(how, x[i], sum), pre);
    squares += (uint64_t)(c * c);
  }
  ep_scale r = ep_norm_scale(how, squares, pre);
  for (int32_t i = 0; i < how->d; i++) {
    int64_t c = ep_rshift_round(ep_centered(how, x[i], sum), pre);
    y[i] = ep_requant(c * how->gamma[i], r.m, r.e + how->out_shift, count);
    if (how->beta) y[i] = ep_sat32_count((int64_t)y[i] + how->beta[i], count);
  }
}

/* A kernel that others take the place of in every session of this build. */
#if defined(EDGEPOS_NATIVE) && defined(EP_HAS_DSP)
#define EP_REPLACED(kernel) (1 ? NULL : (kernel))
#else
#define EP_REPLACED(kernel) (kernel)
#endif

void ep_generic_kernels(ep_kernels *table) {
  *table = (ep_kernels){.name = "generic",
                        .narrow16 = ep_narrow16,
                        .linear_w8 = EP_REPLACED(EP_KERNEL(EP_FEATURE_W8, linear_w8)),
                        .linear_w8g32 = EP_REPLACED(EP_KERNEL(EP_FEATURE_W8G32, linear_w8g32)),
                        .linear_w4g32 = EP_REPLACED(EP_KERNEL(EP_FEATURE_W4G32, linear_w4g32)),
                        .quant8g32 = EP_KERNEL_ANY(EP_FEATURES_IN8, ep_quant8g32),
                        .linear8_w8 = EP_KERNEL(EP_FEATURE_IN8_W8, linear8_w8g32), /* without scales these are 1 */
                        .linear8_w8g32 = EP_KERNEL(EP_FEATURE_IN8_W8G32, linear8_w8g32),
                        .linear8_w4g32 = EP_KERNEL(EP_FEATURE_IN8_W4G32, linear8_w4g32),
                        .score_kv16 = EP_REPLACED(EP_KERNEL(EP_FEATURE_KV16, score_kv16)),
                        .score_kv8 = EP_REPLACED(EP_KERNEL(EP_FEATURE_KV8, score_kv8)),
                        .mix_kv16 = EP_REPLACED(EP_KERNEL(EP_FEATURE_KV16, mix_kv16)),
                        .mix_kv8 = EP_REPLACED(EP_KERNEL(EP_FEATURE_KV8, mix_kv8)),
                        .scale_kv16 = EP_REPLACED(EP_KERNEL(EP_FEATURE_KV16, scale_kv16)),
                        .scale_kv8 = EP_REPLACED(EP_KERNEL(EP_FEATURE_KV8, scale_kv8)),
                        .exponentials = exponentials,
                        .align_kv16 = EP_KERNEL(EP_FEATURE_KV16, align_kv16),
                        .align_kv8 = EP_REPLACED(EP_KERNEL(EP_FEATURE_KV8, align_kv8)),
                        .requant = EP_REPLACED(requant),
                        .requant_rows = EP_REPLACED(requant_rows),
                        .add = add,
                        .mul = mul,
                        .act = act,
                        .norm = norm,
                        .turn = EP_REPLACED(EP_KERNEL_ANY(EP_FEATURES_ROPE, turn))};
}
