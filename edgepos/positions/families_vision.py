"""Vision models and the two halves of image-text models: positions of patches."""

from __future__ import annotations

import numpy as np

from ..errors import FormatError, UnsupportedError
from .angle_rope import AngleRope
from .config import head_dim_of, required, rope_from_config
from .hybrid import Hybrid
from .learned import Learned
from .multi_rope import AxialRope
from .relative import RelativeBias
from .rope import Rope
from .rope_scaling import Custom
from .sinusoidal import Sinusoidal, Sinusoidal2D
from .spec import check_count, check_flag, check_positive

MAX_ANGLES = 2**22  # patches · pairs of a table of angles


def _pair(config: dict, key: str, default: int) -> tuple[int, int]:
    """(height, width) of a size that is one number or two."""
    value = config.get(key, default)
    value = default if value is None else value
    pair = value if isinstance(value, (list, tuple)) else (value, value)
    if len(pair) != 2:
        raise FormatError(f"{key} is {value!r}; allowed is one size or two")
    return tuple(check_count(key, n, 1, 2**16) for n in pair)


def _grid(config: dict, patch: int, image: int = 224) -> tuple[int, int]:
    """Rows and columns of patches of the config's image."""
    sizes, cuts = _pair(config, "image_size", image), _pair(config, "patch_size", patch)
    grid = tuple(size // cut for size, cut in zip(sizes, cuts))
    if min(grid) < 1:
        raise FormatError(f"patch_size {list(cuts)} is larger than image_size {list(sizes)}")
    return grid


def _patches(patch: int, before: int):
    """One learned row per patch, row-major, after those of `before` other tokens."""

    def read(config: dict) -> Learned:
        rows, columns = _grid(config, patch)
        return Learned(before + rows * columns)

    return read


def _text(config: dict, default: int) -> Learned:
    return Learned(check_count("max_position_embeddings", config.get("max_position_embeddings", default), 1, 2**23))


def _vit_mae(config: dict) -> Sinusoidal2D:
    """Of the patches; the class token has none. The authors' code, whose tables checkpoints hold, puts the column first."""
    dim = check_count("hidden_size", config.get("hidden_size", 768), 4, 2**17)
    if dim % 4:
        raise FormatError(f"hidden_size is {dim}; sinusoids of two coordinates allow multiples of 4")
    return Sinusoidal2D(Sinusoidal(dim // 2, "concatenated"), row_first=False)


def _swin(config: dict) -> RelativeBias | Hybrid:
    """A bias over the differences inside a window, one table per layer; a learned row per patch where the config asks for it."""
    window = check_count("window_size", config.get("window_size", 7), 1, 2**10)
    bias = RelativeBias((window - 1, window - 1), clip=False, query_minus_key=True)
    if not check_flag("use_absolute_embeddings", config.get("use_absolute_embeddings", False)):
        return bias
    depths = config.get("depths", [2, 2, 6, 2])
    if not isinstance(depths, list) or not depths:
        raise FormatError(f"depths is {depths!r}; allowed is a list of layer counts")
    layers = sum(check_count("depths", n, 1, 1024) for n in depths)
    return Hybrid(_patches(4, 0)(config), (bias,) * layers)


def _dinov3(config: dict) -> AngleRope:
    """Each patch turned by its centre, (row + ½, column + ½) scaled to ±1: angles by patch number, row-major.

    The first quarter of the components pairs with the third by rows, the second with the fourth by columns; class and
    register tokens stay as they are.
    """
    rows, columns = _grid(config, 16)
    head_dim = head_dim_of({"hidden_size": 384, "num_attention_heads": 6} | config)
    if head_dim % 4:
        raise FormatError(f"hidden_size / num_attention_heads is {head_dim}; axial rotation allows multiples of 4")
    if rows * columns * head_dim // 2 > MAX_ANGLES:
        raise UnsupportedError(f"image_size gives {rows} × {columns} patches of {head_dim // 2} angles; allowed are {MAX_ANGLES} angles")
    theta = check_positive("rope_theta", config.get("rope_theta", 100.0))
    speed = 2 * np.pi * theta ** (-np.arange(head_dim // 4) * 4 / head_dim)
    centre = [(2 * (np.arange(n) + 0.5) / n - 1) for n in (rows, columns)]
    row, column = (grid.reshape(-1, 1) for grid in np.meshgrid(*centre, indexing="ij"))
    angles = np.concatenate([row * speed, column * speed], axis=1)
    return AngleRope(head_dim, tuple(map(tuple, angles.tolist())))


def _qwen_vision(config: dict) -> AxialRope:
    """Half of the pairs by the row, half by the column, each with its own Rope of head_dim/2."""
    width = config.get("embed_dim") if config.get("model_type") == "qwen2_vl_vision" else config.get("hidden_size")
    head_dim = _axial_head_dim("embed_dim or hidden_size", width, required(config, "num_heads"))
    return AxialRope(head_dim, (Rope(head_dim // 2), Rope(head_dim // 2)))


def _pixtral(config: dict) -> AxialRope:
    """The frequencies of one Rope, even ones by the row, odd ones by the column."""
    rope = rope_from_config({"hidden_size": 1024, "num_attention_heads": 16} | config, aliases={"axial": "default"})
    _axial_head_dim("head_dim", rope.head_dim, 1)
    odd = rope.theta ** (-(2.0 * np.arange(1, rope.pairs, 2)) / rope.rotary_dim)
    half = rope.head_dim // 2
    return AxialRope(rope.head_dim, (Rope(half, theta=rope.theta), Rope(half, scaling=Custom(tuple(odd.tolist())))))


def _axial_head_dim(name: str, width, heads) -> int:
    heads = check_count("num_heads", heads, 1, 2**16)
    width = check_count(name, width, 1, 2**24)
    if width % (4 * heads):
        raise FormatError(f"{name} is {width} for {heads} heads; axial rotation allows heads of a multiple of 4")
    return width // heads


VISION = {
    "clip_text_model": lambda config: _text(config, 77),
    "siglip_text_model": lambda config: _text(config, 64),
    "clip_vision_model": _patches(32, 1),
    "siglip_vision_model": _patches(16, 0),
    "vit": _patches(16, 1),
    "deit": _patches(16, 2),
    "dinov2": _patches(14, 1),
    "vit_msn": _patches(16, 1),
    "vit_mae": _vit_mae,
    "swin": _swin,
    "dinov3_vit": _dinov3,
    "pixtral": _pixtral,
    "qwen2_vl_vision": _qwen_vision,
    "qwen2_5_vl_vision": _qwen_vision,
    "qwen3_vl_vision": _qwen_vision,
}
