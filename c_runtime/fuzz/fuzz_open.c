/* libFuzzer harness: any bytes are opened; what is accepted and small is run.
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Isrc -Itests fuzz/fuzz_open.c src/[a-z]*.c src/kernels/[a-z]*.c -o fuzz_open
 *   ./make_seeds corpus && ./fuzz_open corpus */
#include <string.h>

#include "exercise.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size > 1 << 20) return 0;
  uint8_t *image = (uint8_t *)aligned_alloc(EP_ALIGN, (size + EP_ALIGN) / EP_ALIGN * EP_ALIGN);
  if (!image) return 0;
  memcpy(image, data, size);
  exercise(image, size);
  free(image);
  return 0;
}
