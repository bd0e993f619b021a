/* EdgePos: transformers in integers. This header is the manual of the C runtime.
 *
 * The runtime runs a model image (model.gguf of a bundle, docs/bundle.md) with integer arithmetic only and gives the same
 * bits on every target (docs/arithmetic.md). It never allocates, opens no file, keeps no global state, and needs nothing
 * but memcpy and memset. All memory is the caller's:
 *
 *     ep_model model;
 *     ep_status st = ep_open(&model, image, image_bytes, NULL);       // the image stays where it is: flash, mmap, RAM
 *     ep_config cfg = { .context = 256, .n_batch = 16 };
 *     size_t bytes;  st = ep_arena_size(&model, &cfg, &bytes);
 *     ep_session *s; st = ep_session_init(&s, &model, &cfg, arena, bytes);
 *     st = ep_eval(s, ids, NULL, n, NULL);                            // prefill
 *     int32_t next;  st = ep_argmax(s, &next);                        // greedy choice, without a vocabulary-sized buffer
 *
 * Every function returns EP_OK or leaves its objects as they were. Sessions share nothing but the read-only image: each may
 * be used by one thread at a time, different sessions by different threads.
 */
#ifndef EDGEPOS_H
#define EDGEPOS_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EP_VERSION "0.1.0"
#define EP_ARITH 1  /* docs/arithmetic.md */
#define EP_FORMAT 1 /* docs/bundle.md */
#define EP_ALIGN 64 /* alignment of the image and of the arena */

typedef enum ep_status {
  EP_OK = 0,
  EP_ERR_ARGUMENT = 1,  /* a null pointer or a parameter out of its range */
  EP_ERR_ALIGNMENT = 2, /* image or arena not at a multiple of EP_ALIGN */
  EP_ERR_TRUNCATED = 3, /* the file ends before what it announces */
  EP_ERR_MAGIC = 4,     /* no GGUF file */
  EP_ERR_VERSION = 5,   /* GGUF, format, program or arithmetic version unknown, or big-endian */
  EP_ERR_FORMAT = 6,    /* the file contradicts docs/bundle.md */
  EP_ERR_PROGRAM = 7,   /* an operator of the program is not valid */
  EP_ERR_ARENA = 8,     /* the arena is too small */
  EP_ERR_TOKEN = 9,     /* a token id is not below the vocabulary size */
  EP_ERR_POSITION = 10, /* positions must be >= 0, strictly ascending and at most max_position */
  EP_ERR_CONTEXT = 11,  /* more tokens than the session's context has room for; bidirectional: a second call, or n > n_batch */
  EP_ERR_STATE = 12,    /* no token has been evaluated, or the saved state is not of this model */
  EP_ERR_BUFFER = 13,   /* the caller's buffer is too small */
  EP_ERR_SELFTEST = 14, /* the digest differs: this target does not compute what the bundle says */
  EP_ERR_TOKENIZER = 15, /* the model carries no tokenizer */
  EP_ERR_OUTPUT = 16,   /* logits of a model that gives an embedding, or the other way round */
  EP_ERR_CHAT = 17,     /* the model carries no chat form */
  EP_ERR_ROLE = 18,     /* the chat form has no message of this role at this place, or not an empty one */
  EP_ERR_PRECISION = 19, /* 2^-148 turns do not decide how an increment rounds: about one in 2^83 */
  EP_ERR_INPUT = 20,    /* tokens for a model that reads an image, or the other way round */
  EP_ERR_INCLUDED = 21  /* this build was made for another model (edgepos build) and leaves out what this one needs */
} ep_status;

/* A sentence for a status; never NULL. */
const char *ep_status_text(ep_status st);

/* ---- model ---------------------------------------------------------------------------------------------------- */

/* An opened image. Copyable; holds pointers into the image and a few numbers. */
typedef struct ep_model {
  uint64_t opaque[48];
} ep_model;

/* Check the whole image once, in time proportional to its size and without memory of its own, and open it.
 * On failure *where (if not NULL) is the byte offset of the fault. The image must not change afterwards. */
ep_status ep_open(ep_model *model, const void *image, size_t bytes, uint64_t *where);

