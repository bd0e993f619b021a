/* The program `edgepos verify` runs on a board without an operating system: the bundle's self-test, or the tokens that
 * follow a prompt. Model and request lie at the addresses of the linker script, put there before reset.
 * Prints lines "name value": arena, kernels, tokens, centiseconds, stack, and digest or ids; "error" and the reason if it fails.
 * With EDGEPOS_EMBEDDED, as `edgepos build` makes it, the model is in flash (ports/embed.S), and there is no request: the self-test,
 * and, where that passed, a text. EDGEPOS_CONTEXT: tokens of its session. EDGEPOS_CHECKSUM: what FNV-1a over the model must give. */
#include "edgepos.h"
#include "edgepos_cpu.h"
#include "request.h"
#include "semihosting.h"

#ifdef EDGEPOS_EMBEDDED
extern const char edgepos_model[], edgepos_model_end[];
#else
extern const char model_start[], model_end[], request_start[];
#endif
extern char arena_start[], arena_end[];
extern uint32_t stack_bottom[], stack_top[];

/* A build for a small board evaluates token by token (where the model allows it). */
#ifdef EDGEPOS_EMBEDDED
enum { N_BATCH = EDGEPOS_BATCH };
#else
enum { N_BATCH = 0 };
#endif

static void put_number(uint64_t value, uint32_t base, int digits) {
  char text[21], *at = text + sizeof text - 1;
  *at = 0;
  do {
    *--at = "0123456789abcdef"[value % base];
    value /= base;
  } while (value || text + sizeof text - 1 - at < digits);
  semihosting_put(at);
}

static void put_line(const char *name, uint64_t value) {
  semihosting_put(name);
  semihosting_put(" ");
  put_number(value, 10, 1);
  semihosting_put("\n");
}

static void put_text(const char *name, const char *text) {
  semihosting_put(name);
  semihosting_put(text);
  semihosting_put("\n");
}

static int fail(const char *what, ep_status st) {
  semihosting_put("error ");
  semihosting_put(what);
  put_text(": ", ep_status_text(st));
  return 1;
}

static int selftest(const ep_model *model, const ep_info *info) {
  const ep_config cfg = {.context = info->n_selftest, .n_batch = N_BATCH, .cpu = ep_cpu_detect()};
  size_t arena, room = (size_t)(arena_end - arena_start);
  ep_session *session;
  ep_status st = ep_arena_size(model, &cfg, &arena);
  if (st == EP_OK) st = ep_session_init(&session, model, &cfg, arena_start, room);
  if (st != EP_OK) return fail("arena", st);
  put_line("arena", arena);
  put_text("kernels ", ep_kernels_name(session));
  uint64_t digest = 0;
  uint32_t start = semihosting_centiseconds();
  st = ep_selftest(model, &cfg, arena_start, room, &digest);
  if (st != EP_OK && st != EP_ERR_SELFTEST) return fail("self-test", st);
  put_line("centiseconds", semihosting_centiseconds() - start);
  put_line("tokens", (uint64_t)info->n_selftest);
  semihosting_put("digest ");
  put_number(digest, 16, 16);
  semihosting_put(st == EP_OK ? "\nself-test passed\n" : "\nself-test FAILED\n");
#ifdef EDGEPOS_EMBEDDED
  if (st != EP_OK) return fail("self-test", st);
#endif
  return 0;
}

static int is_eos(const ep_info *info, int32_t token) {
  for (int32_t i = 0; i < info->n_eos; i++)
    if (info->eos[i] == token) return 1;
  return 0;
}

