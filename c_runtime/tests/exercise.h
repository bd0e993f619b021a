/* Use an image as a program would that trusts it once ep_open has accepted it: shared by the mutation tests and the fuzzer. */
#ifndef EP_EXERCISE_H
#define EP_EXERCISE_H

#include <stdlib.h>

#include "edgepos.h"

enum { MOST_ARENA = 1 << 24 };
static const uint64_t MOST_WORK = 1u << 23; /* weight bytes per token: larger programs are opened only */

/* A text in buffers of exactly the sizes asked for, with BOS if the model has one, and its ids as text again. */
static inline void exercise_text(const ep_model *model, const char *text, size_t size) {
  ep_info info;
  const char *bytes;
  size_t words = ep_encode_scratch(model, text, size), max = words / 4, n, less, length;
  if (words == 0) return;
  if (ep_model_info(model, &info) != EP_OK) abort();
  int bos = info.bos >= 0 || ep_adds_bos(model);
  int32_t *ids = (int32_t *)malloc(max * sizeof *ids), *scratch = (int32_t *)malloc(words * sizeof *scratch);
  if (!ids || !scratch) abort();
  if (ep_encode(model, text, size, bos, ids, max, scratch, &n) != EP_OK || n > max) abort();
  if (n > 0 && (ep_encode(model, text, size, bos, ids, n - 1, scratch, &less) != EP_ERR_BUFFER || less != n)) abort();
  for (size_t i = 0; i < n; i++) {
    if (ep_token_bytes(model, i ? ids[i - 1] : -1, ids[i], &bytes, &length) != EP_OK) abort();
    if (length && ep_utf8_pending(bytes, length) > 3) abort();
  }
  free(scratch);
  free(ids);
}

static inline void exercise_tokenizer(const ep_model *model, const ep_info *info) {
  static const char text[] = "ab cd!!\"#\xf0\x9f\x98\x80";
  const char *bytes;
  size_t length = 0;
  exercise_text(model, text, sizeof text - 1);
  ep_token_bytes(model, info->bos, info->vocab - 1, &bytes, &length);
  if (length) ep_utf8_pending(bytes, length);
}

/* Conversations of no to three messages that say the text and part of it. */
static inline void exercise_chat(const ep_model *model, const char *said, size_t length) {
  ep_message messages[3] = {{EP_SYSTEM, said, length}, {EP_USER, said, length / 2}, {EP_ASSISTANT, said, length}};
  ep_span contents[3];
  size_t bytes = 0, again = 0, n = 0, good = 0;
  for (size_t first = 0; first <= 3; first++) {
    ep_status st = ep_chat_render(model, messages + first, 3 - first, NULL, 0, &bytes, contents, &good);
    if (st == EP_ERR_ROLE || st == EP_ERR_CHAT) continue;
    if (bytes > 1 << 20) continue;
    char *text = (char *)malloc(bytes + 1);
    if (!text || ep_chat_render(model, messages + first, 3 - first, text, bytes, &again, contents, NULL) != EP_OK || again != bytes) abort();
    size_t size = ep_encode_chat_scratch(model, text, bytes, contents, 3 - first);
    int32_t *ids = (int32_t *)malloc(size * sizeof *ids + 4), *scratch = (int32_t *)malloc(size * sizeof *scratch + 4);
    if (!ids || !scratch || ep_encode_chat(model, text, bytes, contents, 3 - first, ids, size / 4, scratch, &n) != EP_OK) abort();
    free(scratch);
    free(ids);
    free(text);
  }
}

