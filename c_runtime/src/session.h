/* What a session holds in its arena, and how the executor is cut into files. */
#ifndef EP_SESSION_H
#define EP_SESSION_H

#include "internal.h"
#include "kernels/kernels.h"

/* One kernel call: EP_TILE sums, for several tokens at least EP_TILE_ROWS rows and at most EP_TILE_TOKENS tokens. */
enum { EP_TILE = 128, EP_TILE_ROWS = 32, EP_TILE_TOKENS = 256 };

enum { EP_LONGEST_HEAD = 512 }; /* the most components of a key or value; ep_open has checked */

/* What a lane needs for all query heads of one KV head, and for a part of the slots of all KV heads; heads: of the whole operator. */
typedef struct ep_group_room {
  int64_t *acc;    /* EP_GROUP * EP_GROUP_KEYS */
  int64_t *mixed;  /* [heads][v_dim] */
  int32_t *scores; /* group * (slots + 16), for several threads at least heads * (slots / threads + 48) */
  int16_t *q;      /* [group][k_dim] */
  int32_t *shifts; /* [group], score_shift - sq */
  int32_t *tops;   /* [heads], largest scores; then the largest scale of each KV head */
  uint64_t *sums;  /* [heads], of weights */
} ep_group_room;

/* Scratch of one task that may run beside others. */
typedef struct ep_lane {
  uint64_t saturations;
  int64_t *acc;        /* max(EP_TILE, v_dim, EP_TILE_ROWS * min(n_batch, EP_TILE_TOKENS)) */
  int64_t *fine;       /* as many without v_dim, where a LINEAR has w16g32 */
  int32_t *scores;     /* context */
  int16_t *q;          /* k_dim */
  ep_group_room group; /* in the place of these three for a KV cache in blocks */
  int32_t *tile;       /* EP_TILE logits */
  void *scratch;       /* of the kernels */
  int32_t again;       /* for the next tile of LINEAR, see ep_tile; to be cleared before the first */
  int32_t best, token; /* argmax so far */
} ep_lane;

/* The KV cache of one layer: data [head][slots][dim], scales [head][slots]. In blocks (kernels.h) slots are a multiple of 16 and
 * the keys' dim of 4. */
typedef struct ep_layer {
  int32_t heads, k_dim, v_dim, window, slots;
  void *k, *v;               /* int16, or int8 for kv8 */
  void *k_scales, *v_scales; /* uint8 shifts, or int32 for kv8 */
} ep_layer;

struct ep_session {
  ep_program program;
  ep_config cfg; /* defaults filled in: context, n_batch, threads >= 1 */
  ep_kernels kernels;
  ep_trace trace;
  void *trace_user;
  uint64_t saturations;
  int32_t length;
  int32_t has_row;       /* row holds the last token's input of the head */
  int32_t call_token;    /* of the running call: index of the first token of the batch */
  const int32_t *tokens; /* of the running batch; NULL: it is of an image */
  const uint8_t *pixels; /* of the running call */
  int32_t *positions;    /* [context] */
  int32_t *values;       /* [plan_width * n_batch] */
  int32_t *row;          /* see has_row; of an embedding: what POOL made */
  int16_t *narrow;       /* [n_batch][longest_row]; or int8 with twice as many */
  int32_t *shifts;       /* [n_batch], of narrow */
  int32_t *sums;         /* [n_batch][longest_summed/32], of groups of narrow */
  int32_t *group_scales; /* [n_batch][longest_in_groups/32], of narrow in int8 */
  int16_t *turns;        /* [n_batch][2 * pairs]: cosines, sines of the tokens for the increments ... */
  int32_t turns_of;      /* ... that this tensor has; -1: none yet */
  ep_layer *layers;
  ep_lane *lanes;        /* [threads] */
};

/* Value v of token t of the batch. */
static inline int32_t *ep_value(const ep_session *s, int32_t v, int32_t t) {
  const int32_t *r = s->program.values + (size_t)v * EP_VALUE_WORDS;
  return s->values + (size_t)r[EP_V_OFFSET] * (size_t)s->cfg.n_batch + (size_t)t * (size_t)r[EP_V_WIDTH];
}

