/* The program tensor: header, values and KV layers. After ep_open succeeds no input can make an operator leave its arrays,
 * divide by zero or overflow. */
#include "internal.h"

static ep_status fault(const ep_program *p, const int32_t *at, ep_status st, uint64_t *word) {
  *word = (uint64_t)(at - p->header);
  return st;
}

static int within(int32_t x, int32_t low, int32_t high) { return x >= low && x <= high; }

ep_status ep_check_layout(ep_program *p, uint64_t n, uint64_t *word) {
  const int32_t *h = (const int32_t *)(const void *)p->data;
  p->header = h;
  if (n < EP_HEADER_WORDS) return fault(p, h, EP_ERR_FORMAT, word);
  if (h[EP_H_MAGIC] != EP_PROGRAM_MAGIC) return fault(p, h + EP_H_MAGIC, EP_ERR_FORMAT, word);
  if (h[EP_H_LAYOUT] != 1) return fault(p, h + EP_H_LAYOUT, EP_ERR_VERSION, word);
  if (h[EP_H_TENSORS] != p->n_tensors) return fault(p, h + EP_H_TENSORS, EP_ERR_FORMAT, word);
  if (!within(h[EP_H_VALUES], 1, 65535)) return fault(p, h + EP_H_VALUES, EP_ERR_FORMAT, word);
  if (!within(h[EP_H_OPS], 1, 65535)) return fault(p, h + EP_H_OPS, EP_ERR_FORMAT, word);
  if (!within(h[EP_H_KV], 0, 4096)) return fault(p, h + EP_H_KV, EP_ERR_FORMAT, word);
  p->n_values = h[EP_H_VALUES];
  p->n_ops = h[EP_H_OPS];
  p->n_kv = h[EP_H_KV];
  uint64_t values = EP_HEADER_WORDS + (uint64_t)p->n_tensors * EP_TENSOR_WORDS;
  uint64_t kv = values + (uint64_t)p->n_values * EP_VALUE_WORDS;
  uint64_t ops = kv + (uint64_t)p->n_kv * EP_KV_WORDS;
  if (n != ops + (uint64_t)p->n_ops * EP_OP_WORDS) return fault(p, h, EP_ERR_FORMAT, word);
  p->tensors = h + EP_HEADER_WORDS;
  p->values = h + values;
  p->kv = h + kv;
  p->ops = h + ops;
  return EP_OK;
}

/* A list of token ids, I32 [n], 1 <= n <= most. */
static int32_t bad_ids(const ep_program *p, int32_t tensor, int32_t most) {
  if (tensor < 0 || tensor >= p->n_tensors || !ep_tensor_is(p, tensor, EP_I32, 1, ep_cols(p, tensor))) return 1;
  int32_t n = ep_cols(p, tensor);
  const int32_t *ids = ep_i32(p, tensor);
  if (n > most) return 1;
  for (int32_t i = 0; i < n; i++)
    if (ids[i] < 0 || ids[i] >= p->vocab) return 1;
  return 0;
}

