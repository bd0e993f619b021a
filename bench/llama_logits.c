/* Logits of llama.cpp for given token ids, so that it is compared on the same tokens with the same code.
 *   llama_logits MODEL.gguf f32|f16|q8_0 WINDOW THREADS < ids > logits
 * ids: int32, little-endian, cut into windows that each start from an empty cache. logits: float32 [ids, vocab]. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llama.h"

static void stop(const char *what) {
  fprintf(stderr, "llama_logits: %s\n", what);
  exit(1);
}

static void quiet(enum ggml_log_level level, const char *text, void *data) {
  (void)data;
  if (level == GGML_LOG_LEVEL_ERROR) fputs(text, stderr);
}

int main(int argc, char **argv) {
  if (argc != 5) stop("usage: llama_logits MODEL.gguf f32|f16|q8_0 WINDOW THREADS");
  enum ggml_type kv = !strcmp(argv[2], "f32") ? GGML_TYPE_F32 : !strcmp(argv[2], "q8_0") ? GGML_TYPE_Q8_0 : GGML_TYPE_F16;
  int32_t window = atoi(argv[3]), threads = atoi(argv[4]);
  llama_log_set(quiet, NULL);
  llama_backend_init();
  struct llama_model *model = llama_model_load_from_file(argv[1], llama_model_default_params());
  if (!model) stop("the model cannot be loaded");
  struct llama_context_params params = llama_context_default_params();
  params.n_ctx = (uint32_t)window;
  params.n_batch = params.n_ubatch = 512;
  params.n_threads = params.n_threads_batch = threads;
  params.type_k = params.type_v = kv;
  struct llama_context *context = llama_init_from_model(model, params);
  if (!context) stop("no context");
  int32_t vocab = llama_vocab_n_tokens(llama_model_get_vocab(model)), *ids = malloc((size_t)window * sizeof *ids);
  struct llama_batch batch = llama_batch_init(512, 0, 1);
  size_t n;
  while ((n = fread(ids, sizeof *ids, (size_t)window, stdin)) > 0) {
    llama_memory_clear(llama_get_memory(context), true);
    for (int32_t at = 0; at < (int32_t)n; at += batch.n_tokens) {
      batch.n_tokens = (int32_t)n - at < 512 ? (int32_t)n - at : 512;
      for (int32_t i = 0; i < batch.n_tokens; i++) {
        batch.token[i] = ids[at + i];
        batch.pos[i] = at + i;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = 0;
        batch.logits[i] = 1;
      }
      if (llama_decode(context, batch)) stop("llama_decode failed");
      for (int32_t i = 0; i < batch.n_tokens; i++)
        if (fwrite(llama_get_logits_ith(context, i), sizeof(float), (size_t)vocab, stdout) != (size_t)vocab) stop("cannot write");
    }
  }
  return 0;
}
