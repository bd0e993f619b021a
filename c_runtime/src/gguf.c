/* ep_open: one walk over the container, with every read checked against the end of the image, then the program. */
#include "internal.h"

typedef struct reader {
  const uint8_t *image;
  uint64_t bytes, at;
  ep_status status; /* the first fault; every later read gives 0 */
} reader;

static ep_status fail(reader *r, ep_status st, uint64_t at) {
  if (r->status == EP_OK) {
    r->status = st;
    r->at = at;
  }
  return r->status;
}

static int need(reader *r, uint64_t n) {
  if (r->status == EP_OK && n > r->bytes - r->at) fail(r, EP_ERR_TRUNCATED, r->at);
  return r->status == EP_OK;
}

static uint64_t number(reader *r, uint32_t size) {
  uint64_t x = 0;
  if (!need(r, size)) return 0;
  for (uint32_t i = 0; i < size; i++) x |= (uint64_t)r->image[r->at + i] << (8 * i);
  r->at += size;
  return x;
}

static void skip(reader *r, uint64_t n) {
  if (need(r, n)) r->at += n;
}

enum { TYPE_U32 = 4, TYPE_STRING = 8, TYPE_ARRAY = 9 };

static uint32_t scalar_size(uint32_t type) { /* 0: no scalar */
  static const uint8_t size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return type < sizeof size ? size[type] : 0;
}

static void skip_value(reader *r, uint32_t type) {
  uint64_t at = r->at, count = 1;
  if (type == TYPE_ARRAY) {
    type = (uint32_t)number(r, 4);
    count = number(r, 8);
  }
  uint32_t size = scalar_size(type);
  if (size) {
    if (count > r->bytes / size) fail(r, EP_ERR_TRUNCATED, at);
    skip(r, count * size);
  } else if (type == TYPE_STRING) {
    for (; count && r->status == EP_OK; count--) skip(r, number(r, 8));
  } else {
    fail(r, EP_ERR_FORMAT, at);
  }
}

enum { MOST_KEYS = 256, LONGEST_NAME = 64 };

/* A name: its length; the reader stands on its first byte. */
static uint32_t name_length(reader *r) {
  uint64_t at = r->at, n = number(r, 8);
  if (r->status == EP_OK && (n == 0 || n > LONGEST_NAME)) fail(r, EP_ERR_FORMAT, at);
  return need(r, n) ? (uint32_t)n : 0;
}

static int same(const uint8_t *a, uint32_t n, const uint8_t *b, uint32_t m) {
  if (n != m) return 0;
  while (n && a[n - 1] == b[n - 1]) n--;
  return n == 0;
}

static int is(const reader *r, uint64_t at, uint32_t n, const char *text) {
  uint32_t m = 0;
  while (text[m]) m++;
  return same(r->image + at, n, (const uint8_t *)text, m);
}

/* One of the four keys that a runtime reads. Returns its bit, 0 for any other key. */
static uint32_t known_key(reader *r, uint64_t key, uint32_t n, uint32_t type) {
  static const char *const names[] = {"general.alignment", "edgepos.format", "edgepos.arith"};
  static const uint32_t wanted[] = {EP_ALIGN, EP_FORMAT, EP_ARITH};
  uint64_t at = r->at;
  if (is(r, key, n, "general.architecture")) {
    if (type != TYPE_STRING) fail(r, EP_ERR_FORMAT, at);
    uint32_t length = name_length(r);
    if (r->status == EP_OK && !is(r, r->at, length, "edgepos")) fail(r, EP_ERR_FORMAT, at);
    skip(r, length);
    return 1;
  }
  for (uint32_t i = 0; i < 3; i++) {
    if (!is(r, key, n, names[i])) continue;
    if (type != TYPE_U32) fail(r, EP_ERR_FORMAT, at);
    uint64_t value = number(r, 4);
    if (r->status == EP_OK && value != wanted[i]) fail(r, i ? EP_ERR_VERSION : EP_ERR_FORMAT, at);
    return 2u << i;
  }
  return 0;
}

static void walk_keys(reader *r, uint32_t n_keys) {
  uint32_t seen[MOST_KEYS], found = 0; /* where the keys are, to find doubles */
  for (uint32_t i = 0; i < n_keys && r->status == EP_OK; i++) {
    uint64_t at = r->at;
    uint32_t n = name_length(r);
    if (r->status == EP_OK && at > UINT32_MAX) fail(r, EP_ERR_FORMAT, at);
    if (r->status != EP_OK) return;
    seen[i] = (uint32_t)at;
    for (uint32_t j = 0; j < i; j++) {
      uint32_t m = r->image[seen[j]]; /* a checked length, at most 64 */
      if (same(r->image + seen[j] + 8, m, r->image + r->at, n)) fail(r, EP_ERR_FORMAT, at);
    }
    skip(r, n);
    uint32_t type = (uint32_t)number(r, 4), bit = 0;
    if (r->status == EP_OK) bit = known_key(r, at + 8, n, type);
    if (!bit && r->status == EP_OK) skip_value(r, type);
    found |= bit;
  }
  if (r->status == EP_OK && found != 15) fail(r, EP_ERR_FORMAT, r->at);
}

/* What the tensor list says as a whole: bytes of data, words of the program (tensor 0). */
typedef struct extent {
  uint64_t data, program;
} extent;

