/* edgepos-run: generate text from a model image, or check that this machine computes what the bundle says. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "edgepos_cpu.h"
#include "threads_pthread.h"

#ifdef POSIX
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

/* EDGEPOS_EMBEDDED: the model is in the program (ports/embed.S), and no MODEL is given. EDGEPOS_CHECKSUM: of the only one that it opens. */
#ifdef EDGEPOS_EMBEDDED
#define EMBEDDED 1
extern const unsigned char edgepos_model[], edgepos_model_end[];
#else
#define EMBEDDED 0
#endif

static const char usage[] =
    "edgepos-run MODEL.gguf [options]\n"
    "  -p TEXT            prompt (default: empty)\n"
    "  --ids 1,2,3        prompt as token ids, used as they are\n"
    "  -n N               tokens to generate (128); 0 only evaluates the prompt\n"
    "  --context N        tokens the session can hold (the model's context)\n"
    "  --batch N          prompt tokens evaluated at a time (128; 16 with --generic)\n"
    "  --threads N        threads (1)\n"
    "  --copy             keep model and KV cache in large pages where there are some, instead of mapping the file: decodes faster\n"
    "  --generic          without the kernels of this processor: slower, the same bits\n"
    "  --temperature T    0 takes the likeliest token (0)\n"
    "  --top-k K          choose among the K likeliest; 0: all (0)\n"
    "  --top-p P          choose among the likeliest whose probabilities reach P (1)\n"
    "  --seed S           seed of the random numbers (0)\n"
    "  --repetition-penalty P   make the tokens that were there P times less likely, P at least 1 (1)\n"
    "  --penalty-last N   those among the last N tokens; 0: all (0)\n"
    "  --stop TEXT        end before this text; may be given several times\n"
    "  --no-eos           go on behind an end of text\n"
    "  --chat             a conversation: every line of the input is a message\n"
    "  --system TEXT      what the model is told before it\n"
    "  --save FILE        keep the conversation, or prompt and text, for --restore (-n 0: the prompt alone)\n"
    "  --restore FILE     go on from there, with the saved messages and random numbers, or behind the saved text\n"
    "  --perplexity FILE  how well the model predicts a text\n"
    "  --max-tokens N     tokens of it at most (8192)\n"
    "  --embed            print the embedding of the prompt, or without one of every line of the input\n"
    "  --image FILE       print the row that the model gives for an image: .ppm, .pgm, or .npy of uint8\n"
    "  --ids-out          print token ids instead of text\n"
    "  --digest           print the digest of all logits computed (prompt and generated tokens)\n"
    "  --operators        print the digest of every operator's output over the tokens of the model's own test\n"
    "  --checksum HEX     refuse a model whose bytes have another one (FNV-1a; edgepos inspect shows it)\n"
    "  --selftest         evaluate the model's own test and compare its digest\n"
    "  --version, --help\n"
    "Exit status: 0 done, 1 model, prompt or memory error, 2 wrong usage, 3 self-test failed.\n";

/* ---- arguments -------------------------------------------------------------------------------------------------- */

static uint64_t parse_integer(const char *name, const char *text, uint64_t max) {
  uint64_t value = 0;
  const char *at = text;
  for (; *at >= '0' && *at <= '9'; at++) {
    uint64_t digit = (uint64_t)(*at - '0');
    if (value > (max - digit) / 10) break;
    value = value * 10 + digit;
  }
  if (at == text || *at) stop(EXIT_USAGE, "%s is '%s': a whole number from 0 to %" PRIu64 " is needed", name, text, max);
  return value;
}

