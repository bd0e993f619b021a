/* Every kernel that this processor can run gives the bits of the generic one: random and extreme numbers, all sizes around the
 * edges of the tiles. Buffers end where the numbers do, so that a sanitizer sees a read or write beyond them. */
#include <string.h>

#include "check.h"
#include "edgepos.h"
#include "edgepos_cpu.h"
#include "fixed.h"
#include "kernels/kernels.h"

enum { LARGEST = 32639 };

/* Emulated boards take a part of the cases. */
#ifndef EP_TEST_PART
#define EP_TEST_PART 1
#endif

static uint64_t state = 1;
static ep_kernels generic, fast;

static int32_t below(int32_t n) { return (int32_t)(draw(&state) % (uint64_t)n); }

static int32_t draw32(int bits) { return (int32_t)((int64_t)draw(&state) >> 32) >> (32 - bits); }

static void *room(size_t bytes) {
  void *p = malloc(bytes ? bytes : 1);
  if (!p) exit(1);
  return p;
}

static void *aligned_room(size_t bytes) { /* whole multiples of 64 */
  void *p = aligned_alloc(64, bytes);
  if (!p || bytes % 64) exit(1);
  return p;
}

/* How the numbers of a case are made. */
enum { RANDOM, ENDS, LOWEST, HIGHEST, ZEROS, WAYS };

static int64_t number(int way, int64_t low, int64_t high) {
  switch (way) {
    case ENDS: return draw(&state) & 1 ? low : high;
    case LOWEST: return low;
    case HIGHEST: return high;
    case ZEROS: return draw(&state) % 8 ? 0 : high;
    default: return low + (int64_t)(draw(&state) % (uint64_t)(high - low + 1));
  }
}

static int8_t *numbers8(size_t n, int way) {
  int8_t *p = (int8_t *)room(n);
  for (size_t i = 0; i < n; i++) p[i] = (int8_t)number(way, INT8_MIN, INT8_MAX);
  return p;
}

static int16_t *numbers16(int16_t *p, size_t n, int way, int limit) {
  for (size_t i = 0; i < n; i++) p[i] = (int16_t)number(way, limit ? -limit : INT16_MIN, limit ? limit : INT16_MAX);
  return p;
}

/* ---- LINEAR ----------------------------------------------------------------------------------------------------- */

typedef void (*linear)(int64_t *acc, const ep_tile *tile);

static void sum_groups(int32_t *sums, const int16_t *x, size_t groups) {
  for (size_t i = 0; i < groups; i++) {
    sums[i] = 0;
    for (size_t c = 0; c < 32; c++) sums[i] += x[32 * i + c];
  }
}

static void compare_linear(linear one, linear other, size_t cols, size_t rows, size_t tokens, size_t bytes, size_t scales, int way) {
  size_t n = rows * tokens, groups = cols / 32;
  int16_t *x = numbers16((int16_t *)aligned_room(cols * tokens * 2), cols * tokens, way % WAYS, LARGEST);
  int8_t *w = numbers8(bytes * rows, way / WAYS % WAYS);
  if (way % 3 == 0 && bytes < cols) memset(w, 0xff, bytes * rows); /* the largest codes */
  int16_t *g = numbers16((int16_t *)room(scales * rows * 2), scales * rows, way / WAYS / WAYS % WAYS, 0);
  int32_t *sums = (int32_t *)room(groups * tokens * 4);
  int64_t *want = (int64_t *)room(n * 8), *got = (int64_t *)room(n * 8);
  void *scratch = aligned_room(fast.scratch + 64);
  ep_tile tile = {.w = w,
                  .g = scales ? g : NULL,
                  .x = x,
                  .sums = scales == 2 * groups ? sums : NULL,
                  .cols = (int32_t)cols,
                  .rows = (int32_t)rows,
                  .tokens = (int32_t)tokens,
                  .scratch = scratch};
  sum_groups(sums, x, groups * tokens);
  memset(want, 1, n * 8);
  one(want, &tile);
  if (fast.arrange) fast.arrange(x, (int32_t)cols, (int32_t)tokens);
  for (tile.again = 0; tile.again <= (tokens == 1); tile.again++) {
    memset(got, 2, n * 8);
    other(got, &tile);
    CHECK(memcmp(want, got, n * 8) == 0);
  }
  free(x), free(w), free(g), free(sums), free(want), free(got), free(scratch);
}

