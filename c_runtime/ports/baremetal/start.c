/* From reset to main for Cortex-M, and the two functions that the runtime wants of a C library. Symbols without a
 * definition here come from the linker script. */
#include <stddef.h>
#include <stdint.h>

#include "semihosting.h"

extern uint32_t data_load[], data_start[], data_end[], bss_start[], bss_end[], stack_top[];
int main(void);

/* Built with -fno-tree-loop-distribute-patterns: GCC would turn these loops into calls of themselves. Word by word where
 * both sides allow it, as the images that are copied are large. */
void *memcpy(void *restrict to, const void *restrict from, size_t n) {
  uint8_t *d = to;
  const uint8_t *s = from;
  if ((((uintptr_t)d | (uintptr_t)s) & 3) == 0)
    for (; n >= 4; n -= 4, d += 4, s += 4) *(uint32_t *)(void *)d = *(const uint32_t *)(const void *)s;
  while (n--) *d++ = *s++;
  return to;
}

void *memset(void *to, int value, size_t n) {
  uint8_t *d = to;
  while (n--) *d++ = (uint8_t)value;
  return to;
}

__attribute__((used)) static _Noreturn void start(void) {
  for (uint32_t *d = data_start, *s = data_load; d < data_end;) *d++ = *s++;
  for (uint32_t *d = bss_start; d < bss_end;) *d++ = 0;
  semihosting_exit(main());
}

/* Vector and floating-point registers are off after reset (CPACR, CP10 and CP11), and compilers use them anywhere. */
#if defined(__ARM_FP) || defined(__ARM_FEATURE_MVE)
#define REGISTERS_ON "ldr r1, =0xe000ed88\n\tldr r2, [r1]\n\torr r2, r2, #0xf00000\n\tstr r2, [r1]\n\tdsb\n\tisb\n\t"
#else
#define REGISTERS_ON ""
#endif

/* Some boards come up with another stack pointer (a boot loader), so it is set once more. */
__attribute__((naked, used)) void reset_handler(void) {
  __asm__ volatile("ldr r0, =stack_top\n\tmov sp, r0\n\t" REGISTERS_ON "bl start");
}

static void fault_handler(void) {
  semihosting_put("error the processor took a fault\n");
  semihosting_exit(99);
}

typedef void (*vector)(void);
__attribute__((section(".vectors"), used)) static const vector vectors[16] = {
    (vector)(uintptr_t)stack_top, reset_handler, fault_handler, fault_handler, fault_handler, fault_handler, fault_handler,
    fault_handler, 0, 0, 0, fault_handler, fault_handler, 0, fault_handler, fault_handler};
