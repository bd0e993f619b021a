/* ep_open as a security boundary: what is cut short, changed or contradictory is refused, or runs without a fault. */
#define _POSIX_C_SOURCE 200112L /* posix_memalign: copies of any size */
#include "edgepos.h"
#include "exercise.h"
#include "image.h"

static shape small(uint64_t seed) {
  return (shape){.kv_bits = seed & 1 ? 16 : 8, .grouped = 1, .layers = 2, .width = 34, .vocab = 40, .context = 8, .tokenizer = 1, .seed = seed};
}

/* From a copy that ends where the image ends, so that a sanitizer sees reads beyond it. */
static ep_status open_copy(const uint8_t *image, size_t n, uint64_t *where) {
  ep_model model;
  uint8_t *copy = NULL;
  if (posix_memalign((void **)&copy, EP_ALIGN, n ? n : 1)) abort();
  memcpy(copy, image, n);
  ep_status st = ep_open(&model, copy, n, where);
  free(copy);
  return st;
}

static void test_truncation(void) {
  shape s = small(0);
  size_t n;
  uint8_t *image = image_of(&s, &n);
  for (size_t i = 0; i < n; i += i < 12000 ? 1 : 61) {
    uint64_t where = 0;
    ep_status st = open_copy(image, i, &where);
    CHECK(st == EP_ERR_TRUNCATED && where <= i);
  }
  CHECK(open_copy(image, n, NULL) == EP_OK && open_copy(image, n - 1, NULL) == EP_ERR_TRUNCATED);
  ep_model model;
  CHECK(ep_open(NULL, image, n, NULL) == EP_ERR_ARGUMENT && ep_open(&model, NULL, n, NULL) == EP_ERR_ARGUMENT);
  CHECK(ep_open(&model, image + 4, n - 4, NULL) == EP_ERR_ALIGNMENT);
  uint8_t *longer = (uint8_t *)aligned_alloc(EP_ALIGN, n + 64);
  memset(longer, 0, n + 64);
  memcpy(longer, image, n);
  uint64_t where = 0;
  CHECK(ep_open(&model, longer, n + 64, &where) == EP_ERR_FORMAT && where == n);
  free(longer);
  free(image);
}

/* Every byte of the container's header and of the program takes other values, then 32-bit words take extreme ones. */
static void test_mutations(uint64_t seed) {
  static const uint8_t flips[] = {0x01, 0x02, 0x04, 0x10, 0x40, 0x80, 0xff};
  static const uint32_t extremes[] = {0, 1, 0xffffffff, 0x7fffffff, 0x80000000, 0x40000000, 0x10000, 1023, 0xfffffc01};
  shape s = small(seed);
  s.extreme = seed >= 2;
  s.more = seed & 1;
  s.in_groups = seed & 1;
  s.bidirectional = seed == 3;
  s.embedding = seed >= 4 ? 1 : 0;
  s.table = seed & 1 ? 9 : 0;
  if (seed == 5) of_image(&s);
  builder *b = (builder *)malloc(sizeof *b);
  size_t n;
  build(b, &s);
  uint8_t *image = finish(b, &n);
  size_t end = b->data_at + 4 * (size_t)b->tensors[0].cols, accepted = 0;
  CHECK(exercise(image, n) == EP_OK);
  for (size_t i = 0; i < end; i++) {
    uint8_t kept = image[i];
    for (size_t k = 0; k < sizeof flips; k++) {
      image[i] = kept ^ flips[k];
      accepted += exercise(image, n) == EP_OK;
    }
    image[i] = kept;
  }
  for (size_t i = b->data_at; i < end; i += 4) {
    uint32_t kept;
    memcpy(&kept, image + i, 4);
    for (size_t k = 0; k < sizeof extremes / sizeof *extremes; k++) {
      memcpy(image + i, &extremes[k], 4);
      accepted += exercise(image, n) == EP_OK;
    }
    memcpy(image + i, &kept, 4);
  }
  CHECK(accepted > 100); /* shifts and the digest may be anything */
  CHECK(exercise(image, n) == EP_OK);
  discard(b);
  free(b);
  free(image);
}

