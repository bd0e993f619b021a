/* Phase increments from theta, correctly rounded: docs/arithmetic.md, rope_increments. Numbers have 64 bits before the point and 192
 * behind it, in two's complement. */
#include "edgepos.h"

#include "constants.h"

enum { WORDS = 8, FRACTION_WORDS = 6, MOST_OCTAVES = 31 };

/* Low words first. */
typedef struct wide {
  uint32_t word[WORDS];
} wide;

/* a += b */
static void add(wide *a, const wide *b) {
  uint64_t carry = 0;
  for (int i = 0; i < WORDS; i++) {
    carry += (uint64_t)a->word[i] + b->word[i];
    a->word[i] = (uint32_t)carry;
    carry >>= 32;
  }
}

/* a -= b: ~(~a + b). */
static void subtract(wide *a, const wide *b) {
  for (int i = 0; i < WORDS; i++) a->word[i] = ~a->word[i];
  add(a, b);
  for (int i = 0; i < WORDS; i++) a->word[i] = ~a->word[i];
}

static int is_negative(const wide *a) { return a->word[WORDS - 1] >> 31 != 0; }

static int is_zero(const wide *a) {
  uint32_t any = 0;
  for (int i = 0; i < WORDS; i++) any |= a->word[i];
  return any == 0;
}

/* floor(a * 2^n) for a >= 0; bits above the 256 are lost. */
static void shift(wide *a, int n) {
  for (; n > 0; n--) add(a, a);
  for (; n < 0; n++)
    for (int i = 0; i < WORDS; i++) a->word[i] = a->word[i] >> 1 | (i + 1 < WORDS ? a->word[i + 1] << 31 : 0);
}

/* a * m for a >= 0 whose product is below 2^63. */
static void times(wide *a, uint32_t m) {
  uint64_t carry = 0;
  for (int i = 0; i < WORDS; i++) {
    carry += (uint64_t)a->word[i] * m;
    a->word[i] = (uint32_t)carry;
    carry >>= 32;
  }
}

/* floor(a / d) for a >= 0. */
static void divide(wide *a, uint32_t d) {
  uint64_t rest = 0;
  for (int i = WORDS; i-- > 0;) {
    rest = rest << 32 | a->word[i];
    a->word[i] = (uint32_t)(rest / d);
    rest %= d;
  }
}

/* a = floor(a * b) for a, b >= 0 whose product is below 2^63. */
static void multiply(wide *a, const wide *b) {
  uint32_t all[2 * WORDS] = {0};
  for (int i = 0; i < WORDS; i++) {
    uint64_t carry = 0;
    for (int j = 0; j < WORDS; j++) {
      carry += (uint64_t)a->word[i] * b->word[j] + all[i + j];
      all[i + j] = (uint32_t)carry;
      carry >>= 32;
    }
    all[i + WORDS] = (uint32_t)carry;
  }
  for (int i = 0; i < WORDS; i++) a->word[i] = all[i + FRACTION_WORDS];
}

/* floor(num / den) for num < den. */
static void quotient(wide *q, uint64_t num, uint64_t den) {
  *q = (wide){{0}};
  for (int bit = 32 * FRACTION_WORDS; bit-- > 0;) {
    int carry = num >> 63 != 0;
    num <<= 1;
    if (carry || num >= den) {
      num -= den;
      q->word[bit / 32] |= (uint32_t)1 << bit % 32;
    }
  }
}

static const wide ln_2 = {EP_LN2}, turn = {EP_TURN};

/* |ln(num / den)| */
static void ln(wide *sum, const ep_ratio *r) {
  uint64_t num = r->num > r->den ? r->num : r->den, den = r->num > r->den ? r->den : r->num;
  uint32_t k = 0;
  for (; den <= num >> 1; k++) den <<= 1;
  wide term, square, part;
  quotient(&term, num - den, num + den);
  square = term;
  multiply(&square, &term);
  *sum = (wide){{0}};
  for (uint32_t odd = 1; !is_zero(&term); odd += 2) {
    part = term;
    divide(&part, odd);
    add(sum, &part);
    multiply(&term, &square);
  }
  add(sum, sum);
  for (; k > 0; k--) add(sum, &ln_2);
}

/* *turns = exp(w) / (2 pi); 0 where exp(w) is 2^32 or more. */
static int turns_of(wide *turns, wide w) {
  int n = 0;
  for (; !is_negative(&w); n++) subtract(&w, &ln_2);
  for (; is_negative(&w); n--) add(&w, &ln_2);
  if (n > MOST_OCTAVES) return 0;
  wide term = {{[FRACTION_WORDS] = 1}};
  *turns = (wide){{0}};
  for (uint32_t j = 1; !is_zero(&term); j++) {
    add(turns, &term);
    multiply(&term, &w);
    divide(&term, j);
  }
  multiply(turns, &turn);
  shift(turns, n);
  return 1;
}

/* floor(turns * 2^64 + 1/2) mod 2^64 if it is the same 2^-148 further up and down. */
static int rounded(const wide *turns, uint64_t *increment) {
  static const wide half = {{[3] = (uint32_t)1 << 31}}, radius = {{[1] = 1 << 12}};
  wide high = *turns, low = *turns;
  add(&high, &half), add(&high, &radius);
  add(&low, &half), subtract(&low, &radius);
  *increment = (uint64_t)high.word[5] << 32 | high.word[4];
  return low.word[4] == high.word[4]; /* they are less than one unit apart */
}

static int is_ratio(const ep_ratio *r) { return r && r->num - 1 < INT64_MAX && r->den - 1 < INT64_MAX; }

ep_status ep_rope_increments(const ep_ratio *theta, const ep_ratio *factor, int32_t denominator, int32_t pairs, uint64_t *increments) {
  static const ep_ratio one = {1, 1};
  if (!factor) factor = &one;
  if (!is_ratio(theta) || !is_ratio(factor) || denominator < 2 || denominator % 2 || pairs < 0 || pairs > denominator / 2 + 1 ||
      (pairs > 0 && !increments))
    return EP_ERR_ARGUMENT;
  wide ln_theta, ln_factor;
  ln(&ln_theta, theta), ln(&ln_factor, factor);
  for (int write = 0; write < 2; write++)
    for (int32_t i = 0; i < pairs; i++) {
      wide part = ln_theta, w = {{0}}, turns;
      times(&part, (uint32_t)i * 2), divide(&part, (uint32_t)denominator);
      (theta->num > theta->den ? subtract : add)(&w, &part);
      (factor->num > factor->den ? subtract : add)(&w, &ln_factor);
      uint64_t increment;
      if (!turns_of(&turns, w)) return EP_ERR_ARGUMENT;
      if (!rounded(&turns, &increment)) return EP_ERR_PRECISION;
      if (write) increments[i] = increment;
    }
  return EP_OK;
}
