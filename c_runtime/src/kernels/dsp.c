/* Cortex-M with the DSP instructions (M4, M7, M33, M55): two products of 16 bits at a time. Four weights are widened to the pairs (0, 2)
 * and (1, 3); the inputs are paired alike, once for four rows. Rounding is done in 32-bit words, where a 64-bit shift would take ten
 * instructions. */
#include "dsp.h"

#ifdef EP_HAS_DSP
#include <arm_acle.h>

#define INLINE static inline __attribute__((always_inline))

/* ---- sums of products ------------------------------------------------------------------------------------------- */

INLINE uint32_t word(const void *p) {
  uint32_t v;
  __builtin_memcpy(&v, p, sizeof v);
  return v;
}

/* The lower halves of two words, or the upper ones. */
INLINE int16x2_t lower(uint32_t a, uint32_t b) {
  int16x2_t pair;
  __asm__("pkhbt %0, %1, %2, lsl #16" : "=r"(pair) : "r"(a), "r"(b));
  return pair;
}
INLINE int16x2_t upper(uint32_t a, uint32_t b) {
  int16x2_t pair;
  __asm__("pkhtb %0, %1, %2, asr #16" : "=r"(pair) : "r"(b), "r"(a));
  return pair;
}

/* sum[r] = w[r * stride ...] . x for four rows, over n columns, a multiple of 4. The caller keeps them below 2^31. Compilers keep half of
 * this on the stack: it takes 12 of the 13 registers. */
INLINE void rows_of(int32_t *sum, const int8_t *w, size_t stride, const int16_t *x, int32_t n) {
  int32_t a = 0, b = 0, c = 0, d = 0;
  const int8_t *w2 = w + 2 * stride;
#define ROW(load, sum)                                                                                        \
  "ldr %[u], " load "\n\tsxtb16 %[v], %[u]\n\tsmlad " sum ", %[v], %[x02], " sum "\n\t"                       \
  "sxtb16 %[v], %[u], ror #8\n\tsmlad " sum ", %[v], %[x13], " sum "\n\t"
  for (const int16_t *end = x + n; x < end;) {
    uint32_t x02, x13, u, v;
    __asm__ volatile("ldr %[u], [%[x]], #4\n\tldr %[v], [%[x]], #4\n\t"
                     "pkhbt %[x02], %[u], %[v], lsl #16\n\tpkhtb %[x13], %[v], %[u], asr #16\n\t"
                     ROW("[%[w], %[stride]]", "%[b]") ROW("[%[w]], #4", "%[a]")
                     ROW("[%[w2], %[stride]]", "%[d]") ROW("[%[w2]], #4", "%[c]")
                     : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [d] "+r"(d), [x] "+r"(x), [w] "+r"(w), [w2] "+r"(w2),
                       [x02] "=&r"(x02), [x13] "=&r"(x13), [u] "=&r"(u), [v] "=&r"(v)
                     : [stride] "r"(stride)
                     : "memory");
  }
  sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
}

/* Eight codes of w4g32: where the mask leaves bits 0 and 16 are the codes 0 and 4, after four bits 1 and 5, and so on. */
INLINE int32_t eight(uint32_t w, const int16x2_t x[4], int32_t sum) {
  const uint32_t mask = 0x000f000f;
  sum = __smlad((int16x2_t)(w & mask), x[0], sum);
  sum = __smlad((int16x2_t)(w >> 4 & mask), x[1], sum);
  sum = __smlad((int16x2_t)(w >> 8 & mask), x[2], sum);
  return __smlad((int16x2_t)(w >> 12 & mask), x[3], sum);
}

/* As rows_of for the 32 columns of a group of w4g32. */
INLINE void rows_of_w4(int32_t *sum, const int8_t *w, size_t stride, const int16_t *x) {
  int32_t a = 0, b = 0, c = 0, d = 0;
  for (const int16_t *end = x + 32; x < end; w += 4, x += 8) {
    const uint32_t x01 = word(x), x23 = word(x + 2), x45 = word(x + 4), x67 = word(x + 6);
    const int16x2_t pairs[4] = {lower(x01, x45), upper(x01, x45), lower(x23, x67), upper(x23, x67)};
    a = eight(word(w), pairs, a);
    b = eight(word(w + stride), pairs, b);
    c = eight(word(w + 2 * stride), pairs, c);
    d = eight(word(w + 3 * stride), pairs, d);
  }
  sum[0] = a, sum[1] = b, sum[2] = c, sum[3] = d;
}

