/* The operators that work number by number, sixteen at a time with AVX-512: what needs 64 bits is computed of the even numbers and of the
 * odd ones. What no compiler of programs chooses, and numbers that saturate, are left to the plain code. */
#include "avx512.h"

#ifdef EP_HAS_AVX512
#include "elements.h"

enum { ALL = 0xffff, ODD = 0xaaaa };

/* What is stored shall be loaded from there, and not be taken out of the register piece by piece. */
#define KEEP_MEMORY(v) __asm__("" : "+m"(v))

/* `sixteen` is done where `there` says so, or gives 0 with nothing done; then `one` is done for every i. Nothing is read beyond n. */
#define EACH(n, sixteen, one)                           \
  for (int32_t i = 0, end; i < (n); i = end) {          \
    end = (n) - i < 16 ? (n) : i + 16;                  \
    if (end - i == 16) {                                \
      const __mmask16 there = ALL;                      \
      if (sixteen) continue;                            \
    } else {                                            \
      const __mmask16 there = (__mmask16)first((size_t)(end - i)); \
      if (sixteen) continue;                            \
    }                                                   \
    for (; i < end; i++) one;                           \
  }

INLINE __m512i some(const int32_t *x, __mmask16 there) { return _mm512_maskz_loadu_epi32(there, x); }

/* rshift_round for 0 <= n <= 31. */
INLINE __m512i shift_round(__m512i x, int32_t n) {
  if (n == 0) return x;
  __m512i v = _mm512_sra_epi32(x, _mm_cvtsi32_si128(n - 1));
  return _mm512_sub_epi32(v, _mm512_srai_epi32(v, 1));
}

/* rshift_round(x, n) + 2^31 for 1 <= n, |x| <= 2^62: nothing is in the upper half of the numbers that fit 32 bits.
 * For n > 31 what is shifted out first does not matter: floor(x / 2^n + 1/2) = floor((floor(x / 2^(n - 31)) + 2^30) / 2^31). */
typedef struct rounding {
  __m512i add;
  __m128i last, before;
  int long_way;
} rounding;

INLINE rounding rounding_by(int32_t n) {
  const int32_t last = n > 31 ? 31 : n;
  const int64_t add = ((int64_t)1 << (last + 31)) + ((int64_t)1 << (last - 1));
  return (rounding){_mm512_set1_epi64(add), _mm_cvtsi32_si128(last), _mm_cvtsi32_si128(n - last), n > 31};
}

INLINE __m512i lifted(__m512i x, const rounding *by) {
  if (by->long_way) x = _mm512_sra_epi64(x, by->before);
  return _mm512_srl_epi64(_mm512_add_epi64(x, by->add), by->last);
}

/* Sixteen lifted numbers; 0 if one saturates. */
INLINE int settled(__m512i *y, __m512i even, __m512i uneven) {
  __m512i both = _mm512_or_si512(even, uneven);
  *y = _mm512_xor_si512(joined(even, uneven), _mm512_set1_epi32(INT32_MIN));
  return !_mm512_mask_test_epi32_mask(ODD, both, both);
}

INLINE int put16(int32_t *y, __m512i even, __m512i uneven, __mmask16 there) {
  __m512i v;
  if (!settled(&v, even, uneven)) return 0;
  _mm512_mask_storeu_epi32(y, there, v);
  return 1;
}

/* a + b; 0 if one saturates. */
INLINE int sums(__m512i *y, __m512i a, __m512i b) {
  enum { ALIKE_BUT_SUM = 0x42 };
  *y = _mm512_add_epi32(a, b);
  return !_mm512_movepi32_mask(_mm512_ternarylogic_epi32(a, b, *y, ALIKE_BUT_SUM));
}

/* ---- narrow16 --------------------------------------------------------------------------------------------------- */

AVX512 static int32_t narrow16(int16_t *q, const int32_t *x, int32_t n) {
  const __mmask16 rest = (__mmask16)first((size_t)(n & 15));
  __m512i most = _mm512_abs_epi32(some(x + (n & -16), rest)); /* |-2^31| is 2^31 without sign */
  for (int32_t i = 0; i + 16 <= n; i += 16) most = _mm512_max_epu32(most, _mm512_abs_epi32(load(x + i)));
  int32_t s = ep_narrow16_shift(_mm512_reduce_max_epu32(most)), i = 0;
  for (; i + 16 <= n; i += 16) _mm256_storeu_si256((__m256i *)(q + i), _mm512_cvtepi32_epi16(shift_round(load(x + i), s)));
  _mm256_mask_storeu_epi16(q + i, rest, _mm512_cvtepi32_epi16(shift_round(some(x + i, rest), s)));
  return s;
}

