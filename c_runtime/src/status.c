#include "edgepos.h"

const char *ep_status_text(ep_status st) {
  switch (st) {
    case EP_OK: return "no error";
    case EP_ERR_ARGUMENT: return "a pointer is null or a parameter is out of its range";
    case EP_ERR_ALIGNMENT: return "the image or the arena is not aligned to 64 bytes";
    case EP_ERR_TRUNCATED: return "the file ends before what it announces";
    case EP_ERR_MAGIC: return "not a GGUF file";
    case EP_ERR_VERSION: return "a version of GGUF, format, program or arithmetic that this runtime does not know";
    case EP_ERR_FORMAT: return "the file contradicts the bundle format";
    case EP_ERR_PROGRAM: return "the program in the file is not valid";
    case EP_ERR_ARENA: return "the arena is too small for this configuration";
    case EP_ERR_TOKEN: return "a token id is outside the vocabulary";
    case EP_ERR_POSITION: return "positions must not be negative, must ascend and must be in the model's table if it has one";
    case EP_ERR_CONTEXT: return "more tokens than there is room for: in the context or, if attention is bidirectional, in one batch of an empty session";
    case EP_ERR_STATE: return "no token has been evaluated, or the saved state is not of this model";
    case EP_ERR_BUFFER: return "the buffer is too small";
    case EP_ERR_SELFTEST: return "the self-test digest differs: this target does not compute what the bundle says";
    case EP_ERR_TOKENIZER: return "the model carries no tokenizer";
    case EP_ERR_OUTPUT: return "the model gives an embedding and no logits, or logits and no embedding";
    case EP_ERR_CHAT: return "the model carries no chat form";
    case EP_ERR_ROLE: return "the model's chat form has no message of this role here, or not an empty one";
    case EP_ERR_PRECISION: return "how an increment rounds is not decided within 2^-148 turns: take it from edgepos.positions";
    case EP_ERR_INPUT: return "the model reads an image and no tokens, or tokens and no image";
  }
  return "unknown status";
}
