/* Text to its normal form: code points by a map, graphemes by a list of strings, and the rules about spaces. */
#include "tokenizer.h"

typedef struct writer {
  const ep_tokenizer *t;
  uint8_t *out; /* NULL: count */
  size_t n, keep; /* keep: bytes up to the last that is no white space */
  int prefix, begin, space;
} writer;

static void write_byte(writer *w, uint8_t byte) {
  if (w->out) w->out[w->n] = byte;
  w->n++;
}

static void write_point(writer *w, int32_t point) { w->n += ep_utf8_write(w->out ? w->out + w->n : NULL, point); }

/* Every word gets a space in front, which is how Unigram's tokens are written. */
static void put(writer *w, int32_t point) {
  int32_t flags = w->t->flags;
  if (w->t->kind != EP_UNIGRAM) {
    write_point(w, point);
    return;
  }
  int space = point == ' ', line = point == EP_LOW_LINE;
  if (w->t->pre == EP_PRE_WHITESPACE) {
    if (ep_white_space(point)) {
      w->begin = 1;
      return;
    }
    if (w->begin && !line) write_byte(w, ' ');
  } else {
    if (space && w->space && (flags & EP_F_COLLAPSE)) return;
    w->space = space;
    if (w->begin && w->prefix && !space && !line) write_byte(w, ' ');
  }
  w->begin = 0;
  write_point(w, line ? ' ' : point);
  if (!ep_white_space(point)) w->keep = w->n;
}

static void put_string(writer *w, const uint8_t *string) {
  size_t n = string[0], step;
  for (size_t i = 1; i <= n; i += step) {
    int32_t point = ep_utf8_point(string + i, n + 1 - i, &step);
    if (point >= 0) put(w, point);
    else if (w->t->kind == EP_WORD_PIECE && string[i] == 0xFF) write_byte(w, 0xFF);
    else put(w, 0xFFFD);
  }
}

static void map(writer *w, int32_t point, int32_t *cached) {
  const ep_tokenizer *t = w->t;
  int32_t i = *cached, parts[3];
  /* Most letters stay in the run of the one before. */
  if (t->map[2 * (size_t)i] >> 3 > point || (i + 1 < t->n_map && t->map[2 * (size_t)i + 2] >> 3 <= point))
    *cached = i = ep_run_of(t->map, t->n_map, 2, 3, point);
  const int32_t *row = t->map + 2 * (size_t)i;
  int32_t action = row[0] & 7;
  int n = action == EP_MAP_HANGUL ? ep_hangul(point, parts) : 0;
  if (action == EP_MAP_STRING) {
    put_string(w, t->strings + row[1]);
  } else if (action == EP_MAP_APART) {
    write_byte(w, 0xFF);
    put(w, point);
    write_byte(w, 0xFF);
  } else if (n) {
    for (int k = 0; k < n; k++) put(w, parts[k]);
  } else {
    put(w, action == EP_MAP_SHIFT ? point + row[1] : point);
  }
}

/* The string of the shortest beginning of s that is a key, or NULL. */
static const uint8_t *string_of(const ep_tokenizer *t, const uint8_t *s, size_t n) {
  int32_t node = 0;
  for (size_t i = 0; i < n; i++) {
    node = ep_trie_child(t->compose, node, s[i]);
    if (node < 0) return NULL;
    if (ep_trie_id(t->compose, node) >= 0) return t->strings + ep_trie_id(t->compose, node);
  }
  return NULL;
}

static int32_t class_of(const ep_tokenizer *t, int32_t point) {
  return t->classes[ep_run_of(t->classes, t->n_classes, 1, 2, point)] & 3;
}

/* Bytes of the grapheme at s, as far as they decide anything here: extended by marks, begun by prepended signs, CR LF. */
static size_t grapheme(const ep_tokenizer *t, const uint8_t *s, size_t n) {
  enum { OTHER, EXTEND, PREPEND, CONTROL };
  size_t at, step;
  int32_t point = ep_utf8_point(s, n, &at), before = point < 0 ? OTHER : class_of(t, point);
  if (s[0] == '\r' && n > 1 && s[1] == '\n') return 2;
  while (at < n && before != CONTROL) {
    point = ep_utf8_point(s + at, n - at, &step);
    int32_t class = point < 0 ? OTHER : class_of(t, point);
    if (class != EXTEND && !(before == PREPEND && class != CONTROL)) break;
    before = class;
    at += step;
  }
  return at;
}

/* A grapheme of less than 6 bytes is replaced as one where a string fits, else its code points are: so does the library. */
static size_t replace(writer *w, const uint8_t *s, size_t n) {
  size_t size = s[0] < 0x80 && (n == 1 || (s[1] < 0x80 && s[0] != '\r')) ? 1 : grapheme(w->t, s, n), step;
  const uint8_t *string = size < 6 ? string_of(w->t, s, size) : NULL;
  if (string) put_string(w, string);
  for (size_t at = 0; !string && at < size; at += step) {
    int32_t point = ep_utf8_point(s + at, n - at, &step);
    const uint8_t *own = string_of(w->t, s + at, step);
    if (own) put_string(w, own);
    else put(w, point < 0 ? 0xFFFD : point);
  }
  return size;
}

size_t ep_normalize(const ep_tokenizer *t, const uint8_t *s, size_t n, int first, uint8_t *out, int32_t *scratch, size_t bound) {
  int prefix = (t->flags & EP_F_SPACE) && (first || (t->flags & EP_F_EVERY_SPACE));
  writer w = {t, out, 0, 0, prefix, 1, 0};
  int32_t cached = 0;
  if (!(EP_HAS_TOKENIZER(EP_WORD_PIECE) || EP_HAS_TOKENIZER(EP_UNIGRAM)) || t->kind <= EP_SENTENCE_PIECE) {
    if (prefix && n && !((t->flags & EP_F_ONE_SPACE) && s[0] == ' ')) write_byte(&w, ' ');
    if (EP_HAS_NORMALIZER(EP_NORMAL_NFC) && t->normalizer == EP_NORMAL_NFC)
      return w.n + ep_nfc(t, s, n, out ? out + w.n : NULL, scratch, bound);
    for (size_t i = 0; i < n; i++) write_byte(&w, s[i]);
    return w.n;
  }
  for (size_t at = 0, step; at < n; at += step) {
    if (EP_HAS_NORMALIZER(EP_NORMAL_STRINGS) && t->normalizer == EP_NORMAL_STRINGS) {
      step = replace(&w, s + at, n - at);
      continue;
    }
    int32_t point = ep_utf8_point(s + at, n - at, &step);
    if (point < 0) point = 0xFFFD;
    if (EP_HAS_NORMALIZER(EP_NORMAL_MAP) && t->normalizer == EP_NORMAL_MAP) map(&w, point, &cached);
    else put(&w, point);
  }
  return out && (t->flags & EP_F_STRIP_END) ? w.keep : w.n;
}