typedef struct ep_info {
  int32_t vocab, context, n_layers, kv_bits, logits_f, n_ops, n_values, n_tensors;
  int32_t max_position;     /* the largest position it takes: 2^31 - 1, or less where positions are rows of a table */
  int32_t embedding;        /* numbers of the one row that it gives for a text or an image; 0: it gives logits of every token */
  int32_t classes;          /* 1: that row holds one logit per class */
  int32_t one_call;         /* 1: a text is one ep_eval of an empty session (attention in both directions, or an embedding) */
  int32_t channels, height, width; /* of the image it reads, a byte each; 0: it reads tokens */
  int32_t bos;              /* -1: none */
  int32_t n_eos;
  const int32_t *eos;
  int32_t tokenizer;        /* 0 none, 1 byte-level BPE, 2 SentencePiece BPE, 3 WordPiece, 4 Unigram */
  int32_t chat;             /* 1: it has a chat form, ep_chat_render */
  int32_t n_selftest;
  const int32_t *selftest;  /* token ids of the self-test; NULL: it is an image */
  uint64_t digest;          /* and the digest they must give */
  uint64_t kv_bytes_per_token;
  uint64_t weight_bytes_per_token; /* bytes of the image read to decode one token */
} ep_info;

ep_status ep_model_info(const ep_model *model, ep_info *info);

/* ---- session -------------------------------------------------------------------------------------------------- */

typedef struct ep_session ep_session;

/* Run fn(arg, i) for i in [0, n), in any order and on any threads; return when all are done. Never changes a bit. */
typedef void (*ep_task)(void *arg, int32_t i);
typedef void (*ep_parallel)(void *pool, ep_task fn, void *arg, int32_t n);

/* Called after an operator has computed rows [token, token + rows) of a call: data is int32 [rows][width], value = raw * 2^-f.
 * Operators without an output (KV_WRITE) are not reported, nor are logits that are streamed (ep_argmax, ep_selftest).
 * In ep_logits and ep_argmax the only row is token 0. */
typedef struct ep_trace_event {
  int32_t op, opcode, value, token, rows, width, f;
  const int32_t *data;
  uint64_t saturations; /* of this operator in this call */
} ep_trace_event;
typedef void (*ep_trace)(void *user, const ep_trace_event *event);

#define EP_CPU_AVX2 1u    /* x86: AVX2, and the operating system keeps its registers */
#define EP_CPU_NEON 2u    /* ARM: Advanced SIMD */
#define EP_CPU_DOTPROD 4u /* aarch64: SDOT, besides EP_CPU_NEON */
#define EP_CPU_I8MM 16u   /* aarch64: SMMLA, besides EP_CPU_NEON and EP_CPU_DOTPROD */
#define EP_CPU_AVX512 8u  /* x86: AVX-512 F, BW, DQ, VL, VNNI, IFMA and VBMI with their registers kept, besides EP_CPU_AVX2 */
#define EP_CPU_AVXVNNI 128u /* x86: AVX-VNNI (not that of AVX-512), besides EP_CPU_AVX2 */
#define EP_CPU_DSP 32u    /* Cortex-M: the DSP extension (SMLAD). What the compiler was told to assume decides, here and for EP_CPU_MVE */
#define EP_CPU_MVE 64u    /* Cortex-M: Helium with integers, besides EP_CPU_DSP */

typedef struct ep_config {
  int32_t context; /* tokens the session can hold; 0: the model's context; more than that is refused */
  int32_t n_batch; /* tokens evaluated at a time in prefill; 0: 16, with a `cpu` that is no microcontroller's 128. Costs memory, never changes a bit. A model that attends in
                      both directions takes no call of more tokens; 0: the context */
  int32_t threads; /* tasks that `parallel` may run at a time; 0 or 1: none. Each costs context * 4 bytes and a few kB */
  ep_parallel parallel;
  void *pool;
  uint32_t cpu; /* EP_CPU_... bits of the instructions that kernels may use; 0: what every processor of the target has in C.
                   ep_cpu_detect() of edgepos_cpu.h fills it. Changes the speed, never a bit */
} ep_config;

