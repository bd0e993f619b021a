/* Sampling against a reference that sorts everything. */
#include "check.h"
#include "edgepos.h"
#include "fixed.h"

enum { MOST = 700 };

static const int32_t *sorted_logits;

static int by_logit(const void *a, const void *b) {
  int32_t i = *(const int32_t *)a, j = *(const int32_t *)b;
  if (sorted_logits[i] != sorted_logits[j]) return sorted_logits[i] > sorted_logits[j] ? -1 : 1;
  return i < j ? -1 : 1;
}

static int32_t reference(const int32_t *logits, int32_t n, int32_t f, const ep_sampling *how, ep_rng *rng) {
  int32_t order[MOST], kept = how->top_k > 0 && how->top_k < n ? how->top_k : n;
  uint64_t w[MOST], total = 0, sum = 0, need, unused = 0;
  char keep[MOST] = {0};
  for (int32_t i = 0; i < n; i++) order[i] = i;
  sorted_logits = logits;
  qsort(order, (size_t)n, sizeof *order, by_logit);
  if (how->temperature == 0) return order[0];
  int64_t m = ep_div_round_half_up((int64_t)1549082005 * 65536, how->temperature);
  int32_t k = ep_bitlen((uint64_t)m) > 31 ? ep_bitlen((uint64_t)m) - 31 : 0;
  m = ep_rshift_round(m, k);
  if (m > INT32_MAX) m = INT32_MAX;
  for (int32_t i = 0; i < n; i++)
    w[i] = (uint64_t)ep_exp2_neg(-(int64_t)ep_requant((int64_t)logits[i] - logits[order[0]], (int32_t)m, 30 + f - 16 - k, &unused), 24);
  for (int32_t i = 0; i < kept; i++) total += w[order[i]];
  need = (total * how->top_p + 65535) / 65536;
  if (need < 1) need = 1;
  int32_t end = 0;
  while (end < kept && sum < need) sum += w[order[end++]];
  for (int32_t i = 0; i < end; i++) keep[order[i]] = 1;
  uint64_t u = 0, running = 0;
  uint32_t r = ep_rng_next(rng);
  for (int bit = 0; bit < 32; bit++) u = (u + (r >> bit & 1 ? sum : 0)) >> 1; /* floor(r * sum / 2^32) */
  for (int32_t i = 0; i < n; i++) {
    if (!keep[i]) continue;
    running += w[i];
    if (running > u) return i;
  }
  return -1;
}

static void test_sampling(void) {
  uint64_t random = 9;
  int32_t logits[MOST];
  uint32_t scratch[MOST];
  static const uint32_t temperatures[] = {65536, 0, 52429, 1, 200000, UINT32_MAX, 6554};
  static const uint32_t top_ps[] = {65536, 0, 62259, 1, 32768, 65535};
  for (int round = 0; round < 30000; round++) {
    int32_t n = 1 + (int32_t)(draw(&random) % (round % 10 ? 40 : MOST)), f = (int32_t)(draw(&random) % 47) - 16, token = -1;
    ep_sampling how = {temperatures[draw(&random) % 7], round % 3 ? (int32_t)(draw(&random) % 50) : 0, top_ps[draw(&random) % 6]};
    ep_rng a, b;
    for (int32_t i = 0; i < n; i++)
      logits[i] = round % 4 == 0 ? ep_sat32(draw_edge(&random)) : (int32_t)(draw(&random) % 9) * (1 << (f < 0 ? 0 : f > 27 ? 27 : f));
    ep_rng_seed(&a, (uint64_t)round);
    b = a;
    CHECK(ep_sample(logits, n, f, &how, &a, scratch, &token) == EP_OK);
    CHECK(token == reference(logits, n, f, &how, &b) && a.state == b.state);
  }
}

static void test_arguments(void) {
  int32_t logits[3] = {5, 7, 7}, token;
  uint32_t scratch[3];
  ep_rng rng;
  ep_rng_seed(&rng, 42);
  ep_sampling greedy = {0, 0, 65536}, how = {65536, 0, 65536}, bad_k = {65536, -1, 65536}, bad_p = {65536, 0, 65537};
  CHECK(ep_sample(logits, 3, 0, &greedy, NULL, NULL, &token) == EP_OK && token == 1);
  CHECK(ep_sample(logits, 3, 0, &how, NULL, scratch, &token) == EP_ERR_ARGUMENT);
  CHECK(ep_sample(logits, 3, 0, &how, &rng, NULL, &token) == EP_ERR_ARGUMENT);
  CHECK(ep_sample(logits, 0, 0, &how, &rng, scratch, &token) == EP_ERR_ARGUMENT);
  CHECK(ep_sample(logits, 3, 31, &how, &rng, scratch, &token) == EP_ERR_ARGUMENT);
  CHECK(ep_sample(logits, 3, 0, &bad_k, &rng, scratch, &token) == EP_ERR_ARGUMENT);
  CHECK(ep_sample(logits, 3, 0, &bad_p, &rng, scratch, &token) == EP_ERR_ARGUMENT);
  CHECK(ep_sample(NULL, 3, 0, &how, &rng, scratch, &token) == EP_ERR_ARGUMENT);
}

/* The generator of the PCG paper (XSH-RR 64/32) with its constants, written out step by step. */
static void test_generator(void) {
  ep_rng rng;
  uint64_t state = 0;
  ep_rng_seed(&rng, 42);
  for (int i = 0; i < 2; i++) {
    if (i == 1) state += 42;
    state = state * 6364136223846793005u + 1442695040888963407u;
  }
  for (int i = 0; i < 1000; i++) {
    uint32_t x = (uint32_t)((state ^ state >> 18) >> 27);
    for (uint64_t k = state >> 59; k; k--) x = x >> 1 | x << 31;
    CHECK(ep_rng_next(&rng) == x);
    state = state * 6364136223846793005u + 1442695040888963407u;
  }
}

int main(void) {
  test_sampling();
  test_arguments();
  test_generator();
  return failures != 0;
}
