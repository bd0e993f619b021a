/* What test_kernels.c wants of a C library, on a board that has none. */
#include <stdarg.h>
#include <stdint.h>

#include "semihosting.h"
#include "stdio.h"
#include "stdlib.h"
#include "string.h"

/* Blocks lie one behind the other; the test frees all that it took before it takes more, but not in order. */
extern char arena_start[], arena_end[];
static size_t used, blocks;

void *aligned_alloc(size_t alignment, size_t n) {
  size_t at = (used + alignment - 1) & ~(alignment - 1);
  if (n > (size_t)(arena_end - arena_start) - at) return NULL;
  used = at + n;
  blocks++;
  return arena_start + at;
}

void *malloc(size_t n) { return aligned_alloc(8, n); }

void free(void *p) {
  if (p && --blocks == 0) used = 0;
}

/* The test's own main is renamed: nobody here passes arguments. */
int test_main(int argc, char **argv);

int main(void) {
  char name[] = "test_kernels", *argv[] = {name, NULL};
  return test_main(1, argv);
}

void exit(int code) { semihosting_exit(code); }

int memcmp(const void *a, const void *b, size_t n) {
  const unsigned char *x = a, *y = b;
  for (size_t i = 0; i < n; i++)
    if (x[i] != y[i]) return x[i] < y[i] ? -1 : 1;
  return 0;
}

int strcmp(const char *a, const char *b) {
  while (*a && *a == *b) a++, b++;
  return (unsigned char)*a - (unsigned char)*b;
}

static void put_char(char c) { semihosting_put((char[2]){c, 0}); }

static void put_int(int value) {
  unsigned n = value < 0 ? 0u - (unsigned)value : (unsigned)value, unit = 1;
  if (value < 0) put_char('-');
  while (n / unit >= 10) unit *= 10;
  for (; unit; unit /= 10) put_char((char)('0' + n / unit % 10));
}

static void print(const char *format, va_list list) {
  for (; *format; format++) {
    if (*format != '%') put_char(*format);
    else if (*++format == 's') semihosting_put(va_arg(list, const char *));
    else put_int(va_arg(list, int));
  }
}

int printf(const char *format, ...) {
  va_list list;
  va_start(list, format);
  print(format, list);
  va_end(list);
  return 0;
}

int fprintf(int file, const char *format, ...) {
  va_list list;
  (void)file;
  va_start(list, format);
  print(format, list);
  va_end(list);
  return 0;
}