/* Bytes that ep_session_init needs for this configuration. */
ep_status ep_arena_size(const ep_model *model, const ep_config *cfg, size_t *bytes);

/* Make a session in the caller's memory, which must be EP_ALIGN-aligned. The model must outlive it. */
ep_status ep_session_init(ep_session **session, const ep_model *model, const ep_config *cfg, void *arena, size_t bytes);

/* Append n >= 1 tokens. positions: NULL continues from the last position (0 at the start); else n values, ascending and above
 * the last one. logits: NULL, or room for n * vocab int32 that gets the logits of every token (value = raw * 2^-logits_f).
 * All arguments are checked first: on an error nothing has changed. */
ep_status ep_eval(ep_session *session, const int32_t *tokens, const int32_t *positions, int32_t n, int32_t *logits);

/* Evaluate an image: pixels [height][width][channels] as PPM files and cameras give them, `bytes` of them, already of the size that ep_info
 * says. What the session held is forgotten; ep_embedding gives the row. A session of such a model is always for one image, whatever
 * cfg says of context and n_batch. EP_ERR_INPUT: the model reads tokens; EP_ERR_BUFFER: not that many bytes. */
ep_status ep_eval_image(ep_session *session, const uint8_t *pixels, size_t bytes);

/* The embedding of the text or image that was evaluated last, [info.embedding], value = raw * 2^-logits_f. Such a model takes a text
 * in one call after ep_reset, as every model that attends in both directions. EP_ERR_OUTPUT: the model gives logits. */
ep_status ep_embedding(ep_session *session, int32_t *embedding);
/* Logits of the last token, [vocab]. EP_ERR_OUTPUT, as from ep_argmax and from ep_eval with logits: the model gives an embedding. */
ep_status ep_logits(ep_session *session, int32_t *logits);
/* The lowest index of the largest logit of the last token, computed tile by tile. */
ep_status ep_argmax(ep_session *session, int32_t *token);

/* Name of the kernels in use, "generic" or an instruction set's. They are those of cfg.cpu that this library was built with. */
const char *ep_kernels_name(const ep_session *session);
int32_t ep_length(const ep_session *session);        /* tokens in the cache */
int32_t ep_next_position(const ep_session *session); /* where the next token goes by default */
uint64_t ep_saturations(const ep_session *session);  /* since init or reset */
void ep_reset(ep_session *session);
/* Keep the first n tokens, n <= ep_length(). Logits are there again after the next ep_eval. */
ep_status ep_rewind(ep_session *session, int32_t n);
/* Save to and restore from the format of docs/bundle.md. */
size_t ep_state_size(const ep_session *session);
ep_status ep_state_save(const ep_session *session, void *buffer, size_t bytes);
ep_status ep_state_restore(ep_session *session, const void *buffer, size_t bytes);
void ep_set_trace(ep_session *session, ep_trace trace, void *user);

/* Evaluate the self-test's tokens, or its image, in an empty session; logits as for ep_eval. EP_ERR_STATE: it is not empty. */
ep_status ep_eval_selftest(ep_session *session, int32_t *logits);

/* Evaluate the bundle's self-test in the given arena (ep_arena_size for cfg; cfg->context >= n_selftest or 0) and
 * compare the digest. *digest (if not NULL) gets the one computed here. */
ep_status ep_selftest(const ep_model *model, const ep_config *cfg, void *arena, size_t bytes, uint64_t *digest);

/* ---- choice of the next token --------------------------------------------------------------------------------- */

typedef struct ep_rng {
  uint64_t state;
} ep_rng;
void ep_rng_seed(ep_rng *rng, uint64_t seed);
uint32_t ep_rng_next(ep_rng *rng);

typedef struct ep_sampling {
  uint32_t temperature; /* Q16.16; 0: greedy */
  int32_t top_k;        /* 0: all */
  uint32_t top_p;       /* 65536: all */
} ep_sampling;

/* Choose from logits [vocab] with f fractional bits. scratch: vocab uint32 (unused when greedy, may then be NULL). */
ep_status ep_sample(const int32_t *logits, int32_t vocab, int32_t f, const ep_sampling *how, ep_rng *rng, uint32_t *scratch,
                    int32_t *token);

