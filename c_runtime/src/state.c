/* Save and restore. One walk over the arrays serves saving, checking and restoring, so the three cannot disagree. */
#include "session.h"

enum { HEADER_BYTES = 32 };

typedef enum walk_mode { SAVE, CHECK, RESTORE } walk_mode;
typedef enum number_kind { POSITION, SHIFT, SCALE, DATA16, DATA8, ROW } number_kind;

typedef struct cursor {
  walk_mode mode;
  uint8_t *out;
  const uint8_t *in;
  int bad;
} cursor;

static size_t size_of(number_kind kind) {
  static const uint8_t size[] = {4, 1, 4, 2, 1, 4};
  return size[kind];
}

static void check(cursor *c, size_t n, number_kind kind) {
  int64_t last = -1;
  for (size_t i = 0; i < n; i++) {
    const uint8_t *at = c->in + i * size_of(kind);
    int32_t x = 0;
    int16_t half;
    switch (size_of(kind)) {
      case 4: memcpy(&x, at, 4); break;
      case 2: memcpy(&half, at, 2), x = half; break;
      default: x = kind == DATA8 ? (int8_t)*at : *at;
    }
    switch (kind) {
      case POSITION: c->bad |= x <= last, last = x; break;
      case SHIFT: c->bad |= x > 17; break;
      case SCALE: c->bad |= x < 0; break;
      case DATA16: c->bad |= x < -32639 || x > 32639; break;
      case DATA8: c->bad |= x < -127; break;
      case ROW: break;
    }
  }
}

static void visit(cursor *c, void *data, size_t n, number_kind kind) {
  size_t bytes = n * size_of(kind);
  if (c->mode == SAVE) {
    memcpy(c->out, data, bytes);
    c->out += bytes;
    return;
  }
  if (c->mode == CHECK)
    check(c, n, kind);
  else
    memcpy(data, c->in, bytes);
  c->in += bytes;
}

/* n vectors of one head, from index `first` of the scales on. */
static void visit_rows(const ep_session *s, cursor *c, void *data, size_t first, size_t n, int32_t dim, number_kind kind, int keys) {
  size_t width = (size_t)dim;
  if (!ep_kv_blocks(s)) {
    visit(c, (uint8_t *)data + first * width * size_of(kind), n * width, kind);
    return;
  }
  for (size_t i = first; i < first + n; i++) {
    int16_t row[EP_LONGEST_HEAD];
    if (c->mode == SAVE) ep_blocks_get(s, data, i, row, dim, keys);
    visit(c, row, width, kind);
    if (c->mode == RESTORE) ep_blocks_put(s, data, i, row, dim, keys);
  }
}

static void *at(void *base, size_t index, number_kind kind) { return (uint8_t *)base + index * size_of(kind); }

static void walk(const ep_session *s, cursor *c, int32_t length, int32_t has_row) {
  size_t n = (size_t)length;
  int wide = s->program.kv_bits == 16;
  number_kind data = wide ? DATA16 : DATA8, scale = wide ? SHIFT : SCALE;
  visit(c, s->positions, n, POSITION);
  for (int32_t i = 0; i < s->program.n_kv; i++) {
    const ep_layer *l = &s->layers[i];
    for (size_t h = 0; h < (size_t)l->heads; h++) {
      size_t first = h * (size_t)l->slots;
      visit_rows(s, c, l->k, first, n, l->k_dim, data, 1);
      visit(c, at(l->k_scales, first, scale), n, scale);
      visit_rows(s, c, l->v, first, n, l->v_dim, data, 0);
      visit(c, at(l->v_scales, first, scale), n, scale);
    }
  }
  if (has_row) visit(c, s->row, (size_t)ep_width(&s->program, ep_head_input(s)), ROW);
}

static size_t state_size(const ep_session *s, int32_t length, int32_t has_row) {
  int wide = s->program.kv_bits == 16;
  size_t n = (size_t)length, slot = 4;
  for (int32_t i = 0; i < s->program.n_kv; i++) {
    const ep_layer *l = &s->layers[i];
    slot += (size_t)l->heads * ((size_t)(l->k_dim + l->v_dim) * (wide ? 2 : 1) + (wide ? 2 : 8));
  }
  return HEADER_BYTES + n * slot + (has_row ? 4 * (size_t)ep_width(&s->program, ep_head_input(s)) : 0);
}

/* All of the header but the last two numbers says which model the state is of. */
static void header(const ep_session *s, uint8_t *h, int32_t length, int32_t has_row) {
  uint64_t digest = ep_model_digest(&s->program);
  uint32_t words[7] = {EP_FORMAT, EP_ARITH, (uint32_t)digest, (uint32_t)(digest >> 32), (uint32_t)s->program.kv_bits,
                       (uint32_t)length, (uint32_t)has_row};
  memcpy(h, "EPST", 4);
  memcpy(h + 4, words, HEADER_BYTES - 4);
}

size_t ep_state_size(const ep_session *s) { return s ? state_size(s, s->length, s->has_row) : 0; }

ep_status ep_state_save(const ep_session *s, void *buffer, size_t bytes) {
  if (!s || !buffer) return EP_ERR_ARGUMENT;
  if (bytes < ep_state_size(s)) return EP_ERR_BUFFER;
  cursor c = {.mode = SAVE, .out = (uint8_t *)buffer + HEADER_BYTES};
  header(s, (uint8_t *)buffer, s->length, s->has_row);
  walk(s, &c, s->length, s->has_row);
  return EP_OK;
}

ep_status ep_state_restore(ep_session *s, const void *buffer, size_t bytes) {
  if (!s || !buffer) return EP_ERR_ARGUMENT;
  const uint8_t *in = (const uint8_t *)buffer;
  uint8_t want[HEADER_BYTES];
  int32_t length, has_row;
  if (bytes < HEADER_BYTES) return EP_ERR_STATE;
  memcpy(&length, in + HEADER_BYTES - 8, 4);
  memcpy(&has_row, in + HEADER_BYTES - 4, 4);
  header(s, want, length, has_row);
  for (int32_t i = 0; i < HEADER_BYTES; i++)
    if (in[i] != want[i]) return EP_ERR_STATE;
  if (length < 0 || has_row < 0 || has_row > 1 || (has_row && length == 0)) return EP_ERR_STATE;
  if (length > s->cfg.context) return EP_ERR_CONTEXT;
  if (bytes != state_size(s, length, has_row)) return EP_ERR_STATE;
  cursor c = {.mode = CHECK, .in = in + HEADER_BYTES};
  walk(s, &c, length, has_row);
  if (c.bad) return EP_ERR_STATE;
  c = (cursor){.mode = RESTORE, .in = in + HEADER_BYTES};
  walk(s, &c, length, has_row);
  s->length = length;
  s->has_row = has_row;
  return EP_OK;
}
