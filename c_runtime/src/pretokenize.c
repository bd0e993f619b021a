/* The regular expressions that cut a text into words before byte-level BPE, by hand. */
#include "tokenizer.h"
#include "unicode.h"

/* Class of the code point at s and its bytes. A byte that is not UTF-8 is one symbol of class "other". */
static int class_at(const uint8_t *s, size_t n, size_t *step) {
  int32_t point = ep_utf8_point(s, n, step);
  if (point < 0) return EP_OTHER;
  if (point < 0x80) {
    uint32_t c = (uint32_t)point;
    if ((c | 32) - 'a' < 26) return EP_LETTER;
    if (c - '0' < 10) return EP_NUMBER;
    return c == ' ' || c - 9 < 5 ? EP_SPACE : EP_OTHER;
  }
  const uint16_t *block = ep_unicode_blocks + (point >> EP_BLOCK_BITS);
  int32_t first = block[0], end = block[1], key = (point & ((1 << EP_BLOCK_BITS) - 1)) << 2 | 3;
  while (end - first > 1) {
    int32_t middle = first + (end - first) / 2;
    if (ep_unicode_runs[middle] <= key) first = middle;
    else end = middle;
  }
  return ep_unicode_runs[first] & 3;
}

/* What the step Digits takes as a digit: \p{N} of a newer Unicode than the regular expressions know. */
static int digit_at(const uint8_t *s, size_t n, size_t *step) {
  if (class_at(s, n, step) == EP_NUMBER) return 1;
  int32_t point = ep_utf8_point(s, n, step);
  return (point >= 0x11DE0 && point <= 0x11DE9) || (point >= 0x16FF4 && point <= 0x16FF6);
}

/* 's 't 'm 'd 're 've 'll: its bytes, or 0. any_case: as (?i:...), where the long s is an s. */
static size_t contraction(const uint8_t *s, size_t n, int any_case) {
  if (s[0] != '\'' || n < 2) return 0;
  uint8_t fold = any_case ? 32 : 0, a = s[1] | fold, b = n > 2 ? s[2] | fold : 0;
  if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
  if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  return any_case && n > 2 && s[1] == 0xC5 && s[2] == 0xBF ? 3 : 0;
}

/* 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * digits: every digit is cut out first, and the expression sees what is between them. */
static size_t gpt2_word(const uint8_t *s, size_t n, int digits) {
  size_t at = contraction(s, n, 0), last = 0, step;
  if (at) return at;
  if (digits && digit_at(s, n, &step)) return step;
  int kind = class_at(s, n, &step);
  if (s[0] == ' ' && n > 1 && !(digits && digit_at(s + 1, n - 1, &step))) {
    int next = class_at(s + 1, n - 1, &step);
    if (next != EP_SPACE) {
      kind = next;
      at = 1;
    }
  }
  while (at < n && class_at(s + at, n - at, &step) == kind) {
    if (digits && kind == EP_OTHER && digit_at(s + at, n - at, &step)) break;
    last = at;
    at += step;
  }
  /* Spaces before a word leave their last one to it. */
  return kind == EP_SPACE && at < n && last > 0 && !(digits && digit_at(s + at, n - at, &step)) ? last : at;
}

/* (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,most}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t llama3_word(const uint8_t *s, size_t n, int most) {
  size_t at = contraction(s, n, 1), step, last = 0, line = 0;
  if (at) return at;
  int kind = class_at(s, n, &step);
  int newline = s[0] == '\r' || s[0] == '\n';
  if (kind == EP_NUMBER) {
    while (at < n && most-- > 0 && class_at(s + at, n - at, &step) == EP_NUMBER) at += step;
    return at;
  }
  if (kind != EP_LETTER && !newline) at = step;
  size_t letters = at;
  while (at < n && class_at(s + at, n - at, &step) == EP_LETTER) at += step;
  if (at > letters) return at;
  at = s[0] == ' ' ? 1 : 0;
  size_t others = at;
  while (at < n && class_at(s + at, n - at, &step) == EP_OTHER) at += step;
  if (at > others) {
    while (at < n && (s[at] == '\r' || s[at] == '\n')) at++;
    return at;
  }
  at = 0;
  while (at < n && class_at(s + at, n - at, &step) == EP_SPACE) {
    if (s[at] == '\r' || s[at] == '\n') line = at + 1;
    last = at;
    at += step;
  }
  if (line) return line;
  return at < n && last > 0 ? last : at;
}

size_t ep_word(int32_t pre, const uint8_t *s, size_t n) {
  const int gpt2 = EP_HAS_PRETOKENIZER(EP_PRE_GPT2) || EP_HAS_PRETOKENIZER(EP_PRE_SMOLLM);
  const int llama3 = EP_HAS_PRETOKENIZER(EP_PRE_LLAMA3) || EP_HAS_PRETOKENIZER(EP_PRE_QWEN2);
  if (gpt2 && (pre == EP_PRE_GPT2 || pre == EP_PRE_SMOLLM)) return gpt2_word(s, n, pre == EP_PRE_SMOLLM);
  if (llama3 && (pre == EP_PRE_LLAMA3 || pre == EP_PRE_QWEN2)) return llama3_word(s, n, pre == EP_PRE_LLAMA3 ? 3 : 1);
  return n;
}