/* floor(x * 65536 + 1/2) of a decimal, exactly: 17 doublings of its fraction give the bits. */
static uint32_t parse_q16(const char *name, const char *text, uint32_t max) {
  enum { DIGITS = 64 };
  uint8_t digit[DIGITS] = {0};
  uint32_t whole = 0, fraction = 0;
  int n = 0, any = 0;
  const char *at = text;
  for (; *at >= '0' && *at <= '9' && whole <= 65536; at++, any = 1) whole = whole * 10 + (uint32_t)(*at - '0');
  if (*at == '.')
    for (at++; *at >= '0' && *at <= '9' && n < DIGITS; at++, any = 1) digit[n++] = (uint8_t)(*at - '0');
  for (int bit = 0; bit < 17; bit++) {
    int carry = 0;
    for (int i = n - 1; i >= 0; i--) {
      int twice = 2 * digit[i] + carry;
      carry = twice > 9;
      digit[i] = (uint8_t)(twice - 10 * carry);
    }
    fraction = fraction << 1 | (uint32_t)carry;
  }
  uint64_t value = ((uint64_t)whole << 16) + ((fraction + 1) >> 1);
  if (!any || *at || value > max)
    stop(EXIT_USAGE, "%s is '%s': a decimal number from 0 to %" PRIu32 " is needed", name, text, max >> 16);
  return (uint32_t)value;
}

static int32_t parse_threads(const char *text) {
  int32_t most = 256, n = (int32_t)parse_integer("--threads", text, INT32_MAX);
#if defined(POSIX) && defined(_SC_NPROCESSORS_ONLN)
  long there = sysconf(_SC_NPROCESSORS_ONLN);
  if (there >= 1 && there < most) most = (int32_t)there;
#endif
  if (n < 1 || n > most) stop(EXIT_USAGE, "--threads is %" PRId32 ": this machine has room for %" PRId32 "; give 1 to %" PRId32, n, most, most);
  return n;
}

static void add_stop(options *o, const char *text) {
  if (o->n_stops == MOST_STOPS) stop(EXIT_USAGE, "--stop: at most %d texts", MOST_STOPS);
  if (!*text) stop(EXIT_USAGE, "--stop is empty: give the text to stop at");
  o->stops[o->n_stops++] = (ep_message){0, text, strlen(text)};
}