/* The same with inputs in groups of 8 bits. */
static void compare_linear8(linear one, linear other, size_t cols, size_t rows, size_t tokens, size_t bytes, size_t scales, int way) {
  size_t n = rows * tokens, groups = cols / 32 * tokens;
  int8_t *x = (int8_t *)aligned_room((cols * tokens + 63) & ~(size_t)63), *w = numbers8(bytes * rows, way / WAYS % WAYS);
  int8_t *end = x + ((cols * tokens + 63) & ~(size_t)63) - cols * tokens; /* nothing behind them */
  int16_t *g = numbers16((int16_t *)room(scales * rows * 2), scales * rows, way / WAYS / WAYS % WAYS, 0);
  int32_t *sums = (int32_t *)room(groups * 4), *d = (int32_t *)room(groups * 4);
  int64_t *want = (int64_t *)room(n * 8), *got = (int64_t *)room(n * 8);
  void *scratch = aligned_room(fast.scratch + 64);
  for (size_t i = 0; i < cols * tokens; i++) end[i] = (int8_t)number(way % WAYS, -127, 127);
  for (size_t i = 0; i < groups; i++) {
    sums[i] = 0;
    for (size_t c = 0; c < 32; c++) sums[i] += end[32 * i + c];
    d[i] = (int32_t)number(way % WAYS == ZEROS ? HIGHEST : way % WAYS, 1, 255);
  }
  ep_tile tile = {.w = w,
                  .g = scales ? g : NULL,
                  .sums = sums,
                  .cols = (int32_t)cols,
                  .rows = (int32_t)rows,
                  .tokens = (int32_t)tokens,
                  .scratch = scratch,
                  .x8 = end,
                  .d = d};
  memset(want, 1, n * 8);
  one(want, &tile);
  if (fast.arrange8) fast.arrange8(end, (int32_t)cols, (int32_t)tokens);
  for (tile.again = 0; tile.again <= (tokens == 1); tile.again++) {
    memset(got, 2, n * 8);
    other(got, &tile);
    CHECK(memcmp(want, got, n * 8) == 0);
  }
  free(x), free(w), free(g), free(sums), free(d), free(want), free(got), free(scratch);
}

static void test_linear(void) {
  static const int32_t widths[] = {32, 64, 96, 128, 160, 224, 256, 288, 352, 544, 576, 1088, 1984, 2080, 4192};
  for (int i = 0; i < 1500 / EP_TEST_PART; i++) {
    size_t cols = (size_t)widths[below(15)], rows = (size_t)below(40) + 1, tokens = i % 4 ? (size_t)below(20) + 1 : 1;
    int way = i % 3 ? (int)(draw(&state) % (WAYS * WAYS * WAYS)) : 0;
    compare_linear(generic.linear_w8, fast.linear_w8, cols, rows, tokens, cols, 0, way);
    compare_linear(generic.linear_w8g32, fast.linear_w8g32, cols, rows, tokens, cols, cols / 32, way);
    compare_linear(generic.linear_w4g32, fast.linear_w4g32, cols, rows, tokens, cols / 2, cols / 16, way);
    compare_linear8(generic.linear8_w8, fast.linear8_w8, cols, rows, tokens, cols, 0, way);
    compare_linear8(generic.linear8_w8g32, fast.linear8_w8g32, cols, rows, tokens, cols, cols / 32, way);
    compare_linear8(generic.linear8_w4g32, fast.linear8_w4g32, cols, rows, tokens, cols / 2, cols / 16, way);
  }
  for (int way = 0; way < WAYS * WAYS * WAYS; way += EP_TEST_PART) { /* the longest rows that files in use have */
    compare_linear(generic.linear_w8, fast.linear_w8, 20000 / 32 * 32, 8, 1 + (size_t)way % 2 * 4, 20000 / 32 * 32, 0, way);
    compare_linear(generic.linear_w8g32, fast.linear_w8g32, 19200, 8, 1 + (size_t)way % 2 * 4, 19200, 600, way);
    compare_linear(generic.linear_w4g32, fast.linear_w4g32, 19200, 8, 1 + (size_t)way % 2 * 4, 9600, 1200, way);
    compare_linear8(generic.linear8_w8, fast.linear8_w8, 19200, 17, 1 + (size_t)way % 2 * 4, 19200, 0, way);
    compare_linear8(generic.linear8_w8g32, fast.linear8_w8g32, 19200, 17, 1 + (size_t)way % 2 * 4, 19200, 600, way);
    compare_linear8(generic.linear8_w4g32, fast.linear8_w4g32, 19200, 17, 1 + (size_t)way % 2 * 4, 9600, 1200, way);
  }
}

