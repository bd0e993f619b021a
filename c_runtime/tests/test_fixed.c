/* The primitives against slow references that share nothing with them: 320-bit integers, bit by bit. */
#include "fixed.h"
#include <string.h>

#include "check.h"
#include "edgepos.h"

/* ---- big integers: two's complement, little-endian limbs ---- */

enum { LIMBS = 10, BITS = 32 * LIMBS };
typedef struct big {
  uint32_t w[LIMBS];
} big;

static big big_of(int64_t x) {
  big b;
  for (int i = 0; i < LIMBS; i++) b.w[i] = i == 0 ? (uint32_t)(uint64_t)x : i == 1 ? (uint32_t)((uint64_t)x >> 32) : x < 0 ? ~0u : 0;
  return b;
}

static big big_unsigned(uint64_t x) {
  big b = big_of((int64_t)(x >> 1));
  for (int i = LIMBS - 1; i > 0; i--) b.w[i] = b.w[i] << 1 | b.w[i - 1] >> 31;
  b.w[0] = (uint32_t)x;
  return b;
}

static big big_add(big a, big b) {
  uint64_t carry = 0;
  for (int i = 0; i < LIMBS; i++) {
    carry += (uint64_t)a.w[i] + b.w[i];
    a.w[i] = (uint32_t)carry;
    carry >>= 32;
  }
  return a;
}

static int big_negative(big a) { return a.w[LIMBS - 1] >> 31 != 0; }

static big big_neg(big a) {
  for (int i = 0; i < LIMBS; i++) a.w[i] = ~a.w[i];
  return big_add(a, big_of(1));
}

static big big_double(big a) { return big_add(a, a); }

static big big_half(big a) { /* floor */
  for (int i = 0; i < LIMBS; i++)
    a.w[i] = a.w[i] >> 1 | (i + 1 < LIMBS ? a.w[i + 1] << 31 : a.w[i] & 0x80000000u);
  return a;
}

static big big_shift(big a, int n) { /* a * 2^n, floor */
  for (; n > 0; n--) a = big_double(a);
  for (; n < 0; n++) a = big_half(a);
  return a;
}

static big big_mul(big a, big b) {
  big sum = big_of(0);
  int negative = big_negative(b);
  if (negative) b = big_neg(b);
  for (int i = 0; i < BITS; i++) {
    if (b.w[i / 32] >> (i % 32) & 1) sum = big_add(sum, a);
    a = big_double(a);
  }
  return negative ? big_neg(sum) : sum;
}

static int big_less(big a, big b) { return big_negative(big_add(a, big_neg(b))); }

static int64_t big_clamp(big a, int64_t low, int64_t high) {
  if (big_less(a, big_of(low))) return low;
  if (big_less(big_of(high), a)) return high;
  return (int64_t)((uint64_t)a.w[0] | (uint64_t)a.w[1] << 32);
}

/* floor(a / 2^n + 1/2) = floor((2a + 2^n) / 2^(n+1)); small |n| only. */
static big round_ref(big a, int n) {
  if (n <= 0) return big_shift(a, -n);
  return big_shift(big_add(big_double(a), big_shift(big_of(1), n)), -(n + 1));
}

/* ---- tests ---- */

static void rshift_round_one(int64_t x, int n) {
  int64_t want = big_clamp(round_ref(big_of(x), n), INT64_MIN, INT64_MAX);
  CHECK(ep_rshift_round(x, n) == want);
}

static void test_rshift_round(void) {
  uint64_t r = 1;
  for (int n = -80; n <= 80; n++) {
    int64_t p = (int64_t)1 << (n < 0 ? -n % 31 : n % 31);
    for (int64_t x = -32768; x <= 32767; x++) {
      if (n > 0 && n < 31) { /* exact in 64 bits */
        int64_t top = 2 * x + p, d = 2 * p, q = top / d - (top % d < 0);
        if (ep_rshift_round(x, n) != q) FAIL("rshift_round of 16 bits");
      } else if (x % 257 == 0 || (x > -3 && x < 3)) {
        rshift_round_one(x, n);
      }
    }
    rshift_round_one(INT64_MAX, n);
    rshift_round_one(INT64_MIN, n);
  }
  for (int i = 0; i < 30000; i++) rshift_round_one(draw_edge(&r), (int)(draw(&r) % 160) - 80);
  CHECK(ep_rshift_round(INT64_MIN, 1000) == 0 && ep_rshift_round(5, -1000) == INT64_MAX);
  CHECK(ep_rshift_round(-5, INT32_MIN) == INT64_MIN && ep_rshift_round(0, INT32_MIN) == 0 && ep_rshift_round(-1, INT32_MAX) == 0);
}