static void parse(options *o, int argc, char **argv) {
  *o = (options){.n = 128, .threads = 1, .how = {.top_p = 65536}, .penalty = NO_PENALTY, .max_tokens = 8192};
  for (int i = 1; i < argc; i++) {
    const char *name = argv[i];
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) {
      fputs(usage, stdout);
      exit(0);
    }
    if (!strcmp(name, "--version")) {
      print(stdout, "edgepos-run %s, arithmetic %d, format %d\n", EP_VERSION, EP_ARITH, EP_FORMAT);
      exit(0);
    }
    if (!strcmp(name, "--ids-out")) o->ids_out = 1;
    else if (!strcmp(name, "--digest")) o->digest = 1;
    else if (!strcmp(name, "--operators")) o->operators = 1;
    else if (!strcmp(name, "--selftest")) o->selftest = 1;
    else if (!strcmp(name, "--no-eos")) o->no_eos = 1;
    else if (!strcmp(name, "--chat")) o->chat = 1;
    else if (!strcmp(name, "--embed")) o->embed = 1;
    else if (!strcmp(name, "--generic")) o->generic = 1;
    else if (!strcmp(name, "--copy")) o->copy = large_pages = 1;
    else if (name[0] != '-' || !name[1]) {
      if (o->model) stop(EXIT_USAGE, "two models are given, '%s' and '%s': name one; a prompt needs -p", o->model, name);
      o->model = name;
    } else {
      static const char *const with_value[] = {"-p",        "--ids",         "-n",       "--context",
                                               "--batch",   "--threads",     "--temperature",
                                               "--top-k",   "--top-p",       "--seed",   "--repetition-penalty",
                                               "--penalty-last", "--stop",   "--system", "--perplexity", "--max-tokens",
                                               "--save",     "--restore",    "--image", "--checksum"};
      size_t k = 0;
      while (k < sizeof with_value / sizeof *with_value && strcmp(name, with_value[k])) k++;
      if (k == sizeof with_value / sizeof *with_value) stop(EXIT_USAGE, "unknown option '%s': see --help", name);
      if (++i == argc) stop(EXIT_USAGE, "%s needs a value: see --help", name);
      const char *value = argv[i];
      switch (k) {
        case 0: o->prompt = value; break;
        case 1: o->ids = value; break;
        case 2: o->n = (int32_t)parse_integer(name, value, INT32_MAX); break;
        case 3: o->context = (int32_t)parse_integer(name, value, INT32_MAX); break;
        case 4: o->batch = (int32_t)parse_integer(name, value, INT32_MAX); break;
        case 5: o->threads = parse_threads(value); break;
        case 6: o->how.temperature = parse_q16(name, value, UINT32_MAX); break;
        case 7: o->how.top_k = (int32_t)parse_integer(name, value, INT32_MAX); break;
        case 8: o->how.top_p = parse_q16(name, value, 65536); break;
        case 9: o->seed = parse_integer(name, value, UINT64_MAX); break;
        case 10: o->penalty = parse_q16(name, value, UINT32_MAX); break;
        case 11: o->penalty_last = (int32_t)parse_integer(name, value, INT32_MAX); break;
        case 12: add_stop(o, value); break;
        case 13: o->system = value; break;
        case 14: o->text = value; break;
        case 16: o->save = value; break;
        case 17: o->restore = value; break;
        case 18: o->image = value; break;
        case 19: o->checksum = value; break;
        default: o->max_tokens = (int32_t)parse_integer(name, value, INT32_MAX); break;
      }
    }
  }
  if (!o->model && !EMBEDDED) stop(EXIT_USAGE, "no model is given: edgepos-run MODEL.gguf -p TEXT, or --help");
  if (o->model && EMBEDDED) stop(EXIT_USAGE, "'%s': this program has its model in it; a prompt needs -p", o->model);
  if (!!o->prompt + !!o->ids + o->chat + !!o->text > 1) stop(EXIT_USAGE, "more than one of -p, --ids, --chat and --perplexity: use one");
  if (o->embed && (o->chat || o->text || o->ids_out)) stop(EXIT_USAGE, "--embed goes with -p, --ids or neither, not with --chat, --perplexity or --ids-out");
  if (o->image && (o->prompt || o->ids || o->chat || o->text || o->ids_out || o->save || o->restore))
    stop(EXIT_USAGE, "--image is all that the model reads: it does not go with a prompt, --chat, --perplexity, --ids-out, --save or --restore");
  if (o->penalty < NO_PENALTY) stop(EXIT_USAGE, "--repetition-penalty is below 1: a number from 1 to 65535 is needed");
  if ((o->save || o->restore) && (o->embed || o->text || o->operators || o->selftest))
    stop(EXIT_USAGE, "--save and --restore go with -p, --ids or --chat");
  if (o->system && o->restore) stop(EXIT_USAGE, "--system does not go with --restore: what was saved has its own");
  if (o->system && !o->chat) stop(EXIT_USAGE, "--system goes with --chat");
  if (o->chat && (o->ids_out || o->digest)) stop(EXIT_USAGE, "--ids-out and --digest do not go with --chat");
  if (o->n_stops && o->ids_out) stop(EXIT_USAGE, "--stop needs text: it does not go with --ids-out");
}

/* ---- input ------------------------------------------------------------------------------------------------------ */

#if EMBEDDED
static const void *load(const char *path, size_t *bytes, int copy) {
  (void)path, (void)copy;
  *bytes = (size_t)(edgepos_model_end - edgepos_model);
  return edgepos_model;
}
#elif defined(POSIX)
static const void *copied(int file, const char *path, size_t bytes) {
  void *image = in_large_pages(bytes);
  if (!image) stop(EXIT_ERROR, "no memory for a copy of the model, %zu bytes; leave out --copy", bytes);
  for (size_t at = 0; at < bytes;) {
    ssize_t n = read(file, (char *)image + at, bytes - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) stop(EXIT_ERROR, "%s: %s", path, strerror(errno));
    if (n == 0) stop(EXIT_ERROR, "%s became shorter while it was read", path);
    at += (size_t)n;
  }
  return image;
}

