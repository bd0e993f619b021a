/* Choice of the next token: repetition penalty, PCG32, temperature, top-k, top-p. */
#include "fixed.h"
#include "internal.h"

uint32_t ep_rng_next(ep_rng *rng) {
  uint64_t old = rng->state;
  rng->state = old * 6364136223846793005u + 1442695040888963407u;
  uint32_t x = (uint32_t)(((old >> 18) ^ old) >> 27), rot = (uint32_t)(old >> 59);
  return x >> rot | x << (-rot & 31);
}

void ep_rng_seed(ep_rng *rng, uint64_t seed) {
  rng->state = 0;
  ep_rng_next(rng);
  rng->state += seed;
  ep_rng_next(rng);
}

/* floor(next * total / 2^32), total < 2^48: moves little when the total does, so that almost equal models choose alike. */
static uint64_t draw(ep_rng *rng, uint64_t total) {
  uint64_t r = ep_rng_next(rng);
  return r * (total >> 32) + (r * (total & 0xffffffffu) >> 32);
}

/* Logits and how they become weights. */
typedef struct choice {
  const int32_t *logits;
  int32_t best;     /* largest logit */
  int32_t m, shift; /* distance to it * m * 2^-shift: log2 units, 16 fractional bits */
} choice;

static uint64_t weight(const choice *c, int32_t i) {
  uint64_t saturated = 0;
  int64_t r = ep_requant((int64_t)c->logits[i] - c->best, c->m, c->shift, &saturated);
  return (uint64_t)ep_exp2_neg(-r, 24);
}

/* Does a come before b: logit descending, then index ascending. */
static int before(const choice *c, uint32_t a, uint32_t b) {
  return c->logits[a] != c->logits[b] ? c->logits[a] > c->logits[b] : a < b;
}

static void sift(const choice *c, uint32_t *heap, uint32_t i, uint32_t n) {
  uint32_t x = heap[i];
  for (;;) {
    uint32_t child = 2 * i + 1;
    if (child >= n) break;
    if (child + 1 < n && before(c, heap[child + 1], heap[child])) child++;
    if (!before(c, heap[child], x)) break;
    heap[i] = heap[child];
    i = child;
  }
  heap[i] = x;
}

/* The shortest prefix of the order that top_k and top_p keep; returns its last token. A heap gives the order as far as it
 * is needed: popped tokens gather at the end of the array, the first one last. */
static uint32_t last_kept(const choice *c, uint32_t n, uint32_t top_k, uint32_t top_p, uint32_t *heap) {
  uint32_t left = n, last = 0;
  uint64_t total = 0, sum = 0;
  for (uint32_t i = 0; i < n; i++) heap[i] = i;
  for (uint32_t i = n / 2; i > 0; i--) sift(c, heap, i - 1, n);
  if (top_k == n) {
    for (uint32_t i = 0; i < n; i++) total += weight(c, (int32_t)i);
  } else {
    for (uint32_t k = 0; k < top_k; k++) {
      uint32_t top = heap[0];
      total += weight(c, (int32_t)top);
      heap[0] = heap[--left];
      heap[left] = top;
      sift(c, heap, 0, left);
    }
  }
  uint64_t need = (total >> 16) * top_p + (((total & 65535) * top_p + 65535) >> 16);
  if (need == 0) need = 1;
  for (uint32_t k = 0; sum < need; k++) {
    if (top_k == n) {
      last = heap[0];
      heap[0] = heap[--left];
      if (left) sift(c, heap, 0, left);
    } else {
      last = heap[n - 1 - k];
    }
    sum += weight(c, (int32_t)last);
  }
  return last;
}

ep_status ep_penalize(int32_t *logits, int32_t vocab, uint32_t penalty, const int32_t *tokens, size_t n, uint32_t *scratch) {
  if (!logits || vocab < 1 || vocab > 1 << 24 || penalty < 65536 || (n && (!tokens || !scratch))) return EP_ERR_ARGUMENT;
  for (size_t i = 0; i < n; i++)
    if (tokens[i] < 0 || tokens[i] >= vocab) return EP_ERR_TOKEN;
  if (n == 0) return EP_OK;
  memset(scratch, 0, ((size_t)vocab + 31) / 32 * sizeof *scratch); /* one bit per token: each is penalized once */
  for (size_t i = 0; i < n; i++) {
    uint32_t t = (uint32_t)tokens[i], bit = (uint32_t)1 << (t & 31);
    int64_t l = logits[t];
    if (scratch[t >> 5] & bit) continue;
    scratch[t >> 5] |= bit;
    logits[t] = l > 0 ? (int32_t)ep_div_round_half_up(l * 65536, penalty) : ep_sat32(ep_rshift_round(l * (int64_t)penalty, 16));
  }
  return EP_OK;
}

static int32_t greedy(const int32_t *logits, int32_t n) {
  int32_t best = 0;
  for (int32_t i = 1; i < n; i++)
    if (logits[i] > logits[best]) best = i;
  return best;
}

static choice prepare(const int32_t *logits, int32_t best, int32_t f, uint32_t temperature) {
  int64_t m = ep_div_round_half_up((int64_t)1549082005 << 16, temperature); /* log2(e) / T, 30 fractional bits */
  int32_t k = ep_bitlen((uint64_t)m) - 31;
  if (k < 0) k = 0;
  return (choice){logits, best, ep_sat32(ep_rshift_round(m, k)), 30 + f - 16 - k};
}

ep_status ep_sample(const int32_t *logits, int32_t vocab, int32_t f, const ep_sampling *how, ep_rng *rng, uint32_t *scratch,
                    int32_t *token) {
  if (!logits || !how || !token || vocab < 1 || vocab > 1 << 24 || f < -16 || f > 30) return EP_ERR_ARGUMENT;
  if (how->top_k < 0 || how->top_p > 65536) return EP_ERR_ARGUMENT;
  int32_t best = greedy(logits, vocab);
  if (how->temperature == 0) {
    *token = best;
    return EP_OK;
  }
  if (!rng || !scratch) return EP_ERR_ARGUMENT;
  choice c = prepare(logits, logits[best], f, how->temperature);
  uint32_t n = (uint32_t)vocab, top_k = how->top_k && how->top_k < vocab ? (uint32_t)how->top_k : n, last = 0;
  int all = top_k == n && how->top_p == 65536; /* dropping tokens without weight changes nothing */
  if (!all) last = last_kept(&c, n, top_k, how->top_p, scratch);
  uint64_t total = 0, sum = 0;
  for (uint32_t i = 0; i < n; i++)
    if (all || i == last || before(&c, i, last)) total += weight(&c, (int32_t)i);
  uint64_t u = draw(rng, total);
  for (uint32_t i = 0; i < n; i++) {
    if (!all && i != last && !before(&c, i, last)) continue;
    sum += weight(&c, (int32_t)i);
    if (sum > u) {
      *token = (int32_t)i;
      break;
    }
  }
  return EP_OK;
}
