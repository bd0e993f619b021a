/* Text to token ids and back: byte-level BPE with GPT-2's pre-tokenizer, and SentencePiece BPE as llama2.c does it. */
#include "internal.h"
#include "unicode.h"

enum { BYTE_LEVEL = 1, SENTENCE_PIECE = 2 };
enum { ADD_BOS = 1, ADD_SPACE = 2, STRIP_SPACE = 4 };
enum { TYPE_TEXT = 0, TYPE_CONTROL = 1 };

typedef struct tokenizer {
  int32_t kind, flags, bos, vocab, gpt2, n_pairs, n_added;
  const int32_t *offsets, *pairs, *byte_ids, *sorted, *added;
  const uint8_t *bytes;
  const int8_t *types;
} tokenizer;

static ep_status open_tokenizer(tokenizer *t, const ep_model *model) {
  ep_program p;
  if (!ep_program_of(&p, model)) return EP_ERR_ARGUMENT;
  const int32_t *h = p.header;
  if (h[EP_H_TOKENIZER] == 0) return EP_ERR_TOKENIZER;
  memset(t, 0, sizeof *t);
  t->kind = h[EP_H_TOKENIZER];
  t->flags = h[EP_H_TOKENIZER_FLAGS];
  t->bos = h[EP_H_BOS];
  t->vocab = p.vocab;
  t->gpt2 = h[EP_H_PRETOKENIZER] == 1;
  t->offsets = ep_i32(&p, h[EP_H_OFFSETS]);
  t->bytes = ep_data(&p, h[EP_H_BYTES]);
  t->types = ep_i8(&p, h[EP_H_TYPES]);
  t->byte_ids = ep_i32(&p, h[EP_H_BYTE_IDS]);
  if (h[EP_H_SORTED] >= 0) t->sorted = ep_i32(&p, h[EP_H_SORTED]);
  if (h[EP_H_PAIRS] >= 0) {
    t->pairs = ep_i32(&p, h[EP_H_PAIRS]);
    t->n_pairs = ep_rows(&p, h[EP_H_PAIRS]);
  }
  if (h[EP_H_ADDED] >= 0) {
    t->added = ep_i32(&p, h[EP_H_ADDED]);
    t->n_added = ep_cols(&p, h[EP_H_ADDED]);
  }
  return EP_OK;
}

static const uint8_t *token_text(const tokenizer *t, int32_t id, size_t *n) {
  *n = (size_t)(t->offsets[id + 1] - t->offsets[id]);
  return t->bytes + t->offsets[id];
}

/* ---- UTF-8 ------------------------------------------------------------------------------------------------------ */

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

/* Class of the code point at s and its bytes. A byte that is not UTF-8 is one symbol of class "other". */
static int class_at(const uint8_t *s, size_t n, size_t *step) {
  uint8_t low, high;
  size_t length = utf8_length(s[0], &low, &high);
  *step = 1;
  if (length == 0 || utf8_valid(s, n, length, low, high) < length) return EP_OTHER;
  uint32_t point = length == 1 ? s[0] : s[0] & (0xFFu >> (length + 1));
  for (size_t i = 1; i < length; i++) point = point << 6 | (s[i] & 0x3F);
  *step = length;
  size_t first = 0, end = sizeof ep_unicode_runs / sizeof *ep_unicode_runs;
  while (end - first > 1) {
    size_t middle = first + (end - first) / 2;
    if (ep_unicode_runs[middle] >> 2 <= point) first = middle;
    else end = middle;
  }
  return (int)(ep_unicode_runs[first] & 3);
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

/* Bytes of the next match of GPT-2's pattern, n > 0:
 * 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t gpt2_word(const uint8_t *s, size_t n) {
  if (s[0] == '\'' && n > 1) {
    uint8_t a = s[1], b = n > 2 ? s[2] : 0;
    if (a == 's' || a == 't' || a == 'm' || a == 'd') return 2;
    if ((a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l')) return 3;
  }
  size_t at = 0, last = 0, step;
  int kind = class_at(s, n, &step);
  if (s[0] == ' ' && n > 1) {
    int next = class_at(s + 1, n - 1, &step);
    if (next != EP_SPACE) {
      kind = next;
      at = 1;
    }
  }
  while (at < n && class_at(s + at, n - at, &step) == kind) {
    last = at;
    at += step;
  }
  /* Spaces before a word leave their last one to it. */
  return kind == EP_SPACE && at < n && last > 0 ? last : at;
}

