#include "edgepos.h"

uint64_t ep_digest(uint64_t digest, const int32_t *values, size_t n) {
  for (size_t i = 0; i < n; i++) {
    uint32_t v = (uint32_t)values[i];
    for (int b = 0; b < 4; b++, v >>= 8) digest = (digest ^ (v & 255)) * 1099511628211u;
  }
  return digest;
}
