/* Unigram: the cut into tokens with the highest sum of scores, by dynamic programming over the bytes of a word. */
#include "tokenizer.h"

/* The best way to reach a byte: four words of the scratch. start < 0: it has not been reached. After the way has been found,
 * `low` holds where the token that begins here ends. */
typedef struct step {
  uint32_t low;
  int32_t high, start, id;
} step;

static int64_t score_of(const step *s) { return (int64_t)((uint64_t)(uint32_t)s->high << 32 | s->low); }

static void reach(step *to, int64_t score, size_t start, int32_t id) {
  if (to->start >= 0 && score <= score_of(to)) return;
  to->low = (uint32_t)score;
  to->high = (int32_t)(score >> 32);
  to->start = (int32_t)start;
  to->id = id;
}

static void emit_unknown(const ep_tokenizer *t, const uint8_t *s, size_t n, ep_ids *out) {
  int known = (t->flags & EP_F_BYTES) != 0;
  for (size_t i = 0; i < n; i++) known &= t->byte_ids[s[i]] >= 0;
  if (!known) {
    ep_emit(out, t->unknown);
    return;
  }
  for (size_t i = 0; i < n; i++) ep_emit(out, t->byte_ids[s[i]]);
}

static void unigram(const ep_tokenizer *t, const uint8_t *s, size_t n, int32_t *scratch, ep_ids *out) {
  step *steps = (step *)(void *)scratch;
  for (size_t i = 0; i <= n; i++) steps[i] = (step){0, 0, -1, -1};
  steps[0].start = 0;
  for (size_t at = 0, size; at < n; at += size) {
    int64_t here = score_of(&steps[at]);
    int single = 0;
    int32_t node = 0;
    ep_utf8_point(s + at, n - at, &size);
    for (size_t end = at; end < n;) {
      node = ep_trie_child(t->trie, node, s[end++]);
      if (node < 0) break;
      int32_t id = ep_trie_id(t->trie, node);
      if (id < 0) continue;
      reach(&steps[end], here + t->scores[id], at, id);
      single |= end - at == size;
    }
    if (!single) reach(&steps[at + size], here + t->scores[t->vocab], at, t->unknown);
  }
  for (size_t end = n; end > 0;) {
    size_t start = (size_t)steps[end].start;
    steps[start].low = (uint32_t)end;
    end = start;
  }
  for (size_t at = 0, end; at < n; at = end) {
    end = steps[at].low;
    if (steps[end].id != t->unknown) {
      ep_emit(out, steps[end].id);
      continue;
    }
    if (t->flags & EP_F_FUSE)
      while (end < n && steps[steps[end].low].id == t->unknown) end = steps[end].low;
    emit_unknown(t, s + at, end - at, out);
  }
}

/* s: words that begin with a space each. */
void ep_unigram(const ep_tokenizer *t, const uint8_t *s, size_t n, int32_t *scratch, ep_ids *out) {
  for (size_t at = 0, end; at < n; at = end) {
    for (end = at + 1; end < n && s[end] != ' '; end++) continue;
    unigram(t, s + at, end - at, scratch, out);
  }
}
