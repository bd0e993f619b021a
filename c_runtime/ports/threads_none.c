/* The pool of threads_pthread.h where there are no threads (WebAssembly): one worker, the caller. */
#include "threads_pthread.h"

struct ep_pool {
  int32_t threads;
};

ep_pool *ep_pool_new(int32_t threads) {
  static ep_pool only = {1};
  return threads < 1 ? NULL : &only;
}

int32_t ep_pool_threads(const ep_pool *pool) { return pool->threads; }

void ep_pool_run(void *pool, ep_task fn, void *arg, int32_t n) {
  (void)pool;
  for (int32_t i = 0; i < n; i++) fn(arg, i);
}

void ep_pool_free(ep_pool *pool) { (void)pool; }
