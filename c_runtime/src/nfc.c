/* Unicode normalization form C (UAX #15) with the tables of the bundle. */
#include "tokenizer.h"

enum { CLASS = 21, POINT = (1 << CLASS) - 1 }; /* a symbol is a code point | combining class << 21 */
enum { S_BASE = 0xAC00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11A7, L_COUNT = 19, V_COUNT = 21, T_COUNT = 28 };
enum { FIRST_MARK = 0x300 }; /* below it every code point is a starter that composes with nothing before it */

int ep_hangul(int32_t point, int32_t parts[3]) {
  int32_t s = point - S_BASE;
  if (s < 0 || s >= L_COUNT * V_COUNT * T_COUNT) return 0;
  parts[0] = L_BASE + s / (V_COUNT * T_COUNT);
  parts[1] = V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT;
  parts[2] = T_BASE + s % T_COUNT;
  return s % T_COUNT ? 3 : 2;
}

/* A starter and the marks behind it, until the next starter; spare has room for as many. */
typedef struct segment {
  const ep_tokenizer *t;
  uint8_t *out;
  size_t written, n;
  int32_t *symbols, *spare;
} segment;

static int32_t composite(const ep_tokenizer *t, int32_t a, int32_t b) {
  int32_t l = a - L_BASE, v = b - V_BASE, s = a - S_BASE, m = b - T_BASE, first = 0, end = t->n_compose;
  if (l >= 0 && l < L_COUNT && v >= 0 && v < V_COUNT) return S_BASE + (l * V_COUNT + v) * T_COUNT;
  if (s >= 0 && s < L_COUNT * V_COUNT * T_COUNT && s % T_COUNT == 0 && m > 0 && m < T_COUNT) return a + m;
  while (first < end) {
    int32_t middle = first + (end - first) / 2;
    const int32_t *row = t->compose + (size_t)middle * 3;
    if (row[0] == a && row[1] == b) return row[2];
    if (row[0] < a || (row[0] == a && row[1] < b)) first = middle + 1;
    else end = middle;
  }
  return -1;
}

/* Canonical order: stable, by class. One pass for every class there is keeps long rows of marks linear. */
static void sort(segment *g) {
  int sorted = 1;
  for (size_t i = 1; i < g->n; i++) sorted &= g->symbols[i - 1] >> CLASS <= g->symbols[i] >> CLASS;
  if (sorted) return;
  size_t done = 0;
  for (int32_t class = -1; done < g->n;) {
    int32_t next = INT32_MAX;
    for (size_t i = 0; i < g->n; i++) {
      int32_t c = g->symbols[i] >> CLASS;
      if (c > class && c < next) next = c;
    }
    class = next;
    for (size_t i = 0; i < g->n; i++)
      if (g->symbols[i] >> CLASS == class) g->spare[done++] = g->symbols[i];
  }
  int32_t *swap = g->symbols;
  g->symbols = g->spare;
  g->spare = swap;
}

static void compose(segment *g) {
  sort(g);
  if (g->n < 2 || g->symbols[0] >> CLASS) return;
  size_t kept = 1;
  int32_t last = 0;
  for (size_t i = 1; i < g->n; i++) {
    int32_t class = g->symbols[i] >> CLASS;
    int32_t whole = last < class ? composite(g->t, g->symbols[0], g->symbols[i] & POINT) : -1;
    if (whole >= 0) {
      g->symbols[0] = whole;
      continue;
    }
    g->symbols[kept++] = g->symbols[i];
    last = class;
  }
  g->n = kept;
}

static void flush(segment *g) {
  compose(g);
  for (size_t i = 0; i < g->n; i++) g->written += ep_utf8_write(g->out + g->written, g->symbols[i] & POINT);
  g->n = 0;
}

static void add(segment *g, int32_t point) {
  const ep_tokenizer *t = g->t;
  int32_t class = point < FIRST_MARK ? 0 : t->classes[ep_run_of(t->classes, t->n_classes, 1, 8, point)] & 0xFF;
  if (class == 0 && g->n) {
    compose(g);
    int32_t whole = g->n == 1 && !(g->symbols[0] >> CLASS) ? composite(t, g->symbols[0], point) : -1;
    if (whole >= 0) {
      g->symbols[0] = whole;
      return;
    }
    flush(g);
  }
  g->symbols[g->n++] = point | class << CLASS;
}

/* Counting takes the decompositions, which are no shorter than what they compose to. */
size_t ep_nfc(const ep_tokenizer *t, const uint8_t *s, size_t n, uint8_t *out, int32_t *scratch, size_t bound) {
  segment g = {t, out, 0, 0, scratch, out ? scratch + 2 * (bound + 2) : NULL};
  size_t count = 0;
  for (size_t at = 0, step; at < n; at += step) {
    int32_t point = ep_utf8_point(s + at, n - at, &step), parts[3];
    if (point < 0 || (point < FIRST_MARK && (at + step == n || s[at + step] < 0xCC))) {
      count += step;
      if (!out) continue;
      flush(&g);
      for (size_t i = 0; i < step; i++) out[g.written++] = s[at + i];
      continue;
    }
    const int32_t *row = t->map + 2 * (size_t)ep_run_of(t->map, t->n_map, 2, 3, point);
    int parts_n = ep_hangul(point, parts);
    const uint8_t *text = t->strings + row[1];
    if ((row[0] & 7) == EP_MAP_STRING) {
      count += text[0];
      for (size_t i = 1, size; out && i <= text[0]; i += size) {
        int32_t part = ep_utf8_point(text + i, (size_t)text[0] + 1 - i, &size);
        if (part >= 0) add(&g, part);
      }
    } else if (parts_n) {
      count += 3 * (size_t)parts_n;
      for (int i = 0; out && i < parts_n; i++) add(&g, parts[i]);
    } else {
      count += step;
      if (out) add(&g, point);
    }
  }
  if (!out) return count;
  flush(&g);
  return g.written;
}
