/* Conversations as text: docs/bundle.md, "Chat". */
#include "tokenizer.h"

enum { ROLES = 4, JOIN_WORDS = 3, FLAG_MARKER = 8, FLAGS_END = 1 << 4, LONGEST_MARKER = 64 };
enum { TAKES_BEFORE = 1, TAKES_BEHIND = 2, TAKES_END = 4 }; /* white space that a join takes */
enum { MARKER_LINES = 1, MARKER_SPACE = 2, MARKER_ALWAYS = 4 };           /* what goes behind the marker */

ep_status ep_check_chat(const ep_program *p, uint64_t *word) {
  const int32_t *h = p->header;
  int32_t texts = h[EP_H_CHAT_TEXTS], joins = h[EP_H_CHAT_JOINS], bad = 0;
  if (!texts) {
    bad = joins ? EP_H_CHAT_JOINS : h[EP_H_CHAT_FLAGS] ? EP_H_CHAT_FLAGS : 0;
  } else if (!h[EP_H_TOKENIZER] || texts < 0 || texts >= p->n_tensors || !ep_tensor_is(p, texts, EP_I8, 1, ep_cols(p, texts))) {
    bad = EP_H_CHAT_TEXTS;
  } else if (!ep_tensor_is(p, joins, EP_I32, ROLES * ROLES, JOIN_WORDS)) {
    bad = EP_H_CHAT_JOINS;
  } else if (h[EP_H_CHAT_FLAGS] < 0 || h[EP_H_CHAT_FLAGS] >= FLAGS_END) {
    bad = EP_H_CHAT_FLAGS;
  } else {
    const int32_t *join = ep_i32(p, joins);
    for (int32_t i = 0; i < ROLES * ROLES; i++, join += JOIN_WORDS) {
      int absent = join[0] == -1 && join[1] == 0 && join[2] == 0, marker = i == 0 && h[EP_H_CHAT_FLAGS] & FLAG_MARKER;
      int takes = join[2] >= 0 && join[2] < TAKES_END;
      if (marker) {
        takes = (join[2] & ~MARKER_ALWAYS) == MARKER_LINES || (join[2] & ~MARKER_ALWAYS) == MARKER_SPACE || join[2] == 0;
        if (join[1] < 1 || join[1] > LONGEST_MARKER) bad = EP_H_CHAT_JOINS;
      }
      if (absent && !marker) continue;
      if (join[0] < 0 || !takes || join[1] < 0 || join[0] > ep_cols(p, texts) - join[1]) bad = EP_H_CHAT_JOINS;
    }
  }
  *word = (uint64_t)bad;
  return bad ? EP_ERR_FORMAT : EP_OK;
}

/* Where text goes: what fits is written, all is counted. */
typedef struct sink {
  char *text;
  size_t max, n;
} sink;

static void put(sink *out, const char *text, size_t n) {
  if (n && n <= out->max && out->n <= out->max - n) memcpy(out->text + out->n, text, n);
  out->n = n > SIZE_MAX - out->n ? SIZE_MAX : out->n + n;
}

static int is_space(int32_t point) { return ep_white_space(point) || (point >= 0x1C && point <= 0x1F); }

/* s without white space at its beginning, at its end: how much of it. */
static size_t space_in_front(const uint8_t *s, size_t n) {
  size_t at = 0, step;
  while (at < n && is_space(ep_utf8_point(s + at, n - at, &step))) at += step;
  return at;
}

static size_t space_behind(const uint8_t *s, size_t n) {
  size_t end = n, step;
  while (end) {
    size_t at = end - 1;
    while (at && end - at < 4 && (s[at] & 0xC0) == 0x80) at--;
    if (!is_space(ep_utf8_point(s + at, end - at, &step)) || at + step != end) break;
    end = at;
  }
  return n - end;
}

static int same_bytes(const char *a, const char *b, size_t n) {
  while (n && a[n - 1] == b[n - 1]) n--;
  return n == 0;
}