/* ---- merging ---------------------------------------------------------------------------------------------------- */

typedef struct output {
  int32_t *ids;
  size_t max, n;
} output;

static void emit(output *out, int32_t id) {
  if (out->n < out->max) out->ids[out->n] = id;
  out->n++;
}

/* Symbols in a row of n slots. A symbol takes the slots [i, i + size); size[i] is its size, and its last slot holds -size
 * if it has more than one, so both neighbours are found without links. tree is a tournament over the slots whose root is
 * the best pair: a merge costs three paths to the root, whatever the text. */
typedef struct merger {
  const tokenizer *t;
  int32_t n;
  int32_t *id, *size, *pair, *tree; /* pair[i]: row of pairs that joins symbol i and the next one, or -1 */
} merger;

static int32_t find_pair(const tokenizer *t, int32_t left, int32_t right) {
  int32_t first = 0, end = t->n_pairs;
  while (first < end) {
    int32_t middle = first + (end - first) / 2;
    const int32_t *row = t->pairs + (size_t)middle * 4;
    if (row[0] == left && row[1] == right) return middle;
    if (row[0] < left || (row[0] == left && row[1] < right)) first = middle + 1;
    else end = middle;
  }
  return -1;
}

static int32_t winner(const merger *m, int32_t node) { return node >= m->n ? node - m->n : m->tree[node]; }

static void play(merger *m, int32_t node) {
  int32_t a = winner(m, 2 * node), b = winner(m, 2 * node + 1), ka = m->pair[a], kb = m->pair[b];
  int a_wins = ka >= 0;
  if (ka >= 0 && kb >= 0) {
    int32_t ra = m->t->pairs[(size_t)ka * 4 + 2], rb = m->t->pairs[(size_t)kb * 4 + 2];
    a_wins = ra < rb || (ra == rb && a < b);
  }
  m->tree[node] = a_wins ? a : b;
}

static void set_pair(merger *m, int32_t i, int32_t pair) {
  m->pair[i] = pair;
  for (int32_t node = (i + m->n) / 2; node > 0; node /= 2) play(m, node);
}

static int32_t pair_at(const merger *m, int32_t i) {
  int32_t next = i + m->size[i];
  return next < m->n ? find_pair(m->t, m->id[i], m->id[next]) : -1;
}

static void merge(merger *m, output *out) {
  for (int32_t i = 0; i < m->n; i++) m->size[i] = 1;
  for (int32_t i = 0; i < m->n; i++) m->pair[i] = pair_at(m, i);
  for (int32_t node = m->n - 1; node > 0; node--) play(m, node);
  while (m->n > 1) {
    int32_t i = m->tree[1], pair = m->pair[i];
    if (pair < 0) break;
    int32_t right = i + m->size[i], size = m->size[i] + m->size[right];
    m->id[i] = m->t->pairs[(size_t)pair * 4 + 3];
    m->size[i] = size;
    m->size[i + size - 1] = -size;
    set_pair(m, right, -1);
    set_pair(m, i, pair_at(m, i));
    if (i > 0) {
      int32_t before = m->size[i - 1] < 0 ? i + m->size[i - 1] : i - 1;
      set_pair(m, before, pair_at(m, before));
    }
  }
  for (int32_t i = 0; i < m->n; i += m->size[i]) emit(out, m->id[i]);
}

static void add_byte(merger *m, uint8_t byte) {
  int32_t id = m->t->byte_ids[byte];
  if (id >= 0) m->id[m->n++] = id;
}

static int compare(const uint8_t *a, size_t na, const uint8_t *b, size_t nb) {
  for (size_t i = 0; i < na && i < nb; i++)
    if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
  return na < nb ? -1 : na > nb;
}

/* One character in llama2.c's sense: its token if it is one, else a token for each byte. */
static void add_character(merger *m, const uint8_t *s, size_t n) {
  const tokenizer *t = m->t;
  int32_t first = 0, end = t->vocab;
  size_t size;
  while (first < end) {
    int32_t middle = first + (end - first) / 2;
    const uint8_t *text = token_text(t, t->sorted[middle], &size);
    if (compare(text, size, s, n) < 0) first = middle + 1;
    else end = middle;
  }
  for (; first < t->vocab; first++) {
    int32_t id = t->sorted[first];
    const uint8_t *text = token_text(t, id, &size);
    if (compare(text, size, s, n) != 0) break;
    if (t->types[id] == TYPE_TEXT) {
      m->id[m->n++] = id;
      return;
    }
  }
  for (size_t i = 0; i < n; i++) add_byte(m, s[i]);
}

