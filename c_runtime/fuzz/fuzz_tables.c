/* libFuzzer harness: damage to the tables of every kind of tokenizer and to the chat form, in images that are otherwise whole. An input
 * is one byte that chooses the kind, then changes of five bytes: the table (or the header's words), the place in it (2), how it changes,
 * and by what; after a 0xFF in place of a table, a text to encode. What ep_open accepts must encode, render and decode that text. */
#include <sanitizer/asan_interface.h>
#include <stdlib.h>

#include "exercise.h"
#include "image.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { KINDS = 4, TEXT = 0xFF, CHANGE = 5 };
static const uint8_t tables[] = {EP_H_EOS, EP_H_OFFSETS, EP_H_BYTES, EP_H_TYPES, EP_H_PAIRS, EP_H_BYTE_IDS, EP_H_TRIE, EP_H_ADDED, EP_H_STARTS,
                                 EP_H_SCORES, EP_H_MAP, EP_H_STRINGS, EP_H_CLASSES, EP_H_COMPOSE, EP_H_CHAT_TEXTS, EP_H_CHAT_JOINS};
enum { TABLES = sizeof tables };

/* A near number, a bit, a small number, or one at the end of a range. */
static int32_t changed(int32_t old, uint8_t how, uint8_t by) {
  static const int32_t ends[] = {INT32_MAX, INT32_MIN, 1 << 24, 0x10FFFF << 3, 0xFFFFFF, 0xD800 << 3, 1 << 26, 255};
  switch (how % 4) {
    case 0: return (int32_t)((uint32_t)old + (uint32_t)by - 128);
    case 1: return (int32_t)((uint32_t)old ^ (uint32_t)1 << by % 32);
    case 2: return (int32_t)by - 2;
    default: return ends[by % 8];
  }
}

/* Change one element of a tensor of the image, or one of the header's words of the tokenizer and the chat form. valid: the header before. */
static void change(const ep_program *p, const int32_t *valid, uint8_t *image, const uint8_t *c) {
  size_t at = (size_t)c[1] | (size_t)c[2] << 8;
  int32_t table = c[0] % (TABLES + 1) == TABLES ? -1 : valid[tables[c[0] % (TABLES + 1)]];
  if (table <= 0) {
    int32_t words = EP_H_OUTPUT - EP_H_TOKENIZER + EP_H_CHAT_FLAGS - EP_H_RESERVED, word = EP_H_TOKENIZER + (int32_t)at % words;
    if (word >= EP_H_OUTPUT) word += EP_H_CHAT_TEXTS - EP_H_OUTPUT;
    int32_t *header = (int32_t *)(void *)(image + ((const uint8_t *)p->header - image));
    header[word] = changed(header[word], c[3], c[4]);
    return;
  }
  uint8_t *tensor = image + ((const uint8_t *)ep_data(p, table) - image);
  at %= (size_t)ep_rows(p, table) * (size_t)ep_cols(p, table);
  if (ep_record(p, table)[EP_T_TYPE] == EP_I8)
    tensor[at] = (uint8_t)changed(tensor[at], c[3], c[4]);
  else
    ((int32_t *)(void *)tensor)[at] = changed(((int32_t *)(void *)tensor)[at], c[3], c[4]);
}

/* Poison padding and all tensors but tables, which ep_open reads and nothing after it: what reads behind a table then meets poison. */
static void poison(const ep_program *p) {
  for (int32_t t = 1; t < p->n_tensors; t++) {
    const uint8_t *start = ep_data(p, t);
    size_t size = (size_t)ep_rows(p, t) * (size_t)ep_cols(p, t) << (ep_record(p, t)[EP_T_TYPE] - EP_I8);
    int is_table = 0;
    for (int i = 0; i < TABLES; i++) is_table |= p->header[tables[i]] == t;
    if (!is_table)
      __asan_poison_memory_region(start, size);
    else if (size % EP_ALIGN)
      __asan_poison_memory_region(start + size, EP_ALIGN - size % EP_ALIGN);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  static uint8_t *valid[KINDS], *images[KINDS];
  static size_t sizes[KINDS];
  for (int32_t kind = 0; kind < KINDS && !valid[kind]; kind++) {
    shape s = {.kv_bits = 16, .layers = 1, .width = 33, .vocab = 24, .context = 8, .tokenizer = kind + 1, .seed = 1};
    valid[kind] = image_of(&s, &sizes[kind]);
    images[kind] = aligned_alloc(EP_ALIGN, sizes[kind]);
    if (!images[kind]) abort();
  }
  if (size == 0) return 0;
  uint8_t *image = images[data[0] % KINDS];
  size_t bytes = sizes[data[0] % KINDS], at = 1;
  ep_model model;
  ep_program p, found;
  int32_t header[EP_HEADER_WORDS];
  memcpy(image, valid[data[0] % KINDS], bytes);
  if (ep_open(&model, image, bytes, NULL) != EP_OK || !ep_program_of(&p, &model)) abort();
  memcpy(header, p.header, sizeof header);
  for (; at + CHANGE <= size && data[at] != TEXT; at += CHANGE) change(&p, header, image, data + at);
  at += at < size && data[at] == TEXT;
  if (ep_open(&model, image, bytes, NULL) == EP_OK && ep_program_of(&found, &model)) {
    poison(&found);
    exercise_text(&model, (const char *)data + at, size - at);
    exercise_chat(&model, (const char *)data + at, size - at);
  }
  __asan_unpoison_memory_region(image, bytes);
  return 0;
}