static ep_status check_header(ep_program *p, uint64_t *word) {
  static const struct {
    int32_t low, high;
  } range[] = {{1, 1 << 24}, {1, 1 << 24}, {1, 1 << 18}, {8, 16}, {-16, 30}}; /* from EP_H_PLAN_WIDTH on */
  const int32_t *h = p->header;
  if (!within(h[EP_H_HEAD_START], 1, p->n_ops - 1)) return fault(p, h + EP_H_HEAD_START, EP_ERR_FORMAT, word);
  for (int32_t i = 0; i < 5; i++)
    if (!within(h[EP_H_PLAN_WIDTH + i], range[i].low, range[i].high))
      return fault(p, h + EP_H_PLAN_WIDTH + i, EP_ERR_FORMAT, word);
  if (h[EP_H_KV_BITS] != 8 && h[EP_H_KV_BITS] != 16) return fault(p, h + EP_H_KV_BITS, EP_ERR_FORMAT, word);
  if (!within(h[EP_H_OUTPUT], 0, 2)) return fault(p, h + EP_H_OUTPUT, EP_ERR_FORMAT, word);
  for (int32_t i = EP_H_RESERVED; i < EP_HEADER_WORDS; i++)
    if (h[i] && (i < EP_H_CHAT_TEXTS || i > EP_H_CHAT_FLAGS)) return fault(p, h + i, EP_ERR_FORMAT, word);
  p->head_start = h[EP_H_HEAD_START];
  p->vocab = h[EP_H_VOCAB];
  p->context = h[EP_H_CONTEXT];
  p->kv_bits = h[EP_H_KV_BITS];
  p->embedding = h[EP_H_OUTPUT] ? ep_width(p, p->n_values - 1) : 0;
  p->patches = ep_op(p, 0)[EP_O_CODE] == EP_PATCHES ? ep_op(p, 0) : NULL;
  if (p->patches && p->vocab != 1) return fault(p, h + EP_H_VOCAB, EP_ERR_FORMAT, word);
  if (p->patches && h[EP_H_TOKENIZER]) return fault(p, h + EP_H_TOKENIZER, EP_ERR_FORMAT, word);
  if (!p->patches && bad_ids(p, h[EP_H_SELFTEST], p->context)) return fault(p, h + EP_H_SELFTEST, EP_ERR_FORMAT, word);
  if (h[EP_H_EOS] != -1 && bad_ids(p, h[EP_H_EOS], INT32_MAX)) return fault(p, h + EP_H_EOS, EP_ERR_FORMAT, word);
  return EP_OK;
}

static ep_status check_values(const ep_program *p, uint64_t *word) {
  for (int32_t i = 0; i < p->n_values; i++) {
    const int32_t *v = p->values + (size_t)i * EP_VALUE_WORDS;
    int last = i == p->n_values - 1, logits = last && !p->header[EP_H_OUTPUT], f = v[EP_V_F];
    if (!within(v[EP_V_WIDTH], 1, 1 << 20)) return fault(p, v + EP_V_WIDTH, EP_ERR_FORMAT, word);
    if (!within(f, -16, 30) || (last && f != p->header[EP_H_LOGITS_F])) return fault(p, v + EP_V_F, EP_ERR_FORMAT, word);
    int placed = logits ? v[EP_V_OFFSET] == -1 : within(v[EP_V_OFFSET], 0, p->header[EP_H_PLAN_WIDTH] - v[EP_V_WIDTH]);
    if (!placed) return fault(p, v + EP_V_OFFSET, EP_ERR_FORMAT, word);
    if (v[3]) return fault(p, v + 3, EP_ERR_FORMAT, word);
  }
  return EP_OK;
}

static ep_status check_kv(ep_program *p, uint64_t *word) {
  p->k_dim = p->v_dim = 1;
  for (int32_t i = 0; i < p->n_kv; i++) {
    const int32_t *l = p->kv + (size_t)i * EP_KV_WORDS;
    if (!within(l[EP_KV_HEADS], 1, 1024) || !within(l[EP_KV_K_DIM], 2, 512) || !within(l[EP_KV_V_DIM], 1, 512) ||
        !within(l[EP_KV_WINDOW], 0, 1 << 20))
      return fault(p, l, EP_ERR_FORMAT, word);
    if (l[EP_KV_K_DIM] > p->k_dim) p->k_dim = l[EP_KV_K_DIM];
    if (l[EP_KV_V_DIM] > p->v_dim) p->v_dim = l[EP_KV_V_DIM];
  }
  return EP_OK;
}

