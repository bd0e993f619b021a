#define _POSIX_C_SOURCE 200809L
#include "threads_pthread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#if defined(__x86_64__) || defined(__i386__)
#define RELAX() __asm__ volatile("pause")
#elif defined(__aarch64__)
#define RELAX() __asm__ volatile("isb")
#else
#define RELAX() ((void)0)
#endif

/* Rounds of a model follow each other within microseconds, waking a thread takes longer: who waits looks for a moment, then sleeps. */
enum { LOOKS = 500 };
/* A worker whose processor was taken away in the middle of a task holds up everybody until it gets it back. After waiting for more
 * than STALL nanoseconds the caller works alone for ALONE times as long, and twice as long as the last time if that was not long ago,
 * but never for more than LONGEST: a machine that stays busy costs next to nothing. */
enum { STALL = 500000, ALONE = 16, LONGEST = 2000000000 };

/* The caller works too and waits only for workers that have joined its round, so a worker that wakes up late costs nothing. */
struct ep_pool {
  pthread_mutex_t lock;
  pthread_cond_t open, idle;
  ep_task fn;
  void *arg;
  int32_t n; /* tasks of the open round; 0: none is open */
  int32_t asleep, workers;
  int stop;
  int64_t alone_until; /* nanoseconds; 0: workers take part, */
  int64_t together_since, alone_for; /* and have done so since then, after so long without them */
  atomic_int next, round, joined;
  pthread_t thread[];
};

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static void take_tasks(ep_pool *pool, ep_task fn, void *arg, int32_t n) {
  for (;;) {
    int32_t i = atomic_fetch_add_explicit(&pool->next, 1, memory_order_relaxed);
    if (i >= n) return;
    fn(arg, i);
  }
}

static void *worker(void *data) {
  ep_pool *pool = data;
  pthread_mutex_lock(&pool->lock);
  while (!pool->stop) {
    if (atomic_load_explicit(&pool->next, memory_order_relaxed) >= pool->n) {
      int seen = atomic_load_explicit(&pool->round, memory_order_relaxed), looks = 0;
      pthread_mutex_unlock(&pool->lock);
      while (atomic_load_explicit(&pool->round, memory_order_relaxed) == seen && looks < LOOKS) {
        RELAX();
        looks++;
      }
      pthread_mutex_lock(&pool->lock);
      if (atomic_load_explicit(&pool->round, memory_order_relaxed) == seen && !pool->stop) {
        pool->asleep++;
        pthread_cond_wait(&pool->open, &pool->lock);
        pool->asleep--;
      }
      continue;
    }
    ep_task fn = pool->fn;
    void *arg = pool->arg;
    int32_t n = pool->n;
    atomic_fetch_add_explicit(&pool->joined, 1, memory_order_relaxed);
    pthread_mutex_unlock(&pool->lock);
    take_tasks(pool, fn, arg, n);
    pthread_mutex_lock(&pool->lock);
    if (atomic_fetch_sub_explicit(&pool->joined, 1, memory_order_release) == 1) pthread_cond_signal(&pool->idle);
  }
  pthread_mutex_unlock(&pool->lock);
  return NULL;
}

ep_pool *ep_pool_new(int32_t threads) {
  int32_t workers = threads < 1 ? 0 : threads > 256 ? 255 : threads - 1;
  ep_pool *pool = calloc(1, sizeof *pool + (size_t)workers * sizeof(pthread_t));
  if (!pool) return NULL;
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->open, NULL);
  pthread_cond_init(&pool->idle, NULL);
  atomic_init(&pool->next, 0);
  atomic_init(&pool->round, 0);
  atomic_init(&pool->joined, 0);
  while (pool->workers < workers && pthread_create(&pool->thread[pool->workers], NULL, worker, pool) == 0) pool->workers++;
  return pool;
}

int32_t ep_pool_threads(const ep_pool *pool) { return pool->workers + 1; }

/* Whether the workers are left out of this round. */
static int alone(ep_pool *pool) {
  if (pool->workers == 0) return 1;
  if (pool->alone_until && nanoseconds() >= pool->alone_until) {
    pool->together_since = pool->alone_until;
    pool->alone_until = 0;
  }
  return pool->alone_until != 0;
}

static void wait_for_workers(ep_pool *pool) {
  for (int32_t looks = 0; looks < LOOKS && atomic_load_explicit(&pool->joined, memory_order_relaxed); looks++) RELAX();
  int64_t since = atomic_load_explicit(&pool->joined, memory_order_relaxed) ? nanoseconds() : 0;
  pthread_mutex_lock(&pool->lock);
  pool->n = 0;
  while (atomic_load_explicit(&pool->joined, memory_order_acquire)) pthread_cond_wait(&pool->idle, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
  if (since == 0) return;
  int64_t now = nanoseconds(), waited = now - since;
  if (waited <= STALL) return;
  int64_t again = now - pool->together_since < pool->alone_for ? 2 * pool->alone_for : 0;
  pool->alone_for = ALONE * waited > again ? ALONE * waited : again;
  if (pool->alone_for > LONGEST) pool->alone_for = LONGEST;
  pool->alone_until = now + pool->alone_for;
}

void ep_pool_run(void *data, ep_task fn, void *arg, int32_t n) {
  ep_pool *pool = data;
  if (n <= 1 || alone(pool)) {
    for (int32_t i = 0; i < n; i++) fn(arg, i);
    return;
  }
  pthread_mutex_lock(&pool->lock);
  pool->fn = fn;
  pool->arg = arg;
  pool->n = n;
  atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
  atomic_fetch_add_explicit(&pool->round, 1, memory_order_relaxed);
  if (pool->asleep) pthread_cond_broadcast(&pool->open);
  pthread_mutex_unlock(&pool->lock);
  take_tasks(pool, fn, arg, n);
  wait_for_workers(pool);
}

void ep_pool_free(ep_pool *pool) {
  if (!pool) return;
  pthread_mutex_lock(&pool->lock);
  pool->stop = 1;
  pthread_cond_broadcast(&pool->open);
  pthread_mutex_unlock(&pool->lock);
  for (int32_t i = 0; i < pool->workers; i++) pthread_join(pool->thread[i], NULL);
  pthread_cond_destroy(&pool->open);
  pthread_cond_destroy(&pool->idle);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}
