/* What the files of the runtime share about an opened model. The layout of every word is docs/bundle.md. */
#ifndef EP_INTERNAL_H
#define EP_INTERNAL_H

#include "edgepos.h"
#include "included.h"

#if __STDC_HOSTED__
#include <string.h>
#else /* a freestanding compiler has no string.h, and calls even a memcpy of four bytes unless it is told that it is the one it knows */
void *memcpy(void *restrict to, const void *restrict from, size_t n);
void *memset(void *to, int value, size_t n);
#define memcpy __builtin_memcpy
#define memset __builtin_memset
#endif

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "EdgePos images are read in place: the target must be little-endian"
#endif
_Static_assert(-1 >> 1 == -1 && -3 >> 1 == -2, "right shifts of negative numbers must be arithmetic");
_Static_assert(sizeof(int) >= 4, "int must have 32 bits");

/* Words of the program's header. */
enum {
  EP_H_MAGIC, EP_H_LAYOUT, EP_H_TENSORS, EP_H_VALUES, EP_H_OPS, EP_H_KV, EP_H_HEAD_START, EP_H_PLAN_WIDTH,
  EP_H_VOCAB, EP_H_CONTEXT, EP_H_KV_BITS, EP_H_LOGITS_F, EP_H_SELFTEST, EP_H_DIGEST_LOW, EP_H_DIGEST_HIGH,
  EP_H_TOKENIZER, EP_H_TOKENIZER_FLAGS, EP_H_BOS, EP_H_EOS, EP_H_OFFSETS, EP_H_BYTES, EP_H_TYPES, EP_H_PAIRS,
  EP_H_BYTE_IDS, EP_H_TRIE, EP_H_ADDED, EP_H_PRETOKENIZER, EP_H_KNOWN, EP_H_STARTS, EP_H_UNKNOWN, EP_H_SUFFIX,
  EP_H_SCORES, EP_H_NORMALIZER, EP_H_MAP, EP_H_STRINGS, EP_H_CLASSES, EP_H_COMPOSE, EP_H_WORD_CHARS, EP_H_OUTPUT, EP_H_RESERVED,
  EP_H_CHAT_TEXTS = 40, EP_H_CHAT_JOINS, EP_H_CHAT_FLAGS
};
enum { EP_HEADER_WORDS = 64, EP_TENSOR_WORDS = 8, EP_VALUE_WORDS = 4, EP_KV_WORDS = 4, EP_OP_WORDS = 16 };
#define EP_PROGRAM_MAGIC 0x52505045

/* Words of the records. */
enum { EP_T_OFFSET_LOW, EP_T_OFFSET_HIGH, EP_T_TYPE, EP_T_ROWS, EP_T_COLS };
enum { EP_V_WIDTH, EP_V_F, EP_V_OFFSET };
enum { EP_KV_HEADS, EP_KV_K_DIM, EP_KV_V_DIM, EP_KV_WINDOW };
enum { EP_O_CODE, EP_O_OUT, EP_O_IN0, EP_O_IN1, EP_O_T0, EP_O_T1, EP_O_T2, EP_O_T3, EP_O_P0 };
enum { EP_I8 = 24, EP_I16 = 25, EP_I32 = 26 }; /* GGUF types */

enum {
  EP_EMBED = 1, EP_NORM, EP_LINEAR, EP_ADD, EP_MUL, EP_ACT, EP_ROPE, EP_KV_WRITE, EP_ATTENTION, EP_POOL,
  EP_PATCHES, EP_OPCODES
};

/* Parameters of PATCHES. */
enum { EP_I_CHANNELS, EP_I_HEIGHT, EP_I_WIDTH, EP_I_PATCH, EP_I_FIRST, EP_I_ZERO };

/* An opened image: what ep_model.opaque holds. Everything it points to has been checked by ep_open. */
typedef struct ep_program {
  uint64_t seal; /* EP_SEAL: ep_open has succeeded */
  uint64_t weight_bytes;
  const uint8_t *data; /* start of the tensor data */
  const int32_t *header, *tensors, *values, *kv, *ops;
  const int32_t *patches;  /* the PATCHES of a program that reads an image; NULL: it reads tokens */
  int32_t n_tensors, n_values, n_ops, n_kv, head_start;
  int32_t vocab, context, kv_bits;
  int32_t longest_row;     /* most numbers of 16 bits that hold a LINEAR's input */
  int32_t longest_summed;  /* most columns of a LINEAR that needs the sums of groups of its input; 0: none */
  int32_t longest_in_groups; /* the same of those with inputs of 8 bits in groups */
  int32_t two_parts;       /* a LINEAR has w16g32 */
  int32_t most_pairs;      /* of a ROPE; 0: there is none */
  int32_t max_position;    /* the last one that every position table has a row for */
  int32_t one_call;        /* a text is one call into an empty session: bidirectional, or an embedding */
  int32_t embedding;       /* width of the one row that it gives; 0: logits of every token */
  int32_t k_dim, v_dim;    /* largest head sizes of the KV layers, at least 1 */
} ep_program;
#define EP_SEAL 0x4b4f736f50656764ull
_Static_assert(sizeof(ep_program) <= sizeof(ep_model), "ep_model is too small");