/* ---- attention -------------------------------------------------------------------------------------------------- */

static void compare_scores(int32_t dim, int32_t n, int way) {
  size_t size = (size_t)dim * (size_t)n;
  int16_t *q = numbers16((int16_t *)room((size_t)dim * 2), (size_t)dim, way % WAYS, LARGEST);
  int16_t *k = numbers16((int16_t *)room(size * 2), size, way / WAYS, LARGEST);
  int8_t *k8 = numbers8(size, way / WAYS);
  int64_t *want = (int64_t *)room((size_t)n * 8), *got = (int64_t *)room((size_t)n * 8);
  generic.score_kv16(want, q, k, dim, n);
  fast.score_kv16(got, q, k, dim, n);
  CHECK(memcmp(want, got, (size_t)n * 8) == 0);
  generic.score_kv8(want, q, k8, dim, n);
  fast.score_kv8(got, q, k8, dim, n);
  CHECK(memcmp(want, got, (size_t)n * 8) == 0);
  free(q), free(k), free(k8), free(want), free(got);
}

static void compare_mix(int32_t dim, int32_t n, int way) {
  size_t size = (size_t)dim * (size_t)n, bytes = (size_t)dim * 8;
  int16_t *v = numbers16((int16_t *)room(size * 2), size, way % WAYS, LARGEST);
  int8_t *v8 = numbers8(size, way % WAYS);
  int32_t *p = (int32_t *)room((size_t)n * 4);
  int64_t *want = (int64_t *)room(bytes), *got = (int64_t *)room(bytes);
  for (int32_t j = 0; j < n; j++) p[j] = (int32_t)number(way / WAYS, 0, (1 << 30) + 1);
  for (int32_t i = 0; i < dim; i++) want[i] = got[i] = (int64_t)(draw(&state) >> 4);
  generic.mix_kv16(want, p, v, dim, n);
  fast.mix_kv16(got, p, v, dim, n);
  CHECK(memcmp(want, got, bytes) == 0);
  generic.mix_kv8(want, p, v8, dim, n);
  fast.mix_kv8(got, p, v8, dim, n);
  CHECK(memcmp(want, got, bytes) == 0);
  free(v), free(v8), free(p), free(want), free(got);
}

/* Rows of dim numbers of `bytes` bytes as keys or values of a KV cache in blocks; the numbers that make dim a multiple of four are anything. */
static void *in_blocks(const void *rows, size_t dim, size_t n, size_t bytes, int keys) {
  size_t padded = keys ? (dim + 3) & ~(size_t)3 : dim, each = 4 / bytes;
  uint8_t *to = (uint8_t *)room(padded * n * bytes);
  for (size_t i = 0; i < padded * n * bytes; i++) to[i] = (uint8_t)draw(&state);
  for (size_t j = 0; j < n; j++)
    for (size_t i = 0; i < dim; i++) {
      size_t word = keys ? j / 16 * 16 * (padded / each) + i / each * 16 + j % 16 : j / each * dim + i, part = (keys ? i : j) % each;
      memcpy(to + 4 * word + part * bytes, (const uint8_t *)rows + (j * dim + i) * bytes, bytes);
    }
  return to;
}

static void compare_group_scores(int32_t dim, int32_t heads, int32_t blocks, int way) {
  size_t width = (size_t)dim, n = 16 * (size_t)blocks, queries = (size_t)heads;
  int16_t *q = numbers16((int16_t *)room(width * queries * 2), width * queries, way % WAYS, LARGEST);
  int16_t *k = numbers16((int16_t *)room(width * n * 2), width * n, way / WAYS, LARGEST);
  int8_t *k8 = numbers8(width * n, way / WAYS);
  void *of16 = in_blocks(k, width, n, 2, 1), *of8 = in_blocks(k8, width, n, 1, 1);
  int64_t *want = (int64_t *)room(n * 8), *got = (int64_t *)room(((queries - 1) * EP_GROUP_KEYS + n) * 8);
  fast.scores_kv16(got, q, (const int16_t *)of16, dim, heads, blocks);
  for (size_t h = 0; h < queries; h++) {
    generic.score_kv16(want, q + h * width, k, dim, (int32_t)n);
    CHECK(memcmp(want, got + h * EP_GROUP_KEYS, n * 8) == 0);
  }
  fast.scores_kv8(got, q, (const int8_t *)of8, dim, heads, blocks);
  for (size_t h = 0; h < queries; h++) {
    generic.score_kv8(want, q + h * width, k8, dim, (int32_t)n);
    CHECK(memcmp(want, got + h * EP_GROUP_KEYS, n * 8) == 0);
  }
  free(q), free(k), free(k8), free(of16), free(of8), free(want), free(got);
}