static void requant_one(int64_t a, int32_t m, int n) {
  big exact = round_ref(big_mul(big_of(a), big_of(m)), n);
  int64_t want = big_clamp(exact, INT32_MIN, INT32_MAX);
  uint64_t count = 0;
  int counted = big_less(exact, big_of(INT32_MIN)) || big_less(big_of(INT32_MAX), exact);
  CHECK(ep_requant(a, m, n, &count) == want);
  CHECK(count == (uint64_t)counted);
}

static void test_requant(void) {
  static const int64_t a[] = {0, 1, -1, 2, -3, INT32_MAX, INT32_MIN, (int64_t)1 << 32, -((int64_t)1 << 32) - 1, INT64_MAX, INT64_MIN};
  static const int32_t m[] = {0, 1, -1, 3, 1 << 30, INT32_MAX, INT32_MIN};
  uint64_t r = 2;
  for (size_t i = 0; i < sizeof a / sizeof *a; i++)
    for (size_t j = 0; j < sizeof m / sizeof *m; j++)
      for (int n = -100; n <= 130; n++) requant_one(a[i], m[j], n);
  for (int i = 0; i < 60000; i++) requant_one(draw_edge(&r), ep_sat32(draw_edge(&r)), (int)(draw(&r) % 200) - 60);
  for (int i = 0; i < 20000; i++) { /* results next to the clamp */
    int32_t multiplier = (int32_t)(draw(&r) % INT32_MAX) + 1, n = 20 + (int32_t)(draw(&r) % 40);
    int64_t edge = draw(&r) % 2 ? INT32_MAX : INT32_MIN, q = edge * ((int64_t)1 << (n < 32 ? n : 31)) / multiplier;
    requant_one(q + (int64_t)(draw(&r) % 7) - 3, multiplier, n < 32 ? n : 31);
  }
  for (int i = 0; i < 2000000; i++) { /* small enough for 64 bits */
    int64_t x = (int32_t)draw(&r), want;
    int32_t y = (int32_t)draw(&r) >> 2, n = 1 + (int32_t)(draw(&r) % 60);
    uint64_t count = 0;
    want = ep_sat32(((x * y >> (n - 1)) + 1) >> 1);
    if (ep_requant(x, y, n, &count) != want) FAIL("requant of 32 bits");
  }
  uint64_t count = 0;
  CHECK(ep_requant(INT64_MIN, INT32_MIN, 1023, &count) == 0 && count == 0);
  CHECK(ep_requant(1, -1, -1023, &count) == INT32_MIN && count == 1);
  CHECK(ep_requant(0, -1, -1023, &count) == 0 && ep_requant(7, 0, INT32_MIN, &count) == 0 && count == 1);
}

static void test_division(void) {
  uint64_t r = 3;
  for (int i = 0; i < 60000; i++) { /* floor(num/den + 1/2) = q: q*2den <= 2num + den < (q+1)*2den */
    int64_t num = draw_edge(&r), den = draw_edge(&r), q = ep_div_round_half_up(num, den);
    if (den <= 0) den = 1;
    big twice = big_double(big_of(den)), top = big_add(big_double(big_of(num)), big_of(den)), low = big_mul(twice, big_of(q));
    CHECK(!big_less(top, low) && big_less(top, big_add(low, twice)));
  }
  CHECK(ep_div_round_half_up(INT64_MIN, 1) == INT64_MIN && ep_div_round_half_up(INT64_MAX, 1) == INT64_MAX);
  CHECK(ep_div_round_half_up(-5, 2) == -2 && ep_div_round_half_up(5, 2) == 3 && ep_div_round_half_up(-3, 0) == -3);
}