static const void *load(const char *path, size_t *bytes, int copy) {
  struct stat info;
  int file = open(path, O_RDONLY);
  if (file < 0 || fstat(file, &info) != 0) stop(EXIT_ERROR, "%s: %s", path, strerror(errno));
  if (!S_ISREG(info.st_mode)) stop(EXIT_ERROR, "%s is no regular file: name the model.gguf of a bundle", path);
  if (info.st_size <= 0 || (uint64_t)info.st_size > SIZE_MAX) stop(EXIT_ERROR, "%s is empty or too large for this machine", path);
  *bytes = (size_t)info.st_size;
  const void *image = copy ? copied(file, path, *bytes) : mmap(NULL, *bytes, PROT_READ, MAP_PRIVATE, file, 0);
  if (image == MAP_FAILED) stop(EXIT_ERROR, "%s: %s", path, strerror(errno));
  close(file);
  return image;
}
#else
static const void *load(const char *path, size_t *bytes, int copy) {
  (void)copy; /* it always is one */
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END) != 0) stop(EXIT_ERROR, "%s: %s", path, strerror(errno));
  long size = ftell(file);
  if (size <= 0) stop(EXIT_ERROR, "%s is empty", path);
  rewind(file);
  void *image = allocate((uint64_t)size);
  *bytes = fread(image, 1, (size_t)size, file);
  if (*bytes != (size_t)size) stop(EXIT_ERROR, "%s: %s", path, strerror(errno));
  fclose(file);
  return image;
}
#endif

static uint64_t parse_hex(const char *name, const char *text) {
  uint64_t value = 0;
  const char *at = text + (strncmp(text, "0x", 2) ? 0 : 2), *start = at;
  for (const char *digit; *at && (digit = strchr("0123456789abcdef", *at)) != NULL && at - start < 16; at++)
    value = value << 4 | (uint64_t)(digit - "0123456789abcdef");
  if (at == start || *at) stop(EXIT_USAGE, "%s is '%s': 16 hexadecimal digits are needed, as edgepos inspect shows them", name, text);
  return value;
}

static void check_bytes(const void *image, size_t bytes, uint64_t expected) {
  uint64_t found = ep_digest(EP_DIGEST_INIT, image, bytes / sizeof(int32_t));
  if (bytes % sizeof(int32_t) || found != expected)
    stop(EXIT_ERROR, "the model has the checksum 0x%016" PRIx64 ", expected 0x%016" PRIx64 ": it was changed or damaged, or is another one; copy it again", found, expected);
}

static void report_speed(const char *what, uint64_t tokens, uint64_t us) {
  uint64_t rate = tokens * 100000000 / (us ? us : 1), ms = (us + 500) / 1000;
  print(stderr, "%s: %" PRIu64 " tokens in %" PRIu64 " ms, %" PRIu64 ".%02" PRIu64 " tokens/s\n", what, tokens, ms, rate / 100,
          rate % 100);
}

/* ---- work ------------------------------------------------------------------------------------------------------- */

/* Those of this processor's instructions that there are kernels for. */
static const char *processor(void) {
  static const struct {
    uint32_t bit;
    const char *name;
  } known[] = {{EP_CPU_AVX2, " avx2"}, {EP_CPU_AVXVNNI, " avxvnni"}, {EP_CPU_AVX512, " avx512"}, {EP_CPU_NEON, " neon"}, {EP_CPU_DOTPROD, " dotprod"}, {EP_CPU_I8MM, " i8mm"}};
  static char text[64];
  for (size_t i = 0; i < sizeof known / sizeof *known; i++)
    if (ep_cpu_detect() & known[i].bit && strlen(text) + strlen(known[i].name) < sizeof text) strcat(text, known[i].name);
  return *text ? text : " plain C only";
}

