"""Float position tables against mpmath and against the ALiBi paper's published code."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest

from edgepos.export.position_tables import alibi_slopes, rope_tables
from edgepos.positions import Rope


@pytest.mark.parametrize(("theta", "head_dim"), [(10000.0, 8), (100000.0, 64), (500.0, 10)])
def test_rope_tables_against_mpmath(theta, head_dim):
    cos, sin = rope_tables(Rope(head_dim, theta=theta), 2000)
    assert cos.shape == sin.shape == (2000, head_dim // 2) and cos.dtype == sin.dtype == np.float32
    with mpmath.workdps(40):
        for position in (0, 1, 77, 1999):
            for i in range(head_dim // 2):
                angle = position * mpmath.mpf(theta) ** (-mpmath.mpf(2 * i) / head_dim)
                assert abs(cos[position, i] - mpmath.cos(angle)) <= 2.0**-24
                assert abs(sin[position, i] - mpmath.sin(angle)) <= 2.0**-24


def paper_slopes(n: int) -> list[float]:
    """get_slopes of github.com/ofirpress/attention_with_linear_biases, fairseq/models/transformer.py."""

    def power_of_2(n: int) -> list[float]:
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start * start**i for i in range(n)]

    if math.log2(n).is_integer():
        return power_of_2(n)
    closest = 2 ** math.floor(math.log2(n))
    return power_of_2(closest) + paper_slopes(2 * closest)[0::2][: n - closest]


@pytest.mark.parametrize("heads", range(1, 50))
def test_alibi_slopes_are_those_of_the_paper(heads):
    slopes = alibi_slopes(heads)
    assert slopes.shape == (heads,) and slopes.dtype == np.float32
    np.testing.assert_allclose(slopes, paper_slopes(heads), rtol=2.0**-23)


def test_alibi_slopes_of_eight_heads_are_exact():
    assert alibi_slopes(8).tolist() == [2.0 ** -(h + 1) for h in range(8)]