/* |m * a - 2^e| <= 2^(e-30): what "relative error at most 2^-30" means for a reciprocal. */
static int within_2_30(big product, int e, int bits) {
  big error = big_add(product, big_neg(big_shift(big_of(1), e)));
  if (big_negative(error)) error = big_neg(error);
  return !big_less(big_shift(big_of(1), e - bits), error);
}

static void test_roots_and_reciprocals(void) {
  uint64_t r = 4;
  for (int i = 0; i < 20000; i++) {
    uint64_t a = (uint64_t)draw_edge(&r);
    uint32_t root = ep_isqrt64(a);
    CHECK((uint64_t)root * root <= a && (root == UINT32_MAX || a < ((uint64_t)root + 1) * ((uint64_t)root + 1)));
    if (a == 0) a = 1;
    ep_scale s = ep_recip(a), t = ep_rsqrt(a);
    CHECK(s.m >= 1 << 30 && t.m >= 1 << 30);
    CHECK(within_2_30(big_mul(big_unsigned(a), big_of(s.m)), s.e, 30));
    CHECK(within_2_30(big_mul(big_unsigned(a), big_of((int64_t)t.m * t.m)), 2 * t.e, 29)); /* squared: twice the error */
  }
  CHECK(ep_isqrt64(UINT64_MAX) == UINT32_MAX && ep_isqrt64(0) == 0);
  CHECK(ep_recip(0).m == ep_recip(1).m && ep_rsqrt(0).e == ep_rsqrt(1).e);
}

static void test_exp2(void) {
  CHECK(ep_exp2_neg(0, 30) == 1 << 30 && ep_exp2_neg(-9, 30) == 1 << 30 && ep_exp2_neg(INT64_MIN, 15) == 1 << 15);
  CHECK(ep_exp2_neg(32768, 30) == 759250125); /* 2^29.5 */
  CHECK(ep_exp2_neg(16384, 24) == 14107901);  /* 2^23.75 */
  CHECK(ep_exp2_neg((int64_t)40 << 16, 30) == 0 && ep_exp2_neg(INT64_MAX, 30) == 0);
  for (int W = 15; W <= 30; W++) {
    int32_t last = 1 << W;
    for (int64_t r = 0; r <= (int64_t)41 << 16; r += 1 + (W != 30) * 37) {
      int32_t y = ep_exp2_neg(r, W);
      if (y > last || y < 0) FAIL("exp2_neg falls");
      if (r % 65536 == 0) CHECK(y == (int32_t)ep_rshift_round((int64_t)1 << W, (int32_t)(r >> 16)));
      last = y;
    }
  }
}

static void test_sincos(void) {
  static const struct {
    uint64_t phase;
    int32_t cosine, sine; /* within 1 */
  } known[] = {{0, 32767, 0},
               {(uint64_t)1 << 62, 0, 32767},
               {(uint64_t)1 << 63, -32767, 0},
               {(uint64_t)3 << 62, 0, -32767},
               {(uint64_t)1 << 61, 23170, 23170},
               {(uint64_t)5 << 61, -23170, -23170},
               {UINT64_MAX / 12, 28377, 16384},
               {UINT64_MAX / 3, -16384, 28377},
               {UINT64_MAX, 32767, 0}};
  int32_t c, s, c2, s2;
  for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
    ep_sincos_q15(known[i].phase, &c, &s);
    CHECK(abs(c - known[i].cosine) <= 1 && abs(s - known[i].sine) <= 1);
  }
  for (uint64_t p = 0; p < 1 << 20; p++) {
    uint64_t phase = p * (UINT64_MAX >> 20);
    ep_sincos_q15(phase, &c, &s);
    ep_sincos_q15(phase + ((uint64_t)1 << 62), &c2, &s2);
    if (c2 != -s || s2 != c) FAIL("a quarter turn");
    int64_t square = (int64_t)c * c + (int64_t)s * s, error = square - (int64_t)32767 * 32767;
    if (error > 60000 || error < -60000 || abs(c) > 32767 || abs(s) > 32767) FAIL("the unit circle"); /* 2 * 32767 * 0.58 * sqrt(2) */
  }
  CHECK(ep_rope_phase(3, (uint64_t)3 << 62) == (uint64_t)1 << 62);
  CHECK(ep_alibi_bias(1u << 31, 3, 15) == 3 << 16 && ep_alibi_bias(UINT32_MAX, UINT32_MAX, 15) == 1 << 30);
  CHECK(ep_alibi_bias(5, 0, -1000) == 0 && ep_alibi_bias(5, 1, INT32_MIN) == 1 << 30);
}