/* The shifts are those that models have, or any: sigmas are refused where saturation is near, else they are what scores and scales give. */
static int compare_sigmas(int32_t dim, int32_t heads, int32_t n, int way) {
  size_t width = (size_t)dim, blocks = ((size_t)n + 15) / 16, all = 16 * blocks, queries = (size_t)heads, stride = all + (size_t)below(5);
  int16_t *q = numbers16((int16_t *)room(width * queries * 2), width * queries, way % WAYS, LARGEST);
  int16_t *k = numbers16((int16_t *)room(width * all * 2), width * all, way / WAYS, LARGEST);
  int8_t *k8 = (int8_t *)room(width * all);
  uint8_t *less = (uint8_t *)room(all);
  int32_t *a = (int32_t *)room(all * 4), *got = (int32_t *)room(((queries - 1) * stride + all) * 4), shifts[EP_GROUP], m = draw32(32);
  int32_t *want = (int32_t *)room(all * 4), near = below(3), bits = 1 + below(31), taken;
  int64_t *dots = (int64_t *)room(queries * EP_GROUP_KEYS * 8);
  uint64_t count = 0;
  for (size_t i = 0; i < width * all; i++) k8[i] = (int8_t)number(way / WAYS, -127, 127);
  for (size_t j = 0; j < all; j++) less[j] = (uint8_t)(j < (size_t)n ? 11 + below(4) : 255), a[j] = draw32(bits) & INT32_MAX;
  for (size_t j = 0; j < all && near == 2; j++) less[j] = (uint8_t)below(18);
  void *of16 = in_blocks(k, width, all, 2, 1), *of8 = in_blocks(k8, width, all, 1, 1);
  if (below(8)) m = below(2) ? INT32_MAX : m & INT32_MAX;
  for (int32_t h = 0; h < heads; h++) shifts[h] = (near ? 48 + below(10) : 30 + below(80)) + (near == 2 ? below(9) : 0);
  taken = fast.sigmas_kv16(got, stride, q, (const int16_t *)of16, less, m, shifts, dim, heads, n);
  fast.scores_kv16(dots, q, (const int16_t *)of16, dim, heads, (int32_t)blocks);
  for (size_t h = 0; h < queries && taken; h++) {
    generic.scale_kv16(want, dots + h * EP_GROUP_KEYS, less, m, shifts[h], n, &count);
    CHECK(memcmp(want, got + h * stride, (size_t)n * 4) == 0 && count == 0);
  }
  for (int32_t h = 0; h < heads; h++) shifts[h] = 30 + below(70);
  int taken8 = fast.sigmas_kv8(got, stride, q, (const int8_t *)of8, a, m, shifts, dim, heads, n);
  fast.scores_kv8(dots, q, (const int8_t *)of8, dim, heads, (int32_t)blocks);
  for (size_t h = 0; h < queries && taken8; h++) {
    generic.scale_kv8(want, dots + h * EP_GROUP_KEYS, a, m, shifts[h], n, &count);
    CHECK(memcmp(want, got + h * stride, (size_t)n * 4) == 0 && count == 0);
  }
  free(q), free(k), free(k8), free(less), free(a), free(got), free(want), free(dots), free(of16), free(of8);
  return taken + taken8;
}

