/* Validation of the operators, and of the row scales they use. */
#include "fixed.h"
#include "internal.h"

enum { MOST_SHIFT = 1023 };

/* What each opcode may use; bit i of a set stands for tensor or parameter i. */
typedef struct rule {
  uint8_t out, inputs, tensors, optional, params, shifts;
} rule;

static const rule rules[EP_OPCODES] = {
    [EP_EMBED] = {1, 0, 0x5, 0x2, 5, 0x01},  [EP_NORM] = {1, 1, 0x1, 0x2, 5, 0x0c},
    [EP_LINEAR] = {1, 1, 0x5, 0xa, 4, 0x01}, [EP_ADD] = {1, 2, 0, 0, 3, 0x04},
    [EP_MUL] = {1, 2, 0, 0, 1, 0x01},        [EP_ACT] = {1, 1, 0x1, 0, 5, 0x13},
    [EP_ROPE] = {1, 1, 0x1, 0, 5, 0x10},     [EP_KV_WRITE] = {0, 2, 0, 0, 1, 0},
    [EP_ATTENTION] = {1, 1, 0, 0x7, 8, 0x68}, [EP_POOL] = {1, 1, 0, 0, 2, 0},
    [EP_PATCHES] = {1, 0, 0, 0, 6, 0},
};

/* How far the walk over the operators has come. */
typedef struct progress {
  int32_t defined;       /* values so far */
  int32_t head_input;    /* the body's value that the head may read, -1 in the body */
  int32_t head_values;   /* first value defined by the head */
  int32_t layers;        /* KV layers written so far */
  int32_t mask;          /* of every ATTENTION, -1 before the first */
  uint8_t written[512];  /* one bit for each of them */
} progress;

static int bad_input(const ep_program *p, const progress *at, int32_t v) {
  if (v < 0 || v >= at->defined || v == p->n_values - 1) return 1;
  return at->head_input >= 0 && v != at->head_input && v < at->head_values;
}

/* An operator writes its output while it, or another thread, still reads its input. */
static int overlap(const ep_program *p, int32_t in, int32_t out) {
  const int32_t *a = p->values + (size_t)in * EP_VALUE_WORDS, *b = p->values + (size_t)out * EP_VALUE_WORDS;
  return a[EP_V_OFFSET] < b[EP_V_OFFSET] + b[EP_V_WIDTH] && b[EP_V_OFFSET] < a[EP_V_OFFSET] + a[EP_V_WIDTH];
}

/* Index of the first word that breaks the rule of the opcode, or -1. */
static int32_t break_of_rule(const ep_program *p, progress *at, const int32_t *op) {
  int32_t code = op[EP_O_CODE];
  if (code < 1 || code >= EP_OPCODES) return EP_O_CODE;
  if (at->head_input >= 0 && (code == EP_EMBED || code == EP_ROPE || code == EP_KV_WRITE || code == EP_ATTENTION))
    return EP_O_CODE;
  if (code == EP_PATCHES && (op != p->patches || !p->embedding)) return EP_O_CODE;
  if ((code == EP_POOL) != (p->embedding && op == ep_op(p, p->head_start))) return EP_O_CODE;
  const rule *r = &rules[code];
  if (op[EP_O_OUT] != (r->out ? at->defined : -1) || (r->out && at->defined >= p->n_values)) return EP_O_OUT;
  for (int32_t i = 0; i < 2; i++) {
    int32_t v = op[EP_O_IN0 + i];
    if (i < r->inputs ? bad_input(p, at, v) : v != -1) return EP_O_IN0 + i;
    if (i < r->inputs && r->out && (p->embedding || op[EP_O_OUT] != p->n_values - 1) && overlap(p, v, op[EP_O_OUT])) return EP_O_OUT;
  }
  for (int32_t i = 0; i < 4; i++) {
    int32_t t = op[EP_O_T0 + i], none = t == -1, there = t >= 0 && t < p->n_tensors;
    int may = r->tensors >> i & 1, can = r->optional >> i & 1;
    if (!(may ? there : can ? there || none : none)) return EP_O_T0 + i;
  }
  for (int32_t i = 0; i < 8; i++) {
    int32_t x = op[EP_O_P0 + i];
    if (i >= r->params && x) return EP_O_P0 + i;
    if (r->shifts >> i & 1 && (x < -MOST_SHIFT || x > MOST_SHIFT)) return EP_O_P0 + i;
  }
  if (r->out) at->defined++;
  return -1;
}