/* Make the tokens that have been there less likely, before ep_sample: every different one of the n tokens is penalized once.
 * penalty: Q16.16, at least 65536 (nothing changes). scratch: (vocab + 31) / 32 uint32. */
ep_status ep_penalize(int32_t *logits, int32_t vocab, uint32_t penalty, const int32_t *tokens, size_t n, uint32_t *scratch);

/* *bits gets -log2 of the probability that logits [vocab] with f fractional bits give a token, times 2^32. */
ep_status ep_loss(const int32_t *logits, int32_t vocab, int32_t f, int32_t token, uint64_t *bits);

/* ---- tokenizer ------------------------------------------------------------------------------------------------ */

/* Number of int32 that ep_encode needs as scratch for this text; a quarter of it is room enough for the ids. 0 if the model
 * has no tokenizer or the text more than 33 million bytes. Without a normalizer at most 4 * (2 * bytes + 2). */
size_t ep_encode_scratch(const ep_model *model, const char *text, size_t bytes);
/* Encode UTF-8 (any bytes) to ids. scratch: ep_encode_scratch of the text. *n gets the number of ids; EP_ERR_BUFFER if more than
 * max. bos: 1 puts the BOS in front and what the model has for it behind (ep_adds_bos says whether it wants that), 0 neither.
 * Bytes that are not UTF-8: BPE encodes them as they are, WordPiece and Unigram as U+FFFD. */
ep_status ep_encode(const ep_model *model, const char *text, size_t bytes, int bos, int32_t *ids, size_t max, int32_t *scratch,
                    size_t *n);
/* A part [start, end) of a text, in bytes. */
typedef struct ep_span {
  size_t start, end;
} ep_span;

/* The same for a text of which some parts are contents of messages: n_contents of them, ascending. Control tokens and EOS are
 * matched only in what lies between them, and no BOS is added. */
size_t ep_encode_chat_scratch(const ep_model *model, const char *text, size_t bytes, const ep_span *contents, size_t n_contents);
ep_status ep_encode_chat(const ep_model *model, const char *text, size_t bytes, const ep_span *contents, size_t n_contents,
                         int32_t *ids, size_t max, int32_t *scratch, size_t *n);
/* 1 if the model's tokenizer puts BOS in front of a text, or something behind it. */
int ep_adds_bos(const ep_model *model);
/* Bytes of one token (not terminated, maybe no whole code point; empty for control tokens and ids without text).
 * previous: the token before it, or -1. */
ep_status ep_token_bytes(const ep_model *model, int32_t previous, int32_t token, const char **bytes, size_t *n);
/* How many of the n bytes at the end are the start of a code point that is not complete: a streaming printer holds them back. */
size_t ep_utf8_pending(const char *bytes, size_t n);

/* ---- chat ----------------------------------------------------------------------------------------------------- */

#define EP_SYSTEM 1
#define EP_USER 2
#define EP_ASSISTANT 3

typedef struct ep_message {
  int32_t role; /* EP_SYSTEM, EP_USER or EP_ASSISTANT */
  const char *text;
  size_t bytes;
} ep_message;

/* Write a conversation as the model was trained to read it, up to where its answer begins. *bytes gets the size of the text,
 * EP_ERR_BUFFER if it is more than max. contents [n] gets where the messages' own texts are, for ep_encode_chat.
 * *n_good (if not NULL) gets how many messages the form has; EP_ERR_ROLE: not the next one, or no answer there. */
ep_status ep_chat_render(const ep_model *model, const ep_message *messages, size_t n, char *text, size_t max, size_t *bytes,
                         ep_span *contents, size_t *n_good);

/* How many bytes of a text that is still growing may be shown: all but a code point that is not complete, and what could be
 * the beginning of one of the n stop strings. 1 (and *ready stands before it) if the text holds one, else 0. */
int ep_text_ready(const char *text, size_t bytes, const ep_message *stops, size_t n, size_t *ready);