/* bits: of the weights, which decide how many pieces a kernel needs. */
static void compare_group_mixes(int32_t dim, int32_t heads, int32_t blocks, int bits, int way) {
  size_t width = (size_t)dim, n = 16 * (size_t)blocks, group = (size_t)heads, stride = n + (size_t)below(9), bytes = width * group * 8;
  int16_t *v = numbers16((int16_t *)room(width * n * 2), width * n, way % WAYS, LARGEST);
  int8_t *v8 = numbers8(width * n, way % WAYS);
  void *of16 = in_blocks(v, width, n, 2, 0), *of8 = in_blocks(v8, width, n, 1, 0);
  int32_t *p = (int32_t *)room(((group - 1) * stride + n) * 4);
  int64_t *start = (int64_t *)room(bytes), *want = (int64_t *)room(bytes), *got = (int64_t *)room(bytes);
  for (size_t j = 0; j < (group - 1) * stride + n; j++) p[j] = (int32_t)number(way / WAYS, 0, ((int64_t)1 << bits) + below(2));
  for (size_t i = 0; i < width * group; i++) start[i] = (int64_t)(draw(&state) >> 4);
  memcpy(want, start, bytes);
  memcpy(got, start, bytes);
  for (size_t h = 0; h < group; h++) generic.mix_kv16(want + h * width, p + h * stride, v, dim, (int32_t)n);
  fast.mixes_kv16(got, p, stride, (const int16_t *)of16, dim, heads, (int32_t)n);
  CHECK(memcmp(want, got, bytes) == 0);
  memcpy(want, start, bytes);
  memcpy(got, start, bytes);
  for (size_t h = 0; h < group; h++) generic.mix_kv8(want + h * width, p + h * stride, v8, dim, (int32_t)n);
  fast.mixes_kv8(got, p, stride, (const int8_t *)of8, dim, heads, (int32_t)n);
  CHECK(memcmp(want, got, bytes) == 0);
  free(v), free(v8), free(of16), free(of8), free(p), free(start), free(want), free(got);
}

static void test_groups(void) {
  static const int32_t sizes[] = {1, 2, 3, 4, 5, 8, 15, 16, 17, 32, 33, 37, 63, 64, 65, 80, 96, 127, 128, 129, 130, 256, 301, 509, 512};
  if (!fast.blocks) return;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    for (int way = 0; way < WAYS * WAYS; way++) {
      compare_group_scores(sizes[i], 1 + below(EP_GROUP), 1 + below(EP_GROUP_KEYS / 16), way);
      compare_group_mixes(sizes[i], 1 + below(EP_GROUP), 1 + below(9), 1 + below(30), way);
    }
  int taken = 0;
  for (int i = 0; i < 3000; i++)
    taken += compare_sigmas(2 + below(i % 4 ? 126 : 511), 1 + i % EP_GROUP, 1 + below(EP_GROUP_KEYS), i % 3 ? i % (WAYS * WAYS) : RANDOM);
  CHECK(taken > 500);
  for (int i = 0; i < 300; i++) {
    int way = i % 3 ? i % (WAYS * WAYS) : RANDOM;
    compare_group_scores(64, 1 + i % EP_GROUP, 1 + i / EP_GROUP % 8, way);
    compare_group_mixes(i % 2 ? 64 : 48, 1 + i % EP_GROUP, 1 + below(9), 7 + i % 24, way);
  }
}

static void test_attention(void) {
  for (int32_t dim = 1; dim <= 512; dim += dim < 140 ? 1 : 31)
    for (int way = 0; way < WAYS * WAYS; way += EP_TEST_PART) {
      compare_scores(dim, 1 + below(9), way);
      compare_mix(dim, 1 + below(40), way);
    }
  for (int way = 0; way < WAYS * WAYS; way += EP_TEST_PART) {
    compare_scores(512, 3, way);
    compare_mix(80, 1500, way);
  }
}

/* ---- rounding --------------------------------------------------------------------------------------------------- */

static void test_quant8g32(void) {
  for (int i = 0; i < 20000 / EP_TEST_PART; i++) {
    int32_t n = 1 + below(150), groups = (n + 31) / 32, bits = 1 + below(32);
    int32_t *x = (int32_t *)room((size_t)n * 4), *want_d = (int32_t *)room((size_t)groups * 4), *got_d = (int32_t *)room((size_t)groups * 4);
    int8_t *want = (int8_t *)room((size_t)groups * 32), *got = (int8_t *)room((size_t)groups * 32);
    for (int32_t k = 0; k < n; k++) x[k] = draw32(bits) >> (k / 32 & 1 ? i % 9 : 0);
    if (i % 4 == 0) x[below(n)] = i % 8 ? INT32_MIN : INT32_MAX;
    if (i % 16 == 1) x[below(n)] = (32385 + below(3) - 1) << below(16);
    if (i % 16 == 2)
      for (int32_t k = 0; k < n; k++) x[k] = (127 * below(3) + below(3) - 1) * (1 << below(5)); /* ties, and codes at their ends */
    CHECK(generic.quant8g32(want, want_d, x, n) == fast.quant8g32(got, got_d, x, n));
    CHECK(memcmp(want, got, (size_t)groups * 32) == 0 && memcmp(want_d, got_d, (size_t)groups * 4) == 0);
    free(x), free(want), free(got), free(want_d), free(got_d);
  }
}