/* Text without added tokens. */
static void encode_text(merger *m, const uint8_t *s, size_t n, int space, output *out) {
  if (n == 0) return;
  m->n = 0;
  if (m->t->kind == SENTENCE_PIECE) {
    if (space) add_character(m, (const uint8_t *)" ", 1);
    for (size_t at = 0; at < n;) {
      size_t size = 1;
      while (size < 4 && at + size < n && (s[at + size] & 0xC0) == 0x80) size++;
      add_character(m, s + at, size);
      at += size;
    }
    merge(m, out);
    return;
  }
  if (space) add_byte(m, ' ');
  for (size_t at = 0; at < n;) {
    size_t end = m->t->gpt2 ? at + gpt2_word(s + at, n - at) : n;
    while (at < end) add_byte(m, s[at++]);
    merge(m, out);
    m->n = 0;
  }
}

/* ---- the API ---------------------------------------------------------------------------------------------------- */

/* The longest added token that s starts with, or -1. */
static int32_t match_added(const tokenizer *t, const uint8_t *s, size_t n, size_t *length) {
  int32_t best = -1;
  *length = 0;
  for (int32_t i = 0; i < t->n_added; i++) {
    size_t size;
    const uint8_t *text = token_text(t, t->added[i], &size);
    if (size > *length && size <= n && compare(text, size, s, size) == 0) {
      best = t->added[i];
      *length = size;
    }
  }
  return best;
}

ep_status ep_encode(const ep_model *model, const char *text, size_t bytes, int bos, int32_t *ids, size_t max, int32_t *scratch,
                    size_t *n) {
  tokenizer t;
  ep_status st = open_tokenizer(&t, model);
  if (st != EP_OK) return st;
  if (!n || (max && !ids) || (bytes && (!text || !scratch)) || bytes > INT32_MAX / 4 || (bos && t.bos < 0)) return EP_ERR_ARGUMENT;
  output out = {ids, max, 0};
  merger m = {&t, 0, scratch, scratch + bytes + 2, scratch + 2 * (bytes + 2), scratch + 3 * (bytes + 2)};
  const uint8_t *s = (const uint8_t *)text;
  int space = (t.flags & ADD_SPACE) != 0;
  uint32_t starts[8] = {0}; /* first bytes of added tokens */
  for (int32_t i = 0; i < t.n_added; i++) {
    size_t size;
    const uint8_t *added = token_text(&t, t.added[i], &size);
    if (size) starts[added[0] >> 5] |= (uint32_t)1 << (added[0] & 31);
  }
  if (bos) emit(&out, t.bos);
  size_t start = 0, length;
  for (size_t at = 0; at < bytes; at++) {
    if (!(starts[s[at] >> 5] >> (s[at] & 31) & 1)) continue;
    int32_t id = match_added(&t, s + at, bytes - at, &length);
    if (id < 0) continue;
    encode_text(&m, s + start, at - start, space && start == 0, &out);
    emit(&out, id);
    start = at + length;
    at = start - 1;
  }
  if (start < bytes) encode_text(&m, s + start, bytes - start, space && start == 0, &out);
  *n = out.n;
  return out.n > max ? EP_ERR_BUFFER : EP_OK;
}

int ep_adds_bos(const ep_model *model) {
  tokenizer t;
  return open_tokenizer(&t, model) == EP_OK && (t.flags & ADD_BOS) && t.bos >= 0;
}

ep_status ep_token_bytes(const ep_model *model, int32_t previous, int32_t token, const char **bytes, size_t *n) {
  tokenizer t;
  ep_status st = open_tokenizer(&t, model);
  if (st != EP_OK) return st;
  if (!bytes || !n) return EP_ERR_ARGUMENT;
  if (token < 0 || token >= t.vocab) return EP_ERR_TOKEN;
  size_t size;
  const uint8_t *text = token_text(&t, token, &size);
  if (t.types[token] == TYPE_CONTROL) size = 0;
  if ((t.flags & STRIP_SPACE) && t.bos >= 0 && previous == t.bos && size && text[0] == ' ') {
    text++;
    size--;
  }
  *bytes = (const char *)text;
  *n = size;
  return EP_OK;
}