static int flag(int32_t x) { return x == 0 || x == 1; }

/* Weights [rows, K], group scales, row scales for `cols` = K columns; w4g32: two columns a byte, two numbers a group; w16g32: twice the
 * rows of weights and group scales. */
static int32_t bad_weights(const ep_program *p, const int32_t *op, int32_t type, int32_t rows, int32_t cols, int32_t form) {
  int32_t w4 = form == EP_W4G32, stored = form == EP_W16G32 ? 2 * rows : rows;
  if (!ep_tensor_is(p, op[EP_O_T0], type, stored, w4 ? cols / 2 : cols)) return EP_O_T0;
  if (op[EP_O_T1] < 0 ? form != EP_W8 : !ep_tensor_is(p, op[EP_O_T1], EP_I16, stored, cols / 32 * (1 + w4))) return EP_O_T1;
  return ep_tensor_is(p, op[EP_O_T2], EP_I32, rows, 2) ? -1 : EP_O_T2;
}

static int32_t padded(int32_t width) { return (width + 31) / 32 * 32; }

/* A softcap table, or -1 for none: its size, and the shifts in it. */
static int bad_softcap(const ep_program *p, int32_t tensor) {
  if (tensor == -1) return 0;
  if (!EP_HAS(EP_FEATURE_SOFTCAP) || !ep_tensor_is(p, tensor, EP_I32, 1, 2 + 2049)) return 1;
  const int32_t *cap = ep_i32(p, tensor);
  return cap[0] < -MOST_SHIFT || cap[0] > MOST_SHIFT || cap[1] < -MOST_SHIFT || cap[1] > MOST_SHIFT;
}

static int32_t bad_embed(ep_program *p, const int32_t *op, int32_t out) {
  int32_t rows = ep_rows(p, op[EP_O_T0]), type = ep_record(p, op[EP_O_T0])[EP_T_TYPE], offset = op[EP_O_P0 + 2];
  if (!flag(op[EP_O_P0 + 1])) return EP_O_P0 + 1;
  if (p->patches && !op[EP_O_P0 + 1]) return EP_O_P0 + 1; /* there are no token ids */
  int32_t by_position = op[EP_O_P0 + 1], modulo = op[EP_O_P0 + 3], form = op[EP_O_P0 + 4];
  if (form != EP_W8 && (form != EP_W16G32 || by_position)) return EP_O_P0 + 4;
  if (offset < 0 || offset > (by_position ? 1 << 20 : 0) || (by_position && offset >= rows)) return EP_O_P0 + 2;
  if (modulo < 0 || modulo > (by_position ? rows - offset : 0)) return EP_O_P0 + 3;
  if (type == EP_I16 && op[EP_O_T1] >= 0) return EP_O_T1;
  int32_t bad = bad_weights(p, op, type == EP_I16 ? EP_I16 : EP_I8, by_position ? rows : p->vocab, padded(out), form);
  if (bad < 0 && by_position && !modulo && rows - 1 - offset < p->max_position) p->max_position = rows - 1 - offset;
  return bad;
}

static int32_t bad_vector(const ep_program *p, const int32_t *op, int32_t operand, int32_t n) {
  return op[operand] < 0 || ep_tensor_is(p, op[operand], EP_I32, 1, n) ? -1 : operand;
}

