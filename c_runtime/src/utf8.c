/* UTF-8, and searches in tables over code points and bytes. */
#include "tokenizer.h"

/* Bytes of the code point that starts with this byte, 0 if none does; *low and *high bound its second byte. */
static size_t utf8_length(uint8_t lead, uint8_t *low, uint8_t *high) {
  *low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  *high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  if (lead < 0x80) return 1;
  if (lead < 0xC2 || lead > 0xF4) return 0;
  return lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
}

/* Valid bytes at the start of s of a code point of utf8_length(s[0]) bytes; at least 1. */
static size_t utf8_valid(const uint8_t *s, size_t n, size_t length, uint8_t low, uint8_t high) {
  size_t i = 1;
  while (i < length && i < n && s[i] >= (i == 1 ? low : 0x80) && s[i] <= (i == 1 ? high : 0xBF)) i++;
  return i;
}

int32_t ep_utf8_point(const uint8_t *s, size_t n, size_t *step) {
  uint8_t low, high;
  *step = 1;
  if (s[0] < 0x80) return s[0];
  size_t length = utf8_length(s[0], &low, &high);
  if (length == 0 || utf8_valid(s, n, length, low, high) < length) return -1;
  uint32_t point = s[0] & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; i++) point = point << 6 | (s[i] & 0x3F);
  *step = length;
  return (int32_t)point;
}

size_t ep_utf8_write(uint8_t *out, int32_t point) {
  uint32_t c = (uint32_t)point;
  size_t n = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  if (!out) return n;
  if (n == 1) {
    out[0] = (uint8_t)c;
    return 1;
  }
  for (size_t i = n - 1; i > 0; i--, c >>= 6) out[i] = (uint8_t)(0x80 | (c & 0x3F));
  out[0] = (uint8_t)(0xF00u >> n | c);
  return n;
}

size_t ep_utf8_pending(const char *bytes, size_t n) {
  const uint8_t *s = (const uint8_t *)bytes;
  for (size_t back = 1; back <= 3 && back <= n; back++) {
    uint8_t low, high, lead = s[n - back];
    size_t length = utf8_length(lead, &low, &high);
    if (length > back && utf8_valid(s + n - back, back, length, low, high) == back) return back;
    if (lead < 0x80 || lead >= 0xC0) return 0;
  }
  return 0;
}

int ep_white_space(int32_t c) {
  return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) ||
         c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F || c == 0x3000;
}

int32_t ep_run_of(const int32_t *rows, int32_t n, int32_t stride, int32_t shift, int32_t key) {
  int32_t first = 0, end = n;
  while (end - first > 1) {
    int32_t middle = first + (end - first) / 2;
    if (rows[(size_t)middle * (size_t)stride] >> shift <= key) first = middle;
    else end = middle;
  }
  return first;
}

int32_t ep_trie_child(const int32_t *trie, int32_t node, uint8_t byte) {
  if (node < 0) return -1;
  int32_t first = ep_trie_first(trie, node), end = ep_trie_first(trie, node + 1);
  while (first < end) {
    int32_t middle = first + (end - first) / 2;
    uint32_t label = (uint32_t)trie[2 * (size_t)middle] >> 24;
    if (label == byte) return middle;
    if (label < byte) first = middle + 1;
    else end = middle;
  }
  return -1;
}