ep_status ep_check_program(ep_program *p, uint64_t *word) {
  ep_status st = check_header(p, word);
  if (st == EP_OK) st = check_values(p, word);
  if (st == EP_OK) st = check_kv(p, word);
  if (st == EP_OK) st = ep_check_ops(p, word);
  if (st != EP_OK) return st;
  const int32_t *selftest = p->header + EP_H_SELFTEST; /* runs at positions from 0 on */
  int32_t n = p->patches ? p->context : ep_cols(p, *selftest);
  if (p->patches) {
    const int32_t *how = p->patches + EP_O_P0;
    if (!ep_tensor_is(p, *selftest, EP_I8, how[EP_I_HEIGHT], how[EP_I_WIDTH] * how[EP_I_CHANNELS])) return fault(p, selftest, EP_ERR_FORMAT, word);
  }
  return n - 1 > p->max_position ? fault(p, selftest, EP_ERR_FORMAT, word) : EP_OK;
}

static uint64_t tensor_bytes(const ep_program *p, int32_t i) {
  if (i < 0) return 0;
  return ((uint64_t)ep_rows(p, i) * (uint64_t)ep_cols(p, i)) << (ep_record(p, i)[EP_T_TYPE] - EP_I8);
}

/* Whole weights of LINEAR and NORM, one row of an embedding; activation tables stay in caches. */
static uint64_t weight_bytes(const ep_program *p) {
  uint64_t sum = 0;
  for (int32_t i = 0; i < p->n_ops; i++) {
    const int32_t *op = ep_op(p, i);
    int32_t code = op[EP_O_CODE];
    if (code != EP_LINEAR && code != EP_NORM && code != EP_EMBED) continue;
    for (int32_t t = EP_O_T0; t <= EP_O_T3; t++)
      sum += tensor_bytes(p, op[t]) / (code == EP_EMBED ? (uint64_t)ep_rows(p, op[EP_O_T2]) : 1);
  }
  return sum;
}

ep_status ep_model_info(const ep_model *model, ep_info *info) {
  ep_program p;
  if (!info || !ep_program_of(&p, model)) return EP_ERR_ARGUMENT;
  const int32_t *h = p.header;
  memset(info, 0, sizeof *info);
  info->vocab = p.vocab;
  info->context = p.context;
  info->n_layers = p.n_kv;
  info->kv_bits = p.kv_bits;
  info->logits_f = h[EP_H_LOGITS_F];
  info->embedding = p.embedding;
  info->one_call = p.one_call;
  info->n_ops = p.n_ops;
  info->n_values = p.n_values;
  info->n_tensors = p.n_tensors;
  info->max_position = p.max_position;
  info->tokenizer = h[EP_H_TOKENIZER];
  info->bos = info->tokenizer ? h[EP_H_BOS] : -1;
  if (h[EP_H_EOS] >= 0) {
    info->n_eos = ep_cols(&p, h[EP_H_EOS]);
    info->eos = ep_i32(&p, h[EP_H_EOS]);
  }
  info->chat = h[EP_H_CHAT_TEXTS] != 0;
  info->n_selftest = p.patches ? p.context : ep_cols(&p, h[EP_H_SELFTEST]);
  info->selftest = p.patches ? NULL : ep_i32(&p, h[EP_H_SELFTEST]);
  info->classes = h[EP_H_OUTPUT] == 2;
  if (p.patches) {
    info->channels = p.patches[EP_O_P0 + EP_I_CHANNELS];
    info->height = p.patches[EP_O_P0 + EP_I_HEIGHT];
    info->width = p.patches[EP_O_P0 + EP_I_WIDTH];
  }
  info->digest = ep_model_digest(&p);
  uint64_t scale = p.kv_bits == 16 ? 1 : 4, item = p.kv_bits == 16 ? 2 : 1;
  for (int32_t i = 0; i < p.n_kv; i++) {
    const int32_t *l = p.kv + (size_t)i * EP_KV_WORDS;
    uint64_t dims = (uint64_t)l[EP_KV_K_DIM] + (uint64_t)l[EP_KV_V_DIM];
    info->kv_bytes_per_token += (uint64_t)l[EP_KV_HEADS] * (dims * item + 2 * scale);
  }
  info->weight_bytes_per_token = weight_bytes(&p);
  return EP_OK;
}