/* Weights, tables and scales hold anything at all. */
static void test_random_data(void) {
  uint64_t random = 11;
  for (uint64_t seed = 0; seed < 60; seed++) {
    shape s = small(seed);
    s.extreme = seed % 3 == 0;
    s.tokenizer = 0;
    s.more = seed & 1;
    s.in_groups = seed % 5 < 2;
    s.bidirectional = seed >> 1 & 1;
    s.embedding = seed % 5 == 4 ? 1 + (int32_t)(seed / 5 % 4) : 0;
    s.table = seed & 4 ? 9 + (int32_t)(seed & 1) : 0;
    if (s.embedding && seed & 1) of_image(&s);
    builder *b = (builder *)malloc(sizeof *b);
    size_t n;
    build(b, &s);
    for (int32_t i = 1; i < b->n_tensors; i++) {
      const tensor *t = &b->tensors[i];
      if (i == b->header[EP_H_SELFTEST]) continue;
      int row_scales = t->type == EP_I32 && t->dims == 2 && t->cols == 2 && t->rows != 4;
      for (int32_t k = 0; t->type == EP_I32 && k < t->rows * t->cols; k++) {
        int64_t x = draw_edge(&random);
        int shift = (row_scales && k % 2) || (t->cols == 2 + 2049 && k < 2);
        ((int32_t *)t->data)[k] = shift ? (int32_t)(x % 1024) : (int32_t)x;
      }
    }
    for (int32_t i = 0; i < b->n_ops; i++) { /* shifts, too */
      static const uint8_t shifts[EP_OPCODES] = {0, 0x01, 0x0c, 0x01, 0x04, 0x01, 0x13, 0x10, 0, 0x68};
      for (int32_t k = 0; k < 8; k++)
        if (shifts[b->ops[i][0]] >> k & 1 && draw(&random) % 4 == 0) b->ops[i][EP_O_P0 + k] = (int32_t)(draw_edge(&random) % 1024);
    }
    uint8_t *image = finish(b, &n);
    CHECK(exercise(image, n) == EP_OK);
    discard(b);
    free(b);
    free(image);
  }
}

/* One more key in front of the required ones. */
static ep_status with_key(const buffer *key, uint32_t count) {
  shape s = small(1);
  builder *b = (builder *)malloc(sizeof *b);
  size_t n;
  build(b, &s);
  uint8_t *image = finish_with(b, &n, key, count);
  ep_status st = open_copy(image, n, NULL);
  discard(b);
  free(b);
  free(image);
  return st;
}

static void test_keys(void) {
  buffer k = {0};
  put_string(&k, "some.list"); /* an array of strings, an array of numbers, every scalar: all skipped */
  put_u32(&k, 9), put_u32(&k, 8), put_u64(&k, 2), put_string(&k, "a"), put_string(&k, "");
  put_string(&k, "some.numbers");
  put_u32(&k, 9), put_u32(&k, 6), put_u64(&k, 3), put(&k, "............", 12);
  for (uint32_t type = 0; type <= 12; type++) {
    static const uint32_t size[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    char name[] = "type.a";
    name[5] = (char)('a' + type);
    if (type == 9) continue;
    put_string(&k, name), put_u32(&k, type);
    if (type == 8) put_string(&k, "text");
    put(&k, "12345678", size[type]);
  }
  CHECK(with_key(&k, 14) == EP_OK);
  put_u32_key(&k, "type.e", 4);
  CHECK(with_key(&k, 15) == EP_ERR_FORMAT); /* twice */
  k.n = 0, put_u32_key(&k, "edgepos.arith", 1);
  CHECK(with_key(&k, 1) == EP_ERR_FORMAT);
  k.n = 0, put_u32_key(&k, "edgepos.arith", 2);
  CHECK(with_key(&k, 1) == EP_ERR_VERSION);
  k.n = 0, put_string(&k, "nested"), put_u32(&k, 9), put_u32(&k, 9), put_u64(&k, 1);
  CHECK(with_key(&k, 1) == EP_ERR_FORMAT);
  k.n = 0, put_string(&k, "unknown"), put_u32(&k, 13), put_u64(&k, 1);
  CHECK(with_key(&k, 1) == EP_ERR_FORMAT);
  k.n = 0, put_string(&k, ""), put_u32(&k, 4), put_u32(&k, 1);
  CHECK(with_key(&k, 1) == EP_ERR_FORMAT);
  k.n = 0, put_u32_key(&k, "a name of more than sixty-four bytes, which is one too many for us", 1);
  CHECK(with_key(&k, 1) == EP_ERR_FORMAT);
  static const uint64_t huge[] = {UINT64_MAX, UINT64_MAX / 2, UINT64_MAX / 4 + 2, (uint64_t)1 << 32, (uint64_t)1 << 61};
  for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
    for (uint32_t type = 0; type <= 12; type++) {
      k.n = 0, put_string(&k, "huge"), put_u32(&k, 9), put_u32(&k, type), put_u64(&k, huge[i]);
      CHECK(with_key(&k, 1) != EP_OK);
    }
    k.n = 0, put_string(&k, "huge"), put_u32(&k, 8), put_u64(&k, huge[i]);
    CHECK(with_key(&k, 1) == EP_ERR_TRUNCATED);
    k.n = 0, put_u64(&k, huge[i]);
    CHECK(with_key(&k, 1) == EP_ERR_FORMAT);
  }
  k.n = 0;
  for (int i = 0; i < 300; i++) {
    char name[16];
    snprintf(name, sizeof name, "k%d", i);
    put_u32_key(&k, name, 0);
    if (i == 251) CHECK(with_key(&k, 252) == EP_OK);
  }
  CHECK(with_key(&k, 300) == EP_ERR_FORMAT);
  free(k.p);
}