/* ---- position primitives, usable without a model -------------------------------------------------------------- */

/* cos and sin, scaled by 32767, of a phase in turns * 2^64; error at most 0.58. */
void ep_sincos_q15(uint64_t phase, int32_t *cosine, int32_t *sine);
/* position * increment mod 2^64: exact range reduction at any position. */
uint64_t ep_rope_phase(uint32_t position, uint64_t increment);
/* ALiBi bias in log2 units with 16 fractional bits: slope = slope * log2(e) * 2^31 and shift 15. */
int64_t ep_alibi_bias(uint32_t slope, uint32_t distance, int32_t shift);

/* num / den, each 1 ... 2^63 - 1. */
typedef struct ep_ratio {
  uint64_t num, den;
} ep_ratio;

/* Phase increments [pairs], turns * 2^64 per position, of theta^(-2 i / denominator) / factor radians: correctly rounded, so those of
 * edgepos.positions and of every other target. denominator: rotary_dim (head_dim where pairs span it), even and above 0; pairs at most
 * denominator / 2 + 1. factor: of linear scaling; NULL: 1. EP_ERR_ARGUMENT also for 2^32 radians per position or more; EP_ERR_PRECISION.
 * Nothing is written then. Takes a few hundred thousand multiplications for 64 pairs: once, not per token. */
ep_status ep_rope_increments(const ep_ratio *theta, const ep_ratio *factor, int32_t denominator, int32_t pairs, uint64_t *increments);

/* cos and sin [pairs] of a position, scaled by 32767, from its increments (turns * 2^64 per position).
 * EP_ERR_POSITION for a negative position. */
ep_status ep_rope_row(int32_t position, const uint64_t *increments, int32_t pairs, int16_t *cosine, int16_t *sine);
/* The same where a position has coordinates (M-RoPE, axial): pair j turns with positions[axis[j]]. EP_ERR_ARGUMENT for an
 * axis[j] that is not below n_axes; nothing is written then. */
ep_status ep_rope_row_axes(const int32_t *positions, int32_t n_axes, const uint8_t *axis, const uint64_t *increments,
                           int32_t pairs, int16_t *cosine, int16_t *sine);

#define EP_ROPE_HALF 0        /* component j turns with j + pairs */
#define EP_ROPE_INTERLEAVED 1 /* component 2j turns with 2j + 1 */
#define EP_Q15_AMP_M 1073774593 /* 1/32767 = EP_Q15_AMP_M * 2^-EP_Q15_AMP_SHIFT */
#define EP_Q15_AMP_SHIFT 45

/* How the heads of one token are rotated. */
typedef struct ep_rotation {
  int32_t heads;    /* vectors; 0 does nothing */
  int32_t head_dim; /* components of each */
  int32_t stride;   /* elements from the start of a vector to that of the next, at least head_dim */
  int32_t pairs;    /* rotated pairs, 2 * pairs <= head_dim; the components after them stay as they are */
  int32_t layout;   /* EP_ROPE_HALF or EP_ROPE_INTERLEAVED */
  int32_t amp_m;    /* attention factor / full scale of cos and sin = amp_m * 2^-amp_shift */
  int32_t amp_shift; /* 1 ... 63 */
  uint32_t cpu;      /* EP_CPU_... bits of the instructions it may use, as in ep_config; 0: C. Changes the speed, never a bit */
} ep_rotation;

/* Rotate x[h * stride ... + head_dim) for h < heads in place by one row of cos and sin [pairs], at any scale of x. The sums are
 * exact, rounded half up once, and saturate at +-32767 (int16) or +-127 (int8): nothing wraps, whatever the numbers.
 * EP_ERR_ARGUMENT for a null pointer or sizes that contradict each other; nothing has changed then. */
ep_status ep_rope_rotate_s16(int16_t *x, const int16_t *cosine, const int16_t *sine, const ep_rotation *how);
ep_status ep_rope_rotate_s8(int8_t *x, const int16_t *cosine, const int16_t *sine, const ep_rotation *how);

