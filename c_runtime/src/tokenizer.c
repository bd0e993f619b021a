/* Text to token ids and back. The models are in bpe.c, wordpiece.c and unigram.c. */
#include "tokenizer.h"

static const int32_t *words_of(const ep_program *p, int32_t word, int32_t absent) {
  return p->header[word] == absent ? NULL : ep_i32(p, p->header[word]);
}

static ep_status open_tokenizer(ep_tokenizer *t, const ep_model *model) {
  ep_program p;
  if (!ep_program_of(&p, model)) return EP_ERR_ARGUMENT;
  const int32_t *h = p.header;
  if (h[EP_H_TOKENIZER] == 0) return EP_ERR_TOKENIZER;
  memset(t, 0, sizeof *t);
  t->kind = h[EP_H_TOKENIZER];
  t->flags = h[EP_H_TOKENIZER_FLAGS];
  t->bos = h[EP_H_BOS];
  t->unknown = h[EP_H_UNKNOWN];
  t->suffix = h[EP_H_SUFFIX];
  t->vocab = p.vocab;
  t->pre = h[EP_H_PRETOKENIZER];
  t->word_chars = h[EP_H_WORD_CHARS];
  t->normalizer = h[EP_H_NORMALIZER];
  t->offsets = ep_i32(&p, h[EP_H_OFFSETS]);
  t->bytes = ep_data(&p, h[EP_H_BYTES]);
  t->types = ep_i8(&p, h[EP_H_TYPES]);
  t->byte_ids = ep_i32(&p, h[EP_H_BYTE_IDS]);
  t->eos = words_of(&p, EP_H_EOS, -1);
  if (t->eos) t->n_eos = ep_cols(&p, h[EP_H_EOS]);
  if (!EP_HAS(EP_FEATURE_ENCODE)) return EP_OK; /* nobody has checked the others */
  t->trie = words_of(&p, EP_H_TRIE, -1);
  t->pairs = words_of(&p, EP_H_PAIRS, -1);
  if (t->pairs) t->n_pairs = ep_rows(&p, h[EP_H_PAIRS]);
  t->added = words_of(&p, EP_H_ADDED, -1);
  if (t->added) t->n_added = ep_cols(&p, h[EP_H_ADDED]);
  t->starts = words_of(&p, EP_H_STARTS, 0);
  t->scores = words_of(&p, EP_H_SCORES, 0);
  t->map = words_of(&p, EP_H_MAP, 0);
  if (t->map) t->n_map = ep_rows(&p, h[EP_H_MAP]);
  t->classes = words_of(&p, EP_H_CLASSES, 0);
  if (t->classes) t->n_classes = ep_cols(&p, h[EP_H_CLASSES]);
  t->compose = words_of(&p, EP_H_COMPOSE, 0);
  if (t->compose) t->n_compose = ep_rows(&p, h[EP_H_COMPOSE]);
  if (h[EP_H_STRINGS]) t->strings = ep_data(&p, h[EP_H_STRINGS]);
  return EP_OK;
}

/* ---- added tokens ------------------------------------------------------------------------------------------------ */

/* A text is walked from one added token to the next; `first` marks the bytes they begin with. */
typedef struct walk {
  const ep_tokenizer *t;
  const uint8_t *s;
  size_t bytes, start, end, next; /* text [start, end) lies before the added token `id`, or before the end if id < 0 */
  int32_t id;
  uint32_t first[8];
  const ep_span *contents; /* where control tokens are text; those from `content` on end behind what was walked */
  size_t n_contents, content;
} walk;

static void begin_walk(walk *w, const ep_tokenizer *t, const uint8_t *s, size_t bytes, const ep_span *contents, size_t n) {
  memset(w, 0, sizeof *w);
  w->t = t;
  w->s = s;
  w->bytes = bytes;
  w->contents = contents;
  w->n_contents = n;
  for (int32_t i = 0; i < t->n_added; i++) {
    size_t size;
    const uint8_t *text = ep_token_text(t, t->added[i] & EP_ADDED_ID, &size);
    if (size) w->first[text[0] >> 5] |= (uint32_t)1 << (text[0] & 31);
  }
}

/* Tokens that no content of a message may hold. */
static int is_control(const ep_tokenizer *t, int32_t id) {
  int control = t->types[id] == EP_TYPE_CONTROL;
  for (int32_t i = 0; i < t->n_eos && !control; i++) control = t->eos[i] == id;
  return control;
}