/* A change of one place of the builder or the file must be refused with this status. */
static void test_headers(void) {
  shape s = small(1);
  size_t n;
  uint8_t *image = image_of(&s, &n);
  struct {
    size_t at;
    uint8_t value;
    ep_status want;
  } edits[] = {{0, 'g', EP_ERR_MAGIC}, {3, 'f', EP_ERR_MAGIC}, {4, 2, EP_ERR_VERSION}, {8, 0, EP_ERR_FORMAT},
               {15, 1, EP_ERR_FORMAT}, {17, 2, EP_ERR_FORMAT}, {n - 1, 1, EP_ERR_FORMAT}};
  for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
    uint8_t kept = image[edits[i].at];
    image[edits[i].at] = edits[i].value;
    CHECK(open_copy(image, n, NULL) == edits[i].want);
    image[edits[i].at] = kept;
  }
  image[4] = 0, image[7] = 3; /* big-endian */
  CHECK(open_copy(image, n, NULL) == EP_ERR_VERSION);
  free(image);
}

typedef struct edit {
  int32_t op, word, value; /* op -1: header, -2: value 0, -3: kv 0 */
} edit;

static int opens(const shape *s) {
  size_t n;
  uint8_t *image = image_of(s, &n);
  ep_status st = exercise(image, n);
  free(image);
  return st == EP_OK;
}

static int32_t *words_of(builder *b, const edit *e) {
  return e->op == -1 ? b->header : e->op == -2 ? b->values[0] : e->op == -3 ? b->kv[0] : b->ops[e->op];
}

static int opens_with(const shape *s, const edit *e) {
  size_t n;
  builder *b = (builder *)malloc(sizeof *b);
  build(b, s);
  words_of(b, e)[e->word] = e->value;
  uint8_t *image = finish(b, &n);
  ep_status st = exercise(image, n);
  discard(b);
  free(b);
  free(image);
  return st == EP_OK;
}

static void refuse_all(const shape *s, const edit *edits, size_t count) {
  size_t n;
  for (size_t i = 0; i < count; i++) {
    builder *b = (builder *)malloc(sizeof *b);
    build(b, s);
    words_of(b, &edits[i])[edits[i].word] = edits[i].value;
    uint8_t *image = finish(b, &n);
    uint64_t where = 0;
    ep_status st = open_copy(image, n, &where);
    CHECK(st == EP_ERR_FORMAT || st == EP_ERR_PROGRAM);
    if (st == EP_OK) fprintf(stderr, "edit %zu was accepted\n", i);
    CHECK(where >= b->data_at && where < n);
    discard(b);
    free(b);
    free(image);
  }
}

