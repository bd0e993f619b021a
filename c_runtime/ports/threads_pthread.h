/* A pool of POSIX threads for ep_config.parallel; the runtime itself knows nothing of threads.
 *
 *     ep_pool *pool = ep_pool_new(4);
 *     ep_config cfg = { .threads = ep_pool_threads(pool), .parallel = ep_pool_run, .pool = pool };
 *
 * One session at a time may use a pool. Results do not depend on the number of threads. */
#ifndef EDGEPOS_THREADS_PTHREAD_H
#define EDGEPOS_THREADS_PTHREAD_H

#include "edgepos.h"

typedef struct ep_pool ep_pool;

/* A pool that runs up to `threads` tasks at a time (1 … 256), the caller's thread included. NULL if there is no memory;
 * fewer threads if the system starts no more. */
ep_pool *ep_pool_new(int32_t threads);
int32_t ep_pool_threads(const ep_pool *pool);
/* An ep_parallel; pool is an ep_pool. */
void ep_pool_run(void *pool, ep_task fn, void *arg, int32_t n);
void ep_pool_free(ep_pool *pool);

#endif
