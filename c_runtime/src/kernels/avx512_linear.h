/* What LINEAR with AVX-512 is made of, with inputs in groups or not. */
#ifndef EP_AVX512_LINEAR_H
#define EP_AVX512_LINEAR_H

#include "avx512.h"

#ifdef EP_HAS_AVX512
enum { W8, W8G32, W4G32 };
enum { STRIPE = 4096 }; /* columns at a time: their group products add up to less than 2^7 * 2^42, so 52 bits hold them */
enum { AHEAD = 8192 };  /* bytes of weights that are asked for before they are needed, into L2: L1 can wait for too few lines */

/* Asks for the scales that lie behind n of them as far as AHEAD bytes of weights go, of which each is for so many bytes. */
INLINE void fetch_scales(const int16_t *g, size_t n, size_t bytes) {
  const char *later = (const char *)(g + AHEAD / bytes);
  for (size_t i = 0; i < 2 * n; i += 64) _mm_prefetch(later + i, _MM_HINT_T1);
}

/* How many groups of a row are taken at a time, `most` at most: parts of one size as far as that goes. */
INLINE size_t part_of_row(size_t groups, size_t most) {
  size_t parts = (groups + most - 1) / most;
  return (groups + parts - 1) / parts;
}

/* 128 is added to weights. */
INLINE __m512i flip(__m512i w) { return _mm512_xor_si512(w, _mm512_set1_epi8(-128)); }

/* Sums of pairs of dwords where vpmadd52luq reads them, nothing beside them. */
INLINE __m512i add_pairs(__m512i s) { return _mm512_maskz_add_epi32(0x5555, s, odd(s)); }

/* The sums of one or two rows, whose eight parts hold 52 bits of them, are stored, or added to what is there. */
INLINE void put_rows(int64_t *out, const __m512i sum[2], int rows, int more) {
  __m512i s = _mm512_add_epi64(_mm512_unpacklo_epi64(sum[0], sum[1]), _mm512_unpackhi_epi64(sum[0], sum[1]));
  __m256i t = _mm256_add_epi64(_mm512_castsi512_si256(s), _mm512_extracti64x4_epi64(s, 1));
  __m128i all = _mm_add_epi64(_mm256_castsi256_si128(t), _mm256_extracti128_si256(t, 1));
  all = _mm_srai_epi64(_mm_slli_epi64(all, 12), 12);
  __mmask8 there = (__mmask8)first((size_t)rows);
  if (more) all = _mm_add_epi64(all, _mm_maskz_loadu_epi64(there, out));
  _mm_mask_storeu_epi64(out, there, all);
}

/* A group of a row as bytes, in the order of columns. */
INLINE __m256i row32(const int8_t *w, int form) {
  if (form != W4G32) return load256(w);
  __m256i v = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)w)); /* two codes in each 16 bits */
  return _mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi16(v, 4)), _mm256_set1_epi8(15));
}
#endif

#endif