static int32_t bad_norm(const ep_program *p, const int32_t *op, int32_t width) {
  if (!flag(op[EP_O_P0])) return EP_O_P0;
  if (op[EP_O_P0 + 1] < 0) return EP_O_P0 + 1;
  int32_t groups = op[EP_O_P0 + 4];
  if (groups < 1 || width % groups) return EP_O_P0 + 4;
  int32_t bad = bad_vector(p, op, EP_O_T0, width / groups);
  return bad >= 0 ? bad : bad_vector(p, op, EP_O_T0 + 1, width / groups);
}

static int32_t larger(int32_t a, int32_t b) { return a > b ? a : b; }

static int32_t bad_linear(ep_program *p, const int32_t *op, int32_t in, int32_t out) {
  int32_t cap = op[EP_O_P0 + 1], form = op[EP_O_P0 + 2], cols = padded(in);
  if (form < EP_W8 || form > EP_W16G32 || (form == EP_W16G32 && cols > 1 << 19)) return EP_O_P0 + 2;
  if (!flag(op[EP_O_P0 + 3])) return EP_O_P0 + 3;
  if (cap != -1 && (p->embedding || op[EP_O_OUT] != p->n_values - 1 || bad_softcap(p, cap))) return EP_O_P0 + 1;
  int32_t bad = bad_weights(p, op, EP_I8, out, cols, form);
  if (bad < 0) bad = bad_vector(p, op, EP_O_T3, out);
  if (bad >= 0) return bad;
  int in_groups = ep_linear_in_groups(op);
  p->longest_row = larger(p->longest_row, in_groups ? cols / 2 : cols);
  if (form == EP_W16G32) p->two_parts = 1;
  if (form == EP_W4G32 || in_groups) p->longest_summed = larger(p->longest_summed, cols);
  if (in_groups) p->longest_in_groups = larger(p->longest_in_groups, cols);
  return -1;
}

static int32_t bad_act(const ep_program *p, const int32_t *op) {
  if (!flag(op[EP_O_P0 + 2])) return EP_O_P0 + 2;
  if (!flag(op[EP_O_P0 + 3])) return EP_O_P0 + 3;
  return bad_vector(p, op, EP_O_T0, 2049);
}

static int32_t bad_rope(ep_program *p, const int32_t *op, int32_t width) {
  int32_t heads = op[EP_O_P0], dim = op[EP_O_P0 + 1], pairs = ep_rows(p, op[EP_O_T0]);
  if (heads < 1 || dim < 1 || (int64_t)heads * dim != width) return EP_O_P0;
  if (!flag(op[EP_O_P0 + 2])) return EP_O_P0 + 2;
  if (pairs > dim / 2 || !ep_tensor_is(p, op[EP_O_T0], EP_I32, pairs, 2)) return EP_O_T0;
  p->most_pairs = larger(p->most_pairs, pairs);
  return -1;
}

static int32_t bad_kv_write(const ep_program *p, progress *at, const int32_t *op) {
  int32_t layer = op[EP_O_P0];
  if (layer < 0 || layer >= p->n_kv || at->written[layer / 8] >> layer % 8 & 1) return EP_O_P0;
  const int32_t *l = p->kv + (size_t)layer * EP_KV_WORDS;
  if (ep_width(p, op[EP_O_IN0]) != l[EP_KV_HEADS] * l[EP_KV_K_DIM]) return EP_O_IN0;
  if (ep_width(p, op[EP_O_IN1]) != l[EP_KV_HEADS] * l[EP_KV_V_DIM]) return EP_O_IN1;
  at->written[layer / 8] = (uint8_t)(at->written[layer / 8] | 1 << layer % 8);
  at->layers++;
  return -1;
}

