/* --save and --restore: what a session holds, in a file (docs/bundle.md). */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"

#ifdef POSIX
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

static void stop_writing(const char *path) {
  stop(EXIT_ERROR, "--save %s: %s; choose a writable place with enough room", path, strerror(errno));
}

/* A file beside `path` that nobody else uses; *name gets its name. NULL: errno says why. */
static FILE *open_beside(const char *path, char **name) {
  static const char own[] = ".edgepos-XXXXXX"; /* short, so that it fits wherever the file's name does */
  const char *slash = strrchr(path, '/');
  size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
  *name = allocate(folder + sizeof own);
  memcpy(*name, path, folder);
  memcpy(*name + folder, own, sizeof own);
#ifdef POSIX
  int file = mkstemp(*name);
  FILE *opened = file < 0 ? NULL : fdopen(file, "wb");
  if (file >= 0 && !opened) {
    int why = errno;
    close(file);
    remove(*name);
    errno = why;
  }
  return opened;
#else
  return fopen(*name, "wb");
#endif
}

static void check_target(const char *path) {
  size_t n = strlen(path);
  if (n == 0 || path[n - 1] == '/') stop(EXIT_ERROR, "--save '%s' is no name of a file", path);
#ifdef POSIX
  struct stat info;
  if (stat(path, &info) != 0) {
    if (errno != ENOENT) stop_writing(path);
  } else if (!S_ISREG(info.st_mode)) stop(EXIT_ERROR, "--save %s: it is there and no regular file; name another one", path);
#endif
}

void check_place(const char *path) {
  char *name;
  check_target(path);
  FILE *file = open_beside(path, &name);
  if (!file) stop_writing(path);
  fclose(file);
  remove(name);
  release(name);
}

/* Signals that end the program wait until the file has its name, so that no other one stays. */
#ifdef POSIX
static void hold_signals(int held) {
  static sigset_t before;
  sigset_t ending;
  sigemptyset(&ending);
  sigaddset(&ending, SIGINT);
  sigaddset(&ending, SIGTERM);
  sigaddset(&ending, SIGHUP);
  if (held) sigprocmask(SIG_BLOCK, &ending, &before);
  else sigprocmask(SIG_SETMASK, &before, NULL);
}
/* On the disk before it takes the name of what was there. Some file systems cannot say. */
static int written(FILE *file) { return fsync(fileno(file)) == 0 || errno == EINVAL || errno == ENOSYS; }
#else
static void hold_signals(int held) { (void)held; }
static int written(FILE *file) { return (void)file, 1; }
#endif

void save_session(const char *path, const buffer *head, const ep_session *session) {
  size_t size = ep_state_size(session);
  void *state = allocate(size);
  char *name;
  check(ep_state_save(session, state, size), "saving");
  check_target(path);
  hold_signals(1);
  FILE *file = open_beside(path, &name);
  if (!file) stop_writing(path);
  int good = !head->n || fwrite(head->data, head->n, 1, file) == 1;
  good = good && fwrite(state, size, 1, file) == 1;
  good = good && fflush(file) == 0 && written(file);
  good = fclose(file) == 0 && good;
#ifndef POSIX
  if (good) remove(path); /* rename does not replace everywhere */
#endif
  if (!good || rename(name, path) != 0) {
    int why = errno;
    remove(name);
    errno = why;
    stop_writing(path);
  }
  hold_signals(0);
  release(name);
  release(state);
  print(stderr, "saved: %s, %" PRId32 " tokens\n", path, ep_length(session));
}

buffer read_state(const char *path, size_t arena, const char *magic) {
  static const size_t most_texts = 64000000; /* beside the cache, which the arena has room for */
  buffer state = read_file(path, arena + most_texts);
  if (state.n < 4 || (memcmp(state.data, "EPST", 4) && memcmp(state.data, "EPCH", 4)))
    stop(EXIT_ERROR, "--restore %s: it is no saved text or conversation", path);
  if (memcmp(state.data, magic, 4))
    stop(EXIT_ERROR, "--restore %s: %s", path, magic[2] == 'C' ? "it holds a text, no conversation: go on with it by -p, without --chat" : "it holds a conversation: go on with it by --chat");
  if (state.n > arena + most_texts) stop(EXIT_ERROR, "--restore %s: more bytes than a state of this session can have", path);
  return state;
}

void restore_session(const char *path, ep_session *session, const char *state, size_t n) {
  ep_status st = ep_state_restore(session, state, n);
  if (st == EP_ERR_CONTEXT) stop(EXIT_ERROR, "--restore %s: it has more tokens than this session has room for; raise --context", path);
  if (st != EP_OK) stop(EXIT_ERROR, "--restore %s: %s; restore it with the model that saved it", path, ep_status_text(st));
}