/* ---- ADD, MUL --------------------------------------------------------------------------------------------------- */

/* rshift_round(a, n) + b. */
INLINE int near16(int32_t *y, const int32_t *a, const int32_t *b, int32_t n, __mmask16 there) {
  __m512i v;
  if (!sums(&v, shift_round(some(a, there), n), some(b, there))) return 0;
  _mm512_mask_storeu_epi32(y, there, v);
  return 1;
}

INLINE int add16(int32_t *y, const int32_t *a, const int32_t *b, __m512i by, __m512i other, const rounding *round, __mmask16 there) {
  __m512i va = some(a, there), vb = some(b, there);
  __m512i even = _mm512_add_epi64(_mm512_mul_epi32(va, by), _mm512_mul_epi32(vb, other));
  __m512i uneven = _mm512_add_epi64(_mm512_mul_epi32(odd(va), by), _mm512_mul_epi32(odd(vb), other));
  return put16(y, lifted(even, round), lifted(uneven, round), there);
}

AVX512 static void add(int32_t *y, const int32_t *a, const int32_t *b, const int32_t shift[3], int32_t n, uint64_t *count) {
  const int32_t la = shift[0], lb = shift[1], by = shift[2];
  if ((la == 0 && lb == by) || (la == by && lb == 0)) { /* one of the two stays as it is */
    const int32_t *moved = la == 0 ? a : b, *kept = la == 0 ? b : a;
    EACH(n, near16(y + i, moved + i, kept + i, by, there), y[i] = ep_sat32_count(ep_add_at(a[i], b[i], shift), count))
    return;
  }
  const int32_t more = by == 0 && la < 30 && lb < 30, fits = by + more >= 1 && by <= 63;
  const int64_t up_a = (int64_t)1 << (la + more), up_b = (int64_t)1 << (lb + more);
  const __m512i first_by = _mm512_set1_epi64(up_a), other_by = _mm512_set1_epi64(up_b);
  const rounding round = rounding_by(fits ? by + more : 1);
  EACH(n, fits && add16(y + i, a + i, b + i, first_by, other_by, &round, there), y[i] = ep_sat32_count(ep_add_at(a[i], b[i], shift), count))
}

INLINE int mul16(int32_t *y, const int32_t *a, const int32_t *b, const rounding *round, __mmask16 there) {
  __m512i va = some(a, there), vb = some(b, there);
  return put16(y, lifted(_mm512_mul_epi32(va, vb), round), lifted(_mm512_mul_epi32(odd(va), odd(vb)), round), there);
}

AVX512 static void mul(int32_t *y, const int32_t *a, const int32_t *b, int32_t shift, int32_t n, uint64_t *count) {
  const int fits = shift >= 1 && shift <= 63;
  const rounding round = rounding_by(fits ? shift : 1);
  EACH(n, fits && mul16(y + i, a + i, b + i, &round, there), y[i] = ep_sat32_count(ep_rshift_round((int64_t)a[i] * b[i], shift), count))
}

/* ---- ACT -------------------------------------------------------------------------------------------------------- */

/* A curve for -28 <= in_shift <= 31: it is a table for low <= x <= high, which x is moved into, then for in_shift <= 3
 * u + 2^28 = (x * 2^up + add) >> down without sign; for more of them what is shifted out `before` does not matter. */
typedef struct curve {
  const int32_t *table;
  __m512i low, high, add;
  __m128i up, down, before;
  rounding out;
  int32_t in_shift, id_shift;
  __mmask16 left, right; /* beyond it is the identity; on the right it may be the last entry alone, too */
  int last;
} curve;

