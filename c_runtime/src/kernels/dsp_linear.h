/* LINEAR by fours of rows, for a file that defines INLINE, EP_ROWS(sum, w, stride, x, n), the four sums of n columns, a multiple of 8, and
 * EP_ROWS_W4(sum, w, stride, x) for 32 of w4g32. Fewer than four rows are computed four times each (a stride of 0), and the last four may
 * repeat some: one loop for all is half the program. score_kv8 is the same with keys in the place of rows. */

enum { W8, W8G32, W4G32 };

/* The next four of n rows from i on: where they begin, and by how much i goes on. */
INLINE int32_t next_rows(int32_t i, int32_t n) { return n >= 4 && i > n - 4 ? n - 4 : i; }
INLINE int32_t rows_done(int32_t n) { return n < 4 ? 1 : 4; }

INLINE int64_t grow(int64_t total, int32_t sum, const int16_t *g, const int32_t *sums, int form) {
  if (form == W8) return total + sum;
  if (form == W4G32) total += (int64_t)sums[0] * g[1];
  return total + (int64_t)sum * g[0];
}

INLINE void four_rows(int64_t *acc, const ep_tile *tile, int32_t row, int32_t token, int form) {
  const size_t cols = (size_t)tile->cols, at = (size_t)row;
  size_t bytes = form == W4G32 ? cols / 2 : cols, numbers = form == W4G32 ? cols / 16 : cols / 32; /* of a row in w and g */
  const int8_t *w = tile->w + at * bytes;
  const int16_t *x = tile->x + (size_t)token * cols, *g = tile->g;
  if (form == W8) numbers = 0;
  else g += at * numbers;
  if (tile->rows < 4) bytes = numbers = 0;
  const int32_t *sums = form == W4G32 ? tile->sums + (size_t)token * (cols / 32) : NULL;
  int64_t ta = 0, tb = 0, tc = 0, td = 0;
  for (int32_t left = tile->cols; left > 0;) { /* 512 products of int8 and |x| <= 32639 stay below 2^31 */
    int32_t sum[4], n = form != W8 ? 32 : left < 512 ? left : 512;
    if (form == W4G32) EP_ROWS_W4(sum, w, bytes, x);
    else EP_ROWS(sum, w, bytes, x, n);
    ta = grow(ta, sum[0], g, sums, form);
    tb = grow(tb, sum[1], g + numbers, sums, form);
    tc = grow(tc, sum[2], g + 2 * numbers, sums, form);
    td = grow(td, sum[3], g + 3 * numbers, sums, form);
    w += form == W4G32 ? n / 2 : n, x += n, left -= n;
    if (form != W8) g += form == W4G32 ? 2 : 1;
    if (form == W4G32) sums++;
  }
  acc += token * tile->rows + row;
  acc[0] = ta;
  if (tile->rows >= 4) acc[1] = tb, acc[2] = tc, acc[3] = td;
}

INLINE void linear(int64_t *acc, const ep_tile *tile, int form) {
  for (int32_t row = 0; row < tile->rows; row += rows_done(tile->rows))
    for (int32_t t = 0; t < tile->tokens; t++) four_rows(acc, tile, next_rows(row, tile->rows), t, form);
}

static void linear_w8(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8); }
static void linear_w8g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W8G32); }
static void linear_w4g32(int64_t *acc, const ep_tile *tile) { linear(acc, tile, W4G32); }

static void score_kv8(int64_t *out, const int16_t *q, const int8_t *k, int32_t dim, int32_t n) {
  const int32_t whole = dim & -8, done = rows_done(n);
  for (int32_t j = 0; j < n; j += done) {
    const int32_t first = next_rows(j, n);
    const int8_t *key = k + first * dim;
    int32_t sum[4];
    EP_ROWS(sum, key, n < 4 ? 0 : (size_t)dim, q, whole);
    for (int32_t r = 0; r < done; r++, key += dim) {
      for (int32_t i = whole; i < dim; i++) sum[r] += q[i] * key[i];
      out[first + r] = sum[r];
    }
  }
}

/* Components from i on, four or one, of all keys: their sums stay in registers. `first` adds those of some keys to a, b, c and d, and moves
 * p and v behind them. */
#define EP_MIX(name, type, first)                                                                            \
  INLINE void name##_some(int64_t *acc, const int32_t *p, const type *v, int32_t dim, int32_t n, int some) { \
    const int32_t *end = p + n;                                                                              \
    int64_t a = acc[0], b = some > 1 ? acc[1] : 0, c = some > 1 ? acc[2] : 0, d = some > 1 ? acc[3] : 0;     \
    first                                                                                                    \
    for (; p < end; p++, v += dim) {                                                                         \
      a += (int64_t)*p * v[0];                                                                               \
      if (some > 1) b += (int64_t)*p * v[1], c += (int64_t)*p * v[2], d += (int64_t)*p * v[3];               \
    }                                                                                                        \
    acc[0] = a;                                                                                              \
    if (some > 1) acc[1] = b, acc[2] = c, acc[3] = d;                                                        \
  }                                                                                                          \
  static void name(int64_t *acc, const int32_t *p, const type *v, int32_t dim, int32_t n) {                  \
    int32_t i = 0;                                                                                           \
    for (; i + 4 <= dim; i += 4) name##_some(acc + i, p, v + i, dim, n, 4);                                  \
    for (; i < dim; i++) name##_some(acc + i, p, v + i, dim, n, 1);                                          \
  }
