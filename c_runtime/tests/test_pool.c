/* The pool of threads: every task of every round runs once, with that round's argument, whether its workers look, sleep or come too late. */
#define _POSIX_C_SOURCE 200809L
#include <time.h>

#include "check.h"
#include "threads_pthread.h"

enum { MOST = 40, ROUNDS = 4000 };

typedef struct round {
  int32_t hits[MOST], number;
  int64_t sum[MOST];
} round;

static int64_t sum_of(int32_t number, int32_t i) {
  int64_t sum = 0;
  for (int32_t k = 0; k < (number * 7 + i * 13) % 50; k++) sum += number + k;
  return sum;
}

static void task(void *arg, int32_t i) {
  round *r = (round *)arg;
  r->hits[i]++;
  r->sum[i] += sum_of(r->number, i);
}

int main(void) {
  uint64_t state = 5;
  for (int32_t threads = 1; threads <= 5; threads++) {
    ep_pool *pool = ep_pool_new(threads);
    if (!pool) return 1;
    CHECK(ep_pool_threads(pool) >= 1 && ep_pool_threads(pool) <= threads);
    for (int32_t number = 0; number < ROUNDS; number++) {
      int32_t n = (int32_t)(draw(&state) % (MOST + 1));
      if (draw(&state) % 200 == 0) { /* the workers fall asleep */
        struct timespec moment = {0, (long)(draw(&state) % 300000)};
        nanosleep(&moment, NULL);
      }
      round r = {.number = number};
      ep_pool_run(pool, task, &r, n);
      for (int32_t i = 0; i < MOST; i++) CHECK(r.hits[i] == (i < n) && r.sum[i] == (i < n ? sum_of(number, i) : 0));
    }
    ep_pool_free(pool);
  }
  if (!failures) printf("test_pool: every task once\n");
  return failures != 0;
}
