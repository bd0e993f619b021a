/* WordPiece: the longest token that a word starts with, then the longest that goes on. */
#include "tokenizer.h"

/* The longest token along s from this node: its id or -1, and its bytes. */
static int32_t longest(const ep_tokenizer *t, int32_t node, const uint8_t *s, size_t n, size_t *length) {
  int32_t best = -1;
  *length = 0;
  for (size_t i = 0; i < n; i++) {
    node = ep_trie_child(t->trie, node, s[i]);
    if (node < 0) break;
    if (ep_trie_id(t->trie, node) < 0) continue;
    best = ep_trie_id(t->trie, node);
    *length = i + 1;
  }
  return best;
}

static void word_piece(const ep_tokenizer *t, const uint8_t *s, size_t n, ep_ids *out) {
  int32_t goes_on = ep_trie_child(t->trie, ep_trie_child(t->trie, 0, '#'), '#'), chars = 0;
  size_t mark = out->n;
  for (size_t i = 0; i < n; i++) chars += (s[i] & 0xC0) != 0x80;
  for (size_t at = 0, length, other; chars <= t->word_chars && at < n; at += length) {
    int32_t id = longest(t, at ? goes_on : ep_trie_child(t->trie, 0, ' '), s + at, n - at, &length);
    if (at == 0) { /* signs that are decoded without a space before them */
      int32_t bare = longest(t, 0, s, n, &other);
      if (other > length) id = bare, length = other;
    }
    if (id < 0) break;
    ep_emit(out, id);
    if (at + length == n) return;
  }
  out->n = mark;
  ep_emit(out, t->unknown);
}

/* s: words between bytes 0xFF. */
void ep_word_piece(const ep_tokenizer *t, const uint8_t *s, size_t n, ep_ids *out) {
  for (size_t at = 0, end; at < n; at = end + 1) {
    for (end = at; end < n && s[end] != 0xFF; end++) continue;
    if (end > at) word_piece(t, s + at, end - at, out);
  }
}
