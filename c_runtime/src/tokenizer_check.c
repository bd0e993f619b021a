/* Validation of the tokenizer's tables. */
#include "tokenizer.h"

static int ids_within(const int32_t *ids, int32_t n, int32_t low, int32_t vocab) {
  for (int32_t i = 0; i < n; i++)
    if (ids[i] < low || ids[i] >= vocab) return 0;
  return 1;
}

static int is_list(const ep_program *p, int32_t t, int32_t type) {
  return t >= 0 && t < p->n_tensors && ep_tensor_is(p, t, type, 1, ep_cols(p, t));
}

static int good_offsets(const ep_program *p) {
  const int32_t *h = p->header;
  int32_t known = h[EP_H_KNOWN];
  if (known < 0 || known > p->vocab || !ep_tensor_is(p, h[EP_H_OFFSETS], EP_I32, 1, p->vocab + 1)) return 0;
  const int32_t *o = ep_i32(p, h[EP_H_OFFSETS]);
  if (o[0] != 0) return 0;
  for (int32_t i = 0; i < p->vocab; i++)
    if (o[i + 1] < o[i] || (i >= known && o[i + 1] != o[i])) return 0;
  return 1;
}

/* The blob has at least one byte even when no token has any. */
static int good_bytes(const ep_program *p) {
  const int32_t *h = p->header;
  int32_t n = ep_i32(p, h[EP_H_OFFSETS])[p->vocab];
  return ep_tensor_is(p, h[EP_H_BYTES], EP_I8, 1, n > 0 ? n : 1);
}

static int good_types(const ep_program *p) {
  if (!ep_tensor_is(p, p->header[EP_H_TYPES], EP_I8, 1, p->vocab)) return 0;
  const int8_t *types = ep_i8(p, p->header[EP_H_TYPES]);
  for (int32_t i = 0; i < p->vocab; i++)
    if (types[i] < 0 || types[i] > 2) return 0;
  return 1;
}

static int good_pairs(const ep_program *p) {
  int32_t t = p->header[EP_H_PAIRS];
  if (t == -1) return 1;
  if (t < 0 || t >= p->n_tensors || !ep_tensor_is(p, t, EP_I32, ep_rows(p, t), 4)) return 0;
  const int32_t *pair = ep_i32(p, t);
  for (int32_t i = 0; i < ep_rows(p, t); i++, pair += 4) {
    if (!ids_within(pair, 2, 0, p->vocab) || !ids_within(pair + 3, 1, 0, p->vocab)) return 0;
    if (i > 0 && (pair[-4] > pair[0] || (pair[-4] == pair[0] && pair[-3] >= pair[1]))) return 0;
  }
  return 1;
}

enum { MOST_DEPTH = 1024 }; /* bytes of a key; a walk costs no more than that */

/* Every row's children lie behind it and end where those of the next row begin, in ascending order of their bytes; its
 * rows are in the order of their depth. ids are -1 or below `ids_end`. */
int ep_good_trie(const ep_program *p, int32_t t, int32_t ids_end) {
  if (t < 0 || t >= p->n_tensors) return 0;
  int32_t n = ep_rows(p, t) - 1;
  if (n < 1 || n > 0xFFFFFF || !ep_tensor_is(p, t, EP_I32, n + 1, 2)) return 0;
  const int32_t *trie = ep_i32(p, t);
  if (ep_trie_first(trie, 0) != 1 || ep_trie_first(trie, n) != n) return 0;
  for (int32_t i = 0; i < n; i++) {
    int32_t first = ep_trie_first(trie, i), end = ep_trie_first(trie, i + 1);
    if (first <= i || end < first || end > n || ep_trie_id(trie, i) < -1 || ep_trie_id(trie, i) >= ids_end) return 0;
    for (int32_t k = first + 1; k < end; k++)
      if ((uint32_t)trie[2 * (size_t)k - 2] >> 24 >= (uint32_t)trie[2 * (size_t)k] >> 24) return 0;
  }
  int32_t depth = 0;
  for (int32_t first = 0, end = 1; end > first; depth++) {
    int32_t next = ep_trie_first(trie, end);
    first = end;
    end = next;
    if (depth > MOST_DEPTH) return 0;
  }
  return 1;
}

/* Byte-level BPE can do without; the trie of SentencePiece holds its characters, the others' all tokens. */
static int good_tokens_trie(const ep_program *p) {
  int32_t t = p->header[EP_H_TRIE];
  return t == -1 ? p->header[EP_H_TOKENIZER] == EP_BYTE_LEVEL : ep_good_trie(p, t, p->vocab);
}

