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


def bias_tables(
    spec: T5Bias | RelativeBias, weights, bits: tuple[int, ...], per_tensor: bool = False
) -> list[tuple[LearnedBiasPlan, TableFile]]:
    """The plans and files of a learned table [rows, heads], or [layers, rows, heads]: int32, then those of `bits`, with a factor per head or
    for the tensor."""
    plans = [LearnedBiasPlan(spec, weights, b, "tensor" if per_tensor else "head") for b in (32, *bits)]
    return [(plan, _bias_file(plan, weights)) for plan in plans]


def bias_error(plan: LearnedBiasPlan, weights) -> float:
    """Largest error found over every entry, in log2 units."""
    scale = plan.scale if plan.factors is None else plan.scale[..., None, :]
    return float(np.abs(plan.table * scale - np.asarray(weights, dtype=np.float64) / np.log(2)).max())


def _difference(spec: RelativeBias) -> str:
    return "query - key" if spec.query_minus_key else "key - query"


def _where(spec: T5Bias | RelativeBias) -> str:
    if isinstance(spec, T5Bias):
        return f"num_buckets {spec.num_buckets}, max_distance {spec.max_distance}: row = edgepos_t5_bucket_of(key - query)."
    return f"extents {list(spec.extents)}: row = clipped {_difference(spec)} plus the extent, row-major."


_FACTOR_BODY = """\
  int64_t product = (int64_t)entry * factor[0];
  int32_t shift = factor[1] - 16;
  if (product == 0 || shift > 46) return 0; /* below half a unit */
  product += ((int64_t)1 << (shift - 1)) + ((int64_t)1 << 47); /* rounded half up, never negative */
  return (int32_t)((product >> shift) - ((int64_t)1 << (47 - shift)));
"""


def _bias_file(plan: LearnedBiasPlan, weights) -> TableFile:
    spec = plan.spec
    stem = f"{spec.encoding}_bias" if plan.factors is None else f"{spec.encoding}_int{plan.bits}"
    upper = f"EDGEPOS_{stem.upper()}"
    layers = [None] if spec.layers is None else list(range(spec.layers))
    macros = {"ROWS": spec.rows, "HEADS": plan.heads, "BOUND": plan.bound, "BOUND_WEIGHT": plan.bound_weight}
    arrays, shapes, indices = {}, {}, {"source": "[row][head]" if spec.layers is None else "[layer][row][head]"}
    for layer in layers:
        table, factors = plan.layer(layer)
        name, of = ("", "") if layer is None else (f"_layer{layer}", f", layer {layer}")
        arrays[f"rows{name}"], shapes[f"rows{name}"], indices[f"rows{name}"] = table, ("ROWS", "HEADS"), f"[row][head]{of}"
        if factors is not None:
            arrays[f"factors{name}"], shapes[f"factors{name}"] = factors, ("FACTORS", "FACTOR_WORDS")
            indices[f"factors{name}"] = f"[{plan.per}] m, h{of}"
    rows, factors = (f"edgepos_{stem}_{what}{'' if spec.layers is None else '_layer0'}" for what in ("rows", "factors"))
    about = [f"Learned attention bias as int{plan.bits} for integer scores in log2 units with 16 fractional bits. Written by EdgePos.", _where(spec)]
    if spec.layers is not None:
        about.append(f"A table for each of {spec.layers} layers: rows_layer0 is the first layer's.")
        macros["LAYERS"] = spec.layers
    functions = ()
    if plan.factors is None:
        about.append("rows = value * log2(e) * 2^16.")
        use = f"Use: score += {rows}[row][head];"
    else:
        macros |= {"FACTORS": plan.factors.shape[-2], "FACTOR_WORDS": 2}
        at = "head" if plan.per == "head" else "0"
        about.append(f"rows * m * 2^-h = value * log2(e), with m = factors[{at}][0], h = factors[{at}][1].")
        function = f"edgepos_{stem}_bias"
        use = f"Use: score += {function}({rows}[row][head], {factors}[{at}]);"
        declaration = f"int32_t {function}(int32_t entry, const int32_t factor[2])"
        functions = (CFunction("An entry in log2 units with 16 fractional bits.", declaration, _FACTOR_BODY),)
    about.append(f"Error at most {upper}_BOUND in log2 units, {upper}_BOUND_WEIGHT relative in a weight, proven.")
    description = {"kind": spec.encoding, **plan.certificate(), "arrays": indices}
    learned = np.asarray(weights, dtype=np.float64)
    return TableFile(stem, (*about, use), macros, arrays, shapes, description, functions, learned)