static void test_narrow16(void) {
  for (int i = 0; i < 20000 / EP_TEST_PART; i++) {
    int32_t n = 1 + below(50), bits = 1 + below(32);
    int32_t *x = (int32_t *)room((size_t)n * 4);
    int16_t *want = (int16_t *)room((size_t)n * 2), *got = (int16_t *)room((size_t)n * 2);
    for (int32_t k = 0; k < n; k++) x[k] = draw32(bits);
    if (i % 4 == 0) x[below(n)] = i % 8 ? INT32_MIN : INT32_MAX;
    if (i % 16 == 1) x[below(n)] = LARGEST + below(3) - 1;
    CHECK(generic.narrow16(want, x, n) == fast.narrow16(got, x, n));
    CHECK(memcmp(want, got, (size_t)n * 2) == 0);
    free(x), free(want), free(got);
  }
}

/* Accumulators of all sizes below 2^57, most results near the 32 bits of the output, ties among them. */
static void draw_row(int64_t *acc, int32_t *scale, int32_t shift, int32_t odd, int32_t most_bits) {
  int32_t bits = 1 + below(most_bits), near = bits + 31 - 30 + below(6);
  *acc = (int64_t)draw(&state) >> 6 >> (57 - bits);
  if (below(8) == 0) *acc = (below(2) ? 1 : -1) * ((int64_t)1 << (bits - 1));
  scale[0] = below(4) ? draw32(32) : (int32_t)((uint32_t)(below(2) ? 1 : 3) << below(31));
  if (below(odd) == 0) scale[0] = below(2) ? INT32_MIN : INT32_MAX;
  scale[1] = (below(odd) ? near : below(2047) - 1023) - shift;
  if (scale[1] > 1023 || scale[1] < -1023) scale[1] = 0;
}

static void test_requant(void) {
  for (int i = 0; i < 30000 / EP_TEST_PART; i++) {
    int32_t n = 1 + below(i % 4 ? 20 : 50), tokens = 1 + below(3), bits = i % 4 < 2 ? 52 : 57, shift = below(i % 2 ? 60 : 1100) - (i % 2 ? 30 : 1040), less[3] = {below(18), below(18), below(18)};
    size_t all = (size_t)(n * tokens), gap = (size_t)below(3), bytes = (all + gap * (size_t)tokens) * 4;
    int64_t *acc = (int64_t *)room(all * 8);
    int32_t *scales = (int32_t *)room((size_t)n * 8), *want = (int32_t *)room(bytes), *got = (int32_t *)room(bytes);
    uint64_t counted = 5, saturated = 5;
    for (int32_t r = 0; r < n; r++) draw_row(acc + r, scales + 2 * r, shift, i % 3 ? 100 : 3, bits);
    for (int32_t r = 0; r < n && i % 4 == 0; r++) scales[2 * r] &= INT32_MAX;
    for (int32_t r = 0; r < n && i % 8 == 0; r++) scales[2 * r + 1] = 50 + below(9) - shift;
    for (size_t k = (size_t)n; k < all; k++) {
      int32_t other[2];
      draw_row(acc + k, other, shift, 100, bits);
    }
    memset(want, 7, bytes);
    memset(got, 7, bytes);
    generic.requant_rows(want, (size_t)n + gap, acc, scales, shift, less, n, tokens, &counted);
    fast.requant_rows(got, (size_t)n + gap, acc, scales, shift, less, n, tokens, &saturated);
    CHECK(memcmp(want, got, bytes) == 0 && counted == saturated);
    free(acc), free(scales), free(want), free(got);
  }
}

