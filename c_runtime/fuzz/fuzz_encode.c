/* libFuzzer harness: any bytes are encoded by both kinds of tokenizer, in buffers of exactly the size the API asks for. */
#include <stdlib.h>

#include "image.h"
#include "internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void open_as(ep_model *model, int32_t kind) {
  shape s = {.kv_bits = 16, .layers = 1, .width = 33, .vocab = 300, .context = 8, .tokenizer = 1, .seed = 1};
  size_t n;
  uint8_t *image = image_of(&s, &n);
  if (ep_open(model, image, n, NULL) != EP_OK) abort();
  ep_program p;
  ep_program_of(&p, model);
  int32_t *header = (int32_t *)(void *)(image + ((const uint8_t *)p.header - image));
  header[EP_H_TOKENIZER] = kind;
  header[EP_H_PRETOKENIZER] = kind == 1;
  if (ep_open(model, image, n, NULL) != EP_OK) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static ep_model models[2];
  static int ready;
  if (!ready) {
    open_as(&models[0], 1);
    open_as(&models[1], 2);
    ready = 1;
  }
  const char *bytes;
  for (int kind = 0; kind < 2; kind++) {
    const ep_model *model = &models[kind];
    size_t max = size + 1, n, less, length;
    int32_t *ids = malloc(max * sizeof *ids), *scratch = malloc(4 * (size + 2) * sizeof *scratch);
    if (!ids || !scratch) abort();
    if (ep_encode(model, (const char *)data, size, 0, ids, max, scratch, &n) != EP_OK || n > max) abort();
    if (n > 0 && (ep_encode(model, (const char *)data, size, 0, ids, n - 1, scratch, &less) != EP_ERR_BUFFER || less != n)) abort();
    for (size_t i = 0; i + 1 < n; i++) {
      if (ep_token_bytes(model, i ? ids[i - 1] : -1, ids[i], &bytes, &length) != EP_OK) abort();
      if (length && ep_utf8_pending(bytes, length) > 3) abort();
    }
    free(scratch);
    free(ids);
  }
  if (size && ep_utf8_pending((const char *)data, size) > 3) abort();
  return 0;
}