/* Mask, bias table and softcap. */
static int32_t bad_scores(ep_program *p, progress *at, const int32_t *op, int32_t window) {
  int32_t heads = op[EP_O_P0 + 1], both = op[EP_O_P0 + 7], bias = op[EP_O_T1];
  if (!flag(both) || (at->mask >= 0 && both != at->mask) || (both && window)) return EP_O_P0 + 7;
  at->mask = both;
  if (both) p->one_call = 1;
  if (EP_HAS(EP_FEATURE_BIAS) && bias >= 0) {
    int32_t n = ep_cols(p, bias);
    if (!ep_tensor_is(p, bias, EP_I32, heads, n) || (both && n % 2 == 0)) return EP_O_T1;
  }
  if (bad_softcap(p, op[EP_O_T2])) return EP_O_T2;
  return bad_vector(p, op, EP_O_T0, heads);
}

static int32_t bad_attention(ep_program *p, progress *at, const int32_t *op, int32_t in, int32_t out) {
  int32_t layer = op[EP_O_P0], heads = op[EP_O_P0 + 1], W = op[EP_O_P0 + 4];
  if (layer < 0 || layer >= p->n_kv || !(at->written[layer / 8] >> layer % 8 & 1)) return EP_O_P0;
  const int32_t *l = p->kv + (size_t)layer * EP_KV_WORDS;
  if (heads < 1 || heads % l[EP_KV_HEADS]) return EP_O_P0 + 1;
  if ((int64_t)heads * l[EP_KV_K_DIM] != in) return EP_O_IN0;
  if ((int64_t)heads * l[EP_KV_V_DIM] != out) return EP_O_OUT;
  if (W < 15 || W > 30 || W + 15 + ep_bitlen((uint64_t)(p->context - 1)) > 62) return EP_O_P0 + 4;
  return bad_scores(p, at, op, l[EP_KV_WINDOW]);
}

static int32_t bad_pool(const ep_program *p, const int32_t *op) {
  int32_t kind = op[EP_O_P0], id = op[EP_O_P0 + 1];
  if (kind < 0 || kind > (p->patches ? 3 : 5)) return EP_O_P0;
  return id < 0 || id > (kind == 4 ? p->vocab - 1 : 0) ? EP_O_P0 + 1 : -1;
}

static int32_t bad_patches(const ep_program *p, const int32_t *op, int32_t out) {
  static const struct {
    int32_t low, high;
  } range[] = {{1, 4}, {1, 1 << 14}, {1, 1 << 14}, {1, 1 << 14}, {0, 16}, {0, 255}}; /* from EP_I_CHANNELS on */
  const int32_t *how = op + EP_O_P0;
  for (int32_t i = 0; i < 6; i++)
    if (how[i] < range[i].low || how[i] > range[i].high) return EP_O_P0 + i;
  int32_t patch = how[EP_I_PATCH], down = how[EP_I_HEIGHT] / patch, across = how[EP_I_WIDTH] / patch;
  if (how[EP_I_HEIGHT] % patch || how[EP_I_WIDTH] % patch) return EP_O_P0 + EP_I_PATCH;
  if (down * across + how[EP_I_FIRST] != p->context) return EP_O_P0 + EP_I_FIRST;
  int32_t f = p->values[(size_t)op[EP_O_OUT] * EP_VALUE_WORDS + EP_V_F];
  return f || out != how[EP_I_CHANNELS] * patch * patch ? EP_O_OUT : -1;
}

