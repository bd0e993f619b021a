/* edgepos-run --image: an image from a file, as the row of numbers that the model gives for it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { MOST_HEADER = 4096 };
#define KINDS "give a binary .ppm or .pgm with samples up to 255, or a .npy of uint8"

typedef struct header {
  uint64_t height, width, channels;
  size_t at; /* where the pixels begin */
} header;

static int is_space(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

/* A whole number of at most 9 digits; 0 and *at as it was if there is none. */
static uint64_t number(const buffer *file, size_t *at) {
  uint64_t value = 0;
  size_t from = *at;
  for (; *at < file->n && *at - from < 9 && file->data[*at] >= '0' && file->data[*at] <= '9'; ++*at)
    value = value * 10 + (uint64_t)(file->data[*at] - '0');
  return value;
}

/* P5 or P6: width, height and the largest sample between white space and comments, then one byte of white space. 0: no such header. */
static int read_portable(const buffer *file, header *found) {
  uint64_t numbers[3];
  size_t at = 2;
  for (int i = 0; i < 3; i++) {
    while (at < file->n && (is_space(file->data[at]) || file->data[at] == '#'))
      if (file->data[at] == '#')
        while (at < file->n && file->data[at] != '\n') at++;
      else
        at++;
    numbers[i] = number(file, &at);
    if (!numbers[i]) return 0;
  }
  *found = (header){numbers[1], numbers[0], file->data[1] == '6' ? 3 : 1, at + 1};
  return numbers[2] == 255 && at < file->n && is_space(file->data[at]);
}

/* Where `text` begins in the n bytes at data, or n. */
static size_t find(const char *data, size_t n, const char *text) {
  size_t length = strlen(text);
  for (size_t i = 0; i + length <= n; i++)
    if (!memcmp(data + i, text, length)) return i;
  return n;
}

/* A .npy file of uint8 [height, width] or [height, width, channels], rows first. 0: no such header. */
static int read_npy(const buffer *file, header *found) {
  const uint8_t *b = (const uint8_t *)file->data;
  if (file->n < 12 || b[6] < 1 || b[6] > 2) return 0;
  size_t begin = b[6] == 1 ? 10 : 12, size = (size_t)b[8] | (size_t)b[9] << 8;
  if (b[6] == 2) size |= (size_t)b[10] << 16 | (size_t)b[11] << 24;
  if (size > MOST_HEADER || size > file->n - begin) return 0;
  const char *text = file->data + begin;
  if (find(text, size, "'|u1'") == size || find(text, size, "'fortran_order': False") == size) return 0;
  size_t at = begin + find(text, size, "'shape': (");
  if (at == begin + size) return 0;
  at += strlen("'shape': (");
  uint64_t sizes[3] = {0, 0, 1};
  int n = 0;
  for (; n < 3 && (sizes[n] = number(file, &at)) > 0; n++)
    while (at < begin + size && (file->data[at] == ',' || file->data[at] == ' ')) at++;
  if (n < 2 || at >= begin + size || file->data[at] != ')') return 0;
  *found = (header){sizes[0], sizes[1], n == 3 ? sizes[2] : 1, begin + size};
  return 1;
}

void embed_image(const options *o, const ep_model *model, const ep_info *info, const ep_config *cfg) {
  if (!info->channels) stop(EXIT_ERROR, "this model reads tokens, not an image: use it without --image");
  size_t needed = (size_t)info->channels * (size_t)info->height * (size_t)info->width, size;
  buffer file = read_file(o->image, needed + MOST_HEADER + 16);
  header found;
  int known = file.n > 2 && file.data[0] == 'P' && (file.data[1] == '5' || file.data[1] == '6') ? read_portable(&file, &found)
              : file.n > 6 && !memcmp(file.data, "\x93NUMPY", 6)                                 ? read_npy(&file, &found)
                                                                                                   : 0;
  if (!known) stop(EXIT_ERROR, "%s: no image that is understood: " KINDS, o->image);
  if (found.height != (uint64_t)info->height || found.width != (uint64_t)info->width || found.channels != (uint64_t)info->channels)
    stop(EXIT_ERROR, "%s: %" PRIu64 " x %" PRIu64 " pixels of %" PRIu64 " channels, the model reads %" PRId32 " x %" PRId32 " of %" PRId32 " (height x width): scale it",
         o->image, found.height, found.width, found.channels, info->height, info->width, info->channels);
  if (file.n < found.at || file.n - found.at < needed) stop(EXIT_ERROR, "%s: the file ends before its last pixel", o->image);
  void *arena;
  ep_session *session = open_session(model, cfg, &arena, &size);
  int32_t *row = allocate((uint64_t)info->embedding * sizeof *row), best = 0;
  uint64_t digest = EP_DIGEST_INIT, start = microseconds();
  check(ep_eval_image(session, (const uint8_t *)file.data + found.at, needed), "evaluating");
  print_row(session, info, row, &digest);
  if (o->digest) print(stdout, "digest 0x%016" PRIx64 "\n", digest);
  flush();
  for (int32_t i = 1; info->classes && i < info->embedding; i++)
    if (row[i] > row[best]) best = i;
  if (info->classes) print(stderr, "class %" PRId32 " has the largest logit\n", best);
  print(stderr, "1 image in %" PRIu64 " ms\n", (microseconds() - start) / 1000);
  report_memory(session, size, info->context);
  free(file.data);
  release(row);
  release(arena);
}