/* How much of an answer is not said again: up to the end of the last marker, and the space that goes behind it. */
static size_t thoughts(const char *s, size_t n, const char *marker, const int32_t *row) {
  size_t size = (size_t)row[1], start = 0, at = 0;
  while (n >= size && at <= n - size) {
    if (same_bytes(s + at, marker, size))
      start = at += size;
    else
      at++;
  }
  if (!start && !(row[2] & MARKER_ALWAYS)) return 0;
  if (row[2] & MARKER_SPACE) return start + space_in_front((const uint8_t *)s + start, n - start);
  while (row[2] & MARKER_LINES && start < n && s[start] == '\n') start++;
  return start;
}

ep_status ep_chat_render(const ep_model *model, const ep_message *messages, size_t n, char *text, size_t max, size_t *bytes,
                         ep_span *contents, size_t *n_good) {
  ep_program p;
  if (!ep_program_of(&p, model) || !bytes || (n && (!messages || !contents)) || (max && !text)) return EP_ERR_ARGUMENT;
  if (!p.header[EP_H_CHAT_TEXTS]) return EP_ERR_CHAT;
  const int32_t *joins = ep_i32(&p, p.header[EP_H_CHAT_JOINS]);
  const char *texts = (const char *)ep_i8(&p, p.header[EP_H_CHAT_TEXTS]);
  int32_t flags = p.header[EP_H_CHAT_FLAGS], left = 0;
  sink out = {text, max, 0};
  for (size_t i = 0; i < n; i++)
    if (messages[i].role < 1 || messages[i].role >= ROLES || (messages[i].bytes && !messages[i].text)) return EP_ERR_ARGUMENT;
  for (size_t i = 0; i <= n; i++) {
    int32_t role = i < n ? messages[i].role : 0, next = i + 1 < n ? messages[i + 1].role : 0;
    const int32_t *join = joins + JOIN_WORDS * (ROLES * left + role), *behind = joins + JOIN_WORDS * (ROLES * role + next);
    size_t start = 0, size = i < n ? messages[i].bytes : 0;
    const char *own = i < n ? messages[i].text : NULL;
    if (role == EP_ASSISTANT && size && flags & FLAG_MARKER) start = thoughts(own, size, texts + joins[0], joins);
    if (size > start && join[2] & TAKES_BEHIND) start += space_in_front((const uint8_t *)own + start, size - start);
    if (size > start && behind[2] & TAKES_BEFORE) size -= space_behind((const uint8_t *)own + start, size - start);
    if (n_good) *n_good = i;
    if (join[0] < 0 || (n == 0 && flags & FLAG_MARKER) || (i < n && size == start && flags >> (role - 1) & 1)) return EP_ERR_ROLE;
    put(&out, texts + join[0], (size_t)join[1]);
    if (i == n) break;
    contents[i].start = out.n;
    if (size > start) put(&out, own + start, size - start);
    contents[i].end = out.n;
    left = role;
  }
  *bytes = out.n;
  return out.n > max ? EP_ERR_BUFFER : EP_OK;
}

/* Does s begin with the text (1), or end while it still could (-1)? */
static int begins(const char *s, size_t n, const ep_message *stop) {
  size_t same = 0;
  while (same < n && same < stop->bytes && s[same] == stop->text[same]) same++;
  return same == stop->bytes ? 1 : same == n ? -1 : 0;
}

int ep_text_ready(const char *text, size_t bytes, const ep_message *stops, size_t n, size_t *ready) {
  size_t held = bytes;
  for (size_t at = 0; at < bytes; at++)
    for (size_t i = 0; i < n; i++) {
      int found = stops[i].bytes ? begins(text + at, bytes - at, stops + i) : 0;
      if (found > 0) {
        *ready = at - ep_utf8_pending(text, at);
        return 1;
      }
      if (found < 0 && at < held) held = at;
    }
  *ready = held - ep_utf8_pending(text, held);
  return 0;
}
