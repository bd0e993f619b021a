/* Builds model images in memory: a writer for docs/bundle.md, and a small program that uses every operator. */
#ifndef EP_IMAGE_H
#define EP_IMAGE_H

#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "internal.h"

enum { MOST_TENSORS = 128, MOST_VALUES = 64, MOST_OPS = 64, MOST_LAYERS = 8 };

typedef struct tensor {
  int32_t type, dims, rows, cols;
  void *data;
} tensor;

typedef struct builder {
  tensor tensors[MOST_TENSORS]; /* tensor 0, the program, is made by finish */
  int32_t values[MOST_VALUES][EP_VALUE_WORDS], ops[MOST_OPS][EP_OP_WORDS], kv[MOST_LAYERS][EP_KV_WORDS];
  int32_t header[EP_HEADER_WORDS];
  int32_t n_tensors, n_values, n_ops, n_kv, plan;
  uint64_t random;
  int extreme;     /* weights and tables hold only their largest and smallest numbers */
  size_t data_at;  /* after finish: start of the tensor data */
} builder;

static inline int32_t add_tensor(builder *b, int32_t type, int32_t dims, int32_t rows, int32_t cols) {
  tensor *t = &b->tensors[b->n_tensors];
  *t = (tensor){type, dims, rows, cols, calloc((size_t)rows * (size_t)cols, (size_t)1 << (type - EP_I8))};
  return b->n_tensors++;
}

/* Numbers of up to `bits` bits and a sign; extreme: all bits of the type. */
static inline int32_t random_tensor(builder *b, int32_t type, int32_t dims, int32_t rows, int32_t cols, int32_t bits) {
  int32_t i = add_tensor(b, type, dims, rows, cols), width = 8 << (type - EP_I8);
  for (int32_t k = 0; k < rows * cols; k++) {
    uint64_t r = draw(&b->random);
    int64_t high = ((int64_t)1 << (width - 1)) - 1, x = (int64_t)(r >> 1) >> (63 - bits);
    if (r & 1) x = -x;
    if (b->extreme) x = r & 1 ? high : -high - 1;
    if (type == EP_I8) ((int8_t *)b->tensors[i].data)[k] = (int8_t)x;
    if (type == EP_I16) ((int16_t *)b->tensors[i].data)[k] = (int16_t)x;
    if (type == EP_I32) ((int32_t *)b->tensors[i].data)[k] = (int32_t)x;
  }
  return i;
}

static inline int32_t add_value(builder *b, int32_t width) {
  int32_t v[EP_VALUE_WORDS] = {width, 16, b->plan, 0};
  memcpy(b->values[b->n_values], v, sizeof v);
  b->plan += width;
  return b->n_values++;
}

/* The operator `op`; its output gets a new value of `width`, unless that is 0. Returns it. */
static inline int32_t add_op(builder *b, const int32_t op[EP_OP_WORDS], int32_t width) {
  memcpy(b->ops[b->n_ops], op, EP_OP_WORDS * 4);
  int32_t out = b->ops[b->n_ops++][EP_O_OUT] = width ? add_value(b, width) : -1;
  return out;
}
#define OP(...) (const int32_t[EP_OP_WORDS]) { __VA_ARGS__ }

static inline int32_t width_of(const builder *b, int32_t v) { return b->values[v][EP_V_WIDTH]; }

/* Weights, group scales (or -1) and row scales. */
static inline void add_weights(builder *b, int32_t rows, int32_t width, int grouped, int32_t h, int32_t out[3]) {
  int32_t cols = (width + 31) / 32 * 32;
  out[0] = random_tensor(b, EP_I8, 2, rows, cols, 7);
  out[1] = grouped ? random_tensor(b, EP_I16, 2, rows, cols / 32, 15) : -1;
  out[2] = random_tensor(b, EP_I32, 2, rows, 2, 31);
  for (int32_t r = 0; r < rows; r++) ((int32_t *)b->tensors[out[2]].data)[2 * r + 1] = h;
}