/* The longest added token at byte `at` with its flags, or -1. */
static int32_t match_added(walk *w, size_t at, size_t *length) {
  const ep_tokenizer *t = w->t;
  const uint8_t *s = w->s + at;
  size_t n = w->bytes - at, room = n; /* room: for control tokens */
  int32_t best = -1;
  *length = 0;
  while (w->content < w->n_contents && w->contents[w->content].end <= at) w->content++;
  if (w->content < w->n_contents) room = w->contents[w->content].start > at ? w->contents[w->content].start - at : 0;
  for (int32_t i = 0; i < t->n_added; i++) {
    size_t size, same = 0;
    const uint8_t *text = ep_token_text(t, t->added[i] & EP_ADDED_ID, &size);
    if (size <= *length || size > n || (size > room && is_control(t, t->added[i] & EP_ADDED_ID))) continue;
    while (same < size && text[same] == s[same]) same++;
    if (same < size) continue;
    best = t->added[i];
    *length = size;
  }
  return best;
}

/* The end of s[start, end) without white space. */
static size_t trimmed(const uint8_t *s, size_t start, size_t end) {
  while (end > start) {
    size_t at = end - 1, step;
    while (at > start && (s[at] & 0xC0) == 0x80) at--;
    if (!ep_white_space(ep_utf8_point(s + at, end - at, &step)) || at + step != end) break;
    end = at;
  }
  return end;
}

static void next_added(walk *w) {
  size_t length, step;
  w->id = -1;
  w->start = w->next;
  for (size_t at = w->start; at < w->bytes; at++) {
    uint8_t byte = w->s[at];
    if (!(w->first[byte >> 5] >> (byte & 31) & 1)) continue;
    int32_t found = match_added(w, at, &length);
    if (found < 0) continue;
    w->id = found & EP_ADDED_ID;
    w->end = found & EP_ADDED_LEFT ? trimmed(w->s, w->start, at) : at;
    w->next = at + length;
    while ((found & EP_ADDED_RIGHT) && w->next < w->bytes &&
           ep_white_space(ep_utf8_point(w->s + w->next, w->bytes - w->next, &step)))
      w->next += step;
    return;
  }
  w->end = w->next = w->bytes;
}

/* ---- the API ----------------------------------------------------------------------------------------------------- */

/* A space goes before text that begins here. */
static int wants_space(const ep_tokenizer *t, const walk *w) {
  if (!(t->flags & EP_F_SPACE) || (w->start > 0 && !(t->flags & EP_F_EVERY_SPACE))) return 0;
  const uint8_t *s = w->s + w->start;
  size_t n = w->end - w->start;
  int line = (t->flags & EP_F_LOW_LINE) && n > 2 && s[0] == 0xE2 && s[1] == 0x96 && s[2] == 0x81;
  return !((t->flags & EP_F_ONE_SPACE) && (s[0] == ' ' || line));
}

#define HAS_BPE (EP_HAS_TOKENIZER(EP_BYTE_LEVEL) || EP_HAS_TOKENIZER(EP_SENTENCE_PIECE))

/* Whether the text is rewritten before it is encoded. */
static int rewrites(const ep_tokenizer *t, int space) {
  return t->kind >= EP_WORD_PIECE || t->normalizer || (t->kind == EP_BYTE_LEVEL && space);
}

static void encode_text(const ep_tokenizer *t, const walk *w, int32_t *scratch, ep_ids *out) {
  const uint8_t *s = w->s + w->start;
  size_t n = w->end - w->start;
  if (n == 0) return;
  int space = wants_space(t, w), first = w->start == 0;
  if (HAS_BPE && !rewrites(t, space)) {
    ep_bpe(t, s, n, space, scratch, out);
    return;
  }
  size_t bound = ep_normalize(t, s, n, first, NULL, NULL, 0);
  uint8_t *text = (uint8_t *)scratch;
  scratch += (bound + 3) / 4;
  n = ep_normalize(t, s, n, first, text, scratch, bound);
  if (EP_HAS_TOKENIZER(EP_WORD_PIECE) && t->kind == EP_WORD_PIECE) ep_word_piece(t, text, n, out);
  else if (EP_HAS_TOKENIZER(EP_UNIGRAM) && t->kind == EP_UNIGRAM) ep_unigram(t, text, n, scratch, out);
  else if (HAS_BPE) ep_bpe(t, text, n, 0, scratch, out);
}

static int good_contents(const ep_span *contents, size_t n, size_t bytes) {
  size_t at = 0;
  if (n && !contents) return 0;
  for (size_t i = 0; i < n; i++) {
    if (contents[i].start < at || contents[i].end < contents[i].start) return 0;
    at = contents[i].end;
  }
  return at <= bytes;
}

