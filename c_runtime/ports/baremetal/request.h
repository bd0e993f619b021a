/* What the board program is asked to do: little-endian words in memory, written by edgepos/targets/baremetal.py. */
#ifndef EDGEPOS_BAREMETAL_REQUEST_H
#define EDGEPOS_BAREMETAL_REQUEST_H

#include <stdint.h>

#define REQUEST_MAGIC 0x52425045u /* EPBR */
enum { REQUEST_PROMPT = 8192 };   /* most ids of a prompt */

typedef struct request {
  uint32_t magic, model_bytes;
  int32_t context;  /* tokens of the session; 0: the model's */
  int32_t n_prompt; /* 0: run the self-test; -1: print the digests of its operators */
  int32_t n_new;    /* most tokens to choose after the prompt */
  uint32_t temperature;
  int32_t top_k;
  uint32_t top_p;
  uint32_t seed_low, seed_high;
  uint32_t penalty;     /* Q16.16; 65536: none */
  int32_t penalty_last; /* of the last so many tokens; 0: all */
  int32_t ids[REQUEST_PROMPT];
} request;

#endif