static int32_t bad_op(ep_program *p, progress *at, const int32_t *op) {
  int32_t bad = break_of_rule(p, at, op);
  if (bad >= 0) return bad;
  int32_t out = op[EP_O_OUT] >= 0 ? ep_width(p, op[EP_O_OUT]) : 0, in = op[EP_O_IN0] >= 0 ? ep_width(p, op[EP_O_IN0]) : out;
  int32_t code = op[EP_O_CODE];
  if (code == EP_NORM || code == EP_ADD || code == EP_MUL || code == EP_ACT || code == EP_ROPE || code == EP_POOL)
    if (in != out || (op[EP_O_IN1] >= 0 && ep_width(p, op[EP_O_IN1]) != in)) return EP_O_OUT;
  switch (code) {
    case EP_EMBED: return bad_embed(p, op, out);
    case EP_NORM: return bad_norm(p, op, in);
    case EP_LINEAR: return bad_linear(p, op, in, out);
    case EP_ADD:
      for (int32_t i = 0; i < 2; i++)
        if (op[EP_O_P0 + i] < 0 || op[EP_O_P0 + i] > 30) return EP_O_P0 + i;
      return -1;
    case EP_ACT: return bad_act(p, op);
    case EP_ROPE: return bad_rope(p, op, in);
    case EP_KV_WRITE: return bad_kv_write(p, at, op);
    case EP_ATTENTION: return bad_attention(p, at, op, in, out);
    case EP_PATCHES: return EP_HAS_OPERATOR(EP_PATCHES) ? bad_patches(p, op, out) : EP_O_CODE;
    case EP_POOL:
      if (!EP_HAS_OPERATOR(EP_POOL)) return EP_O_CODE;
      at->head_input = op[EP_O_OUT]; /* no op behind it may read a value of the body */
      return bad_pool(p, op);
    default: return -1; /* MUL */
  }
}

static int32_t bad_row_scales(const ep_program *p, int32_t tensor) {
  const int32_t *scales = ep_i32(p, tensor);
  for (int32_t r = 0; r < ep_rows(p, tensor); r++)
    if (scales[2 * r + 1] < -MOST_SHIFT || scales[2 * r + 1] > MOST_SHIFT) return 2 * r + 1;
  return -1;
}

/* The shifts of all row scales. Each tensor is read once however many operators share it, so that opening takes time
 * proportional to the image; a set of 4096 tensors at a time keeps the stack small. */
static ep_status check_row_scales(const ep_program *p, uint64_t *word) {
  for (int32_t first = 0; first < p->n_tensors; first += 4096) {
    uint8_t set[512] = {0};
    for (int32_t i = 0; i < p->n_ops; i++) {
      const int32_t *op = ep_op(p, i);
      int32_t t = op[EP_O_T2] - first;
      if ((op[EP_O_CODE] == EP_LINEAR || op[EP_O_CODE] == EP_EMBED) && t >= 0 && t < 4096)
        set[t / 8] = (uint8_t)(set[t / 8] | 1 << t % 8);
    }
    for (int32_t t = 0; t < 4096; t++) {
      if (!(set[t / 8] >> t % 8 & 1)) continue;
      int32_t bad = bad_row_scales(p, first + t);
      if (bad < 0) continue;
      *word = (uint64_t)(ep_i32(p, first + t) + bad - p->header);
      return EP_ERR_PROGRAM;
    }
  }
  return EP_OK;
}

ep_status ep_check_ops(ep_program *p, uint64_t *word) {
  progress at = {.head_input = -1, .mask = -1};
  p->longest_row = 32;
  p->longest_summed = p->longest_in_groups = p->two_parts = p->most_pairs = 0;
  p->one_call = p->embedding > 0;
  p->max_position = INT32_MAX;
  for (int32_t i = 0; i < p->n_ops; i++) {
    const int32_t *op = ep_op(p, i);
    if (i == p->head_start) {
      at.head_values = at.defined;
      at.head_input = op[EP_O_IN0];
      if (at.head_input < 0 || at.head_input >= at.defined) at.head_input = 0; /* refused below as an input */
    }
    int32_t bad = bad_op(p, &at, op);
    if (bad < 0 && i == p->n_ops - 1) {
      if (!p->embedding && op[EP_O_CODE] != EP_LINEAR) bad = EP_O_CODE;
      else if (op[EP_O_OUT] != p->n_values - 1 || (!p->embedding && ep_width(p, op[EP_O_OUT]) != p->vocab)) bad = EP_O_OUT;
      else if (at.layers != p->n_kv) bad = EP_O_CODE; /* a layer is never written */
    }
    if (bad >= 0) {
      *word = (uint64_t)(op + bad - p->header);
      return EP_ERR_PROGRAM;
    }
  }
  return check_row_scales(p, word);
}
