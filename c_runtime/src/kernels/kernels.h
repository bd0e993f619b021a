/* The loops that take the time. generic.c defines every entry; a file for an instruction set overrides the ones it speeds
 * up. All sums are exact, so every order of summation gives the same bits. */
#ifndef EP_KERNELS_H
#define EP_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include "../included.h"

/* Whether neon*.c and rotate_neon.c have functions, and of which word size. On 32-bit ARM a compiler must be able to compile some functions
 * for NEON where the rest is not; that of -mgeneral-regs-only is not seen there. */
#if defined(__GNUC__) && !defined(EDGEPOS_GENERIC_ONLY)
#if defined(__aarch64__) && defined(__ARM_NEON)
#define EP_HAS_NEON 64
#elif defined(__arm__) && __ARM_ARCH >= 7 && __ARM_ARCH_PROFILE == 'A' && defined(__ARM_PCS_VFP) && \
    (defined(__ARM_NEON) || !defined(__clang__) || __clang_major__ >= 22)
#define EP_HAS_NEON 32
#endif
#endif

/* Whether this build may have kernels that want the KV cache in blocks, and that ask for weights ahead. */
#if defined(__GNUC__) && defined(__x86_64__) && defined(__SSE2__) && !defined(EDGEPOS_GENERIC_ONLY)
#define EP_HAS_BLOCKS 1
#define EP_HAS_FETCH 1
#else
#define EP_HAS_BLOCKS 0
#define EP_HAS_FETCH 0
#endif

/* Rows of weights against tokens: acc[t * rows + r] = sum of w[r][c] * x[t][c] (times the group scale g[r][c/32]).
 * cols is a multiple of 32; rows of w, g and x lie cols, cols/32 and cols elements apart; x is aligned to 64 bytes and
 * |x| <= 32639. w may hold any int8 and g any int16.
 * w4g32: w holds two unsigned codes a byte, the first in the low four bits, and g a scale and a minimum of each group in
 * turn; rows of w and g lie cols/2 and 2*cols/32 elements apart. The sum is that of (w * scale + minimum) * x. */
typedef struct ep_tile {
  const int8_t *w;
  const int16_t *g;
  const int16_t *x;
  const int32_t *sums; /* w4g32 and x8: of groups of the inputs, [tokens][cols/32] */
  int32_t cols, rows, tokens;
  void *scratch; /* ep_kernels.scratch bytes, aligned to 64 */
  int32_t again; /* for one token: scratch is as a call of the same entry for the same inputs left it */
  /* The linear8_ entries read these in the place of x: x8[t][c] * d[t][c/32] is what x[t][c] was. |x8| <= 127, 1 <= d <= 255;
   * x8 is aligned to 32 bytes. sums are those of x8 alone, without d. */
  const int8_t *x8;
  const int32_t *d;
} ep_tile;

/* ACT: the operator's parameters. */
typedef struct ep_curve {
  const int32_t *table; /* [2049] */
  int32_t in_shift, out_shift, left, right, id_shift;
} ep_curve;

/* NORM of d numbers. */
typedef struct ep_norm {
  const int32_t *gamma, *beta; /* [d]; beta may be NULL */
  int32_t d, center, eps_m, eps_shift, out_shift;
} ep_norm;

enum { EP_GROUP = 4, EP_GROUP_KEYS = 128 }; /* most query heads and keys of one call of the kernels for a group of heads */
enum { EP_MOST_SCRATCH = 32768 };