/* The self-test's image once more, for the time it takes and the arena. */
static void time_selftest(const ep_model *model, const ep_info *info, const ep_config *cfg) {
  void *arena;
  size_t bytes;
  ep_session *session = open_session(model, cfg, &arena, &bytes);
  uint64_t start = microseconds();
  check(ep_eval_selftest(session, NULL), "self-test");
  report_speed("prompt", (uint64_t)info->n_selftest, microseconds() - start);
  report_memory(session, bytes, info->context);
  release(arena);
}

static int run_selftest(const ep_model *model, const ep_info *info, ep_config cfg) {
  size_t bytes;
  uint64_t digest;
  cfg.context = info->n_selftest;
  check(ep_arena_size(model, &cfg, &bytes), "self-test");
  void *arena = allocate(bytes);
  ep_status st = ep_selftest(model, &cfg, arena, bytes, &digest);
  release(arena);
  if (st != EP_ERR_SELFTEST) check(st, "self-test");
  print(stdout, "self-test %s: %" PRId32 " tokens, digest 0x%016" PRIx64, st == EP_OK ? "passed" : "FAILED", info->n_selftest, digest);
  if (st != EP_OK) print(stdout, ", expected 0x%016" PRIx64, info->digest);
  putchar('\n');
  print(stderr, "processor:%s\n", processor());
  if (info->channels) time_selftest(model, info, &cfg);
  return st == EP_OK ? 0 : EXIT_SELFTEST;
}

/* Evaluate tokens; with rows, in chunks that fit them, and add their logits to the digest. */
static void evaluate(ep_session *s, const int32_t *ids, size_t n, int32_t vocab, int32_t *rows, int32_t chunk, uint64_t *digest) {
  for (size_t at = 0; at < n;) {
    size_t left = n - at, now = rows && left > (size_t)chunk ? (size_t)chunk : left;
    check(ep_eval(s, ids + at, NULL, (int32_t)now, rows), "evaluating");
    if (rows) *digest = ep_digest(*digest, rows, now * (size_t)vocab);
    at += now;
  }
}

static void generate(const options *o, const ep_model *model, const ep_info *info, const ep_config *cfg) {
  if (!info->tokenizer && !o->ids) stop(EXIT_ERROR, "this model carries no tokenizer: give the prompt by --ids and use --ids-out");
  if (!info->tokenizer && !o->ids_out && o->n) stop(EXIT_ERROR, "this model carries no tokenizer: use --ids-out");
  const char *prompt = o->prompt ? o->prompt : "";
  if (info->channels) stop(EXIT_ERROR, "this model reads an image: give one by --image");
  if (info->embedding && (o->n || o->digest)) stop(EXIT_ERROR, "this model gives an embedding, not logits: use --embed");
  size_t n, bytes;
  int32_t vocab = info->vocab, context = cfg->context, token = -1;
  void *arena;
  ep_session *s = open_session(model, cfg, &arena, &bytes);
  if (o->restore) {
    buffer state = read_state(o->restore, bytes, "EPST");
    restore_session(o->restore, s, state.data, state.n);
    free(state.data);
  }
  int32_t room = context - ep_length(s);
  int32_t *ids = o->ids ? parse_ids(o->ids, vocab, &n) : encode_text(model, prompt, strlen(prompt), !ep_length(s) && ep_adds_bos(model), &n);
  if (n == 0) stop(EXIT_ERROR, "the prompt is empty and this model puts no token in front of it: give -p TEXT");
  if (n > (size_t)room)
    stop(EXIT_ERROR, "the prompt has %zu tokens, the context has room for %" PRId32 ": shorten it or raise --context (at most %" PRId32 ")",
         n, room, info->context);
  int32_t chunk = batch_of(cfg, info);
  if ((size_t)chunk > n) chunk = (int32_t)n;
  int32_t *rows = o->digest ? allocate((uint64_t)chunk * (uint64_t)vocab * sizeof *rows) : NULL;
  uint64_t digest = EP_DIGEST_INIT;
  chooser c;
  open_chooser(&c, o, info, context);
  memcpy(c.text, ids, n * sizeof *ids);
  c.n = n;
  printer out = {.model = model, .o = o, .bos = info->bos, .previous = o->ids_out ? -1 : ids[n - 1]};

  uint64_t start = microseconds();
  evaluate(s, ids, n, vocab, rows, chunk, &digest);
  uint64_t prefilled = microseconds(), decoded = 0;
  const char *why = NULL;
  int stopped = 0;
  for (int32_t i = 0; i < o->n; i++) {
    token = choose(&c, s);
    if (is_eos(o, info, token)) {
      why = "end of text";
      break;
    }
    stopped = print_token(&out, token);
    if (stopped) {
      why = "stop text";
      break;
    }
    if (i + 1 == o->n) break;
    if (ep_length(s) == context) {
      why = "the context is full";
      break;
    }
    c.text[c.n++] = token;
    evaluate(s, &token, 1, vocab, rows, chunk, &digest);
    decoded++;
  }
  uint64_t end = microseconds();
  if (stopped) out.held.n = 0;
  print_rest(&out);
  if (o->n) putchar('\n');
  if (o->digest) print(stdout, "digest 0x%016" PRIx64 "\n", digest);
  flush();
  if (why) print(stderr, "stopped: %s (%" PRId32 " of %" PRId32 " tokens in use)\n", why, ep_length(s), context);
  report_speed("prompt", n, prefilled - start);
  if (decoded) report_speed("generation", decoded, end - prefilled);
  report_memory(s, bytes, context);
  if (o->save) { /* with the last token, which was chosen and not evaluated */
    if (o->n && !why && ep_length(s) < context) check(ep_eval(s, &token, NULL, 1, NULL), "evaluating");
    save_session(o->save, &(buffer){0}, s);
  }
  close_chooser(&c);
  release(rows);
  release(arena);
  release(ids);
}

