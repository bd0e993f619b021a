/* Checks that name themselves when they fail, and a small random generator. */
#ifndef EP_CHECK_H
#define EP_CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

__attribute__((unused)) static int failures;

static inline void fail_at(const char *file, int line, const char *what) {
  fprintf(stderr, "%s:%d: %s\n", file, line, what);
  if (++failures > 20) exit(1);
}

#define CHECK(condition) \
  do {                   \
    if (!(condition)) fail_at(__FILE__, __LINE__, #condition); \
  } while (0)
#define FAIL(what) fail_at(__FILE__, __LINE__, what)

static inline uint64_t draw(uint64_t *state) { /* splitmix64 */
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* A number of any magnitude, often next to a power of two or at the ends. */
static inline int64_t draw_edge(uint64_t *state) {
  uint64_t x = draw(state), shift = draw(state) % 64;
  switch (draw(state) % 4) {
    case 0: return (int64_t)(x >> shift);
    case 1: return -(int64_t)(x >> shift >> 1);
    case 2: return (int64_t)(((uint64_t)1 << shift) + x % 5 - 2);
    default: return (int64_t)(0 - ((uint64_t)1 << shift) + x % 5 - 2);
  }
}

#endif
