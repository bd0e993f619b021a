/* The KV cache in blocks (kernels.h): where the numbers of a vector lie. */
#include "fixed.h"
#include "session.h"

#if EP_HAS_BLOCKS

enum { WORD = 4, KEYS = 16 }; /* bytes of a word, keys of a block */

/* Of a key: the first word; the next ones are KEYS words apart. */
static size_t key_at(size_t at, int32_t dim, size_t bytes) {
  size_t padded = ((size_t)dim + 3) & ~(size_t)3;
  return (at / KEYS * padded * KEYS) * bytes + at % KEYS * WORD;
}

/* Of a value: the first number; the next ones are a word apart. */
static size_t value_at(size_t at, int32_t dim, size_t bytes) {
  size_t each = WORD / bytes;
  return at / each * (size_t)dim * WORD + at % each * bytes;
}

void ep_blocks_put(const ep_session *s, void *data, size_t at, const void *row, int32_t dim, int keys) {
  size_t bytes = ep_kv_wide(s) ? 2 : 1, size = (size_t)dim * bytes;
  const uint8_t *from = (const uint8_t *)row;
  uint8_t *to = (uint8_t *)data + (keys ? key_at(at, dim, bytes) : value_at(at, dim, bytes));
  if (keys)
    for (size_t i = 0; i < size; i += WORD, to += KEYS * WORD) memcpy(to, from + i, size - i < WORD ? size - i : WORD);
  else
    for (size_t i = 0; i < size; i += bytes, to += WORD) memcpy(to, from + i, bytes);
}

void ep_blocks_get(const ep_session *s, const void *data, size_t at, void *row, int32_t dim, int keys) {
  size_t bytes = ep_kv_wide(s) ? 2 : 1, size = (size_t)dim * bytes;
  const uint8_t *from = (const uint8_t *)data + (keys ? key_at(at, dim, bytes) : value_at(at, dim, bytes));
  uint8_t *to = (uint8_t *)row;
  if (keys)
    for (size_t i = 0; i < size; i += WORD, from += KEYS * WORD) memcpy(to + i, from, size - i < WORD ? size - i : WORD);
  else
    for (size_t i = 0; i < size; i += bytes, from += WORD) memcpy(to + i, from, bytes);
}

void ep_blocks_store(const ep_session *s, void *data, void *scales, size_t at, const int32_t *x, int32_t dim, int keys) {
  int16_t row[EP_LONGEST_HEAD];
  if (ep_kv_wide(s))
    ((uint8_t *)scales)[at] = (uint8_t)s->kernels.narrow16(row, x, dim);
  else
    ((int32_t *)scales)[at] = ep_quant8((int8_t *)row, x, dim);
  ep_blocks_put(s, data, at, row, dim, keys);
}

#endif