/* Whether the KV cache is kv16. */
static inline int ep_kv_wide(const ep_session *s) {
  return EP_HAS(EP_FEATURE_KV16) && (!EP_HAS(EP_FEATURE_KV8) || s->program.kv_bits == 16);
}

/* Whether it is in blocks. */
#define ep_kv_blocks(s) (EP_HAS_BLOCKS && (s)->kernels.blocks) /* a constant where there are none: nothing of theirs is linked, without an optimizer too */

/* One vector into a cache in blocks, or keys, at index `at` of the scales. */
void ep_blocks_store(const ep_session *s, void *data, void *scales, size_t at, const int32_t *x, int32_t dim, int keys);
/* Bytes of a vector to and from its place in blocks. */
void ep_blocks_put(const ep_session *s, void *data, size_t at, const void *row, int32_t dim, int keys);
void ep_blocks_get(const ep_session *s, const void *data, size_t at, void *row, int32_t dim, int keys);

/* The value that the head starts from. */
static inline int32_t ep_head_input(const ep_session *s) { return ep_op(&s->program, s->program.head_start)[EP_O_IN0]; }

/* Run fn(arg, lane) for `lanes` lanes, beside each other if the session may, and add up their saturations. */
void ep_run_lanes(ep_session *s, ep_task fn, void *arg, int32_t lanes);

/* An operator that works on each token alone, for tokens [from, to) of the batch; the n tokens of it in as many lanes as pay. */
typedef void ep_token_fn(const ep_session *s, const int32_t *op, int32_t from, int32_t to, uint64_t *count);
void ep_each_token(ep_session *s, const int32_t *op, ep_token_fn *fn, int32_t n, int32_t width);

/* Operator i for n tokens, which go to the slots from s->length on. */
void ep_exec(ep_session *s, int32_t i, int32_t n);
void ep_report(ep_session *s, int32_t i, int32_t n, const int32_t *data, uint64_t saturations);

/* LINEAR: narrow the tokens [from, to) of the input, which are multiplied together, ... */
void ep_linear_narrow(const ep_session *s, const int32_t *op, int32_t from, int32_t to);
/* ... then compute rows [from, to) of `tokens` narrowed tokens from token t on: out[token * stride + row - from] ... */
void ep_linear_rows(const ep_session *s, ep_lane *lane, const int32_t *op, int32_t t, int32_t tokens, int32_t from, int32_t to,
                    int32_t *out, size_t stride);
/* ... or all of it: out [n][rows]. */
void ep_linear(ep_session *s, const int32_t *op, int32_t n, int32_t *out);
/* Into how many lanes to cut work of so many products, and where part i of n begins. */
int32_t ep_lanes_for(const ep_session *s, int64_t products);
int32_t ep_part(int32_t total, int32_t i, int32_t lanes);

void ep_kv_write(ep_session *s, const int32_t *op, int32_t n);
void ep_attention(ep_session *s, const int32_t *op, int32_t n);

/* A softcap table at x, not yet saturated. */
int64_t ep_softcap(const int32_t *cap, int32_t x);

ep_status ep_check_tokens(const ep_session *s, const int32_t *tokens, const int32_t *positions, int32_t n);
/* Evaluate tokens that have been checked, or the pixels (tokens: NULL); logits and digest may be NULL. */
void ep_eval_checked(ep_session *s, const int32_t *tokens, int32_t n, int32_t *logits, uint64_t *digest);
/* Evaluate an image of the right size, in the place of what the session held. */
void ep_eval_pixels(ep_session *s, const uint8_t *pixels, uint64_t *digest);
void ep_patches(ep_session *s, const int32_t *op, int32_t n);
/* The head for the n tokens of the batch. */
void ep_head_logits(ep_session *s, int32_t n, int32_t *logits);
void ep_head_digest(ep_session *s, int32_t n, uint64_t *digest);

/* POOL over the n tokens of the call, into its value and s->row. */
void ep_pool_rows(ep_session *s, int32_t n);
/* The embedding that follows from s->row, in the value area. */
const int32_t *ep_embedding_row(ep_session *s);

#endif
