/* Memory, sessions, choice and printing of edgepos-run. */
#define _POSIX_C_SOURCE 200809L
#define _DEFAULT_SOURCE /* madvise */
#include "cli.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

void stop(int code, const char *format, ...) {
  va_list args;
  va_start(args, format);
  fputs("edgepos-run: ", stderr);
  print_args(stderr, format, args);
  fputc('\n', stderr);
  va_end(args);
  exit(code);
}

void check(ep_status st, const char *what) {
  if (st != EP_OK) stop(EXIT_ERROR, "%s: %s", what, ep_status_text(st));
}

#ifdef _WIN32 /* has no aligned_alloc */
#include <malloc.h>
static void *aligned(size_t n) { return _aligned_malloc(n, EP_ALIGN); }
void release(void *memory) { _aligned_free(memory); }
#else
static void *aligned(size_t n) { return aligned_alloc(EP_ALIGN, n); }
void release(void *memory) { free(memory); }
#endif

void *allocate(uint64_t n) {
  void *memory = n < SIZE_MAX - EP_ALIGN ? aligned(((size_t)n / EP_ALIGN + 1) * EP_ALIGN) : NULL;
  if (!memory) stop(EXIT_ERROR, "out of memory: %" PRIu64 " bytes are needed; try a smaller --context or --batch", n);
  return memory;
}

#ifdef POSIX
#include <sys/mman.h>

/* Pages of 4 kB lie anywhere: a processor that reads ahead stops at the end of each. */
void *in_large_pages(size_t n) {
  enum { LARGE = 2 << 20 };
  void *memory = NULL;
  if (posix_memalign(&memory, LARGE, n) != 0) return NULL;
#ifdef MADV_HUGEPAGE
  madvise(memory, n, MADV_HUGEPAGE); /* a wish */
#endif
  return memory;
}
#else
void *in_large_pages(size_t n) { return aligned((n / EP_ALIGN + 1) * EP_ALIGN); }
#endif

uint64_t microseconds(void) {
  struct timespec t;
#if defined(__unix__) || defined(__APPLE__)
  clock_gettime(CLOCK_MONOTONIC, &t);
#else
  timespec_get(&t, TIME_UTC);
#endif
  return (uint64_t)t.tv_sec * 1000000 + (uint64_t)t.tv_nsec / 1000;
}

int large_pages;

ep_session *open_session(const ep_model *model, const ep_config *cfg, void **arena, size_t *n) {
  ep_session *session;
  check(ep_arena_size(model, cfg, n), "session");
  *arena = large_pages ? in_large_pages(*n) : allocate(*n);
  if (!*arena) stop(EXIT_ERROR, "no memory for a session, %zu bytes in large pages; leave out --copy", *n);
  check(ep_session_init(&session, model, cfg, *arena, *n), "session");
  return session;
}

int32_t batch_of(const ep_config *cfg, const ep_info *info) {
  if (info->one_call) return cfg->n_batch ? cfg->n_batch : cfg->context;
  return cfg->n_batch ? cfg->n_batch : cfg->cpu ? 128 : 16;
}

int32_t *parse_ids(const char *text, int32_t vocab, size_t *n) {
  int32_t *ids = allocate((strlen(text) / 2 + 1) * sizeof *ids);
  const char *at = text;
  for (*n = 0;; at++) {
    const char *start = at;
    int64_t id = -1;
    for (; *at >= '0' && *at <= '9' && id < vocab; at++) id = (id < 0 ? 0 : id) * 10 + (*at - '0');
    if (id < 0 || id >= vocab || (*at && *at != ','))
      stop(EXIT_USAGE, "--ids: at character %zu, a token id from 0 to %" PRId32 " is needed, separated by commas",
           (size_t)(start - text) + 1, vocab - 1);
    ids[(*n)++] = (int32_t)id;
    if (!*at) return ids;
  }
}

int32_t *encode_text(const ep_model *model, const char *text, size_t size, int bos, size_t *n) {
  size_t words = ep_encode_scratch(model, text, size), max = words / 4;
  int32_t *scratch = allocate((uint64_t)words * sizeof *scratch), *ids = allocate((uint64_t)max * sizeof *ids);
  check(ep_encode(model, text, size, bos, ids, max, scratch, n), "encoding the text");
  release(scratch);
  return ids;
}

int is_eos(const options *o, const ep_info *info, int32_t token) {
  for (int32_t i = 0; i < info->n_eos && !o->no_eos; i++)
    if (info->eos[i] == token) return 1;
  return 0;
}

