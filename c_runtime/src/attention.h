/* What the two ways of attention.c and attention_groups.c share. */
#ifndef EP_ATTENTION_H
#define EP_ATTENTION_H

#include "fixed.h"
#include "session.h"

/* One query of one head against the slots it sees, or some of them. */
typedef struct ep_query {
  const ep_session *s;
  ep_lane *lane;
  const ep_layer *layer;
  const int32_t *op;
  const int32_t *positions; /* of those slots */
  int32_t *scores;          /* theirs */
  size_t first;             /* index of the first of them in its KV head */
  int32_t head, visible, position;
} ep_query;

static inline const ep_layer *ep_layer_of(const ep_session *s, const int32_t *op) { return &s->layers[op[EP_O_P0]]; }

/* Where head h keeps the slot: an index of scales, and times the size of a slot of data. */
static inline size_t ep_slot(const ep_layer *l, int32_t h, int32_t slot) { return (size_t)h * (size_t)l->slots + (size_t)slot; }

/* The slots that token t of a batch of n sees: from *from to before what is returned. */
static inline int32_t ep_visible(const ep_session *s, const int32_t *op, int32_t t, int32_t n, int32_t *from) {
  int32_t to = s->length + (op[EP_O_P0 + 7] ? n : t + 1), window = ep_layer_of(s, op)->window;
  *from = window && to > window ? to - window : 0;
  return to;
}

/* Steps 1 (softcap) and 2 of ATTENTION. */
void ep_adjust_scores(const ep_query *a);
/* The largest scale among the values of the visible slots. */
int32_t ep_largest_scale(const ep_query *a);
/* Step 4 with that scale, and step 6 with the sum of the weights. */
void ep_align_weights(const ep_query *a, int32_t most);
void ep_divide(const ep_query *a, const int64_t *acc, int32_t most, uint64_t sum, int32_t *out);

/* ATTENTION for a KV cache in blocks. */
void ep_attention_groups(ep_session *s, const int32_t *op, int32_t n, int32_t lanes);

#endif
