#ifndef BARE_STDLIB_H
#define BARE_STDLIB_H
#include <stddef.h>
void *malloc(size_t n);
void *aligned_alloc(size_t alignment, size_t n);
void free(void *p);
_Noreturn void exit(int code);
#endif
