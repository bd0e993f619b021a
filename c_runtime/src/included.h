/* What is in this build. One for a single model (edgepos build --embed) names what that model uses, as bits: opcodes, kinds of tokenizers,
 * pre-tokenizers and normalizers (docs/bundle.md), and the features below. The compiler drops what is left out, and ep_open refuses what
 * would need it. EDGEPOS_NATIVE: only the kernels for what the compiler was told to assume, whatever ep_config.cpu says. */
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

#ifndef EDGEPOS_FEATURES
#define EDGEPOS_FEATURES 0xffffffffu
#endif

/* Of LINEAR: formats of weights, then those with inputs of 8 bits in groups; of ATTENTION; of the head. */
#define EP_FEATURE_W8 0x1u
#define EP_FEATURE_W8G32 0x2u
#define EP_FEATURE_W4G32 0x4u
#define EP_FEATURE_IN8_W8 0x8u
#define EP_FEATURE_IN8_W8G32 0x10u
#define EP_FEATURE_IN8_W4G32 0x20u
#define EP_FEATURES_IN8 (EP_FEATURE_IN8_W8 | EP_FEATURE_IN8_W8G32 | EP_FEATURE_IN8_W4G32)
#define EP_FEATURE_KV16 0x40u
#define EP_FEATURE_KV8 0x80u
#define EP_FEATURE_ALIBI 0x100u
#define EP_FEATURE_BIAS 0x200u
#define EP_FEATURE_SOFTCAP 0x400u
#define EP_FEATURE_CHAT 0x800u
/* Of ROPE, NORM (that of LayerNorm) and LINEAR. */
#define EP_FEATURE_ROPE_HALF 0x1000u
#define EP_FEATURE_ROPE_INTERLEAVED 0x2000u
#define EP_FEATURES_ROPE (EP_FEATURE_ROPE_HALF | EP_FEATURE_ROPE_INTERLEAVED)
#define EP_FEATURE_CENTER 0x4000u
#define EP_FEATURE_LINEAR_BIAS 0x8000u
#define EP_FEATURE_W16G32 0x10000u /* beside that of w8g32 */
#define EP_FEATURE_ENCODE 0x20000u /* text to ids: a program without it only prints them, and leaves the tables for it alone */

#define EP_HAS(features) (((features) & ~EDGEPOS_FEATURES) == 0)
#define EP_HAS_ANY(features) (((features) & EDGEPOS_FEATURES) != 0)
#define EP_HAS_OPERATOR(code) ((EDGEPOS_OPERATORS >> (code) & 1) != 0)
#define EP_HAS_TOKENIZER(kind) ((EDGEPOS_TOKENIZERS >> (kind) & 1) != 0)
#define EP_HAS_PRETOKENIZER(pre) ((EDGEPOS_PRETOKENIZERS >> (pre) & 1) != 0)
#define EP_HAS_NORMALIZER(normalizer) ((EDGEPOS_NORMALIZERS >> (normalizer) & 1) != 0)

#endif
