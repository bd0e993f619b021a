/* Validation of the normalizer's tables. */
#include "tokenizer.h"

enum { LAST_POINT = 0x10FFFF };

static int is_string(const ep_program *p, int32_t offset) {
  int32_t t = p->header[EP_H_STRINGS], n = ep_cols(p, t);
  return offset >= 0 && offset < n && ((const uint8_t *)ep_data(p, t))[offset] < n - offset;
}

static int good_strings(const ep_program *p) {
  int32_t t = p->header[EP_H_STRINGS];
  return t > 0 && t < p->n_tensors && ep_tensor_is(p, t, EP_I8, 1, ep_cols(p, t));
}

static int good_map(const ep_program *p) {
  int32_t t = p->header[EP_H_MAP];
  if (t <= 0 || t >= p->n_tensors || !ep_tensor_is(p, t, EP_I32, ep_rows(p, t), 2)) return 0;
  const int32_t *row = ep_i32(p, t);
  for (int32_t i = 0, n = ep_rows(p, t); i < n; i++, row += 2) {
    int32_t first = row[0] >> 3, last = i + 1 < n ? (row[2] >> 3) - 1 : LAST_POINT, action = row[0] & 7;
    if ((i == 0 && first != 0) || last < first || last > LAST_POINT || action >= EP_MAP_ACTIONS) return 0;
    if (action == EP_MAP_STRING && !is_string(p, row[1])) return 0;
    if (action == EP_MAP_SHIFT && (row[1] < -first || row[1] > LAST_POINT - last)) return 0;
  }
  return 1;
}

/* Runs of code points: first << shift | class, ascending from 0. */
static int good_classes(const ep_program *p, int32_t shift) {
  int32_t t = p->header[EP_H_CLASSES];
  if (t <= 0 || t >= p->n_tensors || !ep_tensor_is(p, t, EP_I32, 1, ep_cols(p, t))) return 0;
  const int32_t *runs = ep_i32(p, t);
  for (int32_t i = 0; i < ep_cols(p, t); i++)
    if (i == 0 ? runs[0] >> shift != 0 : runs[i] >> shift <= runs[i - 1] >> shift) return 0;
  return 1;
}

/* What two code points compose to takes no more bytes than they do: nothing that counting promised can be exceeded. */
static int good_compose(const ep_program *p) {
  int32_t t = p->header[EP_H_COMPOSE];
  if (t <= 0 || t >= p->n_tensors || !ep_tensor_is(p, t, EP_I32, ep_rows(p, t), 3)) return 0;
  const int32_t *row = ep_i32(p, t);
  for (int32_t i = 0; i < ep_rows(p, t); i++, row += 3) {
    for (int k = 0; k < 3; k++)
      if (row[k] < 0 || row[k] > LAST_POINT) return 0;
    if (ep_utf8_write(NULL, row[2]) > ep_utf8_write(NULL, row[0]) + ep_utf8_write(NULL, row[1])) return 0;
    if (i > 0 && (row[-3] > row[0] || (row[-3] == row[0] && row[-2] >= row[1]))) return 0;
  }
  return 1;
}

static int good_keys(const ep_program *p) {
  int32_t t = p->header[EP_H_COMPOSE];
  if (t <= 0 || !ep_good_trie(p, t, INT32_MAX)) return 0;
  const int32_t *trie = ep_i32(p, t);
  for (int32_t i = 0; i + 1 < ep_rows(p, t); i++)
    if (ep_trie_id(trie, i) >= 0 && !is_string(p, ep_trie_id(trie, i))) return 0;
  return 1;
}

#define OTHERS (EP_HAS_NORMALIZER(EP_NORMAL_NFC) || EP_HAS_NORMALIZER(EP_NORMAL_MAP) || EP_HAS_NORMALIZER(EP_NORMAL_STRINGS))

int32_t ep_check_normalizer(const ep_program *p) {
  int32_t kind = p->header[EP_H_NORMALIZER];
  if (kind == EP_NORMAL_NONE) {
    for (int32_t word = EP_H_MAP; word <= EP_H_COMPOSE; word++)
      if (p->header[word]) return word;
    return 0;
  }
  if (!OTHERS || !good_strings(p)) return EP_H_STRINGS;
  if (EP_HAS_NORMALIZER(EP_NORMAL_STRINGS) && kind == EP_NORMAL_STRINGS) {
    if (p->header[EP_H_MAP]) return EP_H_MAP;
    return !good_classes(p, 2) ? EP_H_CLASSES : !good_keys(p) ? EP_H_COMPOSE : 0;
  }
  if (!good_map(p)) return EP_H_MAP;
  if (kind == EP_NORMAL_MAP) return p->header[EP_H_CLASSES] ? EP_H_CLASSES : p->header[EP_H_COMPOSE] ? EP_H_COMPOSE : 0;
  return !good_classes(p, 8) ? EP_H_CLASSES : !good_compose(p) ? EP_H_COMPOSE : 0;
}