/* What few programs use, each out of its range. */
static void test_more_programs(void) {
  /* Operators of build() with more and a table: 0 EMBED, 1 EMBED of positions, 2 ADD, 3 NORM, 4 LINEAR q, 5 k, 6 v, 7 NORM q,
   * 8 NORM k, 9 ROPE q, 10 ROPE k, 11 KV_WRITE, 12 ATTENTION, 13 LINEAR, 14 ADD, 15 NORM, 16 LINEAR w4g32, ...,
   * 31 ATTENTION, ..., 42 LINEAR w4g32 with a softcap. */
  static const edit edits[] = {
      {0, EP_O_P0 + 2, 1}, {1, EP_O_P0 + 1, 2}, {1, EP_O_P0 + 1, 0}, {1, EP_O_P0 + 1, -1}, {1, EP_O_P0 + 2, 2},
      {1, EP_O_P0 + 2, -1}, {1, EP_O_P0 + 2, 9}, {1, EP_O_P0 + 2, INT32_MAX}, {1, EP_O_T0, 1}, {1, EP_O_P0 + 4, 1},
      {0, EP_O_P0 + 3, 1}, {1, EP_O_P0 + 3, -1}, {1, EP_O_P0 + 3, 10}, {1, EP_O_P0 + 3, INT32_MAX}, {1, EP_O_P0 + 3, INT32_MIN},
      {7, EP_O_P0 + 4, 0}, {7, EP_O_P0 + 4, -1}, {7, EP_O_P0 + 4, 3}, {7, EP_O_P0 + 4, 2}, {7, EP_O_P0 + 4, INT32_MIN},
      {12, EP_O_T1, 1}, {12, EP_O_T1, INT32_MAX}, {12, EP_O_T2, 1}, {12, EP_O_T2, -2}, {12, EP_O_T3, 1},
      {12, EP_O_P0 + 7, 2}, {12, EP_O_P0 + 7, 1}, {31, EP_O_P0 + 7, 1}, {-3, EP_KV_WINDOW, -1}, {-3, EP_KV_WINDOW, (1 << 20) + 1},
      {4, EP_O_P0 + 2, 1}, {16, EP_O_P0 + 2, 0}, {16, EP_O_P0 + 2, 2}, {16, EP_O_T1, -1}, {16, EP_O_P0 + 1, 0},
      {16, EP_O_P0 + 1, -2}, {42, EP_O_P0 + 1, 0}, {42, EP_O_P0 + 1, 1}, {42, EP_O_P0 + 1, 1 << 30}, {42, EP_O_P0 + 1, -2},
      {4, EP_O_P0 + 3, 2}, {42, EP_O_P0 + 3, -1}, {42, EP_O_P0 + 3, INT32_MIN}, {42, EP_O_P0 + 4, 1},
  };
  static const edit both[] = {{12, EP_O_P0 + 7, 0}, {31, EP_O_P0 + 7, 0}, {-3, EP_KV_WINDOW, 1}};
  shape s = small(1);
  s.more = 1;
  s.table = 9;
  CHECK(opens(&s));
  refuse_all(&s, edits, sizeof edits / sizeof *edits);
  s.in_groups = 1;
  CHECK(opens(&s));
  refuse_all(&s, edits, sizeof edits / sizeof *edits);
  s.bidirectional = 1;
  CHECK(opens(&s));
  refuse_all(&s, both, sizeof both / sizeof *both);
}