#ifdef EDGEPOS_EMBEDDED
/* The likeliest continuation of the self-test's first token, as text. */
static int tell(const ep_model *model, const ep_info *info) {
  const ep_config cfg = {.context = EDGEPOS_CONTEXT, .n_batch = N_BATCH, .cpu = ep_cpu_detect()};
  ep_session *session;
  ep_status st = ep_session_init(&session, model, &cfg, arena_start, (size_t)(arena_end - arena_start));
  if (st != EP_OK) return fail("session", st);
  int32_t previous = info->selftest[0], token = previous;
  semihosting_put("text ");
  while (ep_length(session) < EDGEPOS_CONTEXT) {
    const char *bytes;
    size_t n;
    st = ep_eval(session, &token, NULL, 1, NULL);
    if (st == EP_OK) st = ep_argmax(session, &token);
    if (st != EP_OK || is_eos(info, token)) break;
    if (ep_token_bytes(model, previous, token, &bytes, &n) != EP_OK) break;
    for (size_t i = 0; i < n; i++) semihosting_put((char[2]){bytes[i], 0});
    previous = token;
  }
  semihosting_put("\n");
  return st == EP_OK ? 0 : fail("generation", st);
}

static int run(void) {
  ep_model model;
  ep_info info;
#ifdef EDGEPOS_CHECKSUM
  const uint64_t found = ep_digest(EP_DIGEST_INIT, (const int32_t *)(const void *)edgepos_model, (size_t)(edgepos_model_end - edgepos_model) / 4);
  if (found != EDGEPOS_CHECKSUM) return fail("checksum of the model in flash", EP_ERR_FORMAT);
#endif
  ep_status st = ep_open(&model, edgepos_model, (size_t)(edgepos_model_end - edgepos_model), NULL);
  if (st == EP_OK) st = ep_model_info(&model, &info);
  if (st != EP_OK) return fail("model", st);
  int code = selftest(&model, &info);
  return code || !info.tokenizer || info.embedding ? code : tell(&model, &info);
}
#else
/* As edgepos-run --operators. The digests, then the logits, lie behind the session. */
static uint64_t *operator_digest;

static void see(void *user, const ep_trace_event *event) {
  (void)user;
  uint64_t *at = operator_digest + event->op;
  *at = ep_digest(*at, event->data, (size_t)event->rows * (size_t)event->width);
}

static int operators(const ep_model *model, const ep_info *info) {
  const ep_config cfg = {.context = info->n_selftest, .cpu = ep_cpu_detect()};
  size_t arena, room = (size_t)(arena_end - arena_start), numbers = (size_t)(info->embedding ? info->embedding : info->vocab);
  ep_session *session;
  ep_status st = ep_arena_size(model, &cfg, &arena);
  if (st == EP_OK) st = ep_session_init(&session, model, &cfg, arena_start, room);
  if (st == EP_OK && (room - arena) / 4 < 2 * (size_t)info->n_ops + numbers) st = EP_ERR_BUFFER;
  if (st != EP_OK) return fail("memory for operators", st);
  operator_digest = (uint64_t *)(void *)(arena_start + arena);
  int32_t *out = (int32_t *)(void *)(operator_digest + info->n_ops);
  for (int32_t i = 0; i < info->n_ops; i++) operator_digest[i] = EP_DIGEST_INIT;
  ep_set_trace(session, see, NULL);
  if (info->embedding) st = ep_eval_selftest(session, NULL);
  else
    for (int32_t i = 0; i < info->n_selftest && st == EP_OK; i++) st = ep_eval(session, info->selftest + i, NULL, 1, out);
  if (st == EP_OK && info->embedding) st = ep_embedding(session, out);
  if (st != EP_OK) return fail("operators", st);
  for (int32_t i = 0; i < info->n_ops; i++) {
    if (operator_digest[i] == EP_DIGEST_INIT) continue; /* no output */
    semihosting_put("operator ");
    put_number((uint64_t)i, 10, 1);
    semihosting_put(" digest 0x");
    put_number(operator_digest[i], 16, 16);
    semihosting_put("\n");
  }
  return 0;
}