static inline int32_t linear(builder *b, int32_t x, int32_t rows, int grouped, int bias) {
  int32_t w[3];
  add_weights(b, rows, width_of(b, x), grouped, grouped ? 54 : 40, w);
  int32_t t = bias ? random_tensor(b, EP_I32, 1, 1, rows, 20) : -1;
  return add_op(b, OP(EP_LINEAR, 0, x, -1, w[0], w[1], w[2], t, 6, -1), rows);
}

/* w4g32, two codes a byte. */
static inline int32_t linear4(builder *b, int32_t x, int32_t rows) {
  int32_t groups = (width_of(b, x) + 31) / 32, w[3];
  w[0] = random_tensor(b, EP_I8, 2, rows, 16 * groups, 7);
  w[1] = random_tensor(b, EP_I16, 2, rows, 2 * groups, 15);
  w[2] = random_tensor(b, EP_I32, 2, rows, 2, 31);
  for (int32_t r = 0; r < rows; r++) ((int32_t *)b->tensors[w[2]].data)[2 * r + 1] = 50;
  return add_op(b, OP(EP_LINEAR, 0, x, -1, w[0], w[1], w[2], -1, 6, -1, 1), rows);
}

/* groups > 1: each part of the row on its own, with the same gamma. */
static inline int32_t norm(builder *b, int32_t x, int center, int32_t groups) {
  int32_t width = width_of(b, x), d = width / groups, g = random_tensor(b, EP_I32, 1, 1, d, 26);
  int32_t t = center ? random_tensor(b, EP_I32, 1, 1, d, 20) : -1;
  return add_op(b, OP(EP_NORM, 0, x, -1, g, t, -1, -1, center, 1 << 30, 20, 6, groups), width);
}

static inline int32_t softcap(builder *b, int32_t out_shift) {
  int32_t t = random_tensor(b, EP_I32, 1, 1, 2 + 2049, 30), *words = (int32_t *)b->tensors[t].data;
  words[0] = -8;
  words[1] = out_shift;
  return t;
}

enum { IMAGE_CHANNELS = 3, IMAGE_HEIGHT = 8, IMAGE_WIDTH = 12, IMAGE_PATCH = 4, IMAGE_PATCHES = 6, IMAGE_ZERO = 128 };
enum { IMAGE_BYTES = IMAGE_CHANNELS * IMAGE_HEIGHT * IMAGE_WIDTH };

typedef struct shape {
  int32_t kv_bits, grouped, extreme, layers, width, vocab, context, tokenizer;
  int32_t more;          /* head norms, a bias table, softcaps, w4g32 and, unless bidirectional, a window */
  int32_t in_groups;     /* inputs of two of three LINEARs are a8g32 */
  int32_t bidirectional;
  int32_t embedding;     /* 1 + kind of POOL, in place of logits, with more also a dense layer; 0: logits. Bidirectional up to kind 3 */
  int32_t image;         /* 1 + tokens before the first patch: it reads an image, its context is IMAGE_PATCHES more; 0: tokens */
  int32_t table;         /* rows of learned positions: int16 if that is odd, from row 1 on; 0: none */
  uint64_t seed;
} shape;

static inline void put_node(builder *b, int32_t trie, int32_t row, int32_t byte, int32_t first, int32_t id) {
  int32_t *node = (int32_t *)b->tensors[trie].data + 2 * row;
  node[0] = (int32_t)((uint32_t)byte << 24 | (uint32_t)first);
  node[1] = id;
}

static inline int32_t add_words(builder *b, int32_t dims, int32_t rows, int32_t cols, const int32_t *words) {
  int32_t t = add_tensor(b, EP_I32, dims, rows, cols);
  memcpy(b->tensors[t].data, words, sizeof *words * (size_t)(rows * cols));
  return t;
}

