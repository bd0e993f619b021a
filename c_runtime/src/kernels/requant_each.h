/* The entries of the table that round one number after the other, for a file that defines EP_REQUANT, which does what ep_requant does. */

static void scale_kv16(int32_t *y, const int64_t *dot, const uint8_t *less, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  for (int32_t j = 0; j < n; j++) y[j] = EP_REQUANT(dot[j], m, shift - less[j], count);
}

static void scale_kv8(int32_t *y, const int64_t *dot, const int32_t *a, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  for (int32_t j = 0; j < n; j++) y[j] = EP_REQUANT((int64_t)(int32_t)dot[j] * a[j], m, shift, count); /* one multiplication on 32 bits */
}

static void align_kv8(int32_t *p, const int32_t *a, int32_t m, int32_t shift, int32_t n) {
  uint64_t never = 0;
  for (int32_t j = 0; j < n; j++) p[j] = EP_REQUANT((int64_t)p[j] * a[j], m, shift, &never);
}

static void requant(int32_t *y, const int64_t *acc, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  for (int32_t i = 0; i < n; i++) y[i] = EP_REQUANT(acc[i], m, shift, count);
}

static void requant_rows(int32_t *y, size_t stride, const int64_t *acc, const int32_t *scales, int32_t shift, const int32_t *less,
                         int32_t rows, int32_t tokens, uint64_t *count) {
  for (int32_t t = 0; t < tokens; t++, y += stride, acc += rows)
    for (int32_t r = 0; r < rows; r++) y[r] = EP_REQUANT(acc[r], scales[2 * r], scales[2 * r + 1] + shift - less[t], count);
}

static void turn(int32_t *a, int32_t *b, const int16_t *c, const int16_t *s, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  for (int32_t j = 0; j < n; j++) {
    int64_t x = a[j], y = b[j];
    a[j] = EP_REQUANT(x * c[j] - y * s[j], m, shift, count);
    b[j] = EP_REQUANT(x * s[j] + y * c[j], m, shift, count);
  }
}
