/* LINEAR of several tokens whose numbers are split into bytes. Included after neon_panel.h by files that define besides
 *   int8x16x4_t beside(int8x16x4_t v)      16 bytes of each of four tokens, in the order in which `multiply` takes them */
#ifndef EP_NEON_BYTES_H
#define EP_NEON_BYTES_H

static void arrange(int16_t *x, int32_t cols, int32_t tokens) {
  size_t apart = (size_t)cols, t = 0;
  for (; t + 4 <= (size_t)tokens; t += 4, x += 4 * apart)
    for (size_t c = 0; c < apart; c += 32) {
      int8x16x4_t v[4];
      UNROLL for (size_t k = 0; k < 4; k++) v[k] = split(x + k * apart + c);
      UNROLL for (size_t part = 0; part < 4; part++) {
        const int8x16x4_t all = {{v[0].val[part], v[1].val[part], v[2].val[part], v[3].val[part]}};
        vst1q_s8_x4((int8_t *)(x + part * apart + c), beside(all));
      }
    }
  for (size_t c = 0; c < ((size_t)tokens - t) * apart; c += 32) vst1q_s8_x4((int8_t *)(x + c), split(x + c));
}

#define LINEAR(name, form)                                              \
  TARGET static void linear_##name(int64_t *acc, const ep_tile *tile) { \
    size_t turned = (size_t)tile->tokens & ~(size_t)3;                  \
    by_panels(acc, tile, turned, form);                                 \
    ep_neon_dot_rows_##name(acc, tile, turned);                         \
  }

LINEAR(w8, W8)
LINEAR(w8g32, W8G32)
LINEAR(w4g32, W4G32)

static void set_linear(ep_kernels *table) {
  table->scratch = sizeof(panel);
  table->arrange = arrange;
  table->linear_w8 = EP_KERNEL(EP_FEATURE_W8, linear_w8);
  table->linear_w8g32 = EP_KERNEL(EP_FEATURE_W8G32, linear_w8g32);
  table->linear_w4g32 = EP_KERNEL(EP_FEATURE_W4G32, linear_w4g32);
}

#endif