/* Make another kind of the tokenizer: 2 byte-level BPE behind NFC, 3 WordPiece behind a map, 4 Unigram behind strings. */
static inline void change_tokenizer(builder *b, int32_t kind, int32_t vocab) {
  static const char strings[] = "\0\2a\xff\3e\xcc\x81\1b";
  static const int32_t map[] = {0, 0, 'A' * 8 + 1, 32, '[' * 8, 0, 0xE9 * 8 + 2, 4, 0xEA * 8, 0, 0x300 * 8 + 2, 0, 0x370 * 8, 0,
                                0x4E00 * 8 + 3, 0, 0xA000 * 8, 0, 0xAC00 * 8 + 4, 0, 0xD7A4 * 8 + 2, 1, 0xD7B0 * 8, 0};
  static const int32_t nfc_map[] = {0, 0, 0xE9 * 8 + 2, 4, 0xEA * 8, 0, 0xAC00 * 8 + 4, 0, 0xD7A4 * 8, 0};
  static const int32_t classes[] = {0, 0x300 << 8 | 230, 0x323 << 8 | 220, 0x324 << 8}, composites[] = {'e', 0x301, 0xE9};
  static const int32_t graphemes[] = {0, 0x300 << 2 | 1, 0x370 << 2, 0x600 << 2 | 2, 0x606 << 2};
  int32_t *h = b->header;
  h[EP_H_TOKENIZER] = kind == 2 ? 1 : kind;
  h[EP_H_TOKENIZER_FLAGS] = kind == 4 ? 2 + 16 + 32 + 64 + 512 + 2048 + 4096 : 16 + 32 + 8;
  h[EP_H_PRETOKENIZER] = kind == 2 ? 2 : kind == 3 ? 0 : 5;
  h[EP_H_UNKNOWN] = h[EP_H_SUFFIX] = 1;
  h[EP_H_NORMALIZER] = kind == 2 ? 2 : kind == 3 ? 1 : 3;
  h[EP_H_WORD_CHARS] = 9;
  h[EP_H_STRINGS] = add_tensor(b, EP_I8, 1, 1, sizeof strings - 1);
  memcpy(b->tensors[h[EP_H_STRINGS]].data, strings, sizeof strings - 1);
  if (kind == 2) {
    h[EP_H_MAP] = add_words(b, 2, 5, 2, nfc_map);
    h[EP_H_CLASSES] = add_words(b, 1, 1, 4, classes);
    h[EP_H_COMPOSE] = add_words(b, 2, 1, 3, composites);
    int32_t *pairs = (int32_t *)b->tensors[h[EP_H_PAIRS]].data, rows = 3;
    int32_t starts = h[EP_H_STARTS] = add_tensor(b, EP_I32, 1, 1, vocab + 1);
    for (int32_t i = 0; i <= vocab; i++)
      for (int32_t k = 0; k < rows; k++) ((int32_t *)b->tensors[starts].data)[i] += pairs[4 * k] < i;
  } else if (kind == 3) {
    h[EP_H_MAP] = add_words(b, 2, 12, 2, map);
  } else {
    h[EP_H_SCORES] = random_tensor(b, EP_I32, 1, 1, vocab + 1, 28);
    h[EP_H_CLASSES] = add_words(b, 1, 1, 5, graphemes);
    int32_t keys = h[EP_H_COMPOSE] = add_tensor(b, EP_I32, 2, 5, 2);
    put_node(b, keys, 0, 0, 1, -1);
    put_node(b, keys, 1, 'A', 3, 8);
    put_node(b, keys, 2, 0xC3, 3, -1);
    put_node(b, keys, 3, 0xA9, 4, 4);
    put_node(b, keys, 4, 0, 4, -1);
  }
}

/* A chat form with every join: two letters, which take the white space on both sides; the marker is the first two. */
static inline void add_chat(builder *b) {
  static const char texts[] = "hi<user>";
  int32_t *h = b->header, joins = add_tensor(b, EP_I32, 2, 16, 3);
  for (int32_t i = 0; i < 16; i++) memcpy((int32_t *)b->tensors[joins].data + 3 * i, (const int32_t[]){i % 7, 2, i ? 3 : 2}, 12);
  h[EP_H_CHAT_TEXTS] = add_tensor(b, EP_I8, 1, 1, sizeof texts - 1);
  memcpy(b->tensors[h[EP_H_CHAT_TEXTS]].data, texts, sizeof texts - 1);
  h[EP_H_CHAT_JOINS] = joins;
  h[EP_H_CHAT_FLAGS] = 1 + 8;
}

