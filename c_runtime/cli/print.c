/* printf of integers and texts. That of a C library prints floating point too: 13 kB of a program that is linked statically. */
#include <stdio.h>
#include <string.h>

#include "cli.h"

typedef struct line {
  FILE *to;
  size_t n;
  char text[256];
} line;

static void end(line *l) {
  if (l->n) fwrite(l->text, 1, l->n, l->to);
  l->n = 0;
}

static void put(line *l, const char *text, size_t n) {
  for (size_t i = 0; i < n; i++) {
    if (l->n == sizeof l->text) end(l);
    l->text[l->n++] = text[i];
  }
}

static void put_number(line *l, uint64_t value, uint32_t base, int width) {
  char text[64], *last = text + sizeof text, *at = last;
  do *--at = "0123456789abcdef"[value % base];
  while ((value /= base) != 0 || (last - at < width && at > text));
  put(l, at, (size_t)(last - at));
}

void print_args(FILE *to, const char *format, va_list args) {
  line l = {.to = to};
  for (const char *at = format; *at; at++) {
    size_t plain = strcspn(at, "%");
    put(&l, at, plain);
    at += plain;
    if (!*at) break;
    int width = 0, longs = 0, of_size = 0;
    for (at++; *at >= '0' && *at <= '9'; at++) width = 10 * width + (*at - '0');
    if (!strncmp(at, "I64", 3)) at += 3, longs = 2; /* of Windows */
    for (; *at == 'l'; at++) longs++;
    if (*at == 'z') at++, of_size = 1;
    if (*at == 's') {
      const char *text = va_arg(args, const char *);
      put(&l, text, strlen(text));
    } else if (*at == 'd') {
      int64_t value = longs > 1 ? va_arg(args, long long) : longs ? va_arg(args, long) : va_arg(args, int);
      if (value < 0) put(&l, "-", 1);
      put_number(&l, value < 0 ? 0 - (uint64_t)value : (uint64_t)value, 10, width);
    } else {
      uint64_t value = of_size ? va_arg(args, size_t) : longs > 1 ? va_arg(args, unsigned long long) : longs ? va_arg(args, unsigned long) : va_arg(args, unsigned);
      put_number(&l, value, *at == 'x' ? 16 : 10, width);
    }
  }
  end(&l);
}

void print(FILE *to, const char *format, ...) {
  va_list args;
  va_start(args, format);
  print_args(to, format, args);
  va_end(args);
}

void print_decimal(FILE *to, double value, int digits) {
  uint64_t scale = 1;
  for (int i = 0; i < digits; i++) scale *= 10;
  if (!(value < 1e18)) { /* behind what a number of 64 bits has room for */
    print(to, "1%018u or more", 0u);
    return;
  }
  uint64_t whole = (uint64_t)value, rest = (uint64_t)((value - (double)whole) * (double)scale + 0.5);
  line l = {.to = to};
  put_number(&l, whole + rest / scale, 10, 1);
  put(&l, ".", 1);
  put_number(&l, rest % scale, 10, digits);
  end(&l);
}
