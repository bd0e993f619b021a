/* edgepos-run --chat: a conversation, one line a turn. What is new is evaluated; the same lines give the same text as in Python. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

/* Ctrl-C ends an answer where the system has such signals; elsewhere it ends the program, and no prompt is shown. */
#ifdef POSIX
#include <signal.h>
#include <sys/select.h>
#include <unistd.h>

static volatile sig_atomic_t interrupted;
static void on_interrupt(int signal) {
  (void)signal;
  interrupted = 1;
}
static int at_terminal(void) { return isatty(STDIN_FILENO); }
static void catch_interrupts(void) {
  struct sigaction action = {0}; /* no SA_RESTART: an interrupt ends the wait for a line */
  action.sa_handler = on_interrupt;
  sigaction(SIGINT, &action, NULL);
}
/* Show the prompt and wait for a line at the terminal. Interrupts are held back from the prompt to the wait: one that came
 * between the two would be over before it could end the wait. 0: interrupted. */
static int wait_for_line(void) {
  sigset_t interrupts, before;
  fd_set input;
  FD_ZERO(&input);
  FD_SET(STDIN_FILENO, &input);
  sigemptyset(&interrupts);
  sigaddset(&interrupts, SIGINT);
  sigprocmask(SIG_BLOCK, &interrupts, &before);
  fputs("> ", stderr);
  int ready = interrupted ? 0 : pselect(STDIN_FILENO + 1, &input, NULL, NULL, NULL, &before);
  sigprocmask(SIG_SETMASK, &before, NULL);
  return ready > 0 && !interrupted;
}
#else
static int interrupted;
static int at_terminal(void) { return 0; }
static void catch_interrupts(void) {}
static int wait_for_line(void) { return 1; }
#endif

typedef struct talk {
  const options *o;
  const ep_model *model;
  const ep_info *info;
  ep_session *session;
  int32_t context;
  chooser chooser; /* its text is what the cache holds */
  ep_message *messages;
  size_t n, room;
  int32_t *ids; /* of the conversation */
  size_t n_ids;
  uint32_t dropped; /* messages left out because the context was full */
} talk;

static void add(talk *t, int32_t role, const char *text, size_t n) {
  if (t->n == t->room) {
    t->room = 2 * t->room + 8;
    ep_message *larger = realloc(t->messages, t->room * sizeof *larger);
    if (!larger) stop(EXIT_ERROR, "out of memory");
    t->messages = larger;
  }
  char *own = allocate(n);
  if (n) memcpy(own, text, n);
  t->messages[t->n++] = (ep_message){role, own, n};
}

static void drop(talk *t, size_t at, size_t n) {
  for (size_t i = at; i < at + n; i++) release((void *)(uintptr_t)t->messages[i].text);
  if (n) memmove(t->messages + at, t->messages + at + n, (t->n - at - n) * sizeof *t->messages);
  t->n -= n;
}

/* Fill t->ids with the ids of the messages, leaving out n from number `at` on. */
static void encode(talk *t, size_t at, size_t n) {
  size_t count = t->n - n, size = 0, good = 0;
  ep_message *messages = allocate(count * sizeof *messages);
  ep_span *spans = allocate(count * sizeof *spans);
  memcpy(messages, t->messages, at * sizeof *messages);
  memcpy(messages + at, t->messages + at + n, (count - at) * sizeof *messages);
  ep_status st = ep_chat_render(t->model, messages, count, NULL, 0, &size, spans, &good);
  if (st == EP_ERR_ROLE && good == 0 && messages[0].role == EP_SYSTEM)
    stop(EXIT_ERROR, "--system: the chat form of this model has no place for it, or not for an empty one; say it in the first message, or use edgepos run --chat");
  if (st == EP_ERR_ROLE) stop(EXIT_ERROR, "message %zu: %s", good + 1, ep_status_text(st));
  if (st != EP_ERR_BUFFER) check(st, "chat");
  char *text = allocate(size);
  check(ep_chat_render(t->model, messages, count, text, size, &size, spans, NULL), "chat");
  size_t words = ep_encode_chat_scratch(t->model, text, size, spans, count);
  int32_t *scratch = allocate((uint64_t)words * sizeof *scratch);
  release(t->ids);
  t->ids = allocate((uint64_t)words / 4 * sizeof *t->ids);
  check(ep_encode_chat(t->model, text, size, spans, count, t->ids, words / 4, scratch, &t->n_ids), "encoding the conversation");
  release(scratch);
  release(text);
  release(spans);
  release(messages);
}

