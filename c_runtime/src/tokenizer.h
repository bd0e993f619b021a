/* What the files of the tokenizer share. The tensors are specified in docs/bundle.md and checked by tokenizer_check.c. */
#ifndef EP_TOKENIZER_H
#define EP_TOKENIZER_H

#include "internal.h"

enum { EP_BYTE_LEVEL = 1, EP_SENTENCE_PIECE, EP_WORD_PIECE, EP_UNIGRAM };
enum { EP_PRE_NONE, EP_PRE_GPT2, EP_PRE_LLAMA3, EP_PRE_QWEN2, EP_PRE_SMOLLM, EP_PRE_SPACE, EP_PRE_SPACE_RUN, EP_PRE_WHITESPACE };
enum { EP_NORMAL_NONE, EP_NORMAL_MAP, EP_NORMAL_NFC, EP_NORMAL_STRINGS };
enum { EP_MAP_KEEP, EP_MAP_SHIFT, EP_MAP_STRING, EP_MAP_APART, EP_MAP_HANGUL, EP_MAP_ACTIONS };
enum { EP_TYPE_TEXT, EP_TYPE_CONTROL };
enum {
  EP_F_BOS = 1, EP_F_SPACE = 2, EP_F_STRIP_BOS = 4, EP_F_STRIP_FIRST = 8, EP_F_UNKNOWN = 16, EP_F_SUFFIX = 32,
  EP_F_EVERY_SPACE = 64, EP_F_ONE_SPACE = 128, EP_F_LOW_LINE = 256, EP_F_FUSE = 512, EP_F_BYTES = 1024, EP_F_COLLAPSE = 2048,
  EP_F_STRIP_END = 4096, EP_FLAGS_END = 8192
};
enum { EP_ADDED_LEFT = 1 << 24, EP_ADDED_RIGHT = 1 << 25, EP_ADDED_ID = (1 << 24) - 1 };
enum { EP_LOW_LINE = 0x2581 }; /* SentencePiece's sign for a space */

typedef struct ep_tokenizer {
  int32_t kind, flags, bos, unknown, suffix, vocab, pre, n_pairs, n_added, n_eos, word_chars, normalizer, n_map, n_classes, n_compose;
  const int32_t *offsets, *pairs, *starts, *byte_ids, *trie, *added, *eos, *scores; /* starts, trie: NULL if absent */
  const int32_t *map, *classes, *compose;
  const uint8_t *bytes, *strings;
  const int8_t *types;
} ep_tokenizer;

/* Where ids go: those that fit are written, all are counted. */
typedef struct ep_ids {
  int32_t *ids;
  size_t max, n;
} ep_ids;

static inline void ep_emit(ep_ids *out, int32_t id) {
  if (out->n < out->max) out->ids[out->n] = id;
  out->n++;
}

static inline const uint8_t *ep_token_text(const ep_tokenizer *t, int32_t id, size_t *n) {
  *n = (size_t)(t->offsets[id + 1] - t->offsets[id]);
  return t->bytes + t->offsets[id];
}

/* ---- utf8.c */

/* The code point at s and its bytes; -1 and one byte where s is not UTF-8. n > 0. */
int32_t ep_utf8_point(const uint8_t *s, size_t n, size_t *step);
/* Unicode's White_Space. */
int ep_white_space(int32_t point);
/* The last of n rows of `stride` words whose first word >> shift is at most key; row 0 if none is. n > 0. */
int32_t ep_run_of(const int32_t *rows, int32_t n, int32_t stride, int32_t shift, int32_t key);

/* ---- trie: row i is first child | byte << 24, id or -1; the children of row i end where those of row i + 1 begin. */

static inline int32_t ep_trie_first(const int32_t *trie, int32_t node) { return trie[2 * (size_t)node] & 0xFFFFFF; }
/* The child of a node along a byte, or -1. A negative node has none. */
int32_t ep_trie_child(const int32_t *trie, int32_t node, uint8_t byte);
static inline int32_t ep_trie_id(const int32_t *trie, int32_t node) { return trie[2 * (size_t)node + 1]; }

/* ---- normalize.c */

/* Write the normal form of n bytes to out, or count an upper bound of its bytes if out is NULL. first: the text begins here.
 * scratch: 4 * (bound + 2) int32 that EP_NORMAL_NFC may use, with the bound that counting gave. */
size_t ep_normalize(const ep_tokenizer *t, const uint8_t *s, size_t n, int first, uint8_t *out, int32_t *scratch, size_t bound);
/* nfc.c: EP_NORMAL_NFC alone. */
size_t ep_nfc(const ep_tokenizer *t, const uint8_t *s, size_t n, uint8_t *out, int32_t *scratch, size_t bound);
size_t ep_utf8_write(uint8_t *out, int32_t point); /* out: NULL to count */
/* Canonical decomposition of a Hangul syllable, 0 if it is none, else 2 or 3 points. */
int ep_hangul(int32_t point, int32_t parts[3]);

/* ---- checks */

/* 1 if tensor t is a trie whose ids are below ids_end. */
int ep_good_trie(const ep_program *p, int32_t t, int32_t ids_end);
/* normalize_check.c: the header word whose tensor is wrong, or 0. */
int32_t ep_check_normalizer(const ep_program *p);

/* ---- models: one file each */

size_t ep_word(int32_t pre, const uint8_t *s, size_t n); /* bytes of the next pre-token, n > 0 */
/* Text without added tokens. space: a space goes before it. scratch: 4 * (n + 2) int32. */
void ep_bpe(const ep_tokenizer *t, const uint8_t *s, size_t n, int space, int32_t *scratch, ep_ids *out);
void ep_word_piece(const ep_tokenizer *t, const uint8_t *s, size_t n, ep_ids *out);
void ep_unigram(const ep_tokenizer *t, const uint8_t *s, size_t n, int32_t *scratch, ep_ids *out);

#endif