int main(int argc, char **argv) {
  options o;
  parse(&o, argc, argv);
  size_t bytes;
  const void *image = load(o.model, &bytes, o.copy);
#ifdef EDGEPOS_CHECKSUM
  check_bytes(image, bytes, EDGEPOS_CHECKSUM);
#endif
  if (o.checksum) check_bytes(image, bytes, parse_hex("--checksum", o.checksum));
  ep_model model;
  ep_info info;
  uint64_t where = 0;
  ep_status st = ep_open(&model, image, bytes, &where);
  if (st != EP_OK) stop(EXIT_ERROR, "%s: %s (at byte %" PRIu64 ")", EMBEDDED ? "the model in this program" : o.model, ep_status_text(st), where);
  check(ep_model_info(&model, &info), "model");
  if (o.context > info.context)
    stop(EXIT_USAGE, "--context is %" PRId32 ": this model allows at most %" PRId32, o.context, info.context);

  ep_config cfg = {.context = o.context ? o.context : info.context,
                   .n_batch = o.batch,
                   .threads = 1,
                   .cpu = o.generic ? 0 : ep_cpu_detect()};
  ep_pool *pool = NULL;
  if (o.threads > 1) {
    pool = ep_pool_new(o.threads);
    if (!pool) stop(EXIT_ERROR, "no memory for %" PRId32 " threads", o.threads);
    cfg.threads = ep_pool_threads(pool);
    cfg.parallel = ep_pool_run;
    cfg.pool = pool;
  }
  int code = 0;
  if (o.save) check_place(o.save);
  if (o.selftest) code = run_selftest(&model, &info, cfg);
  if (o.operators) operators(&model, &info, cfg);
  else if (code == 0 && o.image) embed_image(&o, &model, &info, &cfg);
  else if (code == 0 && o.embed) embed(&o, &model, &info, &cfg);
  else if (code == 0 && o.chat) chat(&o, &model, &info, &cfg);
  else if (code == 0 && o.text) perplexity(&o, &model, &info, &cfg);
  else if (code == 0 && (!o.selftest || o.prompt || o.ids)) generate(&o, &model, &info, &cfg);
  ep_pool_free(pool);
  flush();
  return code;
}
