/* What is in this build. One for a single model (edgepos build --embed) names what that model uses, as bits: opcodes, kinds of tokenizers,
 * pre-tokenizers and normalizers (docs/bundle.md). The compiler drops what is left out, and ep_open refuses what would need it. */
#ifndef EP_INCLUDED_H
#define EP_INCLUDED_H

#ifndef EDGEPOS_OPERATORS
#define EDGEPOS_OPERATORS 0xffffffffu
#endif
#ifndef EDGEPOS_TOKENIZERS
#define EDGEPOS_TOKENIZERS 0xffffffffu
#endif
#ifndef EDGEPOS_PRETOKENIZERS
#define EDGEPOS_PRETOKENIZERS 0xffffffffu
#endif
#ifndef EDGEPOS_NORMALIZERS
#define EDGEPOS_NORMALIZERS 0xffffffffu
#endif

#define EP_HAS_OPERATOR(code) ((EDGEPOS_OPERATORS >> (code) & 1) != 0)
#define EP_HAS_TOKENIZER(kind) ((EDGEPOS_TOKENIZERS >> (kind) & 1) != 0)
#define EP_HAS_PRETOKENIZER(pre) ((EDGEPOS_PRETOKENIZERS >> (pre) & 1) != 0)
#define EP_HAS_NORMALIZER(normalizer) ((EDGEPOS_NORMALIZERS >> (normalizer) & 1) != 0)

#endif
