#include "edgepos.h"

/* Sentences are a kilobyte: a program that is to be small (edgepos build --small, without an operating system) says the names of edgepos.h. */
#ifdef EDGEPOS_SHORT_TEXTS
#define CASE(name, text) \
  case name: return #name
#else
#define CASE(name, text) \
  case name: return text
#endif

const char *ep_status_text(ep_status st) {
  switch (st) {
    CASE(EP_OK, "no error");
    CASE(EP_ERR_ARGUMENT, "a pointer is null or a parameter is out of its range");
    CASE(EP_ERR_ALIGNMENT, "the image or the arena is not aligned to 64 bytes");
    CASE(EP_ERR_TRUNCATED, "the file ends before what it announces");
    CASE(EP_ERR_MAGIC, "not a GGUF file");
    CASE(EP_ERR_VERSION, "a version of GGUF, format, program or arithmetic that this runtime does not know");
    CASE(EP_ERR_FORMAT, "the file contradicts the bundle format");
    CASE(EP_ERR_PROGRAM, "the program in the file is not valid");
    CASE(EP_ERR_ARENA, "the arena is too small for this configuration");
    CASE(EP_ERR_TOKEN, "a token id is outside the vocabulary");
    CASE(EP_ERR_POSITION, "positions must not be negative, must ascend and must be in the model's table if it has one");
    CASE(EP_ERR_CONTEXT, "more tokens than there is room for: in the context or, if attention is bidirectional, in one batch of an empty session");
    CASE(EP_ERR_STATE, "no token has been evaluated, or the saved state is not of this model");
    CASE(EP_ERR_BUFFER, "the buffer is too small");
    CASE(EP_ERR_SELFTEST, "the self-test digest differs: this target does not compute what the bundle says");
    CASE(EP_ERR_TOKENIZER, "the model carries no tokenizer");
    CASE(EP_ERR_OUTPUT, "the model gives an embedding and no logits, or logits and no embedding");
    CASE(EP_ERR_CHAT, "the model carries no chat form");
    CASE(EP_ERR_ROLE, "the model's chat form has no message of this role here, or not an empty one");
    CASE(EP_ERR_PRECISION, "how an increment rounds is not decided within 2^-148 turns: take it from edgepos.positions");
    CASE(EP_ERR_INCLUDED, "this program was built for another model and leaves out what this one needs: build it for this model");
    CASE(EP_ERR_INPUT, "the model reads an image and no tokens, or tokens and no image");
  }
  return "unknown status";
}
