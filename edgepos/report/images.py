"""The `accuracy` section of a model of images: its rows beside those of the float graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ..compiler.pictures import images_sha256
from ..errors import EdgePosError
from ..image_files import read_images
from ..session_rules import checked_image
from .embedding import figures

LEAST = 3


@dataclass(frozen=True)
class Images:
    """Images uint8 [n, height, width, channels] with the name and SHA-256 of their bytes that a report states."""

    name: str
    pixels: np.ndarray
    sha256: str


def read_all(paths: Sequence[Path], shape: tuple[int, int, int]) -> Images:
    """The images of files, all of the model's size. Raises EdgePosError naming the file, and for fewer than three."""
    found = []
    for path in paths:
        for image in read_images(path):
            try:
                found.append(checked_image(image, shape))
            except EdgePosError as error:
                raise EdgePosError(f"{path}: {error}") from None
    if len(found) < LEAST:
        raise EdgePosError(f"{len(found)} images are given; at least {LEAST} are needed to compare pairs: give more with --image (.ppm, .pgm, .npy)")
    pixels = np.stack(found)
    return Images(", ".join(path.name for path in paths[:3]) + (" …" if len(paths) > 3 else ""), pixels, images_sha256(pixels))


def compare_images(reference, session, images: Images, classes: bool, progress: Callable[[int, int], None] | None = None) -> dict:
    """The figures of `figures` for the rows of both sessions; of logits of classes also same_class, the share with the same largest one."""
    rows = []
    for pixels in images.pixels:
        rows.append((reference.embed_image(pixels), session.embed_image(pixels)))
        if progress is not None:
            progress(len(rows), len(images.pixels))
    exact, ours = (np.array(side, np.float64) for side in zip(*rows))
    same = {"same_class": float((exact.argmax(axis=1) == ours.argmax(axis=1)).mean())} if classes else {}
    return {**figures(exact, ours), **same, "images": len(rows), "saturations": session.saturations}
