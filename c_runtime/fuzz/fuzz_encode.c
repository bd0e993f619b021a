/* libFuzzer harness: any bytes are encoded by every kind of tokenizer, in buffers of exactly the size the API asks for. */
#include <stdlib.h>

#include "exercise.h"
#include "image.h"
#include "internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KINDS = 4, BYTE_LEVEL_ALONE = KINDS };

static void open_as(ep_model *model, int32_t kind) {
  shape s = {.kv_bits = 16, .layers = 1, .width = 33, .vocab = 300, .context = 8, .tokenizer = kind < KINDS ? kind + 1 : 1, .seed = 1};
  size_t n;
  uint8_t *image = image_of(&s, &n);
  if (ep_open(model, image, n, NULL) != EP_OK) abort();
  if (kind < KINDS) return;
  ep_program p;
  ep_program_of(&p, model);
  int32_t *header = (int32_t *)(void *)(image + ((const uint8_t *)p.header - image));
  header[EP_H_TOKENIZER] = 1;
  header[EP_H_PRETOKENIZER] = 4;
  if (ep_open(model, image, n, NULL) != EP_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static ep_model models[KINDS + 1];
  static int ready;
  if (!ready) {
    for (int32_t kind = 0; kind <= BYTE_LEVEL_ALONE; kind++) open_as(&models[kind], kind);
    ready = 1;
  }
  for (int kind = 0; kind <= BYTE_LEVEL_ALONE; kind++) exercise_text(&models[kind], (const char *)data, size);
  if (size && ep_utf8_pending((const char *)data, size) > 3) abort();
  return 0;
}