/* The ids of the conversation, without the oldest turns if the context has no room for them and an answer. 0: it has none
 * even for the last message alone, which is taken back. */
static int fit(talk *t) {
  int32_t quarter = t->context / 4, answer = t->o->n < quarter ? t->o->n : quarter;
  size_t room = (size_t)(t->context - answer), first = t->messages[0].role == EP_SYSTEM, gone = 0;
  for (;;) {
    encode(t, first, gone);
    if (t->n_ids <= room) break;
    if (t->n - gone <= first + 1) {
      print(stderr, "the message makes %zu tokens of conversation, a context of %" PRId32 " has room for %zu and an answer; shorten it\n",
              t->n_ids, t->context, room);
      drop(t, t->n - 1, 1);
      return 0;
    }
    gone += 2;
  }
  if (gone) print(stderr, "(the context is full: %zu messages left out)\n", gone);
  drop(t, first, gone);
  t->dropped += (uint32_t)gone;
  return 1;
}

static void answer(talk *t) {
  chooser *c = &t->chooser;
  buffer said = {0};
  printer out = {.model = t->model, .o = t->o, .bos = t->info->bos, .previous = t->ids[t->n_ids - 1], .answer = &said};
  size_t same = 0;
  int stopped = 0;
  while (same < c->n && same + 1 < t->n_ids && c->text[same] == t->ids[same]) same++;
  check(ep_rewind(t->session, (int32_t)same), "rewinding");
  memcpy(c->text + same, t->ids + same, (t->n_ids - same) * sizeof *c->text);
  c->n = t->n_ids;
  const int32_t *next = t->ids + same;
  int32_t n = (int32_t)(t->n_ids - same), token;
  for (int32_t i = 0; i < t->o->n && !interrupted; i++) {
    check(ep_eval(t->session, next, NULL, n, NULL), "evaluating");
    token = choose(c, t->session);
    if (is_eos(t->o, t->info, token)) break;
    stopped = print_token(&out, token);
    if (stopped || ep_length(t->session) == t->context) break;
    c->text[c->n++] = token;
    next = &token;
    n = 1;
  }
  c->n = (size_t)ep_length(t->session); /* the last token was chosen, not evaluated */
  if (stopped) out.held.n = 0;
  print_rest(&out);
  putchar('\n');
  fflush(stdout);
  add(t, EP_ASSISTANT, said.data, said.n);
  free(said.data);
}

/* The next line without its end. 0 at the end of the input, or when it was interrupted. */
static int read_line(buffer *line) {
  char part[512];
  line->n = 0;
  for (;;) {
    errno = 0;
    if (!fgets(part, sizeof part, stdin)) return line->n > 0 && !interrupted;
    append(line, part, strlen(part));
    if (line->data[line->n - 1] == '\n') break;
  }
  while (line->n && (line->data[line->n - 1] == '\n' || line->data[line->n - 1] == '\r')) line->n--;
  return 1;
}

/* ---- saved conversations (docs/bundle.md) */

static const char magic[] = "EPCH";
enum { FORMAT = 1, HEAD = 32 };

