/* The rotations with this processor's instructions give the bits of plain C: random and extreme numbers, both layouts, every number of
 * pairs around the vectors' ends, gaps between heads. Vectors end where their allocation does, so that a sanitizer sees a step beyond. */
#include <string.h>

#include "check.h"
#include "edgepos.h"
#include "edgepos_cpu.h"

enum { CASES = 6000, MOST = 150 };

static uint64_t state = 7;

static int32_t below(int32_t n) { return (int32_t)(draw(&state) % (uint64_t)n); }

/* An int16: random, one of the ends, or small. */
static int16_t number(int way) {
  static const int16_t ends[] = {INT16_MIN, -INT16_MAX, INT16_MAX, 0, 1, -1, 23170, -23170};
  return way == 1 ? ends[below(8)] : (int16_t)(way == 2 ? below(255) - 127 : below(65536) - 32768);
}

/* cos and sin: any numbers, a circle's (also in int8), a sum next to what the vectors take, the ends, sums beyond it. */
static void row(int16_t *c, int16_t *s, int32_t pairs, int way) {
  for (int32_t j = 0; j < pairs; j++) {
    int32_t a, b;
    ep_sincos_q15(draw(&state), &a, &b);
    if (way == 1) a /= 258, b /= 258;
    if (way == 2) a = 49152 - (b = below(49153)), a = a > INT16_MAX ? INT16_MAX : a, b = b > INT16_MAX ? INT16_MAX : b;
    if (way == 2 && below(2)) a = -a;
    if (way == 2 && below(2)) b = -b;
    if (way == 3) a = number(below(2)), b = number(below(2));
    if (way == 4) a = b = INT16_MIN;
    if (way == 5) a = below(2) ? INT16_MAX : -INT16_MAX, b = below(2) ? INT16_MAX : -INT16_MAX; /* sums that pass 32 bits on the way */
    c[j] = (int16_t)a, s[j] = (int16_t)b;
  }
}

static void *copy_of(const void *p, size_t bytes) {
  void *q = malloc(bytes ? bytes : 1);
  if (!q) exit(1);
  memcpy(q, p, bytes);
  return q;
}

int main(void) {
  static const int32_t factors[] = {INT32_MIN, -1, 0, 1, 1 << 30, INT32_MAX, 1610661889}, shifts[] = {1, 31, 32, 33, 37, 45, 46, 62, 63};
  uint32_t cpu = ep_cpu_detect();
  for (int32_t n = 0; n < CASES; n++) {
    int32_t pairs = below(2) ? below(MOST) : 8 * below(10), rest = below(5), heads = below(4);
    int32_t dim = 2 * pairs + rest, stride = dim + (below(2) ? 0 : below(20));
    ep_rotation how = {heads, dim, stride, pairs, below(2), EP_Q15_AMP_M, EP_Q15_AMP_SHIFT, 0};
    if (below(2)) how.amp_m = factors[below(7)], how.amp_shift = shifts[below(9)];
    size_t count = heads ? (size_t)(heads - 1) * (size_t)stride + (size_t)dim : 0;
    int16_t *c = (int16_t *)malloc((size_t)pairs * 2 + 1), *s = (int16_t *)malloc((size_t)pairs * 2 + 1), *x = (int16_t *)malloc(count * 2 + 1);
    if (!c || !s || !x) return 1;
    row(c, s, pairs, below(9) % 6);
    int way = below(3);
    for (size_t i = 0; i < count; i++) x[i] = number(way);
    int16_t *cn = (int16_t *)copy_of(c, (size_t)pairs * 2), *sn = (int16_t *)copy_of(s, (size_t)pairs * 2);
    int16_t *y16 = (int16_t *)copy_of(x, count * 2);
    int8_t *x8 = (int8_t *)copy_of(x, count), *y8 = (int8_t *)copy_of(x, count);
    CHECK(ep_rope_rotate_s16(x, c, s, &how) == EP_OK && ep_rope_rotate_s8(x8, c, s, &how) == EP_OK);
    how.cpu = cpu;
    CHECK(ep_rope_rotate_s16(y16, cn, sn, &how) == EP_OK && ep_rope_rotate_s8(y8, cn, sn, &how) == EP_OK);
    CHECK(memcmp(x, y16, count * 2) == 0);
    CHECK(memcmp(x8, y8, count) == 0);
    free(c), free(s), free(x), free(cn), free(sn), free(y16), free(x8), free(y8);
  }
  if (!failures) printf("test_rotate: cpu %u, all equal\n", cpu);
  return failures != 0;
}