static void test_scores(void) {
  for (int i = 0; i < 40000 / EP_TEST_PART; i++) {
    int32_t n = 1 + below(i % 8 ? 20 : 70), m = draw32(1 + below(32)), shift = below(i % 4 ? 70 : 1100) + (i % 4 ? 10 : -60), dot_bits = 1 + below(40);
    int64_t *dot = (int64_t *)room((size_t)n * 8), *dot8 = (int64_t *)room((size_t)n * 8);
    uint8_t *less = (uint8_t *)room((size_t)n);
    int32_t *a = (int32_t *)room((size_t)n * 4), *want = (int32_t *)room((size_t)n * 4), *got = (int32_t *)room((size_t)n * 4);
    uint64_t counted = 5, saturated = 5;
    if (below(20) == 0) m = below(2) ? INT32_MIN : INT32_MAX;
    for (int32_t j = 0; j < n; j++) {
      dot[j] = (int64_t)draw(&state) >> (64 - dot_bits);
      dot8[j] = below(9) ? draw32(32) : INT32_MIN + 1;
      less[j] = (uint8_t)below(18);
      a[j] = below(9) ? (draw32(1 + below(32)) & INT32_MAX) : INT32_MAX;
    }
    generic.scale_kv16(want, dot, less, m, shift, n, &counted);
    fast.scale_kv16(got, dot, less, m, shift, n, &saturated);
    CHECK(memcmp(want, got, (size_t)n * 4) == 0 && counted == saturated);
    generic.scale_kv8(want, dot8, a, m, shift, n, &counted);
    fast.scale_kv8(got, dot8, a, m, shift, n, &saturated);
    CHECK(memcmp(want, got, (size_t)n * 4) == 0 && counted == saturated);
    for (int32_t j = 0; j < n; j++) dot[j] = ((int64_t)draw(&state) >> 1) >> below(63);
    generic.requant(want, dot, m, shift, n, &counted);
    fast.requant(got, dot, m, shift, n, &saturated);
    CHECK(memcmp(want, got, (size_t)n * 4) == 0 && counted == saturated);
    for (int32_t j = 0; j < n; j++) want[j] = got[j] = below(9) ? (int32_t)(draw(&state) >> 34 >> below(31)) : 1 << 30;
    generic.align_kv16(want, less, 17, n);
    fast.align_kv16(got, less, 17, n);
    CHECK(memcmp(want, got, (size_t)n * 4) == 0);
    int32_t most = 1;
    for (int32_t j = 0; j < n; j++) most = a[j] > most ? a[j] : most;
    ep_scale r = ep_recip((uint64_t)most);
    generic.align_kv8(want, a, r.m, r.e, n);
    fast.align_kv8(got, a, r.m, r.e, n);
    CHECK(memcmp(want, got, (size_t)n * 4) == 0);
    free(dot), free(dot8), free(less), free(a), free(want), free(got);
  }
}

static void test_exponentials(void) {
  for (int i = 0; i < 20000 / EP_TEST_PART; i++) {
    int32_t n = 1 + below(i % 8 ? 40 : 200), W = 15 + below(16), bits = 1 + below(32);
    int32_t *want = (int32_t *)room((size_t)n * 4), *got = (int32_t *)room((size_t)n * 4);
    for (int32_t j = 0; j < n; j++) want[j] = draw32(bits);
    if (i % 5 == 0) want[below(n)] = INT32_MAX, want[below(n)] = INT32_MIN;
    memcpy(got, want, (size_t)n * 4);
    int32_t *again = (int32_t *)room((size_t)n * 4);
    memcpy(again, got, (size_t)n * 4);
    uint64_t sum = generic.exponentials(want, n, W);
    CHECK(fast.exponentials(got, n, W) == sum && memcmp(want, got, (size_t)n * 4) == 0);
    if (fast.blocks) CHECK(fast.weights(again, n, W, again) == sum && memcmp(want, again, (size_t)n * 4) == 0);
    free(again);
    free(want), free(got);
  }
}

/* ---- numbers alone ---------------------------------------------------------------------------------------------- */

static int32_t *draw_numbers(int32_t n) {
  int32_t *p = (int32_t *)room((size_t)n * 4), bits = 1 + below(32);
  for (int32_t i = 0; i < n; i++) p[i] = below(50) ? draw32(bits) : below(2) ? INT32_MIN : INT32_MAX;
  return p;
}

static int32_t draw_shift(void) { return below(8) ? below(90) - 25 : below(2047) - 1023; }