static inline void add_tokenizer(builder *b, int32_t vocab) { /* SentencePiece; every token is one or two letters */
  int32_t *h = b->header, n = 0;
  int32_t offsets = add_tensor(b, EP_I32, 1, 1, vocab + 1), bytes = add_tensor(b, EP_I8, 1, 1, 3 * vocab / 2);
  int32_t types = add_tensor(b, EP_I8, 1, 1, vocab), ids = random_tensor(b, EP_I32, 1, 1, 256, 1);
  int32_t letters = (vocab + 1) / 2, n_nodes = 1 + vocab;
  int32_t trie = add_tensor(b, EP_I32, 2, n_nodes + 1, 2), pairs = add_tensor(b, EP_I32, 2, 3, 4);
  int32_t *at = (int32_t *)b->tensors[offsets].data;
  char *text = (char *)b->tensors[bytes].data;
  for (int32_t i = 0; i < 256; i++) ((int32_t *)b->tensors[ids].data)[i] = i % vocab;
  for (int32_t i = 0; i < vocab; i++) { /* one letter, then two: a, aa, b, ba, ... */
    text[n++] = (char)('!' + i / 2);
    if (i % 2) text[n++] = '!';
    at[i + 1] = n;
  }
  put_node(b, trie, 0, 0, 1, -1);
  for (int32_t i = 0; i < letters; i++) put_node(b, trie, 1 + i, '!' + i, 1 + letters + i, 2 * i);
  for (int32_t i = 0; i < vocab / 2; i++) put_node(b, trie, 1 + letters + i, '!', n_nodes, 2 * i + 1);
  put_node(b, trie, n_nodes, 0, n_nodes, -1);
  int32_t list[12] = {0, 0, 7, 1, 2, 0, 3, 3, 4, 0, -5, 5};
  memcpy(b->tensors[pairs].data, list, sizeof list);
  const int32_t words[] = {2, 3, 1, -1, offsets, bytes, types, pairs, ids, trie, -1, 0, vocab, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  memcpy(h + EP_H_TOKENIZER, words, sizeof words);
  int32_t eos = add_tensor(b, EP_I32, 1, 1, 2);
  h[EP_H_EOS] = eos;
  h[EP_H_ADDED] = eos;
}

static inline int32_t add_positions(builder *b, const shape *s, int32_t x) {
  int32_t w[3];
  add_weights(b, s->table, s->width, s->grouped && s->table % 2 == 0, 30, w);
  if (s->table % 2) w[0] = random_tensor(b, EP_I16, 2, s->table, (s->width + 31) / 32 * 32, 15);
  int32_t rows = add_op(b, OP(EP_EMBED, 0, -1, -1, w[0], w[1], w[2], -1, 0, 1, 1), s->width);
  return add_op(b, OP(EP_ADD, 0, x, rows, -1, -1, -1, -1, 0, 0, 1), s->width);
}

/* What makes an embedding or the logits of x. */
static inline void add_head(builder *b, const shape *s, int32_t x, int32_t table) {
  if (s->embedding) {
    x = add_op(b, OP(EP_POOL, 0, x, -1, -1, -1, -1, -1, s->embedding - 1, s->embedding == 5 ? s->vocab / 2 : 0), s->width);
    if (!s->more) return;
    x = linear(b, x, 70, s->grouped, 1);
    x = add_op(b, OP(EP_ACT, 0, x, -1, table, -1, -1, -1, -8, 24, 0, 0, 0), 70);
    norm(b, x, 0, 1);
    return;
  }
  x = norm(b, x, 0, 1);
  if (s->more)
    linear4(b, x, s->vocab), b->ops[b->n_ops - 1][EP_O_P0 + 1] = softcap(b, 22);
  else
    linear(b, x, s->vocab, s->grouped, 0);
  b->plan -= s->vocab;
  b->values[b->n_values - 1][EP_V_OFFSET] = -1;
}

/* The shape with an image in the place of tokens, one token before its patches. */
static inline void of_image(shape *s) {
  s->image = 2;
  s->vocab = 1;
  s->context = 1 + IMAGE_PATCHES;
  s->tokenizer = 0;
}

static inline int32_t add_image(builder *b, const shape *s) {
  int32_t x = add_op(b, OP(EP_PATCHES, 0, -1, -1, -1, -1, -1, -1, IMAGE_CHANNELS, IMAGE_HEIGHT, IMAGE_WIDTH, IMAGE_PATCH, s->image - 1, IMAGE_ZERO),
                     IMAGE_CHANNELS * IMAGE_PATCH * IMAGE_PATCH);
  b->values[x][EP_V_F] = 0;
  return linear(b, x, s->width, s->grouped, 0);
}

/* A two-block transformer with every operator and both layouts of RoPE. */
static inline void build(builder *b, const shape *s) {
  enum { HEADS = 4, KV_HEADS = 2, K_DIM = 10, V_DIM = 6, INNER = 70 };
  int32_t both = s->bidirectional || (s->embedding > 0 && s->embedding < 5), window = s->more && !both ? 5 : 0, cap = -1, bias = -1;
  int32_t w[3], kv[EP_KV_WORDS] = {KV_HEADS, K_DIM, V_DIM, window}, wide = s->kv_bits == 16;
  memset(b, 0, sizeof *b);
  b->random = s->seed;
  b->extreme = s->extreme;
  b->n_tensors = 1;
  if (!s->image) add_weights(b, s->vocab, s->width, s->grouped, s->grouped ? 44 : 30, w);
  int32_t table = random_tensor(b, EP_I32, 1, 1, 2049, 30), slopes = random_tensor(b, EP_I32, 1, 1, HEADS, 31);
  int32_t increments = random_tensor(b, EP_I32, 2, 4, 2, 31);
  int32_t x = s->image ? add_image(b, s) : add_op(b, OP(EP_EMBED, 0, -1, -1, w[0], w[1], w[2], -1, 0), s->width);
  if (s->table) x = add_positions(b, s, x);
  if (s->more) bias = random_tensor(b, EP_I32, 2, HEADS, 7, 20), cap = softcap(b, 28);
  for (int32_t layer = 0; layer < s->layers; layer++) {
    int32_t y = norm(b, x, layer & 1, 1), interleaved = layer & 1;
    int32_t q = linear(b, y, HEADS * K_DIM, s->grouped, 0), k = linear(b, y, KV_HEADS * K_DIM, s->grouped, layer & 1);
    int32_t v = linear(b, y, KV_HEADS * V_DIM, !s->grouped, 1);
    if (s->more) q = norm(b, q, layer & 1, HEADS), k = norm(b, k, 0, KV_HEADS);
    q = add_op(b, OP(EP_ROPE, 0, q, -1, increments, -1, -1, -1, HEADS, K_DIM, interleaved, 1073774593, 45), HEADS * K_DIM);
    k = add_op(b, OP(EP_ROPE, 0, k, -1, increments, -1, -1, -1, KV_HEADS, K_DIM, interleaved, 1073774593, 45), KV_HEADS * K_DIM);
    memcpy(b->kv[b->n_kv], kv, sizeof kv);
    add_op(b, OP(EP_KV_WRITE, -1, k, v, -1, -1, -1, -1, b->n_kv), 0);
    int32_t a = add_op(b, OP(EP_ATTENTION, 0, q, -1, layer & 1 ? slopes : -1, bias, cap, -1, b->n_kv, HEADS, 1549082005,
                             wide ? 52 : 54, 24, 0, layer & 1 ? 30 : 0, both), HEADS * V_DIM);
    b->n_kv++;
    a = linear(b, a, s->width, s->grouped, 0);
    x = add_op(b, OP(EP_ADD, 0, x, a, -1, -1, -1, -1, 1, 0, 1), s->width);
    y = norm(b, x, layer & 1, 1);
    int32_t gate = s->more ? linear4(b, y, INNER) : linear(b, y, INNER, s->grouped, 0), up = linear(b, y, INNER, s->grouped, 0);
    gate = add_op(b, OP(EP_ACT, 0, gate, -1, table, -1, -1, -1, -8, 24, layer & 1, 1, 0), INNER);
    y = add_op(b, OP(EP_MUL, 0, gate, up, -1, -1, -1, -1, 20), INNER);
    y = linear(b, y, s->width, s->grouped, 0);
    x = add_op(b, OP(EP_ADD, 0, x, y, -1, -1, -1, -1, 0, 1, 1), s->width);
  }
  int32_t head = b->n_ops, n = s->context < 8 ? s->context : 8;
  add_head(b, s, x, table);
  for (int32_t i = 0; s->in_groups && i < b->n_ops; i++)
    if (b->ops[i][EP_O_CODE] == EP_LINEAR) b->ops[i][EP_O_P0 + 3] = i % 3 != 0;
  int32_t selftest = s->image ? random_tensor(b, EP_I8, 2, IMAGE_HEIGHT, IMAGE_WIDTH * IMAGE_CHANNELS, 7) : add_tensor(b, EP_I32, 1, 1, n);
  for (int32_t i = 0; !s->image && i < n; i++) ((int32_t *)b->tensors[selftest].data)[i] = (7 * i + 3) % s->vocab;
  const int32_t words[] = {EP_PROGRAM_MAGIC, 1, 0, 0, 0, 0, head, b->plan, s->vocab, s->context, s->kv_bits, 16, selftest};
  memcpy(b->header, words, sizeof words);
  for (int32_t i = EP_H_BOS; i < EP_H_OUTPUT; i++) b->header[i] = -1;
  b->header[EP_H_OUTPUT] = s->embedding > 0;
  if (s->tokenizer) add_tokenizer(b, s->vocab);
  if (s->tokenizer > 1) change_tokenizer(b, s->tokenizer, s->vocab);
  if (s->tokenizer) add_chat(b);
}

/* ---- the file ---- */

typedef struct buffer {
  uint8_t *p;
  size_t n, room;
} buffer;

static inline void put(buffer *f, const void *data, size_t n) {
  while (f->n + n > f->room) {
    f->room = f->room ? 2 * f->room : 1 << 16;
    f->p = (uint8_t *)realloc(f->p, f->room);
  }
  if (n) memcpy(f->p + f->n, data, n);
  f->n += n;
}
static inline void put_u32(buffer *f, uint32_t x) { put(f, &x, 4); }
static inline void put_u64(buffer *f, uint64_t x) { put(f, &x, 8); }
static inline void put_string(buffer *f, const char *s) {
  put_u64(f, strlen(s));
  put(f, s, strlen(s));
}
static inline void put_u32_key(buffer *f, const char *key, uint32_t x) {
  put_string(f, key);
  put_u32(f, 4);
  put_u32(f, x);
}
static inline void pad(buffer *f) {
  while (f->n % EP_ALIGN) put(f, "", 1);
}

static inline size_t data_bytes(const tensor *t) { return (size_t)t->rows * (size_t)t->cols << (t->type - EP_I8); }

/* The program tensor, with the counts and tensor records filled in. */
static inline void make_program(builder *b) {
  buffer f = {0};
  int32_t words = EP_HEADER_WORDS + b->n_tensors * EP_TENSOR_WORDS + b->n_values * EP_VALUE_WORDS + b->n_kv * EP_KV_WORDS +
                  b->n_ops * EP_OP_WORDS;
  const int32_t counts[] = {b->n_tensors, b->n_values, b->n_ops, b->n_kv};
  uint64_t offset = 0;
  memcpy(b->header + EP_H_TENSORS, counts, sizeof counts);
  put(&f, b->header, sizeof b->header);
  b->tensors[0] = (tensor){EP_I32, 1, 1, words, NULL};
  for (int32_t i = 0; i < b->n_tensors; i++) {
    const tensor *t = &b->tensors[i];
    put_u64(&f, offset);
    const int32_t rest[] = {t->type, t->rows, t->cols, 0, 0, 0};
    put(&f, rest, sizeof rest);
    offset = (offset + data_bytes(t) + EP_ALIGN - 1) / EP_ALIGN * EP_ALIGN;
  }
  put(&f, b->values, (size_t)b->n_values * sizeof b->values[0]);
  put(&f, b->kv, (size_t)b->n_kv * sizeof b->kv[0]);
  put(&f, b->ops, (size_t)b->n_ops * sizeof b->ops[0]);
  b->tensors[0].data = f.p;
}

/* The whole image at an aligned address (free it with free), with `extra` keys written by the caller in front of the
 * required four. */
static inline uint8_t *finish_with(builder *b, size_t *size, const buffer *extra, uint32_t n_extra) {
  buffer f = {0};
  uint64_t offset = 0;
  make_program(b);
  put(&f, "GGUF", 4);
  put_u32(&f, 3);
  put_u64(&f, (uint64_t)b->n_tensors);
  put_u64(&f, 4 + n_extra);
  if (extra) put(&f, extra->p, extra->n);
  put_string(&f, "general.architecture");
  put_u32(&f, 8);
  put_string(&f, "edgepos");
  put_u32_key(&f, "general.alignment", 64);
  put_u32_key(&f, "edgepos.format", 1);
  put_u32_key(&f, "edgepos.arith", 1);
  for (int32_t i = 0; i < b->n_tensors; i++) {
    const tensor *t = &b->tensors[i];
    char name[16];
    snprintf(name, sizeof name, "t%d", (int)i);
    put_string(&f, i ? name : "edgepos.program");
    put_u32(&f, (uint32_t)t->dims);
    put_u64(&f, (uint64_t)t->cols);
    if (t->dims == 2) put_u64(&f, (uint64_t)t->rows);
    put_u32(&f, (uint32_t)t->type);
    put_u64(&f, offset);
    offset = (offset + data_bytes(t) + EP_ALIGN - 1) / EP_ALIGN * EP_ALIGN;
  }
  pad(&f);
  b->data_at = f.n;
  for (int32_t i = 0; i < b->n_tensors; i++) {
    put(&f, b->tensors[i].data, data_bytes(&b->tensors[i]));
    pad(&f);
  }
  uint8_t *image = (uint8_t *)aligned_alloc(EP_ALIGN, f.n);
  memcpy(image, f.p, f.n);
  free(f.p);
  free(b->tensors[0].data);
  b->tensors[0].data = NULL;
  *size = f.n;
  return image;
}

static inline uint8_t *finish(builder *b, size_t *size) { return finish_with(b, size, NULL, 0); }

static inline void discard(builder *b) {
  for (int32_t i = 1; i < b->n_tensors; i++) free(b->tensors[i].data);
}

/* The image of a shape, with the digest that its self-test gives. */
static inline uint8_t *image_of(const shape *s, size_t *size) {
  builder *b = (builder *)malloc(sizeof *b);
  build(b, s);
  uint8_t *image = finish(b, size);
  discard(b);
  free(b);
  return image;
}

/* An arena of exactly the size asked for, filled with rubbish. */
static inline void *arena_for(const ep_model *model, const ep_config *cfg, size_t *size) {
  if (ep_arena_size(model, cfg, size) != EP_OK) return NULL;
  void *arena = aligned_alloc(EP_ALIGN, (*size + EP_ALIGN - 1) / EP_ALIGN * EP_ALIGN);
  memset(arena, 0xa5, *size);
  return arena;
}

#endif
