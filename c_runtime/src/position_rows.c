/* Position primitives that need no trigonometry: ALiBi over a row of scores, T5 buckets, rows of tables. */
#include "edgepos.h"

#include "fixed.h"

ep_status ep_alibi_row(int32_t *scores, const int32_t *key_positions, int32_t n, int32_t position, uint32_t slope, int32_t shift,
                       int symmetric) {
  if (n < 0 || (n > 0 && !scores)) return EP_ERR_ARGUMENT;
  if (position < 0) return EP_ERR_POSITION;
  for (int32_t j = 0; key_positions && j < n; j++)
    if (key_positions[j] < 0) return EP_ERR_POSITION;
  for (int32_t j = 0; j < n; j++) {
    int32_t away = position - (key_positions ? key_positions[j] : j);
    if (away < 0) away = symmetric ? -away : 0;
    scores[j] = ep_sat32(scores[j] - ep_alibi_bias(slope, (uint32_t)away, shift));
  }
  return EP_OK;
}

int32_t ep_t5_bucket(const uint32_t *thresholds, int32_t n, int32_t exact, int32_t side, int32_t key_minus_query) {
  int after = key_minus_query > 0;
  if (exact < 0) exact = 0;
  if (side < 0) side = 0;
  int64_t distance = after ? (side > 0 ? key_minus_query : 0) : -(int64_t)key_minus_query, bucket = distance;
  if (distance >= exact) {
    bucket = exact;
    for (int32_t k = 0; thresholds && k < n && distance >= thresholds[k]; k++) bucket++;
  }
  return ep_sat32(bucket + (after ? side : 0));
}

ep_status ep_relative_row(const int32_t *difference, const int32_t *extents, int32_t axes, int clip, int32_t *row) {
  if (!difference || !extents || !row || axes < 1 || axes > EP_MAX_AXES) return EP_ERR_ARGUMENT;
  int64_t rows = 1, at = 0;
  for (int32_t a = 0; a < axes; a++) {
    int64_t extent = extents[a];
    if (extent < 0 || (rows *= 2 * extent + 1) > INT32_MAX) return EP_ERR_ARGUMENT;
  }
  for (int32_t a = 0; a < axes; a++) {
    int64_t extent = extents[a], d = difference[a];
    if (!clip && (d > extent || d < -extent)) return EP_ERR_POSITION;
    d = d > extent ? extent : d < -extent ? -extent : d;
    at = at * (2 * extent + 1) + d + extent;
  }
  *row = (int32_t)at;
  return EP_OK;
}

ep_status ep_learned_rows(const ep_learned *how, const int32_t *ids, int32_t n, int32_t start, int32_t *rows) {
  if (!how || n < 0 || start < 0 || (n > 0 && !rows) || how->pad_id < -1 || (n > 0 && how->pad_id >= 0 && !ids)) return EP_ERR_ARGUMENT;
  int64_t places = (int64_t)how->count - how->offset;
  if (how->offset < (how->pad_id >= 0) || places < 1 || how->modulo < 0 || how->modulo > places) return EP_ERR_ARGUMENT;
  int64_t end = start;
  for (int32_t i = 0; i < n; i++) end += how->pad_id < 0 || ids[i] != how->pad_id;
  if (how->modulo == 0 && end > start && end > places) return EP_ERR_POSITION;
  int64_t position = start;
  for (int32_t i = 0; i < n; i++) {
    if (how->pad_id >= 0 && ids[i] == how->pad_id) {
      rows[i] = how->offset - 1;
    } else {
      rows[i] = (int32_t)(how->offset + (how->modulo ? position % how->modulo : position));
      position++;
    }
  }
  return EP_OK;
}

ep_status ep_table_row(const void *table, int32_t rows, size_t row_bytes, int32_t row, const void **found) {
  if (!table || !found) return EP_ERR_ARGUMENT;
  if (row < 0 || row >= rows) return EP_ERR_POSITION;
  *found = (const uint8_t *)table + (size_t)row * row_bytes;
  return EP_OK;
}

ep_status ep_table_row_s8(const int8_t *table, int32_t rows, int32_t width, int32_t row, int16_t *out) {
  if (!table || width < 0 || (width > 0 && !out)) return EP_ERR_ARGUMENT;
  if (row < 0 || row >= rows) return EP_ERR_POSITION;
  const int8_t *from = table + (size_t)row * (size_t)width;
  for (int32_t i = 0; i < width; i++) out[i] = from[i];
  return EP_OK;
}
