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

/* What another thread polls has a line of the caches to itself. */
enum { APART = 64 };

/* A round takes no lock: threads take its tasks from `tasks` by compare-and-swap, the caller too, which then waits for the tasks that others
 * took. A worker that wakes up late finds none and costs nothing. fn and arg change only when every task taken is done: they are those of
 * the round that a task was taken from, even where the value of `tasks` comes back. */
struct ep_pool {
  pthread_mutex_t lock;
  pthread_cond_t open, idle;
  ep_task fn;
  void *arg;
  int32_t workers;
  int64_t alone_until; /* nanoseconds; 0: workers take part, */
  int64_t together_since, alone_for; /* and have done so since then, after so long without them */
  atomic_int asleep, waiting, stop;
  char before[APART];
  atomic_uint tasks; /* of the round times 2^16, and how many are taken */
  char between[APART];
  atomic_uint done;
  char behind[APART];
  pthread_t thread[];
};

enum { MOST_TASKS = 0x7fff };

static int64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int are_left(uint32_t tasks) { return (tasks & 0xffff) < tasks >> 16; }

static void take_tasks(ep_pool *pool) {
  uint32_t tasks = atomic_load_explicit(&pool->tasks, memory_order_acquire);
  while (are_left(tasks)) {
    if (!atomic_compare_exchange_weak_explicit(&pool->tasks, &tasks, tasks + 1, memory_order_acquire, memory_order_acquire)) continue;
    pool->fn(pool->arg, (int32_t)(tasks & 0xffff));
    /* Whoever waits is either seen here or sees this. */
    if (atomic_fetch_add(&pool->done, 1) + 1 == tasks >> 16 && atomic_load(&pool->waiting)) {
      pthread_mutex_lock(&pool->lock);
      pthread_cond_signal(&pool->idle);
      pthread_mutex_unlock(&pool->lock);
    }
    tasks = atomic_load_explicit(&pool->tasks, memory_order_acquire);
  }
}

static int idle(ep_pool *pool) { return !are_left(atomic_load(&pool->tasks)) && !atomic_load(&pool->stop); }

static void *worker(void *data) {
  ep_pool *pool = data;
  while (!atomic_load_explicit(&pool->stop, memory_order_relaxed)) {
    take_tasks(pool);
    for (int looks = 0; looks < LOOKS && !are_left(atomic_load_explicit(&pool->tasks, memory_order_relaxed)); looks++) RELAX();
    if (are_left(atomic_load_explicit(&pool->tasks, memory_order_relaxed))) continue;
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->asleep, 1); /* before the last look, as a round begins before it looks at this */
    while (idle(pool)) pthread_cond_wait(&pool->open, &pool->lock);
    atomic_fetch_sub(&pool->asleep, 1);
    pthread_mutex_unlock(&pool->lock);
  }
  return NULL;
}

ep_pool *ep_pool_new(int32_t threads) {
  int32_t workers = threads < 1 ? 0 : threads > 256 ? 255 : threads - 1;
  ep_pool *pool = calloc(1, sizeof *pool + (size_t)workers * sizeof(pthread_t));
  if (!pool) return NULL;
  pthread_mutex_init(&pool->lock, NULL);
  pthread_cond_init(&pool->open, NULL);
  pthread_cond_init(&pool->idle, NULL);
  atomic_init(&pool->asleep, 0);
  atomic_init(&pool->waiting, 0);
  atomic_init(&pool->stop, 0);
  atomic_init(&pool->tasks, 0);
  atomic_init(&pool->done, 0);
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

static void wait_for_workers(ep_pool *pool, uint32_t n) {
  for (int32_t looks = 0; looks < LOOKS && atomic_load_explicit(&pool->done, memory_order_acquire) < n; looks++) RELAX();
  if (atomic_load_explicit(&pool->done, memory_order_acquire) == n) return;
  int64_t since = nanoseconds();
  pthread_mutex_lock(&pool->lock);
  atomic_store(&pool->waiting, 1);
  while (atomic_load(&pool->done) < n) pthread_cond_wait(&pool->idle, &pool->lock);
  atomic_store(&pool->waiting, 0);
  pthread_mutex_unlock(&pool->lock);
  int64_t now = nanoseconds(), waited = now - since;
  if (waited <= STALL) return;
  int64_t again = now - pool->together_since < pool->alone_for ? 2 * pool->alone_for : 0;
  pool->alone_for = ALONE * waited > again ? ALONE * waited : again;
  if (pool->alone_for > LONGEST) pool->alone_for = LONGEST;
  pool->alone_until = now + pool->alone_for;
}

void ep_pool_run(void *data, ep_task fn, void *arg, int32_t n) {
  ep_pool *pool = data;
  if (n <= 1 || n > MOST_TASKS || alone(pool)) {
    for (int32_t i = 0; i < n; i++) fn(arg, i);
    return;
  }
  pool->fn = fn;
  pool->arg = arg;
  atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
  atomic_store(&pool->tasks, (uint32_t)n << 16);
  if (atomic_load(&pool->asleep)) {
    pthread_mutex_lock(&pool->lock);
    pthread_cond_broadcast(&pool->open);
    pthread_mutex_unlock(&pool->lock);
  }
  take_tasks(pool);
  wait_for_workers(pool, (uint32_t)n);
}

void ep_pool_free(ep_pool *pool) {
  if (!pool) return;
  pthread_mutex_lock(&pool->lock);
  atomic_store(&pool->stop, 1);
  pthread_cond_broadcast(&pool->open);
  pthread_mutex_unlock(&pool->lock);
  for (int32_t i = 0; i < pool->workers; i++) pthread_join(pool->thread[i], NULL);
  pthread_cond_destroy(&pool->open);
  pthread_cond_destroy(&pool->idle);
  pthread_mutex_destroy(&pool->lock);
  free(pool);
}