typedef struct ep_kernels {
  const char *name;
  size_t scratch; /* a multiple of 64, at most EP_MOST_SCRATCH */
  int32_t few;    /* rows of a tile of one token; 0: as many as there is room for */
  void (*fetch)(const void *weights, size_t bytes); /* where not NULL: asks for the first of them, which are needed soon */
  int32_t (*narrow16)(int16_t *q, const int32_t *x, int32_t n); /* fixed.h */
  /* Where not NULL: lays out the x of a LINEAR, [tokens][cols], for its kernels, in place. Their tiles begin EP_TILE_TOKENS tokens apart. */
  void (*arrange)(int16_t *x, int32_t cols, int32_t tokens);
  void (*arrange8)(int8_t *x, int32_t cols, int32_t tokens); /* the same with the x8 of linear8_ */
  void (*linear_w8)(int64_t *acc, const ep_tile *tile);
  void (*linear_w8g32)(int64_t *acc, const ep_tile *tile);
  void (*linear_w4g32)(int64_t *acc, const ep_tile *tile);
  int32_t (*quant8g32)(int8_t *q, int32_t *d, const int32_t *x, int32_t n); /* fixed.h */
  void (*linear8_w8)(int64_t *acc, const ep_tile *tile);
  void (*linear8_w8g32)(int64_t *acc, const ep_tile *tile);
  void (*linear8_w4g32)(int64_t *acc, const ep_tile *tile);
  /* out[j] = q . k[j], k int16 or int8 [n][dim], 1 <= dim <= 512, |q| and int16 k <= 32639. No alignment beyond the type's. */
  void (*score_kv16)(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t n);
  void (*score_kv8)(int64_t *out, const int16_t *q, const int8_t *k, int32_t dim, int32_t n);
  /* acc[i] += sum over j of p[j] * v[j][i], 0 <= p <= 2^30 + 1. The caller has proven that acc cannot overflow. */
  void (*mix_kv16)(int64_t *acc, const int32_t *p, const int16_t *v, int32_t dim, int32_t n);
  void (*mix_kv8)(int64_t *acc, const int32_t *p, const int8_t *v, int32_t dim, int32_t n);
  /* Where blocks is 1 the KV cache is in blocks of sixteen slots and these take the place of the four above, for several query heads of
   * one KV head: words of four bytes, two or four numbers each, hold components of one key, and one component of consecutive values.
   * k: [blocks][padded/per_word][16 keys] words, dim padded to a multiple of four; v: [slots/per_word][dim] words.
   * out[h * EP_GROUP_KEYS + j] = q[h] . k[j], j < 16 * blocks <= EP_GROUP_KEYS, h < heads <= EP_GROUP, q [heads][dim].
   * acc[h * dim + i] += sum over j < n of p[h * stride + j] * v[j][i], n a multiple of 16. */
  int32_t blocks;
  void (*scores_kv16)(int64_t *out, const int16_t *q, const int16_t *k, int32_t dim, int32_t heads, int32_t blocks);
  void (*scores_kv8)(int64_t *out, const int16_t *q, const int8_t *k, int32_t dim, int32_t heads, int32_t blocks);
  /* y[h * stride + j] = what scale_kv16 and scale_kv8 make of them with shifts[h], for whole blocks, of which n slots are there. They
   * return 0, with nothing done, where the numbers would need more care than is worth while here. */
  int32_t (*sigmas_kv16)(int32_t *y, size_t stride, const int16_t *q, const int16_t *k, const uint8_t *less, int32_t m, const int32_t *shifts,
                         int32_t dim, int32_t heads, int32_t n);
  int32_t (*sigmas_kv8)(int32_t *y, size_t stride, const int16_t *q, const int8_t *k, const int32_t *a, int32_t m, const int32_t *shifts,
                        int32_t dim, int32_t heads, int32_t n);
  /* exponentials for values of which `values` are needed next: eight bytes for each weight are asked for meanwhile. */
  uint64_t (*weights)(int32_t *p, int32_t n, int32_t W, const void *values);
  void (*mixes_kv16)(int64_t *acc, const int32_t *p, size_t stride, const int16_t *v, int32_t dim, int32_t heads, int32_t n);
  void (*mixes_kv8)(int64_t *acc, const int32_t *p, size_t stride, const int8_t *v, int32_t dim, int32_t heads, int32_t n);
  /* y[j] = requant(dot[j], m, shift - less[j]), or of dot[j] * a[j], a >= 0; |dot| < 2^40, below 2^31 for kv8. */
  void (*scale_kv16)(int32_t *y, const int64_t *dot, const uint8_t *less, int32_t m, int32_t shift, int32_t n, uint64_t *count);
  void (*scale_kv8)(int32_t *y, const int64_t *dot, const int32_t *a, int32_t m, int32_t shift, int32_t n, uint64_t *count);
  /* p[j] becomes exp2_neg(max p - p[j], W); their sum. */
  uint64_t (*exponentials)(int32_t *p, int32_t n, int32_t W);
  /* p[j] becomes rshift_round(p[j], most - s[j]), 0 <= p <= 2^30, most the largest s, at most 17. */
  void (*align_kv16)(int32_t *p, const uint8_t *s, int32_t most, int32_t n);
  /* p[j] becomes requant(p[j] * a[j], m, shift), which cannot saturate: 0 <= p <= 2^30, 0 <= a. */
  void (*align_kv8)(int32_t *p, const int32_t *a, int32_t m, int32_t shift, int32_t n);
  /* y[i] = requant(acc[i], m, shift), |acc| <= 2^62. */
  void (*requant)(int32_t *y, const int64_t *acc, int32_t m, int32_t shift, int32_t n, uint64_t *count);
  /* y[t * stride + r] = requant(acc[t * rows + r], scales[2r], scales[2r + 1] + shift - less[t]), saturations counted; |acc| < 2^57. */
  void (*requant_rows)(int32_t *y, size_t stride, const int64_t *acc, const int32_t *scales, int32_t shift, const int32_t *less,
                       int32_t rows, int32_t tokens, uint64_t *count);
  /* The operators of these names for n numbers, saturations counted. ADD: shift holds la, lb, shift. */
  void (*add)(int32_t *y, const int32_t *a, const int32_t *b, const int32_t shift[3], int32_t n, uint64_t *count);
  void (*mul)(int32_t *y, const int32_t *a, const int32_t *b, int32_t shift, int32_t n, uint64_t *count);
  void (*act)(int32_t *y, const int32_t *x, const ep_curve *how, int32_t n, uint64_t *count);
  void (*norm)(int32_t *y, const int32_t *x, const ep_norm *how, uint64_t *count);
  /* a[j] becomes requant(a[j] * c[j] - b[j] * s[j], m, shift), b[j] requant(a[j] * s[j] + b[j] * c[j], m, shift); |c| and |s| <= 32767. */
  void (*turn)(int32_t *a, int32_t *b, const int16_t *c, const int16_t *s, int32_t m, int32_t shift, int32_t n, uint64_t *count);
} ep_kernels;

/* An entry that only operators with these features call, or that those with any of them do. */
#define EP_KERNEL(features, kernel) (EP_HAS(features) ? (kernel) : NULL)
#define EP_KERNEL_ANY(features, kernel) (EP_HAS_ANY(features) ? (kernel) : NULL)

/* Fill the table with the best kernels for a processor with these EP_CPU_ bits. */
void ep_choose_kernels(ep_kernels *table, uint32_t cpu);
/* The reference for every entry. */
void ep_generic_kernels(ep_kernels *table);
/* Override what the instruction set speeds up, if it is among the bits and this build has it. */
void ep_avx2_kernels(ep_kernels *table, uint32_t cpu);
void ep_avx2_groups(ep_kernels *table, uint32_t cpu);
void ep_avxvnni_kernels(ep_kernels *table, uint32_t cpu); /* after those of AVX2 */
void ep_avx512_kernels(ep_kernels *table, uint32_t cpu);
void ep_neon_kernels(ep_kernels *table, uint32_t cpu);
void ep_dsp_kernels(ep_kernels *table, uint32_t cpu);
void ep_mve_kernels(ep_kernels *table, uint32_t cpu);

#endif