/* As edgepos-run --ids … --ids-out: stops before an EOS and when the context is full. */
static int generate(const ep_model *model, const ep_info *info, const request *ask) {
  const ep_config cfg = {.context = ask->context, .cpu = ep_cpu_detect()};
  const ep_sampling how = {ask->temperature, ask->top_k, ask->top_p};
  const int32_t context = ask->context ? ask->context : info->context;
  size_t arena, room = (size_t)(arena_end - arena_start), vocab = (size_t)info->vocab;
  ep_session *session;
  ep_status st = ep_arena_size(model, &cfg, &arena);
  if (st != EP_OK) return fail("arena", st);
  put_line("arena", arena);
  st = ep_session_init(&session, model, &cfg, arena_start, room);
  if (st != EP_OK) return fail("session", st);

  const int choose = how.temperature || ask->penalty > 65536;
  const size_t most = (size_t)ask->n_prompt + (size_t)ask->n_new;
  if (choose && ((room - arena) / 4 < 2 * vocab || (room - arena) / 4 - 2 * vocab < most)) return fail("memory for sampling", EP_ERR_BUFFER);
  int32_t *logits = (int32_t *)(void *)(arena_start + arena), *text = logits + 2 * vocab; /* text: for the penalty */
  uint32_t *scratch = (uint32_t *)(void *)(logits + vocab);
  int32_t n = ask->n_prompt;
  for (int32_t i = 0; choose && i < n; i++) text[i] = ask->ids[i];
  ep_rng rng;
  ep_rng_seed(&rng, (uint64_t)ask->seed_high << 32 | ask->seed_low);

  uint32_t start = semihosting_centiseconds();
  st = ep_eval(session, ask->ids, NULL, ask->n_prompt, NULL);
  if (st != EP_OK) return fail("prompt", st);
  semihosting_put("ids");
  for (int32_t i = 0; i < ask->n_new; i++) {
    int32_t next = 0;
    int32_t last = ask->penalty_last && ask->penalty_last < n ? ask->penalty_last : n;
    st = choose ? ep_logits(session, logits) : ep_argmax(session, &next);
    if (st == EP_OK && ask->penalty > 65536)
      st = ep_penalize(logits, info->vocab, ask->penalty, text + n - last, (size_t)last, scratch);
    if (st == EP_OK && choose) st = ep_sample(logits, info->vocab, info->logits_f, &how, &rng, scratch, &next);
    if (st != EP_OK || is_eos(info, next)) break;
    semihosting_put(" ");
    put_number((uint64_t)next, 10, 1);
    if (i + 1 == ask->n_new || ep_length(session) == context) break;
    if (choose) text[n++] = next;
    st = ep_eval(session, &next, NULL, 1, NULL);
    if (st != EP_OK) break;
  }
  semihosting_put("\n");
  if (st != EP_OK) return fail("generation", st);
  put_line("centiseconds", semihosting_centiseconds() - start);
  put_line("tokens", (uint64_t)ep_length(session));
  return 0;
}

static int run(void) {
  const request *ask = (const request *)(const void *)request_start;
  if (ask->magic != REQUEST_MAGIC) return fail("no request in memory", EP_ERR_MAGIC);
  if (ask->model_bytes > (size_t)(model_end - model_start)) return fail("model", EP_ERR_BUFFER);
  if (ask->n_prompt < -1 || ask->n_prompt > REQUEST_PROMPT) return fail("prompt", EP_ERR_BUFFER);
  ep_model model;
  ep_info info;
  ep_status st = ep_open(&model, model_start, ask->model_bytes, NULL);
  if (st == EP_OK) st = ep_model_info(&model, &info);
  if (st != EP_OK) return fail("model", st);
  if (ask->n_prompt < 0) return operators(&model, &info);
  return ask->n_prompt ? generate(&model, &info, ask) : selftest(&model, &info);
}
#endif

/* Stack use is measured: words that were never written keep their paint. */
enum { PAINT = 0x5afec0de, MARGIN = 32 };

int main(void) {
  uint32_t *here = __builtin_frame_address(0);
  for (uint32_t *word = stack_bottom; word < here - MARGIN; word++) *word = PAINT;
  int code = run();
  uint32_t *word = stack_bottom;
  while (word < stack_top && *word == PAINT) word++;
  put_line("stack", (uint64_t)(uint32_t)((char *)stack_top - (char *)word));
  return code;
}