static void test_embedding_programs(void) {
  /* Operators of build() with more: ..., 10 ATTENTION, ..., 16 LINEAR, ..., 29 ATTENTION, ..., 38 ADD; 39 POOL, 40 LINEAR, 41 ACT, 42 NORM. */
  static const edit edits[] = {
      {-1, EP_H_OUTPUT, 0}, {-1, EP_H_OUTPUT, 3}, {-1, EP_H_OUTPUT, -1}, {-1, EP_H_HEAD_START, 38}, {-1, EP_H_HEAD_START, 40},
      {-1, EP_H_LOGITS_F, 15}, {39, EP_O_P0, 6}, {39, EP_O_P0, -1}, {39, EP_O_P0 + 1, 1}, {39, EP_O_T0, 1}, {39, EP_O_IN1, 0},
      {39, EP_O_IN0, 0x7fffffff}, {39, EP_O_CODE, EP_ACT}, {39, EP_O_IN0, 6}, {40, EP_O_IN0, 3}, {40, EP_O_CODE, EP_POOL},
      {40, EP_O_P0 + 1, 0}, {41, EP_O_IN0, 0}, {42, EP_O_IN0, 1 << 30}, {16, EP_O_CODE, EP_POOL}, {10, EP_O_P0 + 7, 0},
      {29, EP_O_P0 + 7, 0},
  };
  static const edit token[] = {{39, EP_O_P0 + 1, 40}, {39, EP_O_P0 + 1, -1}, {39, EP_O_P0, 5}, {39, EP_O_P0 + 2, 1}, {10, EP_O_P0 + 7, 1}};
  shape s = small(1);
  for (s.embedding = 1; s.embedding <= 6; s.embedding++) {
    s.more = s.embedding & 1;
    CHECK(opens(&s));
  }
  s.embedding = s.more = 1;
  refuse_all(&s, edits, sizeof edits / sizeof *edits);
  s.embedding = 5; /* the row of a token, causal */
  refuse_all(&s, token, sizeof token / sizeof *token);
}

static void test_image_programs(void) {
  /* 0 PATCHES, 1 LINEAR, 2 EMBED by positions, 3 ADD, ...; with more 42 is the POOL. */
  static const edit edits[] = {
      {0, EP_O_P0 + EP_I_CHANNELS, 0}, {0, EP_O_P0 + EP_I_CHANNELS, 5}, {0, EP_O_P0 + EP_I_CHANNELS, 4}, {0, EP_O_P0 + EP_I_HEIGHT, 4},
      {0, EP_O_P0 + EP_I_HEIGHT, 0}, {0, EP_O_P0 + EP_I_HEIGHT, 9}, {0, EP_O_P0 + EP_I_HEIGHT, INT32_MAX}, {0, EP_O_P0 + EP_I_WIDTH, 16},
      {0, EP_O_P0 + EP_I_WIDTH, -12}, {0, EP_O_P0 + EP_I_WIDTH, 1 << 14}, {0, EP_O_P0 + EP_I_PATCH, 0}, {0, EP_O_P0 + EP_I_PATCH, 2},
      {0, EP_O_P0 + EP_I_PATCH, 3}, {0, EP_O_P0 + EP_I_PATCH, 1 << 30}, {0, EP_O_P0 + EP_I_FIRST, 0}, {0, EP_O_P0 + EP_I_FIRST, 2},
      {0, EP_O_P0 + EP_I_FIRST, -1}, {0, EP_O_P0 + EP_I_FIRST, INT32_MIN}, {0, EP_O_P0 + EP_I_ZERO, -1}, {0, EP_O_P0 + EP_I_ZERO, 256},
      {0, EP_O_P0 + 6, 1}, {0, EP_O_T0, 1}, {0, EP_O_IN0, 0}, {0, EP_O_CODE, EP_EMBED}, {2, EP_O_CODE, EP_PATCHES}, {2, EP_O_P0 + 1, 0},
      {2, EP_O_P0 + 2, 4}, {42, EP_O_P0, 4}, {42, EP_O_P0, 5}, {42, EP_O_CODE, EP_PATCHES}, {-2, EP_V_F, 1}, {-2, EP_V_WIDTH, 47},
      {-1, EP_H_OUTPUT, 0}, {-1, EP_H_OUTPUT, 3}, {-1, EP_H_VOCAB, 2}, {-1, EP_H_CONTEXT, 8}, {-1, EP_H_CONTEXT, 6}, {-1, EP_H_TOKENIZER, 2},
      {-1, EP_H_SELFTEST, 1}, {-1, EP_H_SELFTEST, -1}, {-1, EP_H_SELFTEST, INT32_MAX},
  };
  static const edit sound[] = {{-1, EP_H_OUTPUT, 2}, {0, EP_O_P0 + EP_I_ZERO, 0}, {0, EP_O_P0 + EP_I_ZERO, 255}};
  shape s = small(1);
  s.embedding = s.more = 1;
  s.table = 9;
  of_image(&s);
  CHECK(opens(&s));
  refuse_all(&s, edits, sizeof edits / sizeof *edits);
  for (size_t i = 0; i < sizeof sound / sizeof *sound; i++) CHECK(opens_with(&s, &sound[i]));
}