void append(buffer *b, const char *data, size_t n) {
  if (n > b->room - b->n) {
    if (n > SIZE_MAX / 4 || b->n > SIZE_MAX / 4) stop(EXIT_ERROR, "out of memory");
    size_t room = 2 * (b->n + n) + 64;
    char *larger = realloc(b->data, room);
    if (!larger) stop(EXIT_ERROR, "out of memory: %zu bytes are needed", room);
    b->data = larger;
    b->room = room;
  }
  if (n) memcpy(b->data + b->n, data, n);
  b->n += n;
}

buffer read_file(const char *path, size_t most) {
  buffer content = {0};
  char part[65536];
  FILE *file = fopen(path, "rb");
  if (!file) stop(EXIT_ERROR, "%s: cannot be read: %s", path, strerror(errno));
  for (size_t n; (n = fread(part, 1, sizeof part, file)) > 0 && content.n <= most;) append(&content, part, n);
  if (ferror(file)) stop(EXIT_ERROR, "%s: cannot be read: %s", path, strerror(errno));
  fclose(file);
  return content;
}

/* ---- choice ----------------------------------------------------------------------------------------------------- */

static int needs_logits(const options *o) { return o->how.temperature || o->penalty > NO_PENALTY; }

void open_chooser(chooser *c, const options *o, const ep_info *info, int32_t context) {
  *c = (chooser){.o = o, .info = info, .text = allocate(((uint64_t)(uint32_t)context + 1) * sizeof *c->text)};
  ep_rng_seed(&c->rng, o->seed);
  if (!needs_logits(o)) return;
  c->logits = allocate((uint64_t)(uint32_t)info->vocab * sizeof *c->logits);
  c->scratch = allocate((uint64_t)(uint32_t)info->vocab * sizeof *c->scratch);
}

void close_chooser(chooser *c) {
  release(c->text);
  release(c->logits);
  release(c->scratch);
}

int32_t choose(chooser *c, ep_session *session) {
  const options *o = c->o;
  int32_t token;
  if (!needs_logits(o)) {
    check(ep_argmax(session, &token), "argmax");
    return token;
  }
  check(ep_logits(session, c->logits), "logits");
  if (o->penalty > NO_PENALTY) {
    size_t last = o->penalty_last && (size_t)o->penalty_last < c->n ? (size_t)o->penalty_last : c->n;
    check(ep_penalize(c->logits, c->info->vocab, o->penalty, c->text + c->n - last, last, c->scratch), "repetition penalty");
  }
  check(ep_sample(c->logits, c->info->vocab, c->info->logits_f, &o->how, &c->rng, c->scratch, &token), "sampling");
  return token;
}

/* ---- output ----------------------------------------------------------------------------------------------------- */

void flush(void) {
  if (fflush(stdout) != 0) stop(EXIT_ERROR, "standard output: %s", strerror(errno));
}

void report_memory(ep_session *session, size_t arena, int32_t context) {
  print(stderr, "memory: arena %zu bytes, context %" PRId32 ", saturations %" PRIu64 ", %s kernels\n", arena, context,
          ep_saturations(session), ep_kernels_name(session));
}

static void show(printer *p, size_t n) {
  if (p->answer) append(p->answer, p->held.data, n);
  if (n) {
    fwrite(p->held.data, 1, n, stdout);
    memmove(p->held.data, p->held.data + n, p->held.n - n);
  }
  p->held.n -= n;
  flush();
}

int print_token(printer *p, int32_t token) {
  const char *text;
  size_t n, ready = 0;
  int stopped = 0;
  if (p->o->ids_out) {
    print(stdout, p->previous < 0 ? "%" PRId32 : ",%" PRId32, token);
    p->previous = token;
  } else {
    check(ep_token_bytes(p->model, p->previous, token, &text, &n), "printing a token");
    append(&p->held, text, n);
    stopped = ep_text_ready(p->held.data, p->held.n, p->o->stops, p->o->n_stops, &ready);
    /* What prints nothing even behind itself leaves no trace, but for BOS, which takes a space from the next. */
    check(ep_token_bytes(p->model, token, token, &text, &n), "printing a token");
    if (n || token == p->bos) p->previous = token;
  }
  show(p, ready);
  return stopped;
}

void print_rest(printer *p) {
  size_t ready = 0;
  if (!p->o->ids_out) ep_text_ready(p->held.data, p->held.n, NULL, 0, &ready);
  show(p, ready);
  free(p->held.data);
  p->held = (buffer){0};
}
