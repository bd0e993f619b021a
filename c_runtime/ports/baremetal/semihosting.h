/* Arm semihosting: a debugger or an emulator does the input and output (calls and numbers: "Semihosting for AArch32 and
 * AArch64", Arm). On a board without a debugger, put a UART here instead. */
#ifndef EDGEPOS_SEMIHOSTING_H
#define EDGEPOS_SEMIHOSTING_H

#include <stdint.h>

void semihosting_put(const char *text);
uint32_t semihosting_centiseconds(void);
_Noreturn void semihosting_exit(int code);

#endif