/* The tensor list, in the order of the data; with records it is compared with the program's. */
static extent walk_tensors(reader *r, uint32_t n, const int32_t *records) {
  extent total = {0, 0};
  for (uint32_t i = 0; i < n && r->status == EP_OK; i++) {
    uint64_t at = r->at;
    uint32_t length = name_length(r);
    if (r->status == EP_OK && i == 0 && !is(r, r->at, length, "edgepos.program")) fail(r, EP_ERR_FORMAT, at);
    skip(r, length);
    uint64_t dims = number(r, 4);
    if (r->status == EP_OK && dims != 1 && dims != 2) fail(r, EP_ERR_FORMAT, at);
    uint64_t cols = number(r, 8), rows = dims == 2 ? number(r, 8) : 1;
    uint32_t type = (uint32_t)number(r, 4);
    uint64_t where = number(r, 8);
    if (r->status != EP_OK) break;
    int ok = rows >= 1 && rows <= INT32_MAX && cols >= 1 && cols <= INT32_MAX && where == total.data;
    ok = ok && type >= EP_I8 && type <= EP_I32 && (i > 0 || (dims == 1 && type == EP_I32));
    if (ok && records) {
      const int32_t *t = records + (size_t)i * EP_TENSOR_WORDS;
      ok = (uint32_t)t[EP_T_OFFSET_LOW] == (uint32_t)where && (uint32_t)t[EP_T_OFFSET_HIGH] == (uint32_t)(where >> 32) &&
           t[EP_T_TYPE] == (int32_t)type && t[EP_T_ROWS] == (int32_t)rows && t[EP_T_COLS] == (int32_t)cols &&
           (t[5] | t[6] | t[7]) == 0;
    }
    if (!ok) fail(r, EP_ERR_FORMAT, at);
    if (!ok) break;
    uint64_t size = (rows * cols) << (type - EP_I8); /* below 2^64 */
    if (size > r->bytes - total.data) fail(r, EP_ERR_TRUNCATED, at);
    if (i == 0) total.program = cols;
    total.data = (total.data + size + EP_ALIGN - 1) & ~(uint64_t)(EP_ALIGN - 1);
    if (total.data > r->bytes) fail(r, EP_ERR_TRUNCATED, at);
  }
  return total;
}

static void skip_padding(reader *r) {
  while (r->at % EP_ALIGN && r->status == EP_OK)
    if (number(r, 1) != 0) fail(r, EP_ERR_FORMAT, r->at - 1);
}

/* Bytes between the end of a tensor and the next must be 0: two files of one model are the same file. */
static void check_gaps(reader *r, const ep_program *p, uint64_t data) {
  for (int32_t i = 0; i < p->n_tensors && r->status == EP_OK; i++) {
    uint64_t size = ((uint64_t)ep_rows(p, i) * (uint64_t)ep_cols(p, i)) << (ep_record(p, i)[EP_T_TYPE] - EP_I8);
    r->at = data + (uint64_t)((const uint8_t *)ep_data(p, i) - p->data) + size;
    skip_padding(r);
  }
}

ep_status ep_gguf_walk(ep_program *p, const uint8_t *image, uint64_t bytes, uint64_t *where) {
  static const uint8_t magic[4] = {'G', 'G', 'U', 'F'};
  reader r = {image, bytes, 0, EP_OK};
  extent total = {0, 0};
  for (uint32_t i = 0; i < 4; i++)
    if (number(&r, 1) != magic[i]) fail(&r, EP_ERR_MAGIC, i);
  if (number(&r, 4) != 3) fail(&r, EP_ERR_VERSION, 4);
  uint64_t n_tensors = number(&r, 8), n_keys = number(&r, 8);
  if (n_tensors < 1 || n_tensors > 65535) fail(&r, EP_ERR_FORMAT, 8);
  if (n_keys > MOST_KEYS) fail(&r, EP_ERR_FORMAT, 16);
  if (r.status == EP_OK) walk_keys(&r, (uint32_t)n_keys);
  uint64_t list = r.at;
  if (r.status == EP_OK) total = walk_tensors(&r, (uint32_t)n_tensors, NULL);
  skip_padding(&r);
  uint64_t data = r.at;
  if (r.status == EP_OK && total.data > bytes - data) fail(&r, EP_ERR_TRUNCATED, bytes);
  if (r.status == EP_OK && total.data < bytes - data) fail(&r, EP_ERR_FORMAT, data + total.data);

  if (r.status == EP_OK) {
    uint64_t word = 0;
    p->data = image + data;
    p->n_tensors = (int32_t)n_tensors;
    ep_status st = ep_check_layout(p, total.program, &word);
    if (st != EP_OK) fail(&r, st, data + 4 * word);
  }
  if (r.status == EP_OK) {
    r.at = list;
    walk_tensors(&r, (uint32_t)n_tensors, p->tensors);
    check_gaps(&r, p, data);
  }
  *where = r.at;
  return r.status;
}

ep_status ep_open(ep_model *model, const void *image, size_t bytes, uint64_t *where) {
  ep_program p;
  uint64_t at = 0, word = 0;
  if (where) *where = 0;
  if (!model || !image) return EP_ERR_ARGUMENT;
  if ((uintptr_t)image % EP_ALIGN) return EP_ERR_ALIGNMENT;
  memset(&p, 0, sizeof p);
  ep_status st = ep_gguf_walk(&p, (const uint8_t *)image, bytes, &at);
  if (st == EP_OK) {
    st = ep_check_included(&p, &word);
    if (st == EP_OK) st = ep_check_program(&p, &word);
    if (st == EP_OK) st = ep_check_tokenizer(&p, &word);
    if (st == EP_OK && EP_HAS(EP_FEATURE_CHAT)) st = ep_check_chat(&p, &word);
    at = (uint64_t)(p.data - (const uint8_t *)image) + 4 * word;
  }
  if (st != EP_OK) {
    if (where) *where = at;
    return st;
  }
  p.seal = EP_SEAL;
  memset(model, 0, sizeof *model);
  memcpy(model->opaque, &p, sizeof p);
  return EP_OK;
}
