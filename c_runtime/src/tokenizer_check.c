/* Validation of the tokenizer's tables. */
#include "internal.h"

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

/* Order of two tokens by bytes, then id: negative, or positive. */
static int32_t order(const ep_program *p, int32_t a, int32_t b) {
  const int32_t *o = ep_i32(p, p->header[EP_H_OFFSETS]);
  const uint8_t *bytes = (const uint8_t *)ep_data(p, p->header[EP_H_BYTES]);
  int32_t n = o[a + 1] - o[a], m = o[b + 1] - o[b], i = 0;
  while (i < n && i < m && bytes[o[a] + i] == bytes[o[b] + i]) i++;
  if (i < n && i < m) return bytes[o[a] + i] < bytes[o[b] + i] ? -1 : 1;
  return n != m ? n - m : a - b;
}

static int good_sorted(const ep_program *p) {
  int32_t t = p->header[EP_H_SORTED];
  if (t == -1) return p->header[EP_H_TOKENIZER] != 2;
  if (!ep_tensor_is(p, t, EP_I32, 1, p->vocab)) return 0;
  const int32_t *ids = ep_i32(p, t);
  if (!ids_within(ids, p->vocab, 0, p->vocab)) return 0;
  for (int32_t i = 1; i < p->vocab; i++)
    if (order(p, ids[i - 1], ids[i]) >= 0) return 0;
  return 1;
}

static int good_ids(const ep_program *p) {
  const int32_t *h = p->header;
  return is_list(p, h[EP_H_BYTE_IDS], EP_I32) && ep_cols(p, h[EP_H_BYTE_IDS]) == 256 &&
         ids_within(ep_i32(p, h[EP_H_BYTE_IDS]), 256, -1, p->vocab);
}

static int good_added(const ep_program *p) {
  int32_t t = p->header[EP_H_ADDED];
  return t == -1 || (is_list(p, t, EP_I32) && ids_within(ep_i32(p, t), ep_cols(p, t), 0, p->vocab));
}

ep_status ep_check_tokenizer(const ep_program *p, uint64_t *word) {
  const int32_t *h = p->header;
  int32_t kind = h[EP_H_TOKENIZER];
  if (kind == 0) return EP_OK;
  int32_t bad = kind < 0 || kind > 2                                       ? EP_H_TOKENIZER
                : h[EP_H_TOKENIZER_FLAGS] < 0 || h[EP_H_TOKENIZER_FLAGS] > 7 ? EP_H_TOKENIZER_FLAGS
                : h[EP_H_BOS] < -1 || h[EP_H_BOS] >= p->vocab                ? EP_H_BOS
                : h[EP_H_PRETOKENIZER] < 0 || h[EP_H_PRETOKENIZER] > 1       ? EP_H_PRETOKENIZER
                : !good_offsets(p)                                           ? EP_H_OFFSETS
                : !good_bytes(p)                                             ? EP_H_BYTES
                : !good_types(p)                                             ? EP_H_TYPES
                : !good_pairs(p)                                             ? EP_H_PAIRS
                : !good_ids(p)                                               ? EP_H_BYTE_IDS
                : !good_sorted(p)                                            ? EP_H_SORTED
                : !good_added(p)                                             ? EP_H_ADDED
                                                                             : 0;
  *word = (uint64_t)bad;
  return bad ? EP_ERR_FORMAT : EP_OK;
}
