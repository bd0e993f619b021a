#include "semihosting.h"

enum { SYS_WRITE0 = 0x04, SYS_CLOCK = 0x10, SYS_EXIT_EXTENDED = 0x20 };
enum { ADP_STOPPED_APPLICATION_EXIT = 0x20026 };

static uint32_t call(uint32_t number, const void *parameters) {
  register uint32_t r0 __asm__("r0") = number;
  register const void *r1 __asm__("r1") = parameters;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
  return r0;
}

void semihosting_put(const char *text) { call(SYS_WRITE0, text); }

uint32_t semihosting_centiseconds(void) { return call(SYS_CLOCK, 0); }

void semihosting_exit(int code) {
  const uint32_t parameters[2] = {ADP_STOPPED_APPLICATION_EXIT, (uint32_t)code};
  for (;;) call(SYS_EXIT_EXTENDED, parameters);
}