static void test_programs(void) {
  /* Operators of build(): 0 EMBED, 1 NORM, 2 LINEAR q, 3 k, 4 v, 5 ROPE q, 6 ROPE k, 7 KV_WRITE, 8 ATTENTION, 9 LINEAR,
   * 10 ADD, 11 NORM, 12 LINEAR, 13 LINEAR, 14 ACT, 15 MUL, ...; the last two are the head. */
  static const edit edits[] = {
      {-1, EP_H_HEAD_START, 0}, {-1, EP_H_HEAD_START, 37}, {-1, EP_H_HEAD_START, 8}, {-1, EP_H_PLAN_WIDTH, 40},
      {-1, EP_H_VOCAB, 41}, {-1, EP_H_VOCAB, 39}, {-1, EP_H_CONTEXT, 0}, {-1, EP_H_CONTEXT, 7}, {-1, EP_H_KV_BITS, 4},
      {-1, EP_H_LOGITS_F, 15}, {-1, EP_H_SELFTEST, -1}, {-1, EP_H_SELFTEST, 1}, {-1, 28, 1}, {-1, 63, 1},
      {-1, EP_H_EOS, 0x7fffffff}, {-1, EP_H_TOKENIZER, 5}, {-1, EP_H_OFFSETS, -1}, {-1, EP_H_TRIE, -1},
      {-2, EP_V_WIDTH, 0}, {-2, EP_V_F, 31}, {-2, EP_V_OFFSET, -1}, {-2, EP_V_OFFSET, 0x7fffffff}, {-2, 3, 1},
      {-3, EP_KV_HEADS, 1}, {-3, EP_KV_K_DIM, 1}, {-3, EP_KV_V_DIM, 513},
      {0, 0, 0}, {0, 0, 10}, {0, EP_O_IN0, 0}, {0, EP_O_T0, -1}, {0, EP_O_T2, 0}, {0, EP_O_P0, 1024}, {0, EP_O_P0 + 3, 1},
      {1, EP_O_IN0, 1}, {1, EP_O_IN0, -1}, {1, EP_O_IN1, 0}, {1, EP_O_OUT, 2}, {1, EP_O_P0, 2}, {1, EP_O_P0 + 1, -1},
      {2, EP_O_T1, 1}, {2, EP_O_T3, 1}, {5, EP_O_P0, 5}, {5, EP_O_P0, 0}, {5, EP_O_P0 + 1, 0}, {5, EP_O_P0 + 2, 2},
      {7, EP_O_P0, 1}, {7, EP_O_P0, -1}, {7, EP_O_IN0, 4}, {7, EP_O_OUT, 7}, {8, EP_O_P0, 1}, {8, EP_O_P0 + 1, 3},
      {8, EP_O_P0 + 1, 0}, {8, EP_O_P0 + 4, 14}, {8, EP_O_P0 + 4, 31}, {8, EP_O_T0, 1}, {10, EP_O_P0, 31},
      {10, EP_O_P0 + 1, -1}, {10, EP_O_IN1, 1 << 30}, {14, EP_O_P0 + 2, 2}, {14, EP_O_P0 + 3, -1}, {14, EP_O_T0, 1},
      {15, EP_O_P0, -1024}, {36, 0, EP_NORM}, {35, EP_O_IN0, 3000}, {35, 0, EP_ROPE}, {36, EP_O_IN0, 0},
  };
  shape s = small(1);
  refuse_all(&s, edits, sizeof edits / sizeof *edits);
  test_more_programs();
  test_embedding_programs();
  test_image_programs();
}

/* Every kind of tokenizer opens, and each word that only some kinds have is checked. */
static void test_tokenizers(void) {
  static const edit all[] = {{-1, EP_H_TOKENIZER, 5}, {-1, EP_H_TOKENIZER_FLAGS, 1 << 13}, {-1, EP_H_PRETOKENIZER, 8},
                             {-1, EP_H_NORMALIZER, 4}, {-1, EP_H_TRIE, 0}, {-1, EP_H_SCORES, 3}, {-1, EP_H_MAP, 1}};
  static const edit more[] = {{-1, EP_H_UNKNOWN, 40}, {-1, EP_H_UNKNOWN, -1}, {-1, EP_H_SUFFIX, 40}, {-1, EP_H_STRINGS, 0},
                              {-1, EP_H_STRINGS, 1}, {-1, EP_H_CLASSES, 1}, {-1, EP_H_COMPOSE, 1}, {-1, EP_H_NORMALIZER, 0}};
  for (int32_t kind = 1; kind <= 4; kind++) {
    shape s = small(1);
    s.tokenizer = kind;
    CHECK(opens(&s));
    refuse_all(&s, all, sizeof all / sizeof *all);
    if (kind > 1) refuse_all(&s, more, sizeof more / sizeof *more);
  }
}

