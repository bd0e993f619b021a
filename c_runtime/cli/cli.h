/* What the files of edgepos-run share. */
#ifndef EDGEPOS_CLI_H
#define EDGEPOS_CLI_H

#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "edgepos.h"

#if (defined(__unix__) || defined(__APPLE__)) && !defined(__wasi__)
#define POSIX 1 /* mmap, signals, terminals */
#endif

enum { EXIT_ERROR = 1, EXIT_USAGE = 2, EXIT_SELFTEST = 3 };
enum { MOST_STOPS = 16, NO_PENALTY = 65536 };

typedef struct options {
  const char *model, *prompt, *ids, *system, *text, *save, *restore, *image, *checksum;
  ep_message stops[MOST_STOPS]; /* texts that end a generation; their roles mean nothing */
  size_t n_stops;
  int32_t n, context, batch, threads, penalty_last, max_tokens;
  uint32_t penalty;
  ep_sampling how;
  uint64_t seed;
  int ids_out, digest, operators, selftest, no_eos, generic, copy, chat, embed;
} options;

#if defined(__GNUC__)
#define FORMAT(n) __attribute__((format(printf, n, (n) + 1)))
#else
#define FORMAT(n)
#endif

/* ---- print.c: of printf's conversions %s, and %d, %u and %x with a width that zeros fill and the lengths l, ll and z */

FORMAT(2) void print(FILE *to, const char *format, ...);
void print_args(FILE *to, const char *format, va_list args);
/* A number that is not negative. */
void print_decimal(FILE *to, double value, int digits);

/* ---- common.c */

#if defined(__GNUC__)
__attribute__((noreturn))
#endif
FORMAT(2) void stop(int code, const char *format, ...);
void check(ep_status st, const char *what);
/* Memory aligned for an arena, given back by release. */
void *allocate(uint64_t bytes);
/* The same in large pages where there are some, NULL without memory. */
void *in_large_pages(size_t bytes);
/* Whether open_session takes its arena there. */
extern int large_pages;
void release(void *memory);
uint64_t microseconds(void);
/* A session in memory of its own, which *arena gets. */
ep_session *open_session(const ep_model *model, const ep_config *cfg, void **arena, size_t *bytes);
/* Tokens that such a session evaluates at a time. */
int32_t batch_of(const ep_config *cfg, const ep_info *info);
/* Token ids of a text of so many bytes, in memory of their own. */
int32_t *encode_text(const ep_model *model, const char *text, size_t size, int bos, size_t *n);
/* Token ids written as 1,2,3. */
int32_t *parse_ids(const char *text, int32_t vocab, size_t *n);
int is_eos(const options *o, const ep_info *info, int32_t token);

/* Bytes that grow. */
typedef struct buffer {
  char *data;
  size_t n, room;
} buffer;
void append(buffer *b, const char *data, size_t n);
/* A file, or its beginning of more than `most` bytes where it has more. */
buffer read_file(const char *path, size_t most);

/* Chooses tokens: text holds the n ids so far, of which those with a penalty are made less likely. */
typedef struct chooser {
  const options *o;
  const ep_info *info;
  ep_rng rng;
  int32_t *text, *logits;
  uint32_t *scratch;
  size_t n;
} chooser;
void open_chooser(chooser *c, const options *o, const ep_info *info, int32_t context);
void close_chooser(chooser *c);
int32_t choose(chooser *c, ep_session *session);

void flush(void); /* of the standard output, or the end of the program */
void report_memory(ep_session *session, size_t arena, int32_t context);

/* Prints tokens as they come: whole code points, nothing that may begin a stop string. answer: what was printed. */
typedef struct printer {
  const ep_model *model;
  const options *o;
  int32_t bos, previous;
  buffer held, *answer;
} printer;
int print_token(printer *p, int32_t token); /* 1: a stop string was there */
void print_rest(printer *p);                /* what was held back and no stop string came of */

/* ---- state.c: sessions in files (docs/bundle.md) */

/* End the program now if no file can be written there, not when there is something to lose. */
void check_place(const char *path);
/* Save what `head` has and the session behind it. The file is never seen half-written. */
void save_session(const char *path, const buffer *head, const ep_session *session);
/* What a state for this session may be, read whole: arena is the size of its memory. */
buffer read_state(const char *path, size_t arena, const char *magic);
void restore_session(const char *path, ep_session *session, const char *state, size_t n);

/* ---- chat.c, perplexity.c, embed.c, image.c, operators.c */

void chat(const options *o, const ep_model *model, const ep_info *info, const ep_config *cfg);
void perplexity(const options *o, const ep_model *model, const ep_info *info, const ep_config *cfg);
void embed(const options *o, const ep_model *model, const ep_info *info, const ep_config *cfg);
/* The row of what was evaluated last, as a line; row has room for it. */
void print_row(ep_session *session, const ep_info *info, int32_t *row, uint64_t *digest);
void embed_image(const options *o, const ep_model *model, const ep_info *info, const ep_config *cfg);
void operators(const ep_model *model, const ep_info *info, ep_config cfg);

#endif