/* What the evaluated tokens give: an embedding, or logits and a choice, which goes to *token. */
static inline void exercise_output(ep_session *s, const ep_info *info, int32_t *out, int32_t *token) {
  uint32_t *scratch = (uint32_t *)malloc(sizeof *scratch * (size_t)info->vocab);
  ep_rng rng;
  ep_sampling how = {.temperature = 65536, .top_k = 3, .top_p = 60000};
  if (!scratch) abort();
  if (info->embedding) {
    if (ep_embedding(s, out) != EP_OK || ep_logits(s, out) != EP_ERR_OUTPUT) abort();
  } else {
    if (ep_logits(s, out) != EP_OK || ep_argmax(s, token) != EP_OK || ep_embedding(s, out) != EP_ERR_OUTPUT) abort();
    if (*token < 0 || *token >= info->vocab) abort();
    uint64_t loss;
    if (ep_loss(out, info->vocab, info->logits_f, *token, &loss) != EP_OK) abort();
    if (ep_penalize(out, info->vocab, UINT32_MAX, token, 1, scratch) != EP_OK) abort();
    ep_rng_seed(&rng, 1);
    if (ep_sample(out, info->vocab, info->logits_f, &how, &rng, scratch, token) != EP_OK) abort();
    if (*token < 0 || *token >= info->vocab) abort();
  }
  free(scratch);
}

/* An image of bytes 0, 255, and one call that is refused. */
static inline void exercise_image(ep_session *s, const ep_info *info) {
  size_t n = (size_t)info->channels * (size_t)info->height * (size_t)info->width;
  uint8_t *pixels = (uint8_t *)malloc(n);
  if (!pixels) abort();
  for (size_t i = 0; i < n; i++) pixels[i] = i % 2 ? 255 : 0;
  if (ep_eval_image(s, pixels, n - 1) != EP_ERR_BUFFER || ep_eval_image(s, pixels, n) != EP_OK || ep_length(s) != info->context) abort();
  free(pixels);
}

/* Evaluate two tokens, sample a third, save, rewind, restore. Returns what ep_open said. */
static inline ep_status exercise(const void *image, size_t size) {
  static const char said[] = " \xe2\x80\x83 hi</s> \x1c";
  ep_model model;
  ep_info info;
  uint64_t where = 0;
  ep_status st = ep_open(&model, image, size, &where);
  if (st != EP_OK) {
    if (where > size) abort();
    return st;
  }
  if (ep_model_info(&model, &info) != EP_OK) abort();
  exercise_tokenizer(&model, &info);
  exercise_chat(&model, said, sizeof said - 1);
  ep_config cfg = {.context = info.context < 4 ? info.context : 4, .n_batch = 2};
  size_t bytes;
  if (ep_arena_size(&model, &cfg, &bytes) != EP_OK || bytes > MOST_ARENA || info.weight_bytes_per_token > MOST_WORK) return st;
  if ((uint64_t)info.vocab > MOST_WORK || (uint64_t)info.n_ops > 4096) return st;
  void *arena = aligned_alloc(EP_ALIGN, (bytes + EP_ALIGN - 1) / EP_ALIGN * EP_ALIGN);
  int32_t *out = (int32_t *)malloc(sizeof *out * (size_t)(info.embedding ? info.embedding : info.vocab));
  int32_t ids[2] = {0, info.vocab - 1}, positions[2] = {0, info.max_position - (info.max_position > 1)}, token = 0;
  int32_t n = cfg.context < 2 || info.max_position < 1 ? 1 : 2;
  ep_session *s;
  if (!arena || !out || ep_session_init(&s, &model, &cfg, arena, bytes) != EP_OK) abort();
  if (info.channels) {
    exercise_image(s, &info);
  } else if (ep_eval_image(s, image, size) != EP_ERR_INPUT || ep_eval(s, ids, positions, n, NULL) != EP_OK) {
    abort();
  }
  exercise_output(s, &info, out, &token);
  size_t saved = ep_state_size(s);
  uint8_t *state = (uint8_t *)malloc(saved);
  if (!state || ep_state_save(s, state, saved) != EP_OK || ep_rewind(s, 0) != EP_OK) abort();
  if (ep_state_restore(s, state, saved) != EP_OK) abort();
  ep_status last = ep_eval(s, &token, NULL, 1, info.embedding ? NULL : out); /* no room, no position left, or bidirectional */
  if (info.channels ? last != EP_ERR_INPUT : last != EP_OK && last != EP_ERR_CONTEXT && last != EP_ERR_POSITION) abort();
  free(state);
  free(out);
  free(arena);
  return st;
}

#endif
