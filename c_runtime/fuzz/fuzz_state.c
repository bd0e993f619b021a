/* libFuzzer harness: any bytes, and a saved state with any bytes changed, are restored. What is accepted is what saving gives again, and
 * evaluation goes on behind it; what is refused leaves the session as it was. */
#include <stdlib.h>
#include <string.h>

#include "edgepos.h"
#include "image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { TOKENS = 5, MODELS = 2, VOCAB = 24 };

typedef struct subject {
  ep_session *session;
  uint8_t *saved;
  size_t bytes;
} subject;

static void *room(size_t n) {
  void *memory = aligned_alloc(EP_ALIGN, (n / EP_ALIGN + 1) * EP_ALIGN);
  if (!memory) abort();
  return memory;
}

static void make(subject *s, int32_t kv_bits) {
  static ep_model models[MODELS];
  ep_model *model = &models[kv_bits == 16];
  shape form = {.kv_bits = kv_bits, .layers = 2, .width = 33, .vocab = VOCAB, .context = 8, .seed = 1};
  ep_config cfg = {.n_batch = 1};
  size_t n;
  uint8_t *image = image_of(&form, &n);
  if (ep_open(model, image, n, NULL) != EP_OK || ep_arena_size(model, &cfg, &n) != EP_OK) abort();
  if (ep_session_init(&s->session, model, &cfg, room(n), n) != EP_OK) abort();
  for (int32_t token = 0; token < TOKENS; token++)
    if (ep_eval(s->session, &token, NULL, 1, NULL) != EP_OK) abort();
  s->bytes = ep_state_size(s->session);
  s->saved = room(s->bytes);
  if (ep_state_save(s->session, s->saved, s->bytes) != EP_OK) abort();
}

static void restore(subject *s, const uint8_t *state, size_t n) {
  if (ep_state_restore(s->session, s->saved, s->bytes) != EP_OK) abort();
  int accepted = ep_state_restore(s->session, state, n) == EP_OK;
  size_t size = ep_state_size(s->session);
  uint8_t *again = room(size);
  if (ep_state_save(s->session, again, size) != EP_OK) abort();
  if (size != (accepted ? n : s->bytes) || memcmp(again, accepted ? state : s->saved, size)) abort();
  free(again);
  int32_t token = 1, next;
  if (accepted && ep_length(s->session) && ep_argmax(s->session, &next) == EP_OK && (next < 0 || next >= VOCAB)) abort();
  if (accepted) (void)ep_eval(s->session, &token, NULL, 1, NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static subject subjects[MODELS];
  if (!subjects[0].session)
    for (int32_t i = 0; i < MODELS; i++) make(&subjects[i], i ? 16 : 8);
  if (size < 1) return 0;
  subject *s = &subjects[data[0] & 1];
  if (data[0] & 2) {
    uint8_t *exact = room(size);
    memcpy(exact, data + 1, size - 1);
    restore(s, exact, size - 1);
    free(exact);
    return 0;
  }
  uint8_t *state = room(s->bytes);
  memcpy(state, s->saved, s->bytes);
  for (size_t at = 1; at + 3 <= size; at += 3) state[(size_t)(data[at] | data[at + 1] << 8) % s->bytes] = data[at + 2];
  restore(s, state, data[0] & 4 && size > 1 ? s->bytes - data[1] % s->bytes : s->bytes);
  free(state);
  return 0;
}
