"""Tables and compile-time numbers against float64 and exact rational arithmetic."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from edgepos.compiler import activations, constants
from edgepos.errors import UnsupportedError
from edgepos.positions import Alibi, Rope

FLOATS = {
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "gelu_tanh": lambda x: x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))) / 2,
    "relu": lambda x: max(x, 0.0),
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)),
    "tanh": math.tanh,
}


@pytest.mark.parametrize("name", sorted(FLOATS))
def test_tables_hold_the_function(name):
    table, bits = activations.table(name), activations.fraction_bits(name)
    assert table.dtype == np.int32 and table.shape == (2049,)
    want = np.array([FLOATS[name]((j - 1024) / 64) for j in range(2049)])
    found = table / 2.0**bits
    assert np.abs(found - want)[1:-1].max() <= 0.51 * 2.0**-bits + 1e-15
    ends = {"sigmoid": (0, 1), "tanh": (-1, 1)}.get(name, (0, 16))
    assert (found[0], found[-1]) == ends


def test_every_function_of_the_compiler_is_tested():
    assert set(FLOATS) == set(activations.FUNCTIONS)


def value(m: int, n: int) -> Fraction:
    return Fraction(m) / Fraction(2) ** n


def close(found: Fraction, want: float, relative: float = 2e-9) -> bool:
    return abs(float(found) / want - 1) <= relative


def test_gamma_carries_the_root_of_the_width():
    gamma = np.array([0.5, -2.0, 1e-3, 1.25], np.float32)
    integers, bits = constants.gamma_integers(gamma)
    assert 2**30 <= np.abs(integers.astype(np.int64)).max() < 2**31
    np.testing.assert_allclose(integers * 2.0**-bits, gamma.astype(np.float64) * 2, atol=2.0 ** -(bits + 1))
    np.testing.assert_allclose(constants.gamma_floats(integers, bits), gamma, rtol=1e-6)
    assert constants.gamma_integers(np.zeros(3, np.float32))[0].tolist() == [0, 0, 0]


@pytest.mark.parametrize("f", [-16, 0, 14, 26])
def test_epsilon(f):
    assert close(value(*constants.epsilon(1e-5, 64, False, f)), 1e-5 * 64 * 4.0**f)
    assert close(value(*constants.epsilon(1e-5, 64, True, f)), 1e-5 * 64**3 * 4.0**f)
    assert constants.epsilon(0.0, 64, False, f) == (0, 0)


def test_scores_are_log2_units_with_sixteen_bits():
    assert close(value(*constants.score(0.125, 16, 24, 20)), 0.125 * math.log2(math.e) * 65536 / 2.0**44)
    assert close(value(*constants.score(0.125, 8, 24, 20)), 0.125 * math.log2(math.e) * 65536 / 2.0**44 / 127)


def test_amplitude_undoes_the_scale_of_the_table():
    assert close(value(*constants.amplitude(Rope(8), 20, 23)), 8 / 32767)


def test_increments_are_turns_of_the_inverse_frequencies():
    words = constants.increments(Rope(8, theta=10000.0)).view(np.uint32).astype(np.uint64)
    turns = (words[:, 0] | words[:, 1] << np.uint64(32)) / 2.0**64
    np.testing.assert_allclose(turns, 10000.0 ** (-np.arange(4) / 4) / (2 * np.pi), rtol=1e-15)


@pytest.mark.parametrize("context, w", [(1, 23), (512, 23), (4096, 23), (4097, 24), (8192, 24), (2**18, 29)])
def test_probability_bits(context, w):
    assert constants.probability_bits(context) == w
    assert w + 15 + (context - 1).bit_length() <= 62


@pytest.mark.parametrize("heads", [1, 6, 8, 12, 71])
def test_alibi_slopes_of_the_paper_are_exact(heads):
    slopes = Alibi(heads).slopes().astype(np.float32)
    integers, shift = constants.alibi_slopes(slopes, 2**18)
    assert shift == 15 and constants.alibi_spec(slopes) == Alibi(heads)
    with mpmath.workprec(100):
        want = [int(mpmath.floor(mpmath.mpf(float(s)) / mpmath.log(2) * 2**31 + 0.5)) for s in Alibi(heads).slopes()]
    assert integers.view(np.uint32).tolist() == want


def test_other_slopes_keep_their_float32_value():
    slopes = np.array([0.3, 3.0], np.float32)
    integers, shift = constants.alibi_slopes(slopes, 2**18)
    assert shift == 13
    np.testing.assert_allclose(integers.view(np.uint32) / 2.0 ** (16 + shift), slopes * math.log2(math.e), rtol=1e-7)


def test_slopes_of_very_different_sizes():
    slopes = np.array([1e-7, 0.1, 3e30], np.float32)
    integers, shift = constants.alibi_slopes(slopes, 4096)
    assert shift == 1 and integers.view(np.uint32)[2] == 2**31  # saturates at the first distance, as 3e30 does
    for slope, integer in zip(slopes[:2], integers.view(np.uint32)):
        assert abs(int(integer) / 2**17 * 4096 - float(slope) * math.log2(math.e) * 4096) <= 2**-6
    with pytest.raises(UnsupportedError, match=r"1e-07 to 3e\+30.*at distance 100000"):
        constants.alibi_slopes(slopes, 100_000)


def test_a_bias_that_does_not_fit_names_its_tensor():
    with pytest.raises(UnsupportedError, match="'b'"):
        constants.fixed_integers(np.array([1e6], np.float32), 20, "b")
    assert constants.fixed_integers(np.array([-1.5, 0.25], np.float32), 1, "b").tolist() == [-3, 1]