/* quant8g32 of 40 numbers, a whole group and a part of one. */
static void test_groups(void) {
  uint64_t r = 6;
  int8_t q[64];
  int32_t x[64] = {0}, d[2];
  for (int round = 0; round < 20000; round++) {
    for (int i = 0; i < 40; i++) x[i] = round == 0 ? INT32_MIN : ep_sat32(draw_edge(&r)) >> (round % 32) >> (i < 32 ? 0 : r >> 60);
    int32_t s = ep_quant8g32(q, d, x, 40);
    uint64_t most[2] = {0};
    for (int i = 0; i < 40; i++)
      if (ep_abs(x[i]) > most[i / 32]) most[i / 32] = ep_abs(x[i]);
    uint64_t all = most[0] > most[1] ? most[0] : most[1];
    CHECK(s >= 0 && s <= 17 && all <= (uint64_t)32385 << s && (s == 0 || all > (uint64_t)32385 << (s - 1)));
    for (int g = 0; g < 2; g++) {
      CHECK(d[g] >= 1 && d[g] <= 255 && most[g] <= (uint64_t)(127 * d[g]) << s);
      CHECK(d[g] == 1 || most[g] > (uint64_t)(127 * (d[g] - 1)) << s);
    }
    for (int i = 0; i < 64; i++) CHECK(q[i] == ep_div_round_half_up(x[i], (int64_t)d[i / 32] << s) && q[i] >= -127);
  }
}

static void test_vectors(void) {
  uint64_t r = 5;
  int16_t q[64];
  int8_t q8[64];
  int32_t x[64];
  for (int round = 0; round < 20000; round++) {
    int32_t a = 0, s;
    for (int i = 0; i < 64; i++) x[i] = round == 0 ? INT32_MIN : ep_sat32(draw_edge(&r)) >> round % 32;
    s = ep_narrow16(q, x, 64);
    CHECK(s >= 0 && s <= 17);
    int fits_less = s > 0;
    for (int i = 0; i < 64; i++) {
      CHECK(q[i] == ep_rshift_round(x[i], s) && q[i] >= -32639 && q[i] <= 32639);
      if (s > 0 && ep_rshift_round((int64_t)ep_abs(x[i]), s - 1) > 32639) fits_less = 0;
    }
    CHECK(!fits_less);
    a = ep_quant8(q8, x, 64);
    for (int i = 0; i < 64; i++) CHECK(q8[i] >= -127 && (a == 0 ? q8[i] == 0 : q8[i] == ep_div_round_half_up(127 * (int64_t)x[i], a)));
  }
  test_groups();
  memset(x, 0, sizeof x);
  CHECK(ep_narrow16(q, x, 64) == 0 && q[63] == 0 && ep_quant8(q8, x, 64) == 0 && q8[63] == 0);
  x[5] = INT32_MIN;
  CHECK(ep_quant8(q8, x, 64) == INT32_MAX && q8[5] == -127 && ep_narrow16(q, x, 64) == 17 && q[5] == -16384);
  x[5] = 32639;
  CHECK(ep_narrow16(q, x, 64) == 0);
  x[5] = -32640;
  CHECK(ep_narrow16(q, x, 64) == 1 && q[5] == -16320);
}

static void test_digest(void) {
  int32_t foob;
  memcpy(&foob, "foob", 4);
  CHECK(ep_digest(EP_DIGEST_INIT, &foob, 0) == 0xcbf29ce484222325u);
  CHECK(ep_digest(EP_DIGEST_INIT, &foob, 1) == 0xdd120e790c2512afu); /* from the FNV test suite */
}

int main(void) {
  test_rshift_round();
  test_requant();
  test_division();
  test_roots_and_reciprocals();
  test_exp2();
  test_sincos();
  test_vectors();
  test_digest();
  return failures != 0;
}