/* scores[j] -= ALiBi bias of key j, clamped to int32, for the n keys of one query and head: log2 units, 16 fractional bits.
 * key_positions: NULL for 0, 1, ... n - 1. Keys after the query get no bias, or with symmetric = 1 that of their distance.
 * EP_ERR_POSITION for a negative position; nothing has changed then. */
ep_status ep_alibi_row(int32_t *scores, const int32_t *key_positions, int32_t n, int32_t position, uint32_t slope, int32_t shift,
                       int symmetric);

/* T5 bucket of key position - query position: distances below `exact` have their own, the others one per threshold passed
 * (n ascending numbers, as `edgepos tables t5` writes them). side: what keys after the query add; 0: they count as distance 0.
 * Any arguments give a number in 0 ... 2^31 - 1; NULL counts as no thresholds, negative sizes as 0. */
int32_t ep_t5_bucket(const uint32_t *thresholds, int32_t n, int32_t exact, int32_t side, int32_t key_minus_query);

#define EP_MAX_AXES 8
/* Row of a table over clipped differences (Shaw, windows of 2-D vision): *row = row * (2 * extent + 1) + clamped difference + extent,
 * coordinate by coordinate. difference: of two positions, key - query or query - key as the table was learned. clip = 0: EP_ERR_POSITION
 * for a difference beyond its extent. EP_ERR_ARGUMENT unless 1 <= axes <= EP_MAX_AXES, extents >= 0, and the table has at most 2^31 - 1
 * rows. *row changes only with EP_OK. */
ep_status ep_relative_row(const int32_t *difference, const int32_t *extents, int32_t axes, int clip, int32_t *row);

/* How a sinusoidal position is laid out. */
typedef struct ep_sinusoid {
  int32_t pairs;        /* frequencies: half of the components */
  int32_t start;        /* added to every position, >= 0 */
  int32_t layout;       /* EP_ROPE_INTERLEAVED: sin in 2i, cos in 2i + 1; EP_ROPE_HALF: all sines, then all cosines */
  int32_t cosine_first; /* 1: cos in the place of sin */
  int32_t m, shift;     /* out = value in +-32767 * m * 2^-shift, rounded half up, clamped to int32: the encoding's scale / 32767, times 2^f
                           for f fractional bits; 1 and 0 give the values themselves */
} ep_sinusoid;

/* The components [2 * pairs] that a sinusoidal position adds, from the increments of its frequencies. EP_ERR_POSITION for a negative
 * position or one that passes 2^31 - 1 with start; nothing is written then, nor for bad arguments. */
ep_status ep_sinusoidal_row(int32_t position, const uint64_t *increments, const ep_sinusoid *how, int32_t *out);

/* Which row of a learned table a token adds. */
typedef struct ep_learned {
  int32_t count;  /* rows of the table */
  int32_t offset; /* row of the first position */
  int32_t pad_id; /* tokens with this id are not counted and get row offset - 1 (offset >= 1 then); -1: every token counts */
  int32_t modulo; /* positions are taken modulo this number; 0: they are not */
} ep_learned;

/* Rows [n] of n tokens, of which `start` counted ones came before. pad_id -1: ids may be NULL. EP_ERR_POSITION where the table has no
 * row for one, EP_ERR_ARGUMENT for sizes that contradict each other; nothing is written then. */
ep_status ep_learned_rows(const ep_learned *how, const int32_t *ids, int32_t n, int32_t start, int32_t *rows);

/* *found gets the address of a row of a table [rows][row_bytes]. EP_ERR_POSITION when the table has no such row. */
ep_status ep_table_row(const void *table, int32_t rows, size_t row_bytes, int32_t row, const void **found);
/* The row of an int8 table [rows][width] as int16, which is what the rotations take. */
ep_status ep_table_row_s8(const int8_t *table, int32_t rows, int32_t width, int32_t row, int16_t *out);

/* ---- digest --------------------------------------------------------------------------------------------------- */

#define EP_DIGEST_INIT 14695981039346656037ull
/* FNV-1a, 64 bits, over the little-endian bytes of n int32; chain calls with the result. */
uint64_t ep_digest(uint64_t digest, const int32_t *values, size_t n);

#ifdef __cplusplus
}
#endif
#endif
