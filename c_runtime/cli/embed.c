/* edgepos-run --embed: a text, or every line of the input, as a row of numbers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* raw * 2^-f with ten decimals, rounded half up in magnitude: enough to give raw back for every f up to 30. */
static void print_number(int32_t raw, int32_t f) {
  uint64_t a = raw < 0 ? 0 - (uint64_t)raw : (uint64_t)raw, tenths = 10000000000u, whole = f > 0 ? a >> f : a << -f, rest = 0;
  if (f > 0) rest = ((a & (((uint64_t)1 << f) - 1)) * tenths + ((uint64_t)1 << (f - 1))) >> f;
  print(stdout, "%s%" PRIu64 ".%010" PRIu64, raw < 0 ? "-" : "", whole + rest / tenths, rest % tenths);
}

/* Of a text too long for the context, the tokens that do not fit before the special ones behind it are left out. */
static size_t cut(const ep_model *model, const ep_info *info, const buffer *text, int32_t *ids, size_t n, size_t context) {
  size_t plain;
  release(encode_text(model, text->data, text->n, 0, &plain));
  size_t behind = n - plain, front = info->bos >= 0;
  behind = behind > front ? behind - front : 0;
  for (size_t i = 0; i < behind && i < context; i++) ids[context - behind + i] = ids[n - behind + i];
  print(stderr, "the text has %zu tokens, it was cut to %zu\n", n, context);
  return context;
}

/* The next line of the standard input that is not empty; 0 at its end. */
static int next_line(buffer *line) {
  line->n = 0;
  for (int c; (c = getchar()) != EOF;) {
    char one = (char)c;
    if (c == '\n' && line->n) return 1;
    if (c != '\n' && c != '\r') append(line, &one, 1);
  }
  if (ferror(stdin)) stop(EXIT_ERROR, "standard input cannot be read");
  return line->n > 0;
}

void print_row(ep_session *session, const ep_info *info, int32_t *row, uint64_t *digest) {
  check(ep_embedding(session, row), "embedding");
  *digest = ep_digest(*digest, row, (size_t)info->embedding);
  for (int32_t i = 0; i < info->embedding; i++) {
    print(stdout, "%s", i ? ", " : "[");
    print_number(row[i], info->logits_f);
  }
  puts("]");
}

static void embed_text(ep_session *session, const ep_info *info, const int32_t *ids, size_t n, int32_t *row, uint64_t *digest) {
  if (n == 0) stop(EXIT_ERROR, "the text is empty and this model puts no token around it: give some text");
  ep_rewind(session, 0);
  check(ep_eval(session, ids, NULL, (int32_t)n, NULL), "evaluating");
  print_row(session, info, row, digest);
}

void embed(const options *o, const ep_model *model, const ep_info *info, const ep_config *cfg) {
  if (!info->embedding) stop(EXIT_ERROR, "this model gives logits, not an embedding: use it without --embed");
  if (info->channels) stop(EXIT_ERROR, "this model reads an image: give one by --image");
  if (!info->tokenizer && !o->ids) stop(EXIT_ERROR, "this model carries no tokenizer: give the text by --ids");
  size_t n, size, context = (size_t)cfg->context;
  uint64_t digest = EP_DIGEST_INIT, texts = 0, start = microseconds();
  void *arena;
  ep_session *session = open_session(model, cfg, &arena, &size);
  int32_t *row = allocate((uint64_t)info->embedding * sizeof *row);
  buffer line = {0};
  if (o->ids) {
    int32_t *ids = parse_ids(o->ids, info->vocab, &n);
    if (n > context) stop(EXIT_ERROR, "--ids gives %zu tokens, the model takes %zu", n, context);
    embed_text(session, info, ids, n, row, &digest);
    release(ids);
    texts++;
  } else {
    if (o->prompt) append(&line, o->prompt, strlen(o->prompt));
    for (int more = o->prompt ? 1 : next_line(&line); more; more = o->prompt ? 0 : next_line(&line), texts++) {
      int32_t *ids = encode_text(model, line.data ? line.data : "", line.n, ep_adds_bos(model), &n);
      if (n > context) n = cut(model, info, &line, ids, n, context);
      embed_text(session, info, ids, n, row, &digest);
      release(ids);
    }
  }
  if (o->digest) print(stdout, "digest 0x%016" PRIx64 "\n", digest);
  flush();
  print(stderr, "%" PRIu64 " texts in %" PRIu64 " ms\n", texts, (microseconds() - start) / 1000);
  report_memory(session, size, cfg->context);
  free(line.data);
  release(row);
  release(arena);
}
