/* See edgepos_mobile.h. POSIX: the file is mapped, so that weights cost no memory that the system cannot take back. */
#define _POSIX_C_SOURCE 200809L
#include "edgepos_mobile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "edgepos.h"
#include "edgepos_cpu.h"
#include "threads_pthread.h"

enum { BATCH = 64, MOST_THREADS = 64, NONE = -1 };

struct epm_model {
  const void *image;
  size_t bytes;
  ep_model model;
  ep_info info;
  ep_config config;
  ep_pool *pool;
  void *arena;
  size_t arena_bytes;
  ep_session *session;
  int32_t *logits;   /* [vocab], with what a choice by chance needs; NULL before the first one */
  uint32_t *scratch; /* [vocab] */
  int32_t last;      /* the token that ended the text without being evaluated, or NONE */
  atomic_uint running, cancelled; /* numbers of texts, 0: none: who cancels late does not meet the next one */
  unsigned texts;
};

static int fail(char *problem, const char *format, ...) {
  va_list args;
  va_start(args, format);
  vsnprintf(problem, EPM_PROBLEM, format, args);
  va_end(args);
  return EPM_ERROR;
}

static int check(ep_status st, const char *what, char *problem) {
  return st == EP_OK ? 0 : fail(problem, "%s: %s", what, ep_status_text(st));
}

/* Memory at a multiple of EP_ALIGN, or NULL. */
static void *aligned(size_t n) {
  void *memory = NULL;
  return posix_memalign(&memory, EP_ALIGN, n ? n : 1) == 0 ? memory : NULL;
}

/* The end of a long path: the reason behind it must find room too. */
static const char *named(const char *path) {
  enum { MOST = 120 };
  size_t n = strlen(path);
  const char *at = n > MOST ? path + n - MOST : path;
  while (at > path && (*at & 0xC0) == 0x80) at++;
  return at;
}

static int map_file(epm_model *m, const char *path, char *problem) {
  struct stat facts;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) return fail(problem, "%s: %s", named(path), strerror(errno));
  if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode) || facts.st_size <= 0 || (uint64_t)facts.st_size > SIZE_MAX) {
    close(file);
    return fail(problem, "%s: no file, empty, or too large for this device", named(path));
  }
  void *image = mmap(NULL, (size_t)facts.st_size, PROT_READ, MAP_PRIVATE, file, 0);
  int why = errno;
  close(file);
  if (image == MAP_FAILED) return fail(problem, "%s: %s", named(path), strerror(why));
  m->image = image;
  m->bytes = (size_t)facts.st_size;
  return 0;
}

static int open_session(epm_model *m, const char *path, int32_t context, int32_t threads, char *problem) {
  uint64_t where = 0;
  if (map_file(m, path, problem)) return EPM_ERROR;
  ep_status st = ep_open(&m->model, m->image, m->bytes, &where);
  if (st != EP_OK) return fail(problem, "%s: at byte %" PRIu64 ": %s", named(path), where, ep_status_text(st));
  if (check(ep_model_info(&m->model, &m->info), named(path), problem)) return EPM_ERROR;
  if (m->info.embedding) return fail(problem, "%s: the model gives embeddings and writes no text", named(path));
  if (!m->info.tokenizer) return fail(problem, "%s: the model carries no tokenizer; export it with one", named(path));
  if (context < 0 || context > m->info.context)
    return fail(problem, "context is %" PRId32 "; allowed: 0 to %" PRId32 ", the model's", context, m->info.context);
  m->pool = ep_pool_new(threads);
  if (!m->pool) return fail(problem, "no memory for %" PRId32 " threads", threads);
  m->config = (ep_config){.context = context, .n_batch = BATCH, .threads = ep_pool_threads(m->pool), .parallel = ep_pool_run, .pool = m->pool,
                          .cpu = ep_cpu_detect()};
  if (check(ep_arena_size(&m->model, &m->config, &m->arena_bytes), "session", problem)) return EPM_ERROR;
  m->arena = aligned(m->arena_bytes);
  if (!m->arena) return fail(problem, "no memory: a session needs %zu bytes; take a smaller context", m->arena_bytes);
  return check(ep_session_init(&m->session, &m->model, &m->config, m->arena, m->arena_bytes), "session", problem);
}

