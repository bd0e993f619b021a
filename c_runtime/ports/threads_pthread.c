#include "threads_pthread.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* The caller works too and waits only for workers that have joined its round, so a worker that wakes up late costs nothing. */
struct ep_pool {
  pthread_mutex_t lock;
  pthread_cond_t open, idle;
  ep_task fn;
  void *arg;
  int32_t n; /* tasks of the open round; 0: none is open */
  int32_t joined, workers;
  int stop;
  atomic_int next;
  pthread_t thread[];
};

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
      pthread_cond_wait(&pool->open, &pool->lock);
      continue;
    }
    ep_task fn = pool->fn;
    void *arg = pool->arg;
    int32_t n = pool->n;
    pool->joined++;
    pthread_mutex_unlock(&pool->lock);
    take_tasks(pool, fn, arg, n);
    pthread_mutex_lock(&pool->lock);
    if (--pool->joined == 0) pthread_cond_signal(&pool->idle);
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
  while (pool->workers < workers && pthread_create(&pool->thread[pool->workers], NULL, worker, pool) == 0) pool->workers++;
  return pool;
}

int32_t ep_pool_threads(const ep_pool *pool) { return pool->workers + 1; }

void ep_pool_run(void *data, ep_task fn, void *arg, int32_t n) {
  ep_pool *pool = data;
  if (n <= 1 || pool->workers == 0) {
    for (int32_t i = 0; i < n; i++) fn(arg, i);
    return;
  }
  pthread_mutex_lock(&pool->lock);
  pool->fn = fn;
  pool->arg = arg;
  pool->n = n;
  atomic_store_explicit(&pool->next, 0, memory_order_relaxed);
  pthread_cond_broadcast(&pool->open);
  pthread_mutex_unlock(&pool->lock);
  take_tasks(pool, fn, arg, n);
  pthread_mutex_lock(&pool->lock);
  pool->n = 0;
  while (pool->joined) pthread_cond_wait(&pool->idle, &pool->lock);
  pthread_mutex_unlock(&pool->lock);
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