INLINE curve curve_of(const ep_curve *how) {
  const int32_t n = how->in_shift, down = n < 0 ? 0 : n > 3 ? 3 : n;
  const int64_t end = (int64_t)1 << (28 + n), half = n > 0 ? (int64_t)1 << (n - 1) : 0, low = -end - half, high = end - half - 1;
  curve c = {.table = how->table, .in_shift = n, .id_shift = how->id_shift, .out = rounding_by(how->out_shift)};
  c.left = how->left && low > INT32_MIN ? ALL : 0;
  c.right = high < INT32_MAX ? ALL : 0;
  c.last = !how->right;
  c.low = _mm512_set1_epi32(low < INT32_MIN ? INT32_MIN : (int32_t)low);
  c.high = _mm512_set1_epi32(high > INT32_MAX ? INT32_MAX : (int32_t)high);
  c.add = _mm512_set1_epi32((int32_t)((1u << (28 + down)) + (down ? 1u << (down - 1) : 0)));
  c.up = _mm_cvtsi32_si128(-n), c.down = _mm_cvtsi32_si128(down), c.before = _mm_cvtsi32_si128(n - 3);
  return c;
}

/* Entries at[k] and at[k] + 1 for each other k: loads one by one, which take less time than a gather. */
INLINE __m512i entries(const int32_t *table, const int32_t *at) {
  __m256i a = _mm256_inserti128_si256(_mm256_castsi128_si256(two(table + at[0], table + at[2])), two(table + at[4], table + at[6]), 1);
  __m256i b = _mm256_inserti128_si256(_mm256_castsi128_si256(two(table + at[8], table + at[10])), two(table + at[12], table + at[14]), 1);
  return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

enum { LOOKUPS = 64 }; /* numbers that are located before the first of them is looked up, so that no load waits for a store */

/* Of LOOKUPS numbers the entry and how far behind it they are, in 2^-18. */
typedef struct places {
  _Alignas(64) int32_t entry[LOOKUPS], behind[LOOKUPS];
} places;

INLINE void locate16(places *to, int32_t at, const int32_t *x, const curve *c, __mmask16 there) {
  __m512i v = _mm512_min_epi32(_mm512_max_epi32(some(x, there), c->low), c->high);
  if (c->in_shift > 3) v = _mm512_sra_epi32(v, c->before);
  if (c->in_shift < 0) v = _mm512_sll_epi32(v, c->up);
  v = _mm512_srl_epi32(_mm512_add_epi32(v, c->add), c->down);
  store(to->entry + at, _mm512_srli_epi32(v, 18));
  store(to->behind + at, _mm512_and_si512(v, _mm512_set1_epi32((1 << 18) - 1)));
}

/* T[i] * (2^18 - f) + T[i + 1] * f, what ep_curve_at computes. */
INLINE int curve16(int32_t *y, const int32_t *x, const places *of, int32_t at, const curve *c, __mmask16 there) {
  const __m512i step = _mm512_set1_epi64(1 << 18);
  const int32_t *entry = of->entry + at;
  __m512i f = load(of->behind + at), even = entries(c->table, entry), uneven = entries(c->table, entry + 1), vx = some(x, there), out;
  even = _mm512_add_epi64(_mm512_mul_epi32(even, _mm512_sub_epi64(step, f)), _mm512_mul_epi32(odd(even), f));
  f = odd(f);
  uneven = _mm512_add_epi64(_mm512_mul_epi32(uneven, _mm512_sub_epi64(step, f)), _mm512_mul_epi32(odd(uneven), f));
  if (!settled(&out, lifted(even, &c->out), lifted(uneven, &c->out))) return 0;
  __mmask16 left = _mm512_mask_cmplt_epi32_mask(c->left, vx, c->low), right = _mm512_mask_cmpgt_epi32_mask(c->right, vx, c->high);
  if (left | right) {
    if (c->id_shift < 0 || c->id_shift > 31 || (right && c->last)) return 0;
    out = _mm512_mask_mov_epi32(out, left | right, shift_round(vx, c->id_shift));
  }
  _mm512_mask_storeu_epi32(y, there, out);
  return 1;
}

AVX512 static void act(int32_t *y, const int32_t *x, const ep_curve *how, int32_t n, uint64_t *count) {
  const int fits = how->in_shift >= -28 && how->in_shift <= 31 && how->out_shift >= 1 && how->out_shift <= 63;
  curve c = {0};
  if (fits) c = curve_of(how);
  for (int32_t part; n > 0; n -= part, x += part, y += part) {
    places of;
    part = n < LOOKUPS ? n : LOOKUPS;
    for (int32_t i = 0; i < part && fits; i += 16) locate16(&of, i, x + i, &c, (__mmask16)first((size_t)(part - i)));
    KEEP_MEMORY(of);
    EACH(part, fits && curve16(y + i, x + i, &of, i, &c, there), y[i] = ep_sat32_count(ep_act_at(how, x[i]), count))
  }
}

/* ---- NORM ------------------------------------------------------------------------------------------------------- */

/* The largest |c_i|: c grows with x. */
INLINE uint64_t largest_of(const ep_norm *how, const int32_t *x, int64_t sum) {
  __m512i least = _mm512_set1_epi32(x[0]), most = least;
  for (int32_t i = 0; i < how->d; i += 16) {
    __mmask16 there = (__mmask16)first((size_t)(how->d - i));
    least = _mm512_mask_min_epi32(least, there, least, some(x + i, there));
    most = _mm512_mask_max_epi32(most, there, most, some(x + i, there));
  }
  uint64_t low = ep_abs(ep_centered(how, _mm512_reduce_min_epi32(least), sum)), high = ep_abs(ep_centered(how, _mm512_reduce_max_epi32(most), sum));
  return low > high ? low : high;
}

/* rshift_round(c, pre) of sixteen, at most 2^30. */
INLINE __m512i centered(const ep_norm *how, const int32_t *x, int64_t sum, int32_t pre, __mmask16 there) {
  const __m512i d = _mm512_set1_epi32(how->d), less = _mm512_set1_epi64(sum);
  const __m128i by = _mm_cvtsi32_si128(pre - 1);
  __m512i v = some(x, there);
  if (!how->center) return shift_round(v, pre);
  __m512i even = _mm512_sub_epi64(_mm512_mul_epi32(v, d), less), uneven = _mm512_sub_epi64(_mm512_mul_epi32(odd(v), d), less);
  if (pre > 0) {
    even = _mm512_sra_epi64(even, by), uneven = _mm512_sra_epi64(uneven, by);
    even = _mm512_sub_epi64(even, _mm512_srai_epi64(even, 1)), uneven = _mm512_sub_epi64(uneven, _mm512_srai_epi64(uneven, 1));
  }
  return _mm512_maskz_mov_epi32(there, joined(even, uneven));
}

/* requant(c * gamma, m, n) + beta for n >= 33: round is by n - 32. */
INLINE int scaled16(int32_t *y, const int32_t *c, const ep_norm *how, int32_t at, __m512i m, const rounding *round, __mmask16 there) {
  __m512i vc = some(c, there), gamma = some(how->gamma + at, there), v;
  __m512i even = _mm512_mul_epi32(vc, gamma), uneven = _mm512_mul_epi32(odd(vc), odd(gamma)); /* then, times m, less its lower 32 bits */
  even = _mm512_add_epi64(_mm512_mul_epi32(odd(even), m), odd(_mm512_mul_epu32(even, m)));
  uneven = _mm512_add_epi64(_mm512_mul_epi32(odd(uneven), m), odd(_mm512_mul_epu32(uneven, m)));
  if (!settled(&v, lifted(even, round), lifted(uneven, round)) || (how->beta && !sums(&v, v, some(how->beta + at, there)))) return 0;
  _mm512_mask_storeu_epi32(y, there, v);
  return 1;
}

/* c * gamma is at most 2^61. */
static int32_t scaled(int32_t c, const ep_norm *how, int32_t at, int32_t m, int32_t n, uint64_t *count) {
  int32_t y = ep_requant((int64_t)c * how->gamma[at], m, n, count);
  return how->beta ? ep_sat32_count((int64_t)y + how->beta[at], count) : y;
}

AVX512 static void norm(int32_t *y, const int32_t *x, const ep_norm *how, uint64_t *count) {
  int32_t d = how->d;
  int64_t sum = 0;
  if (how->center) {
    __m512i total = _mm512_setzero_si512();
    for (int32_t i = 0; i < d; i += 16) {
      __m512i v = some(x + i, (__mmask16)first((size_t)(d - i)));
      total = _mm512_add_epi64(total, _mm512_add_epi64(_mm512_srai_epi64(_mm512_slli_epi64(v, 32), 32), _mm512_srai_epi64(v, 32)));
    }
    sum = _mm512_reduce_add_epi64(total);
  }
  int32_t pre = ep_norm_shift(d, largest_of(how, x, sum));
  __m512i squares = _mm512_setzero_si512();
  for (int32_t i = 0; i < d; i += 16) { /* y holds c for a while */
    __mmask16 there = (__mmask16)first((size_t)(d - i));
    __m512i c = centered(how, x + i, sum, pre, there);
    squares = _mm512_add_epi64(squares, _mm512_add_epi64(_mm512_mul_epi32(c, c), _mm512_mul_epi32(odd(c), odd(c))));
    _mm512_mask_storeu_epi32(y + i, there, c);
  }
  ep_scale r = ep_norm_scale(how, (uint64_t)_mm512_reduce_add_epi64(squares), pre);
  int32_t n = r.e + how->out_shift;
  const __m512i m = _mm512_set1_epi32(r.m);
  const rounding round = rounding_by(n > 32 ? n - 32 : 1);
  EACH(d, n > 32 && scaled16(y + i, y + i, how, i, m, &round, there), y[i] = scaled(y[i], how, i, r.m, n, count))
}

/* ---- ROPE ------------------------------------------------------------------------------------------------------- */

/* Sums of products with cosines and sines are within 2^48: with M = m * 2^21 the upper 52 bits of (sum + 2^51) * M, all without sign, are
 * floor(sum * m / 2^31) + M / 2. */
typedef struct amplitude {
  __m512i m, less_half;
  rounding by; /* n - 31 */
} amplitude;

INLINE __m512i times(__m512i sum, const amplitude *by) {
  sum = _mm512_add_epi64(sum, _mm512_set1_epi64((int64_t)1 << 51));
  return lifted(_mm512_madd52hi_epu64(by->less_half, sum, by->m), &by->by);
}

INLINE int turn16(int32_t *a, int32_t *b, const int16_t *c, const int16_t *s, const amplitude *by, __mmask16 there) {
  __m512i cosine = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(there, c)), sine = _mm512_cvtepi16_epi32(_mm256_maskz_loadu_epi16(there, s));
  __m512i x = some(a, there), y = some(b, there), first, second;
  __m512i odd_x = odd(x), odd_y = odd(y), odd_cosine = odd(cosine), odd_sine = odd(sine);
  __m512i even = _mm512_sub_epi64(_mm512_mul_epi32(x, cosine), _mm512_mul_epi32(y, sine));
  __m512i uneven = _mm512_sub_epi64(_mm512_mul_epi32(odd_x, odd_cosine), _mm512_mul_epi32(odd_y, odd_sine));
  if (!settled(&first, times(even, by), times(uneven, by))) return 0;
  even = _mm512_add_epi64(_mm512_mul_epi32(x, sine), _mm512_mul_epi32(y, cosine));
  uneven = _mm512_add_epi64(_mm512_mul_epi32(odd_x, odd_sine), _mm512_mul_epi32(odd_y, odd_cosine));
  if (!settled(&second, times(even, by), times(uneven, by))) return 0;
  _mm512_mask_storeu_epi32(a, there, first);
  _mm512_mask_storeu_epi32(b, there, second);
  return 1;
}

AVX512 static void turn(int32_t *a, int32_t *b, const int16_t *c, const int16_t *s, int32_t m, int32_t shift, int32_t n, uint64_t *count) {
  const int fits = m >= 0 && shift >= 32;
  const int64_t wide = fits ? (int64_t)m << 21 : 0;
  const amplitude by = {_mm512_set1_epi64(wide), _mm512_set1_epi64(-(wide >> 1)), rounding_by(fits ? shift - 31 : 1)};
  EACH(n, fits && turn16(a + i, b + i, c + i, s + i, &by, there), ep_turn(a + i, b + i, c[i], s[i], m, shift, count))
}

void ep_avx512_elements(ep_kernels *table) {
  table->narrow16 = narrow16;
  table->add = add;
  table->mul = mul;
  table->act = act;
  table->norm = norm;
  table->turn = EP_KERNEL_ANY(EP_FEATURES_ROPE, turn);
}

#endif
