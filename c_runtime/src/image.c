/* Programs that read an image: PATCHES, and the calls that take pixels in the place of tokens. */
#include "session.h"

size_t ep_image_bytes(const ep_program *p) {
  const int32_t *op = p->patches + EP_O_P0;
  return (size_t)op[EP_I_CHANNELS] * (size_t)op[EP_I_HEIGHT] * (size_t)op[EP_I_WIDTH];
}

void ep_patches(ep_session *s, const int32_t *op, int32_t n) {
  const int32_t *how = op + EP_O_P0;
  int32_t patch = how[EP_I_PATCH], across = how[EP_I_WIDTH] / patch, first = how[EP_I_FIRST], zero = how[EP_I_ZERO];
  size_t line = (size_t)(patch * how[EP_I_CHANNELS]), row = (size_t)how[EP_I_WIDTH] * (size_t)how[EP_I_CHANNELS];
  for (int32_t t = 0; t < n; t++) {
    int32_t *y = ep_value(s, op[EP_O_OUT], t);
    if (t < first) {
      memset(y, 0, (size_t)patch * line * sizeof *y);
      continue;
    }
    int32_t at = t - first;
    const uint8_t *from = s->pixels + (size_t)(at / across * patch) * row + (size_t)(at % across) * line;
    for (int32_t i = 0; i < patch; i++, from += row, y += line)
      for (size_t k = 0; k < line; k++) y[k] = from[k] - zero;
  }
}

void ep_eval_pixels(ep_session *s, const uint8_t *pixels, uint64_t *digest) {
  int32_t n = s->program.context;
  for (int32_t i = 0; i < n; i++) s->positions[i] = i;
  s->length = 0;
  s->pixels = pixels;
  ep_eval_checked(s, NULL, n, NULL, digest);
  s->pixels = NULL;
}

ep_status ep_eval_image(ep_session *s, const uint8_t *pixels, size_t bytes) {
  if (!s || !pixels) return EP_ERR_ARGUMENT;
  if (!s->program.patches) return EP_ERR_INPUT;
  if (bytes != ep_image_bytes(&s->program)) return EP_ERR_BUFFER;
  ep_eval_pixels(s, pixels, NULL);
  return EP_OK;
}