/* Faults inside tensors. */
static void test_contents(void) {
  for (int i = 0; i < 12; i++) {
    shape s = small(1);
    builder *b = (builder *)malloc(sizeof *b);
    size_t n;
    build(b, &s);
    const int32_t *h = b->header;
    int32_t *scales = (int32_t *)b->tensors[b->ops[2][EP_O_T2]].data;
    int32_t *offsets = (int32_t *)b->tensors[h[EP_H_OFFSETS]].data, *pairs = (int32_t *)b->tensors[h[EP_H_PAIRS]].data;
    int32_t *trie = (int32_t *)b->tensors[h[EP_H_TRIE]].data;
    switch (i) {
      case 0: scales[1] = 1024; break;
      case 1: scales[3] = INT32_MIN; break;
      case 2: ((int32_t *)b->tensors[h[EP_H_SELFTEST]].data)[1] = 40; break;
      case 3: ((int32_t *)b->tensors[h[EP_H_EOS]].data)[0] = -1; break;
      case 4: offsets[0] = 1; break;
      case 5: offsets[7] = 1; break;
      case 6: offsets[40] = 61; break;
      case 7: ((int8_t *)b->tensors[h[EP_H_TYPES]].data)[3] = 3; break;
      case 8: pairs[4] = 0; pairs[5] = 0; break;
      case 9: pairs[3] = 40; break;
      case 10: trie[5] = 40; break;
      default: ((int32_t *)b->tensors[h[EP_H_BYTE_IDS]].data)[9] = -2;
    }
    uint8_t *image = finish(b, &n);
    ep_status st = open_copy(image, n, NULL);
    CHECK(st == (i < 2 ? EP_ERR_PROGRAM : EP_ERR_FORMAT));
    discard(b);
    free(b);
    free(image);
  }
}

/* Shifts in softcap tables, a softcap before the last operator, scales of int16 weights, a bias table without a middle. */
static void test_more_contents(void) {
  for (int i = 0; i < 8; i++) {
    shape s = small(1);
    s.more = 1;
    s.table = 9;
    s.bidirectional = i >= 6;
    builder *b = (builder *)malloc(sizeof *b);
    size_t n;
    build(b, &s);
    int32_t cap = b->ops[42][EP_O_P0 + 1], *logits = (int32_t *)b->tensors[cap].data;
    int32_t *scores = (int32_t *)b->tensors[b->ops[12][EP_O_T2]].data;
    switch (i) {
      case 0: logits[0] = 1024; break;
      case 1: logits[1] = -1024; break;
      case 2: scores[0] = INT32_MIN; break;
      case 3: scores[1] = INT32_MAX; break;
      case 4: b->ops[40][EP_O_P0 + 1] = b->ops[16][EP_O_P0 + 1] = cap; break;
      case 5: b->ops[1][EP_O_T1] = add_tensor(b, EP_I16, 2, 9, 2); break;
      case 6: b->ops[12][EP_O_T1] = add_tensor(b, EP_I32, 2, 4, 6); break;
      default: b->ops[12][EP_O_T1] = add_tensor(b, EP_I32, 2, 3, 7);
    }
    uint8_t *image = finish(b, &n);
    ep_status st = open_copy(image, n, NULL);
    CHECK(st == EP_ERR_PROGRAM);
    discard(b);
    free(b);
    free(image);
  }
}

int main(void) {
  test_headers();
  test_keys();
  test_programs();
  test_tokenizers();
  test_contents();
  test_more_contents();
  test_truncation();
  test_random_data();
  for (uint64_t seed = 0; seed < 6; seed++) test_mutations(seed);
  return failures != 0;
}
