"""Digests of everything that `positions.emit` writes: every encoding in every format. Run as a program it prints them as JSON."""

import hashlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np

from edgepos.positions import (
    Alibi,
    AngleRope,
    AxialRope,
    Hybrid,
    Learned,
    MRope,
    NoPosition,
    RelativeBias,
    Rope,
    Sinusoidal,
    Sinusoidal2D,
    T5Bias,
)
from edgepos.positions.emit import emit
from edgepos.positions.table_file import FORMATS


def numbers(*shape: int) -> np.ndarray:
    """Numbers in ±1 that need no random generator and no libm."""
    return ((np.arange(np.prod(shape)) * 2654435761 % 2003) - 1001).reshape(shape) / 1024


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
# name: (spec, positions, weights)
EVERYTHING = {
    "rope": (Rope(16, 12, theta=500000.0), 100, None),
    "rope-interleaved-yarn": (Rope(8, layout="interleaved", scaling=YARN), 65, None),
    "rope-angles": (AngleRope(4, tuple(map(tuple, numbers(12, 2).tolist()))), 12, None),
    "mrope": (MRope(Rope(16), (2, 3, 3)), 40, None),
    "axial-rope": (AxialRope(16, (Rope(8), Rope(4, theta=100.0))), 20, None),
    "alibi": (Alibi(12), 300, None),
    "alibi-slopes": (Alibi(3, symmetric=True, user_slopes=(0.25, 100000.0, 0.0)), 50, None),
    "t5": (T5Bias(), 1, numbers(32, 4)),
    "t5-bucket": (T5Bias(33, 257, False), 1, None),
    "t5-layers": (T5Bias(8, 20, False, layers=3), 1, numbers(3, 8, 2)),
    "relative": (RelativeBias((2, 3), query_minus_key=True), 1, numbers(35, 2)),
    "learned": (Learned.roberta(40), 38, numbers(40, 6)),
    "sinusoidal": (Sinusoidal(12, "concatenated", "half_minus_one", 2, 0.5), 30, None),
    "sinusoidal-2d": (Sinusoidal2D(Sinusoidal(8), row_first=False), 30, None),
    "hybrid": (Hybrid(Learned(24, modulo=24), (Rope(8), NoPosition(), Rope(8, theta=1e6))), 16, {"learned": numbers(24, 6)}),
}


def digest(folder: Path) -> str:
    """12 hexadecimal digits over the names and bytes of all files."""
    h = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        data = path.read_bytes()
        h.update(f"{path.relative_to(folder).as_posix()} {len(data)}\n".encode() + data)
    return h.hexdigest()[:12]


def digests() -> dict[str, dict[str, str]]:
    """{encoding: {format: digest}}; a format that the encoding has not is left out."""
    found = {}
    with tempfile.TemporaryDirectory() as work:
        for name, (spec, context, weights) in EVERYTHING.items():
            found[name] = {}
            for form in FORMATS:
                folder = Path(work) / name / form
                if emit(spec, folder, context, weights=weights, formats=(form,)):
                    found[name][form] = digest(folder)
    return found


if __name__ == "__main__":
    json.dump(digests(), sys.stdout)
