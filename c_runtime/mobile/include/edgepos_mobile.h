/* A model file that an app opens, asks for text and closes: what the bindings for Java, Kotlin and Swift call.
 *
 *     char problem[EPM_PROBLEM];
 *     epm_model *model;
 *     if (epm_open(&model, path, 512, 4, problem)) …                       // problem says in a sentence why not
 *     epm_generate(model, prompt, strlen(prompt), &how, on_text, user, &reason, problem);
 *     epm_close(model);
 *
 * Functions that return int return 0, or one of EPM_ERROR with a sentence in problem [EPM_PROBLEM]. A model is used by one thread
 * at a time; epm_cancel alone may be called by another one, until epm_close.
 */
#ifndef EDGEPOS_MOBILE_H
#define EDGEPOS_MOBILE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EPM_PROBLEM 256

typedef struct epm_model epm_model;

enum { EPM_ERROR = 1 };

/* Why a text ended. */
enum {
  EPM_EOS = 0,      /* the model ended it */
  EPM_LENGTH = 1,   /* as many tokens as were asked for */
  EPM_CONTEXT = 2,  /* no room for more */
  EPM_CANCELLED = 3 /* epm_cancel, or on_text gave something else than 0 */
};

/* Map a model.gguf and make a session of `context` tokens (0: the model's) that computes on `threads` threads, 1 to 64. */
int epm_open(epm_model **model, const char *path, int32_t context, int32_t threads, char *problem);
void epm_close(epm_model *model);

typedef struct epm_sampling {
  int32_t max_new_tokens; /* at least 0 */
  uint32_t temperature;   /* Q16.16; 0: the likeliest token */
  int32_t top_k;          /* 0: all */
  uint32_t top_p;         /* Q16.16; 65536: all */
  uint64_t seed;
} epm_sampling;

/* A piece of the text, UTF-8, whole code points; anything but 0 ends it. */
typedef int (*epm_text)(void *user, const char *bytes, size_t n);

/* Evaluate a prompt (UTF-8) behind what the session holds and write on, piece by piece, on the thread that calls. The same prompt,
 * sampling and seed behind epm_reset give the same text on every machine. *reason gets why it ended. After EPM_CANCELLED the session
 * holds what was evaluated, and the next call goes on from there. */
int epm_generate(epm_model *model, const char *prompt, size_t bytes, const epm_sampling *how, epm_text on_text, void *user, int32_t *reason,
                 char *problem);
/* End the epm_generate that runs, after its current token or, in a prompt, after at most 64 of them. Without one it does nothing. */
void epm_cancel(epm_model *model);
/* Forget every token. */
void epm_reset(epm_model *model);

typedef struct epm_memory {
  uint64_t model_bytes; /* of the file, mapped: the system may drop and read them again */
  uint64_t arena_bytes; /* of the session, allocated */
  uint64_t kv_bytes_per_token;
  int32_t tokens;  /* held by the session */
  int32_t context; /* and those it has room for */
} epm_memory;

void epm_memory_of(const epm_model *model, epm_memory *memory);

/* Compute the bundle's self-test on this device, in memory of its own. *digest gets what must be the digest in manifest.json. */
int epm_selftest(const epm_model *model, uint64_t *digest, char *problem);

#ifdef __cplusplus
}
#endif
#endif
