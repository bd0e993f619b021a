"""Position encodings in fixed point: specs, float64 references, plans with proven bounds, emitted tables.

    spec = positions.Rope(head_dim=64, theta=100000.0)
    plan = positions.PhasePlan(spec)
    plan.bound                 # 0.5775…, in units of 1/32767, at any position below 2^31
    plan.cos_sin([0, 131071])  # the integers every runtime computes

A spec says which encoding a model has, a plan how it is computed in integers and how far that is from exact mathematics.
"""

from ..errors import FormatError, UnsupportedError
from .alibi import Alibi
from .alibi_plan import BiasTablePlan, SlopePlan
from .angle_rope import AngleRope
from .bias_plan import LearnedBiasPlan
from .families import from_config
from .float32 import Float32Distance, float32_error
from .gguf_config import from_gguf
from .hybrid import Hybrid
from .interpolated import InterpolatedPlan
from .learned import Learned, LearnedPlan, interpolate
from .multi_rope import AxialRope, MRope, multimodal_positions
from .none import EmptyPlan, NoPosition
from .piecewise import PiecewisePlan
from .plan import PhasePlan, TablePlan
from .relative import RelativeBias, T5Bias
from .rope import Rope
from .sinusoidal import Sinusoidal, Sinusoidal2D, SinusoidalPlan
from .spec import Spec, build
from .split import SplitPlan
from .choose import HybridPlan, pareto, plan  # isort: skip  (last: the function replaces the submodule of its name)

__all__ = [
    "Alibi",
    "AngleRope",
    "AxialRope",
    "BiasTablePlan",
    "EmptyPlan",
    "Float32Distance",
    "Hybrid",
    "HybridPlan",
    "InterpolatedPlan",
    "Learned",
    "LearnedBiasPlan",
    "LearnedPlan",
    "MRope",
    "NoPosition",
    "PhasePlan",
    "PiecewisePlan",
    "RelativeBias",
    "Rope",
    "Sinusoidal",
    "Sinusoidal2D",
    "SinusoidalPlan",
    "SlopePlan",
    "Spec",
    "SplitPlan",
    "T5Bias",
    "TablePlan",
    "float32_error",
    "from_config",
    "from_gguf",
    "from_json",
    "interpolate",
    "multimodal_positions",
    "pareto",
    "plan",
]

_SPECS: dict[str, type[Spec]] = {
    cls.encoding: cls
    for cls in (
        Rope, MRope, AxialRope, AngleRope, Alibi, T5Bias, RelativeBias, Learned, Sinusoidal, Sinusoidal2D, Hybrid, NoPosition
    )
}  # fmt: skip


def from_json(data: dict) -> Spec:
    """The spec that `spec.to_json()` described.

    Raises UnsupportedError for an unknown encoding, FormatError for keys that are unknown, missing or out of range.
    """
    if not isinstance(data, dict) or "encoding" not in data:
        raise FormatError(f"spec is {data!r}; allowed is an object with the key 'encoding'")
    data = dict(data)
    encoding = data.pop("encoding")
    if not isinstance(encoding, str) or encoding not in _SPECS:
        raise UnsupportedError(f"encoding is {encoding!r}; known are {', '.join(_SPECS)}")
    return build(_SPECS[encoding], f"{encoding} spec", data)