int epm_open(epm_model **model, const char *path, int32_t context, int32_t threads, char *problem) {
  *model = NULL;
  if (threads < 1 || threads > MOST_THREADS) return fail(problem, "threads is %" PRId32 "; allowed: 1 to %d", threads, MOST_THREADS);
  epm_model *m = calloc(1, sizeof *m);
  if (!m) return fail(problem, "no memory");
  m->last = NONE;
  if (open_session(m, path, context, threads, problem)) {
    epm_close(m);
    return EPM_ERROR;
  }
  *model = m;
  return 0;
}

void epm_close(epm_model *m) {
  if (!m) return;
  free(m->arena);
  free(m->logits);
  free(m->scratch);
  if (m->pool) ep_pool_free(m->pool);
  if (m->image) munmap((void *)(uintptr_t)m->image, m->bytes);
  free(m);
}

void epm_cancel(epm_model *m) {
  unsigned now = atomic_load(&m->running);
  if (now) atomic_store(&m->cancelled, now);
}

static int is_cancelled(epm_model *m) { return atomic_load(&m->cancelled) == m->texts; }

void epm_reset(epm_model *m) {
  ep_reset(m->session);
  m->last = NONE;
}

void epm_memory_of(const epm_model *m, epm_memory *memory) {
  int32_t context = m->config.context ? m->config.context : m->info.context;
  *memory = (epm_memory){m->bytes, m->arena_bytes, m->info.kv_bytes_per_token, ep_length(m->session), context};
}

int epm_selftest(const epm_model *m, uint64_t *digest, char *problem) {
  ep_config config = m->config;
  size_t n;
  config.context = m->info.n_selftest;
  if (check(ep_arena_size(&m->model, &config, &n), "self-test", problem)) return EPM_ERROR;
  void *arena = aligned(n);
  if (!arena) return fail(problem, "no memory: the self-test needs %zu bytes", n);
  ep_status st = ep_selftest(&m->model, &config, arena, n, digest);
  free(arena);
  return check(st, "self-test", problem);
}

/* ---- a text ----------------------------------------------------------------------------------------------------- */

/* The ids of the token that is left from before and of a prompt, [*n], to be freed; NULL with a problem. */
static int32_t *encode(epm_model *m, const char *prompt, size_t bytes, size_t *n, char *problem) {
  size_t words = ep_encode_scratch(&m->model, prompt, bytes);
  if (!words) {
    fail(problem, "the prompt has %zu bytes; at most 33 million are allowed", bytes);
    return NULL;
  }
  size_t left = m->last != NONE, max = words / 4;
  int32_t *ids = malloc((max + left) * sizeof *ids), *scratch = malloc(words * sizeof *scratch);
  int bos = !left && ep_length(m->session) == 0 && ep_adds_bos(&m->model);
  int bad = !ids || !scratch ? fail(problem, "no memory for the prompt")
                             : check(ep_encode(&m->model, prompt, bytes, bos, ids + left, max, scratch, n), "prompt", problem);
  free(scratch);
  if (!bad && left) ids[0] = m->last;
  *n += left;
  if (!bad && *n == 0) bad = fail(problem, "the prompt is empty and this model puts no token in front of it");
  if (bad) free(ids);
  return bad ? NULL : ids;
}

static int choose(epm_model *m, const epm_sampling *how, ep_rng *rng, int32_t *token, char *problem) {
  if (!how->temperature) return check(ep_argmax(m->session, token), "choice", problem);
  size_t vocab = (size_t)m->info.vocab;
  if (!m->logits) m->logits = malloc(vocab * sizeof *m->logits);
  if (!m->scratch) m->scratch = malloc(vocab * sizeof *m->scratch);
  if (!m->logits || !m->scratch) return fail(problem, "no memory for %zu logits", vocab);
  ep_sampling sampling = {how->temperature, how->top_k, how->top_p};
  if (check(ep_logits(m->session, m->logits), "logits", problem)) return EPM_ERROR;
  return check(ep_sample(m->logits, m->info.vocab, m->info.logits_f, &sampling, rng, m->scratch, token), "sampling", problem);
}

static int ends(const ep_info *info, int32_t token) {
  for (int32_t i = 0; i < info->n_eos; i++)
    if (info->eos[i] == token) return 1;
  return 0;
}