size_t ep_encode_chat_scratch(const ep_model *model, const char *text, size_t bytes, const ep_span *contents, size_t n_contents) {
  ep_tokenizer t;
  walk w;
  size_t total = 0;
  if (!EP_HAS(EP_FEATURE_ENCODE) || open_tokenizer(&t, model) != EP_OK || (bytes && !text) || bytes > INT32_MAX / 64) return 0;
  if (!good_contents(contents, n_contents, bytes)) return 0;
  int rewritten = rewrites(&t, t.flags & EP_F_SPACE);
  begin_walk(&w, &t, (const uint8_t *)text, bytes, contents, n_contents);
  while (w.next < bytes) {
    next_added(&w);
    size_t n = w.end - w.start;
    total += 1 + (n && rewritten ? ep_normalize(&t, w.s + w.start, n, w.start == 0, NULL, NULL, 0) : n) + (w.id >= 0);
  }
  return 4 * (total + 2) + (rewritten ? (total + 3) / 4 : 0);
}

size_t ep_encode_scratch(const ep_model *model, const char *text, size_t bytes) {
  return ep_encode_chat_scratch(model, text, bytes, NULL, 0);
}

static ep_status encode(const ep_model *model, const char *text, size_t bytes, const ep_span *contents, size_t n_contents, int bos,
                        int32_t *ids, size_t max, int32_t *scratch, size_t *n) {
  ep_tokenizer t;
  walk w;
  ep_status st = EP_HAS(EP_FEATURE_ENCODE) ? open_tokenizer(&t, model) : EP_ERR_INCLUDED;
  if (st != EP_OK) return st;
  int suffix = (t.flags & EP_F_SUFFIX) != 0;
  if (!n || (max && !ids) || (bytes && (!text || !scratch)) || bytes > INT32_MAX / 64) return EP_ERR_ARGUMENT;
  if ((bos && t.bos < 0 && !suffix) || !good_contents(contents, n_contents, bytes)) return EP_ERR_ARGUMENT;
  ep_ids out = {ids, max, 0};
  begin_walk(&w, &t, (const uint8_t *)text, bytes, contents, n_contents);
  if (bos && t.bos >= 0) ep_emit(&out, t.bos);
  while (w.next < bytes) {
    next_added(&w);
    encode_text(&t, &w, scratch, &out);
    if (w.id >= 0) ep_emit(&out, w.id);
  }
  if (bos && suffix) ep_emit(&out, t.suffix);
  *n = out.n;
  return out.n > max ? EP_ERR_BUFFER : EP_OK;
}

ep_status ep_encode(const ep_model *model, const char *text, size_t bytes, int bos, int32_t *ids, size_t max, int32_t *scratch,
                    size_t *n) {
  return encode(model, text, bytes, NULL, 0, bos, ids, max, scratch, n);
}

ep_status ep_encode_chat(const ep_model *model, const char *text, size_t bytes, const ep_span *contents, size_t n_contents,
                         int32_t *ids, size_t max, int32_t *scratch, size_t *n) {
  return encode(model, text, bytes, contents, n_contents, 0, ids, max, scratch, n);
}

int ep_adds_bos(const ep_model *model) {
  ep_tokenizer t;
  return open_tokenizer(&t, model) == EP_OK && (((t.flags & EP_F_BOS) && t.bos >= 0) || (t.flags & EP_F_SUFFIX));
}

ep_status ep_token_bytes(const ep_model *model, int32_t previous, int32_t token, const char **bytes, size_t *n) {
  ep_tokenizer t;
  ep_status st = open_tokenizer(&t, model);
  if (st != EP_OK) return st;
  if (!bytes || !n) return EP_ERR_ARGUMENT;
  if (token < 0 || token >= t.vocab) return EP_ERR_TOKEN;
  size_t size, cut = 0;
  const uint8_t *text = ep_token_text(&t, token, &size);
  if (t.types[token] == EP_TYPE_CONTROL) size = 0;
  int first = previous < 0 ? t.flags & EP_F_STRIP_FIRST : (t.flags & EP_F_STRIP_BOS) && t.bos >= 0 && previous == t.bos;
  if (first) cut = size && text[0] == ' ';
  else if (t.kind == EP_WORD_PIECE && size > 1 && text[0] == '#' && text[1] == '#') cut = 2;
  *bytes = (const char *)text + cut;
  *n = size - cut;
  return EP_OK;
}
