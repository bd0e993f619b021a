"""The tables of learned relative biases: T5's bucket rule, and the learned values in integers."""

from __future__ import annotations

import numpy as np

from .bias_plan import LearnedBiasPlan
from .relative import RelativeBias, T5Bias
from .table_file import CFunction, TableFile

_BUCKET_BODY = """\
  uint32_t far = key_minus_query < 0 ? 0u - (uint32_t)key_minus_query : {after};
  uint32_t bucket = far < EDGEPOS_T5_BUCKET_EXACT ? far : EDGEPOS_T5_BUCKET_EXACT;
  uint32_t k;
  for (k = 0; k < EDGEPOS_T5_BUCKET_THRESHOLDS && far >= edgepos_t5_bucket_thresholds[k]; k++) bucket++;
{side}  return bucket;
"""
NEVER = 2**32 - 1  # a threshold no distance reaches: C has no empty arrays


def t5_bucket_file(spec: T5Bias) -> TableFile:
    """The bucket rule as thresholds and a function."""
    thresholds = spec.thresholds or (NEVER,)
    about = (
        "T5's relative position buckets by whole numbers. Written by EdgePos.",
        f"num_buckets {spec.num_buckets}, max_distance {spec.max_distance}, {'bidirectional' if spec.bidirectional else 'causal'}.",
        "Equal to the floor of the exact logarithm at every distance.",
        "Use: bias = table[edgepos_t5_bucket_of(key_position - query_position)][head];",
    )
    side = "  if (key_minus_query > 0) bucket += EDGEPOS_T5_BUCKET_SIDE;\n" if spec.bidirectional else ""
    after = "(uint32_t)key_minus_query" if spec.bidirectional else "0u"
    function = CFunction(
        "Bucket of key position - query position.",
        "uint32_t edgepos_t5_bucket_of(int32_t key_minus_query)",
        _BUCKET_BODY.format(after=after, side=side),
    )
    return TableFile(
        "t5_bucket",
        about,
        {"BUCKETS": spec.num_buckets, "SIDE": spec.side_buckets, "EXACT": spec.exact_buckets, "THRESHOLDS": len(thresholds)},
        {"thresholds": np.array(thresholds, dtype=np.uint32)},
        {"thresholds": ("THRESHOLDS",)},
        {"kind": "t5", "spec": spec.to_json(), "arrays": {"thresholds": "[k]"}},
        (function,),
    )


def bias_tables(spec: T5Bias | RelativeBias, weights) -> list[tuple[LearnedBiasPlan, TableFile]]:
    """The plan and file of a learned table [rows, heads]."""
    plan = LearnedBiasPlan(spec, weights)
    return [(plan, _bias_file(plan, weights))]


def bias_error(plan: LearnedBiasPlan, weights) -> float:
    """Largest error found over every entry, in log2 units."""
    return float(np.abs(plan.table * plan.scale - np.asarray(weights, dtype=np.float64) / np.log(2)).max())


def _difference(spec: RelativeBias) -> str:
    return "query - key" if spec.query_minus_key else "key - query"


def _bias_file(plan: LearnedBiasPlan, weights) -> TableFile:
    spec, stem = plan.spec, f"{plan.spec.encoding}_bias"
    upper = f"EDGEPOS_{stem.upper()}"
    where = (
        f"num_buckets {spec.num_buckets}, max_distance {spec.max_distance}: row = edgepos_t5_bucket_of(key - query)."
        if isinstance(spec, T5Bias)
        else f"extents {list(spec.extents)}: row = clipped {_difference(spec)} plus the extent, row-major."
    )
    about = (
        "Learned attention bias for integer scores in log2 units with 16 fractional bits. Written by EdgePos.",
        where,
        f"rows = value * log2(e) * 2^16; error at most {upper}_BOUND in log2 units, {upper}_BOUND_WEIGHT relative in a weight, proven.",
        f"Use: score += edgepos_{stem}_rows[row][head];",
    )
    macros = {"ROWS": spec.rows, "HEADS": plan.table.shape[1], "BOUND": plan.bound, "BOUND_WEIGHT": plan.bound_weight}
    return TableFile(
        stem,
        about,
        macros,
        {"rows": plan.table},
        {"rows": ("ROWS", "HEADS")},
        {"kind": spec.encoding, **plan.certificate(), "arrays": {"rows": "[row][head]", "source": "[row][head]"}},
        learned=np.asarray(weights, dtype=np.float64),
    )