/* Where the pairs of each left token begin. */
static int good_starts(const ep_program *p) {
  int32_t t = p->header[EP_H_STARTS], pairs = p->header[EP_H_PAIRS];
  if (t == 0) return 1;
  if (pairs < 0 || !ep_tensor_is(p, t, EP_I32, 1, p->vocab + 1)) return 0;
  const int32_t *starts = ep_i32(p, t), *pair = ep_i32(p, pairs);
  int32_t n = ep_rows(p, pairs);
  if (starts[0] != 0 || starts[p->vocab] != n) return 0;
  for (int32_t i = 0; i < p->vocab; i++)
    if (starts[i + 1] < starts[i] || starts[i + 1] > n) return 0;
  for (int32_t i = 0; i < n; i++, pair += 4)
    if (starts[pair[0]] > i || starts[pair[0] + 1] <= i) return 0;
  return 1;
}

static int good_scores(const ep_program *p) {
  int32_t t = p->header[EP_H_SCORES];
  if (p->header[EP_H_TOKENIZER] != EP_UNIGRAM) return t == 0;
  return ep_tensor_is(p, t, EP_I32, 1, p->vocab + 1);
}

/* An id that a flag asks for. */
static int good_flagged(const ep_program *p, int32_t flag, int32_t word) {
  return !(p->header[EP_H_TOKENIZER_FLAGS] & flag) || ids_within(p->header + word, 1, 0, p->vocab);
}

static int good_ids(const ep_program *p) {
  const int32_t *h = p->header;
  return is_list(p, h[EP_H_BYTE_IDS], EP_I32) && ep_cols(p, h[EP_H_BYTE_IDS]) == 256 &&
         ids_within(ep_i32(p, h[EP_H_BYTE_IDS]), 256, -1, p->vocab);
}

static int good_added(const ep_program *p) {
  int32_t t = p->header[EP_H_ADDED];
  if (t == -1) return 1;
  if (!is_list(p, t, EP_I32)) return 0;
  const int32_t *ids = ep_i32(p, t);
  for (int32_t i = 0; i < ep_cols(p, t); i++)
    if (ids[i] < 0 || ids[i] >> 26 || (ids[i] & EP_ADDED_ID) >= p->vocab) return 0;
  return 1;
}

/* Which pre-tokenizers and normalizers a kind knows, as bits. */
static int good_steps(const ep_program *p) {
  static const int32_t pre[] = {0, 0x1F, 0x61, 1, 0xA0}, normal[] = {0, 5, 5, 2, 11};
  const int32_t *h = p->header;
  int32_t kind = h[EP_H_TOKENIZER], needs = kind >= EP_WORD_PIECE ? EP_F_UNKNOWN : 0;
  if (h[EP_H_PRETOKENIZER] < 0 || h[EP_H_PRETOKENIZER] > 7 || h[EP_H_NORMALIZER] < 0 || h[EP_H_NORMALIZER] > 3) return 0;
  return pre[kind] >> h[EP_H_PRETOKENIZER] & normal[kind] >> h[EP_H_NORMALIZER] & 1 && (h[EP_H_TOKENIZER_FLAGS] & needs) == needs &&
         h[EP_H_WORD_CHARS] >= 0;
}

#define ENCODES EP_HAS(EP_FEATURE_ENCODE)

ep_status ep_check_tokenizer(const ep_program *p, uint64_t *word) {
  const int32_t *h = p->header;
  int32_t kind = h[EP_H_TOKENIZER];
  if (kind == 0) return EP_OK;
  int32_t bad = kind < 0 || kind > EP_UNIGRAM                                           ? EP_H_TOKENIZER
                : h[EP_H_TOKENIZER_FLAGS] < 0 || h[EP_H_TOKENIZER_FLAGS] >= EP_FLAGS_END ? EP_H_TOKENIZER_FLAGS
                : h[EP_H_BOS] < -1 || h[EP_H_BOS] >= p->vocab                            ? EP_H_BOS
                : !good_steps(p)                                                         ? EP_H_PRETOKENIZER
                : !good_offsets(p)                                                       ? EP_H_OFFSETS
                : !good_bytes(p)                                                         ? EP_H_BYTES
                : !good_types(p)                                                         ? EP_H_TYPES
                : ENCODES && !good_pairs(p)                                              ? EP_H_PAIRS
                : !good_ids(p)                                                           ? EP_H_BYTE_IDS
                : ENCODES && !good_tokens_trie(p)                                        ? EP_H_TRIE
                : ENCODES && !good_added(p)                                              ? EP_H_ADDED
                : ENCODES && !good_starts(p)                                             ? EP_H_STARTS
                : !good_flagged(p, EP_F_UNKNOWN, EP_H_UNKNOWN)                           ? EP_H_UNKNOWN
                : !good_flagged(p, EP_F_SUFFIX, EP_H_SUFFIX)                             ? EP_H_SUFFIX
                : ENCODES && !good_scores(p)                                             ? EP_H_SCORES
                                                                                         : ENCODES ? ep_check_normalizer(p) : 0;
  *word = (uint64_t)bad;
  return bad ? EP_ERR_FORMAT : EP_OK;
}
