/* Byte-pair encoding: words to base tokens, then merges by rank. */
#include "tokenizer.h"

/* Symbols in a row of n slots. A symbol takes the slots [i, i + size); size[i] is its size, and its last slot holds -size
 * if it has more than one, so both neighbours are found without links. tree is a tournament over the slots whose root is
 * the best pair: a merge costs three paths to the root, whatever the text. */
typedef struct merger {
  const ep_tokenizer *t;
  int32_t n;
  int32_t *id, *size, *pair, *tree; /* pair[i]: row of pairs that joins symbol i and the next one, or -1 */
} merger;

static int32_t find_pair(const ep_tokenizer *t, int32_t left, int32_t right) {
  int32_t first = 0, end = t->n_pairs;
  if (t->starts) first = t->starts[left], end = t->starts[left + 1];
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
  if (pair < 0 && m->pair[i] < 0) return;
  m->pair[i] = pair;
  for (int32_t node = (i + m->n) / 2; node > 0; node /= 2) play(m, node);
}

static int32_t pair_at(const merger *m, int32_t i) {
  int32_t next = i + m->size[i];
  return next < m->n ? find_pair(m->t, m->id[i], m->id[next]) : -1;
}

static void merge(merger *m, ep_ids *out) {
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
  for (int32_t i = 0; i < m->n; i += m->size[i]) ep_emit(out, m->id[i]);
  m->n = 0;
}

static void add_byte(merger *m, uint8_t byte) {
  int32_t id = m->t->byte_ids[byte];
  if (id >= 0) m->id[m->n++] = id;
}

/* The token of a whole word, or -1. */
static int32_t whole(const ep_tokenizer *t, const uint8_t *s, size_t n) {
  int32_t node = 0;
  for (size_t i = 0; i < n && node >= 0; i++) node = ep_trie_child(t->trie, node, s[i]);
  return node < 0 ? -1 : ep_trie_id(t->trie, node);
}

/* One character as llama2.c cuts them: its token if it is one, else a token for each byte, else the unknown one.
 * Returns 1 for that, so that a row of unknown characters can become one. */
static int add_character(merger *m, const uint8_t *s, size_t n, int was_unknown) {
  const ep_tokenizer *t = m->t;
  int32_t id = whole(t, s, n);
  int missing = 0;
  if (id >= 0) {
    m->id[m->n++] = id;
    return 0;
  }
  if (t->flags & EP_F_UNKNOWN)
    for (size_t i = 0; i < n; i++) missing |= t->byte_ids[s[i]] < 0;
  if (missing) {
    if (!(was_unknown && (t->flags & EP_F_FUSE))) m->id[m->n++] = t->unknown;
    return 1;
  }
  for (size_t i = 0; i < n; i++) add_byte(m, s[i]);
  return 0;
}

static void sentence_piece(merger *m, const uint8_t *s, size_t n, int space, ep_ids *out) {
  static const uint8_t blank[] = " ";
  int32_t pre = m->t->pre;
  int unknown = 0, after_space = 0;
  if (space) unknown = add_character(m, blank, 1, 0), after_space = 1;
  for (size_t at = 0; at < n;) {
    size_t size = 1;
    while (size < 4 && at + size < n && (s[at + size] & 0xC0) == 0x80) size++;
    const uint8_t *c = s + at;
    at += size;
    if ((m->t->flags & EP_F_LOW_LINE) && size == 3 && c[0] == 0xE2 && c[1] == 0x96 && c[2] == 0x81) c = blank, size = 1;
    int is_space = size == 1 && c[0] == ' ';
    /* Where no token goes on, nothing can merge: what follows is a word of its own. */
    if (is_space && m->n && (pre == EP_PRE_SPACE || (pre == EP_PRE_SPACE_RUN && !after_space))) {
      merge(m, out);
      unknown = 0;
    }
    after_space = is_space;
    unknown = add_character(m, c, size, unknown);
  }
  merge(m, out);
}

void ep_bpe(const ep_tokenizer *t, const uint8_t *s, size_t n, int space, int32_t *scratch, ep_ids *out) {
  merger m = {t, 0, scratch, scratch + n + 2, scratch + 2 * (n + 2), scratch + 3 * (n + 2)};
  if (t->kind == EP_SENTENCE_PIECE) {
    sentence_piece(&m, s, n, space, out);
    return;
  }
  for (size_t at = 0; at < n;) {
    size_t end = at + ep_word(t->pre, s + at, n - at);
    int32_t id = t->trie ? whole(t, s + at, end - at) : -1;
    if (id >= 0) {
      ep_emit(out, id);
      at = end;
      continue;
    }
    while (at < end) add_byte(&m, s[at++]);
    merge(&m, out);
  }
}
