"""Quantized matrices: error bounds, extremes, and agreement of the vectorized mantissa with the exact one."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgepos import fixedpoint as fx
from edgepos.compiler.weights import dequantize, mantissa_shift_rows, quantize, row_scales


def exact(q, cols):
    """The weights in Python's own integers, scaled in float64 at the very end."""
    g = np.ones((len(q.w), q.w.shape[1] // 32), np.int64) if q.g is None else q.g.astype(np.int64)
    whole = q.w.astype(object) * np.repeat(g, 32, axis=1).astype(object)
    return np.array([[float(mpmath.ldexp(int(v) * int(m), -int(h))) for v in row[:cols]] for row, (m, h) in zip(whole, q.row)])


@pytest.mark.parametrize("form", ["w8", "w8g32"])
@pytest.mark.parametrize("cols", [1, 32, 44, 172])
def test_error_is_at_most_half_a_step(form, cols):
    rng = np.random.default_rng(cols)
    weight = (rng.standard_normal((9, cols)) * 10.0 ** rng.integers(-4, 4, (9, 1))).astype(np.float32)
    q = quantize(weight, form)
    assert q.w.dtype == np.int8 and q.row.dtype == np.int32 and q.w.shape[1] == -(-cols // 32) * 32
    assert np.abs(q.w.astype(int)).max() == 127 and not q.w[:, cols:].any()
    padded = np.zeros(q.w.shape)
    padded[:, :cols] = np.abs(weight)
    groups = padded.reshape(9, -1, 32).max(axis=2) / 127
    step = np.repeat(groups if form == "w8g32" else groups.max(axis=1, keepdims=True), 32 if form == "w8g32" else padded.shape[1], axis=1)
    # Half a step, and what the rounding of the group scale (15 bits of the row's largest) adds to 127 steps.
    slack = 127 * groups.max(axis=1, keepdims=True) / 32767 / 2 if form == "w8g32" else 127 * step[:, :cols] * 2.0**-31
    assert (np.abs(exact(q, cols) - weight) <= step[:, :cols] / 2 * (1 + 1e-9) + slack * 1.01).all()


@pytest.mark.parametrize("form", ["w8", "w8g32"])
def test_floats_are_what_the_integers_stand_for(form):
    weight = np.random.default_rng(1).standard_normal((5, 70)).astype(np.float32)
    q = quantize(weight, form)
    np.testing.assert_allclose(dequantize(q.w, q.g, q.row, 70), exact(q, 70), rtol=1e-7)


@pytest.mark.parametrize("cols", [1, 44, 172])
def test_the_fine_parts_leave_half_a_fine_step(cols):
    """w16g32: its coarse part is w8g32, bit for bit, and what is left is at most half a step of 1/127 of what the group left before."""
    rng = np.random.default_rng(cols)
    weight = (rng.standard_normal((1030, cols)) * 10.0 ** rng.integers(-4, 4, (1030, 1))).astype(np.float32)
    weight[3], weight[1029, 0] = 0, 1e30
    coarse, q = quantize(weight, "w8g32"), quantize(weight, "w16g32")
    assert (q.w[:1030] == coarse.w).all() and (q.g[:1030] == coarse.g).all() and (q.row == coarse.row).all() and len(q.w) == len(q.g) == 2060
    units = row_scales(q.row)[:, None]
    whole = sum(q.w[part].astype(np.float64) * np.repeat(q.g[part].astype(np.float64), 32, axis=1) for part in (slice(1030), slice(1030, None)))[:, :cols] * units
    left = np.zeros(coarse.w.shape)
    left[:, :cols] = np.abs(exact(coarse, cols) - weight)
    step = np.repeat(left.reshape(1030, -1, 32).max(axis=2) / 127, 32, axis=1)[:, :cols] + units
    assert (np.abs(whole - weight) <= step / 2 * (1 + 1e-6)).all() and np.abs(q.w[1030:].astype(int)).max() == (127 if cols > 1 else 0)
    np.testing.assert_allclose(dequantize(q.w, q.g, q.row, cols, q.form), whole, rtol=1e-7)


def test_group_scales_use_fifteen_bits_and_are_never_zero():
    weight = np.zeros((3, 96), np.float32)
    weight[0, :32], weight[0, 32:64] = 1.0, 1e-6
    weight[1, 5] = -7.0
    q = quantize(weight, "w8g32")
    assert q.g.tolist() == [[32767, 1, 1], [32767, 1, 1], [1, 1, 1]]
    assert q.w[1, 5] == -127 and not q.w[2].any() and q.row[2].tolist() == [0, 0]
    assert (np.abs(q.row[:2, 0]) >= 2**30).all()


@pytest.mark.parametrize("value", [np.float32(1e-45), np.finfo(np.float32).tiny, np.finfo(np.float32).max])
@pytest.mark.parametrize("form", ["w8", "w8g32"])
def test_extreme_magnitudes(form, value):
    weight = np.full((2, 32), value, np.float32)
    weight[1] = -weight[1]
    q = quantize(weight, form)
    assert (np.abs(q.row[:, 1]) <= 1023).all() and (q.w[0] == 127).all() and (q.w[1] == -127).all()
    np.testing.assert_allclose(exact(q, 32), weight.astype(np.float64), rtol=1e-8)


@settings(max_examples=300, deadline=None)
@given(st.lists(st.floats(min_value=0, max_value=1e300, allow_nan=False), min_size=1, max_size=8))
def test_mantissas_are_those_of_fixedpoint(values):
    found = mantissa_shift_rows(np.array(values))
    assert found.tolist() == [list(fx.mantissa_shift(mpmath.mpf(v))) for v in values]


def test_mantissa_carry():
    x = np.array([np.nextafter(2.0, 0), np.nextafter(1.0, 0), 1.0])
    assert mantissa_shift_rows(x).tolist() == [[2**30, 29], [2**30, 30], [2**30, 30]]
    assert row_scales(np.array([[2**30, 30]], np.int32)).tolist() == [1.0]
