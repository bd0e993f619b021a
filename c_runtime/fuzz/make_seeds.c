/* Writes a few small images as a seed corpus: make_seeds DIRECTORY (which must exist). */
#include "image.h"

int main(int argc, char **argv) {
  if (argc != 2) return fprintf(stderr, "usage: make_seeds DIRECTORY\n"), 1;
  for (int32_t i = 0; i < 18; i++) {
    shape s = {.kv_bits = i & 1 ? 16 : 8, .grouped = i >> 1 & 1, .extreme = i >> 2 & 1, .layers = 1 + (i & 1), .width = 33,
               .vocab = 24, .context = 8, .tokenizer = i == 3 ? 0 : 1 + i % 4, .more = i >> 3, .in_groups = i & 1, .bidirectional = i == 9, .table = i == 10 || i == 11 ? i - 1 : 0,
               .embedding = i >= 16 ? 1 : i >= 14 ? i - 9 : i >= 12 ? i - 11 : 0, .seed = (uint64_t)i};
    if (i >= 16) of_image(&s);
    char path[4096];
    size_t n;
    uint8_t *image = image_of(&s, &n);
    snprintf(path, sizeof path, "%s/seed%d", argv[1], (int)i);
    FILE *f = fopen(path, "wb");
    if (!f || fwrite(image, 1, n, f) != n || fclose(f)) return perror(path), 1;
    free(image);
  }
  return 0;
}
