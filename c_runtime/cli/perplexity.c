/* edgepos-run --perplexity: how well a model predicts a text, over the windows that `edgepos report` uses. */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"

enum { WINDOW = 512 };
static const double LN2 = 0.69314718055994530942;
static const size_t most_bytes = 33000000; /* what the tokenizer takes at a time */

/* 2^x for x >= 0: the powers of two by doubling, the rest as a series. Floating point only for what is printed. */
static double power_of_two(double x) {
  double whole = 1, sum = 1, term = 1;
  for (; x >= 1 && whole < 1e300; x -= 1) whole *= 2;
  for (int k = 1; k < 30; k++) {
    term *= x * LN2 / k;
    sum += term;
  }
  return whole * sum;
}

void perplexity(const options *o, const ep_model *model, const ep_info *info, const ep_config *given) {
  if (!info->tokenizer) stop(EXIT_ERROR, "this model carries no tokenizer: it cannot read a text");
  buffer text = read_file(o->text, most_bytes);
  if (text.n > most_bytes) stop(EXIT_ERROR, "%s: more than %zu bytes: give a part of it", o->text, most_bytes);
  if (info->embedding) stop(EXIT_ERROR, "this model gives an embedding and predicts no token: use --embed");
  size_t n = 0, size;
  int32_t *ids = encode_text(model, text.data, text.n, 0, &n);
  free(text.data);

  ep_config cfg = *given;
  int32_t context = cfg.context, window = context < WINDOW ? context : WINDOW;
  int with_bos = info->bos >= 0 && ep_adds_bos(model), chunk = batch_of(&cfg, info);
  if (window < 2) stop(EXIT_ERROR, "a context of %" PRId32 " gives no prediction: at least 2 are needed", context);
  if (n > (size_t)o->max_tokens) n = (size_t)o->max_tokens;
  cfg.context = window;
  void *arena;
  ep_session *session = open_session(model, &cfg, &arena, &size);
  int32_t *rows = allocate((uint64_t)chunk * (uint64_t)info->vocab * sizeof *rows), *part = allocate((uint64_t)window * sizeof *part);
  double bits = 0;
  uint64_t predictions = 0;
  for (size_t at = with_bos && n && ids[0] == info->bos; at < n;) {
    int32_t count = 0;
    if (with_bos) part[count++] = info->bos;
    while (count < window && at < n) part[count++] = ids[at++];
    if (count < 2) break;
    ep_reset(session);
    for (int32_t t = 0; t < count; t += chunk) {
      int32_t now = count - t < chunk ? count - t : chunk;
      check(ep_eval(session, part + t, NULL, now, rows), "evaluating");
      for (int32_t i = 0; i < now && t + i + 1 < count; i++) {
        uint64_t loss;
        check(ep_loss(rows + (size_t)i * (size_t)info->vocab, info->vocab, info->logits_f, part[t + i + 1], &loss), "loss");
        bits += (double)loss / 4294967296.0;
        predictions++;
      }
    }
  }
  if (!predictions) stop(EXIT_ERROR, "%s gives no prediction: at least two tokens are needed", o->text);
  bits /= (double)predictions;
  print(stdout, "%s: perplexity ", o->text);
  print_decimal(stdout, power_of_two(bits), 6);
  print(stdout, ", ");
  print_decimal(stdout, bits * LN2, 8);
  print(stdout, " nats per token, %" PRIu64 " tokens\n", predictions);
  release(part);
  release(rows);
  release(arena);
  release(ids);
}