#define EP_ROWS rows_of
#define EP_ROWS_W4 rows_of_w4
#include "dsp_linear.h"

/* ---- attention -------------------------------------------------------------------------------------------------- */

static void score_kv16(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t n) {
  for (int32_t j = 0; j < n; j++, k += dim) {
    int64_t sum = dim & 1 ? q[dim - 1] * k[dim - 1] : 0;
    for (int32_t i = 0; i + 2 <= dim; i += 2) sum = __smlald((int16x2_t)word(q + i), (int16x2_t)word(k + i), sum);
    out[j] = sum;
  }
}

EP_MIX(mix_kv16, int16_t, )
EP_MIX(mix_kv8, int8_t, )

/* ---- rounding --------------------------------------------------------------------------------------------------- */

/* The shifts that hardly a program has. */
__attribute__((noinline)) static int32_t requant_any(int64_t a, int32_t m, int32_t n, uint64_t *count) { return ep_requant(a, m, n, count); }

/* ep_requant. For the shifts that programs have, of 33 to 63, in the two upper words of the product: the result is read off, and the bit
 * below it added; it is right if what is above it are copies of its sign. */
#ifndef __OPTIMIZE_SIZE__
INLINE
#else
static
#endif
int32_t requant_one(int64_t a, int32_t m, int32_t n, uint64_t *count) {
  if (n < 33 || n > 63) return requant_any(a, m, n, count);
  const int32_t s = n - 32;
  const int64_t low = (int64_t)((uint64_t)a & 0xffffffffu) * m, product = (int64_t)(int32_t)(a >> 32) * m + (low >> 32);
  const uint32_t under = (uint32_t)product;
  const int32_t top = (int32_t)(product >> 32), y = (int32_t)(under >> s | (uint32_t)top << (32 - s));
  int32_t rounded;
  if (top >> s == y >> 31 && !__builtin_add_overflow(y, (int32_t)(under >> (s - 1) & 1), &rounded)) return rounded;
  ++*count;
  return top < 0 ? INT32_MIN : INT32_MAX;
}

#define EP_REQUANT requant_one
#include "requant_each.h"

/* As in generic.c. */
#if defined(EDGEPOS_NATIVE) && defined(EP_HAS_MVE)
#define EP_BY_MVE(kernel) (1 ? NULL : (kernel))
#else
#define EP_BY_MVE(kernel) (kernel)
#endif

void ep_dsp_kernels(ep_kernels *table, uint32_t cpu) {
  if (!(cpu & EP_CPU_DSP)) return;
  table->name = "dsp";
  table->linear_w8 = EP_BY_MVE(EP_KERNEL(EP_FEATURE_W8, linear_w8));
  table->linear_w8g32 = EP_BY_MVE(EP_KERNEL(EP_FEATURE_W8G32, linear_w8g32));
  table->linear_w4g32 = EP_BY_MVE(EP_KERNEL(EP_FEATURE_W4G32, linear_w4g32));
  table->score_kv16 = EP_BY_MVE(EP_KERNEL(EP_FEATURE_KV16, score_kv16));
  table->score_kv8 = EP_BY_MVE(EP_KERNEL(EP_FEATURE_KV8, score_kv8));
  table->mix_kv16 = EP_BY_MVE(EP_KERNEL(EP_FEATURE_KV16, mix_kv16));
  table->mix_kv8 = EP_BY_MVE(EP_KERNEL(EP_FEATURE_KV8, mix_kv8));
  table->scale_kv16 = EP_KERNEL(EP_FEATURE_KV16, scale_kv16);
  table->scale_kv8 = EP_KERNEL(EP_FEATURE_KV8, scale_kv8);
  table->align_kv8 = EP_KERNEL(EP_FEATURE_KV8, align_kv8);
  table->requant = requant;
  table->requant_rows = requant_rows;
  table->turn = EP_KERNEL_ANY(EP_FEATURES_ROPE, turn);
}

#else

void ep_dsp_kernels(ep_kernels *table, uint32_t cpu) {
  (void)table;
  (void)cpu;
}

#endif