static void save(talk *t, const char *path) {
  buffer head = {0};
  uint64_t bytes = 0;
  for (size_t i = 0; i < t->n; i++) bytes += t->messages[i].bytes;
  if (bytes > UINT32_MAX) stop(EXIT_ERROR, "--save %s: the messages have more than 4 GB", path);
  const uint32_t words[] = {t->dropped, (uint32_t)t->n, (uint32_t)t->chooser.n, (uint32_t)bytes}, format = FORMAT;
  append(&head, magic, 4);
  append(&head, (const char *)&format, sizeof format);
  append(&head, (const char *)&t->chooser.rng.state, sizeof t->chooser.rng.state);
  append(&head, (const char *)words, sizeof words);
  for (size_t i = 0; i < t->n; i++) {
    const uint32_t row[] = {(uint32_t)t->messages[i].role, (uint32_t)t->messages[i].bytes};
    append(&head, (const char *)row, sizeof row);
  }
  append(&head, (const char *)t->chooser.text, t->chooser.n * sizeof *t->chooser.text);
  for (size_t i = 0; i < t->n; i++) append(&head, t->messages[i].text, t->messages[i].bytes);
  save_session(path, &head, t->session);
  free(head.data);
}

static void restore(talk *t, const char *path, size_t arena) {
  buffer state = read_state(path, arena, magic);
  uint32_t format = 0, words[4] = {0}, row[2];
  if (state.n >= HEAD) {
    memcpy(&format, state.data + 4, sizeof format);
    memcpy(&t->chooser.rng.state, state.data + 8, sizeof t->chooser.rng.state);
    memcpy(words, state.data + 16, sizeof words);
  }
  const uint64_t rows = (uint64_t)words[1] * sizeof row, ids = (uint64_t)words[2] * sizeof *t->chooser.text;
  int good = format == FORMAT && HEAD + rows + ids + words[3] <= state.n;
  if (good && words[2] > (uint32_t)t->context)
    stop(EXIT_ERROR, "--restore %s: it has %" PRIu32 " tokens, the context has room for %" PRId32 "; raise --context", path, words[2], t->context);
  const char *at = state.data + HEAD, *text = at + (good ? rows + ids : 0), *end = text + (good ? words[3] : 0);
  for (uint32_t i = 0; good && i < words[1]; i++, at += sizeof row) {
    memcpy(row, at, sizeof row);
    good = row[0] >= EP_SYSTEM && row[0] <= EP_ASSISTANT && row[1] <= (size_t)(end - text);
    if (good) add(t, (int32_t)row[0], text, row[1]);
    text += good ? row[1] : 0;
  }
  good = good && text == end;
  if (good && ids) memcpy(t->chooser.text, at, (size_t)ids);
  for (uint32_t i = 0; good && i < words[2]; i++) good = t->chooser.text[i] >= 0 && t->chooser.text[i] < t->info->vocab;
  if (good) restore_session(path, t->session, end, state.n - (size_t)(end - state.data));
  if (!good || (uint32_t)ep_length(t->session) != words[2])
    stop(EXIT_ERROR, "--restore %s: its sizes, ids or roles contradict each other or this model; it was changed, or saved by another version or model", path);
  t->dropped = words[0];
  t->chooser.n = words[2];
  free(state.data);
}

void chat(const options *o, const ep_model *model, const ep_info *info, const ep_config *cfg) {
  if (!info->chat) stop(EXIT_ERROR, "this model carries no chat form: give it a text to continue by -p");
  talk t = {.o = o, .model = model, .info = info, .context = cfg->context};
  void *arena;
  size_t n;
  int terminal = at_terminal();
  t.session = open_session(model, cfg, &arena, &n);
  open_chooser(&t.chooser, o, info, t.context);
  if (o->restore) restore(&t, o->restore, n);
  if (o->system) add(&t, EP_SYSTEM, o->system, strlen(o->system));
  catch_interrupts();
  if (terminal) fputs("One line is one message. Ctrl-C ends an answer, Ctrl-D the conversation.\n", stderr);
  buffer line = {0};
  for (;;) {
    interrupted = 0;
    if (terminal && !wait_for_line()) break;
    if (!read_line(&line)) break;
    if (line.n == 0) continue;
    add(&t, EP_USER, line.data, line.n);
    if (fit(&t)) answer(&t);
  }
  if (terminal) fputc('\n', stderr);
  if (o->save) save(&t, o->save);
  drop(&t, 0, t.n);
  free(line.data);
  free(t.messages);
  release(t.ids);
  close_chooser(&t.chooser);
  release(arena);
}