static void test_elements(void) {
  static int32_t table[2049];
  for (int i = 0; i < 20000 / EP_TEST_PART; i++) {
    int32_t n = 1 + below(40), left = below(2), right = below(2), shift[3] = {below(31), below(31), draw_shift()};
    int32_t *a = draw_numbers(n), *b = draw_numbers(n), *want = (int32_t *)room((size_t)n * 4), *got = (int32_t *)room((size_t)n * 4);
    uint64_t counted = 5, saturated = 5;
    ep_curve how = {table, below(30) - 15, below(4) ? below(40) : draw_shift(), left, right, draw_shift()};
    ep_norm norm = {b, below(2) ? a : NULL, n, below(2), draw32(32) & INT32_MAX, draw_shift(), draw_shift() % 60};
    if (i % 100 == 0)
      for (int k = 0; k < 2049; k++) table[k] = i % 300 ? draw32(32) : draw32(20);
    if (below(9) == 0) how.in_shift = draw_shift();
    generic.add(want, a, b, shift, n, &counted);
    fast.add(got, a, b, shift, n, &saturated);
    CHECK(memcmp(want, got, (size_t)n * 4) == 0 && counted == saturated);
    generic.mul(want, a, b, shift[2], n, &counted);
    fast.mul(got, a, b, shift[2], n, &saturated);
    CHECK(memcmp(want, got, (size_t)n * 4) == 0 && counted == saturated);
    generic.act(want, a, &how, n, &counted);
    fast.act(got, a, &how, n, &saturated);
    CHECK(memcmp(want, got, (size_t)n * 4) == 0 && counted == saturated);
    generic.norm(want, a, &norm, &counted);
    fast.norm(got, a, &norm, &saturated);
    CHECK(memcmp(want, got, (size_t)n * 4) == 0 && counted == saturated);
    free(a), free(b), free(want), free(got);
  }
}

static void test_turn(void) {
  for (int i = 0; i < 10000 / EP_TEST_PART; i++) {
    int32_t n = 1 + below(40), m = below(9) ? draw32(1 + below(32)) : INT32_MIN, shift = below(8) ? 30 + below(40) : below(300) - 100;
    size_t bytes = (size_t)n * 4;
    int32_t *a = draw_numbers(n), *b = draw_numbers(n), *other_a = (int32_t *)room(bytes), *other_b = (int32_t *)room(bytes);
    int16_t *c = (int16_t *)room((size_t)n * 2), *s = (int16_t *)room((size_t)n * 2);
    uint64_t counted = 5, saturated = 5;
    if (i % 2) m &= INT32_MAX, shift = 31 + below(20);
    for (int32_t j = 0; j < n; j++) {
      c[j] = (int16_t)(below(65535) - 32767), s[j] = (int16_t)(below(9) ? below(65535) - 32767 : 32767);
      other_a[j] = a[j], other_b[j] = b[j];
    }
    generic.turn(a, b, c, s, m, shift, n, &counted);
    fast.turn(other_a, other_b, c, s, m, shift, n, &saturated);
    CHECK(memcmp(a, other_a, bytes) == 0 && memcmp(b, other_b, bytes) == 0 && counted == saturated);
    free(a), free(b), free(c), free(s), free(other_a), free(other_b);
  }
}

/* Names the sets that this processor has, and compares them; with an argument only that set. */
int main(int argc, char **argv) {
  static const uint32_t sets[] = {EP_CPU_AVX2, EP_CPU_AVX2 | EP_CPU_AVXVNNI, EP_CPU_AVX2 | EP_CPU_AVX512, EP_CPU_NEON, EP_CPU_NEON | EP_CPU_DOTPROD,
                                  EP_CPU_NEON | EP_CPU_DOTPROD | EP_CPU_I8MM, EP_CPU_DSP, EP_CPU_DSP | EP_CPU_MVE};
  uint32_t cpu = ep_cpu_detect();
#ifdef EP_VNNI_OF_AVX512 /* see src/kernels/avxvnni.h */
  if (cpu & EP_CPU_AVX512) cpu |= EP_CPU_AVXVNNI;
#endif
  ep_choose_kernels(&generic, 0);
  CHECK(strcmp(generic.name, "generic") == 0);
  for (size_t i = 0; i < sizeof sets / sizeof *sets; i++) {
    ep_choose_kernels(&fast, sets[i] & cpu);
    if ((sets[i] & cpu) != sets[i] || strcmp(fast.name, "generic") == 0) continue;
    printf("%s\n", fast.name);
    CHECK(fast.scratch % 64 == 0 && fast.scratch <= EP_MOST_SCRATCH);
    if (argc > 1 && strcmp(argv[1], fast.name) != 0) continue;
    test_linear();
    test_attention();
    test_groups();
    test_scores();
    test_exponentials();
    test_narrow16();
    test_quant8g32();
    test_requant();
    test_elements();
    test_turn();
  }
  return failures != 0;
}
