/* Equal logits: the lowest index wins, however the vocabulary is cut into lanes. */
#include "edgepos.h"
#include "image.h"

static void backwards(void *pool, ep_task fn, void *arg, int32_t n) {
  (void)pool;
  for (int32_t i = n - 1; i >= 0; i--) fn(arg, i);
}

/* Logits of 0 up to row `first`, then all equal to the token's own: with first = 0, all rows alike. */
static void test_ties(int32_t first, int32_t threads) {
  shape s = {.kv_bits = 16, .grouped = 1, .layers = 1, .width = 44, .vocab = 2100, .context = 8, .seed = 5};
  builder *b = (builder *)malloc(sizeof *b);
  build(b, &s);
  const int32_t *head = b->ops[b->n_ops - 1];
  for (int i = EP_O_T0; i <= EP_O_T2; i++) { /* the same row everywhere, zeros before the first */
    tensor *t = &b->tensors[head[i]];
    size_t row = data_bytes(t) / (size_t)t->rows;
    uint8_t *data = (uint8_t *)t->data;
    for (int32_t r = 1; r < s.vocab; r++) memcpy(data + (size_t)r * row, data, row);
    if (i == EP_O_T0) memset(data, 0, (size_t)first * row);
  }
  size_t size, bytes;
  uint8_t *image = finish(b, &size);
  ep_model model;
  ep_session *session = NULL;
  ep_config cfg = {.threads = threads, .parallel = backwards};
  CHECK(ep_open(&model, image, size, NULL) == EP_OK);
  void *arena = arena_for(&model, &cfg, &bytes);
  CHECK(ep_session_init(&session, &model, &cfg, arena, bytes) == EP_OK);
  int32_t *logits = (int32_t *)malloc(sizeof *logits * (size_t)s.vocab), token = 3, got = -1;
  CHECK(ep_eval(session, &token, NULL, 1, NULL) == EP_OK && ep_logits(session, logits) == EP_OK);
  int32_t last = logits[s.vocab - 1], want = last > 0 ? first : 0;
  CHECK(last != 0);
  for (int32_t r = 0; r < s.vocab; r++) CHECK(logits[r] == (r < first ? 0 : last));
  CHECK(ep_argmax(session, &got) == EP_OK && got == want);
  const ep_sampling greedy = {0, 0, 65536};
  CHECK(ep_sample(logits, s.vocab, 16, &greedy, NULL, NULL, &got) == EP_OK && got == want);
  free(logits);
  free(arena);
  free(image);
  discard(b);
  free(b);
}

int main(void) {
  static const int32_t firsts[] = {0, 1, 255, 256, 700, 1500, 2099};
  for (int32_t threads = 0; threads <= 6; threads++)
    for (size_t i = 0; i < sizeof firsts / sizeof *firsts; i++) test_ties(firsts[i], threads);
  return failures != 0;
}
