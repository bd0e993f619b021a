/* libFuzzer harness: any bytes are opened; what is accepted and small is run.
 *   clang -g -O1 -fsanitize=fuzzer,address,undefined -Iinclude -Isrc -Itests fuzz/fuzz_open.c src/[a-z]*.c src/kernels/[a-z]*.c -o fuzz_open
 *   ./make_seeds corpus && ./fuzz_open corpus */
#include <string.h>

#include "exercise.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t max);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed);

/* Most bytes of an image are weights, of which any will do: every other change is one word of keys, tensor list or program. */
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max, unsigned int seed) {
  static const uint32_t words[] = {0, 1, 0xffffffff, 0x7fffffff, 0x80000000, 0x10000, 63, 64, 1023, 0xfffffc00};
  enum { STRUCTURE = 12288 };
  size_t end = (size < STRUCTURE ? size : STRUCTURE) / 4, at = end ? (seed >> 5) % end * 4 : 0;
  uint32_t word;
  if (seed & 1 || !end) return LLVMFuzzerMutate(data, size, max);
  memcpy(&word, data + at, 4);
  if (seed & 2) word += seed & 4 ? 1 : 0xffffffff;
  else if (seed & 4) word = words[(seed >> 16) % (sizeof words / sizeof *words)];
  else word = (seed >> 16) % 64;
  memcpy(data + at, &word, 4);
  return size;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (size > 1 << 20) return 0;
  uint8_t *image = (uint8_t *)aligned_alloc(EP_ALIGN, (size + EP_ALIGN) / EP_ALIGN * EP_ALIGN);
  if (!image) return 0;
  memcpy(image, data, size);
  exercise(image, size);
  free(image);
  return 0;
}