/* Copy a model out of its opaque words. Returns 0 if it was never opened. */
static inline int ep_program_of(ep_program *p, const ep_model *model) {
  if (!model) return 0;
  memcpy(p, model->opaque, sizeof *p);
  return p->seal == EP_SEAL;
}

/* Tensors by index (0 <= i < n_tensors). Data is aligned to 64 bytes. */
static inline const int32_t *ep_record(const ep_program *p, int32_t i) { return p->tensors + (size_t)i * EP_TENSOR_WORDS; }
static inline int32_t ep_rows(const ep_program *p, int32_t i) { return ep_record(p, i)[EP_T_ROWS]; }
static inline int32_t ep_cols(const ep_program *p, int32_t i) { return ep_record(p, i)[EP_T_COLS]; }
static inline const void *ep_data(const ep_program *p, int32_t i) {
  const int32_t *r = ep_record(p, i);
  return p->data + (size_t)((uint64_t)(uint32_t)r[EP_T_OFFSET_LOW] | (uint64_t)(uint32_t)r[EP_T_OFFSET_HIGH] << 32);
}
static inline const int8_t *ep_i8(const ep_program *p, int32_t i) { return (const int8_t *)ep_data(p, i); }
static inline const int16_t *ep_i16(const ep_program *p, int32_t i) { return (const int16_t *)ep_data(p, i); }
static inline const int32_t *ep_i32(const ep_program *p, int32_t i) { return (const int32_t *)ep_data(p, i); }

/* 1 if tensor i (any int32) exists with this type and size. */
static inline int ep_tensor_is(const ep_program *p, int32_t i, int32_t type, int32_t rows, int32_t cols) {
  return i >= 0 && i < p->n_tensors && ep_record(p, i)[EP_T_TYPE] == type && ep_rows(p, i) == rows && ep_cols(p, i) == cols;
}

/* Values and ops by index. */
static inline int32_t ep_width(const ep_program *p, int32_t v) { return p->values[(size_t)v * EP_VALUE_WORDS + EP_V_WIDTH]; }
static inline const int32_t *ep_op(const ep_program *p, int32_t i) { return p->ops + (size_t)i * EP_OP_WORDS; }

/* Forms of weights: of LINEAR in p2, of EMBED in p4. */
enum { EP_W8 = 0, EP_W4G32 = 1, EP_W16G32 = 2 };

/* Columns of a LINEAR's weights: w4g32 keeps two in a byte. */
static inline int32_t ep_linear_cols(const ep_program *p, const int32_t *op) {
  return op[EP_O_P0 + 2] == EP_W4G32 ? 2 * ep_cols(p, op[EP_O_T0]) : ep_cols(p, op[EP_O_T0]);
}

/* Its inputs are a8g32. */
static inline int ep_linear_in_groups(const int32_t *op) { return op[EP_O_P0 + 3]; }

static inline uint64_t ep_model_digest(const ep_program *p) {
  return (uint64_t)(uint32_t)p->header[EP_H_DIGEST_LOW] | (uint64_t)(uint32_t)p->header[EP_H_DIGEST_HIGH] << 32;
}

/* Bytes of an image; only where there is PATCHES. */
size_t ep_image_bytes(const ep_program *p);

/* EP_ERR_INCLUDED for a model that this build was not made for. After ep_check_layout. */
ep_status ep_check_included(const ep_program *p, uint64_t *word);
/* Steps of ep_open. On failure *where is the byte offset of the fault, *word counts int32 from the start of the data. */
ep_status ep_gguf_walk(ep_program *p, const uint8_t *image, uint64_t bytes, uint64_t *where);
/* Find the sections of a program of n words. The tensor records are compared with the container after this. */
ep_status ep_check_layout(ep_program *p, uint64_t n, uint64_t *word);
ep_status ep_check_program(ep_program *p, uint64_t *word);
ep_status ep_check_ops(ep_program *p, uint64_t *word);
/* With a tokenizer, ep_open has checked what docs/bundle.md says of its words and tensors: their types and sizes, that ids are
 * in the vocabulary, that offsets and the children of tries ascend, that runs of code points begin at 0, and that strings end
 * inside their tensor. Ranks and scores may be any number. */
ep_status ep_check_tokenizer(const ep_program *p, uint64_t *word);
/* The words of the chat form, if there is one: texts lie inside their tensor. After ep_check_tokenizer. */
ep_status ep_check_chat(const ep_program *p, uint64_t *word);

#endif