/* What was written and not yet shown: the beginning of a code point, or a token. */
typedef struct text {
  char *bytes;
  size_t n, room;
} text;

static int push(text *t, const char *bytes, size_t n, char *problem) {
  if (n > t->room - t->n) {
    size_t room = 2 * (t->n + n) + 64;
    char *larger = realloc(t->bytes, room);
    if (!larger) return fail(problem, "no memory for the text");
    t->bytes = larger;
    t->room = room;
  }
  if (n) memcpy(t->bytes + t->n, bytes, n);
  t->n += n;
  return 0;
}

/* Show what is whole; 1 where the app wants no more. */
static int show(text *t, epm_text on_text, void *user) {
  size_t whole = t->n - ep_utf8_pending(t->bytes, t->n);
  if (!whole) return 0;
  int enough = on_text(user, t->bytes, whole);
  memmove(t->bytes, t->bytes + whole, t->n - whole);
  t->n -= whole;
  return enough != 0;
}

/* Evaluate ids in parts, so that a cancellation is seen; *done counts those evaluated. */
static int evaluate(epm_model *m, const int32_t *ids, size_t n, size_t *done, char *problem) {
  for (*done = 0; *done < n && !is_cancelled(m);) {
    size_t part = n - *done < BATCH ? n - *done : BATCH;
    if (check(ep_eval(m->session, ids + *done, NULL, (int32_t)part, NULL), "prompt", problem)) return EPM_ERROR;
    *done += part;
  }
  return 0;
}

static int write_on(epm_model *m, int32_t previous, const epm_sampling *how, text *t, epm_text on_text, void *user, int32_t *reason,
                    char *problem) {
  ep_rng rng;
  ep_rng_seed(&rng, how->seed);
  *reason = EPM_LENGTH;
  for (int32_t i = 0; i < how->max_new_tokens; i++) {
    int32_t token;
    const char *bytes;
    size_t n;
    if (is_cancelled(m)) {
      *reason = EPM_CANCELLED;
      return 0;
    }
    if (choose(m, how, &rng, &token, problem)) return EPM_ERROR;
    if (ends(&m->info, token)) {
      *reason = EPM_EOS;
      return 0;
    }
    m->last = token;
    if (check(ep_token_bytes(&m->model, previous, token, &bytes, &n), "token", problem) || push(t, bytes, n, problem)) return EPM_ERROR;
    if (show(t, on_text, user)) {
      *reason = EPM_CANCELLED;
      return 0;
    }
    epm_memory room;
    epm_memory_of(m, &room);
    if (room.tokens >= room.context) {
      *reason = EPM_CONTEXT;
      return 0;
    }
    if (i + 1 == how->max_new_tokens) return 0;
    if (check(ep_eval(m->session, &token, NULL, 1, NULL), "token", problem)) return EPM_ERROR;
    m->last = NONE;
    previous = token;
  }
  return 0;
}

int epm_generate(epm_model *m, const char *prompt, size_t bytes, const epm_sampling *how, epm_text on_text, void *user, int32_t *reason,
                 char *problem) {
  if (how->max_new_tokens < 0 || how->top_k < 0 || how->top_p > 65536)
    return fail(problem, "max_new_tokens and top_k must be at least 0, top_p at most 1");
  size_t n = 0, done = 0;
  int32_t *ids = encode(m, prompt ? prompt : "", prompt ? bytes : 0, &n, problem);
  if (!ids) return EPM_ERROR;
  epm_memory room;
  epm_memory_of(m, &room);
  if (n > (size_t)(room.context - room.tokens)) {
    free(ids);
    return fail(problem, "the prompt has %zu tokens, the context has room for %" PRId32 " more; shorten it or open a larger context", n,
                room.context - room.tokens);
  }
  text t = {0};
  m->texts = m->texts + 1 ? m->texts + 1 : 1;
  atomic_store(&m->cancelled, 0);
  atomic_store(&m->running, m->texts);
  int bad = evaluate(m, ids, n, &done, problem);
  if (done) m->last = NONE;
  if (!bad && done == n)
    bad = write_on(m, ids[n - 1], how, &t, on_text, user, reason, problem);
  else
    *reason = EPM_CANCELLED;
  atomic_store(&m->running, 0);
  free(t.bytes);
  free(ids);
  return bad;
}
