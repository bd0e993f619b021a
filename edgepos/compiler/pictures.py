"""The images that fixed points are chosen on: the project's own, or what the caller gives; and the image of the self-test."""

from __future__ import annotations

import hashlib
import os

import numpy as np

from ..errors import EdgePosError, FormatError
from ..image_files import read_images
from ..session_rules import checked_image

MOST_IMAGES = 16
NOISE = 5  # the seed of the last image


def own_images(shape: tuple[int, int, int]) -> np.ndarray:
    """uint8 [6, *shape], made of whole numbers alone: slopes, rings, stripes, squares, black beside white, noise; channels differ."""
    height, width, channels = shape
    y, x, c = (a.astype(np.int64) for a in np.indices(shape))
    slopes = (x * 255 // max(1, width - 1) * (c + 1) + y * 255 // max(1, height - 1) * (channels - c)) // (channels + 1)
    from_middle = (2 * x - width) ** 2 + (2 * y - height) ** 2
    rings = from_middle * 1024 // (height**2 + width**2) * (c + 2) % 256
    stripes = np.where((x + 2 * y) // max(1, width // 16) % 2 == c % 2, 230, 25)
    squares = (x * 8 // width + 3 * (y * 8 // height) + 5 * c) * 37 % 256
    halves = np.where(2 * x < width, 0, 255)
    return np.stack([slopes, rings, stripes, squares, halves, _noise(shape)]).astype(np.uint8)


def _noise(shape: tuple[int, int, int]) -> np.ndarray:
    """Bytes of PCG-XSH-RR (docs/arithmetic.md), the same on every machine."""
    from ..sampling import Rng

    rng = Rng(NOISE)
    return np.array([rng.next() >> 24 for _ in range(int(np.prod(shape)))], np.int64).reshape(shape)


def calibration_images(given, shape: tuple[int, int, int]) -> np.ndarray:
    """uint8 [n, *shape], at most 16. given: None (the project's own), an image, a stack of them, a path, or a list of images and paths.

    Raises FormatError or EdgePosError for anything else, and for images of another size.
    """
    if given is None:
        return own_images(shape)
    found: list[np.ndarray] = []
    for one in given if isinstance(given, (list, tuple)) else [given]:
        stack = read_images(one) if isinstance(one, (str, os.PathLike)) else one
        if not isinstance(stack, np.ndarray):
            raise FormatError(f"calibration holds {type(one).__name__}; allowed for an image model: arrays uint8 {list(shape)}, and paths of images")
        found += list(stack) if stack.ndim == 4 else [stack]
    if not found:
        raise FormatError("calibration gives no images; give at least one")
    try:
        return np.stack([checked_image(image, shape) for image in found[:MOST_IMAGES]])
    except EdgePosError as error:
        raise FormatError(f"calibration: {error}") from None


def selftest_image(shape: tuple[int, int, int]) -> np.ndarray:
    """uint8 [*shape]: rings with noise in their lowest bits. Never an image of the caller's, which a bundle should not give away."""
    images = own_images(shape)
    return images[1] // 2 + images[-1] // 2


def images_sha256(images: np.ndarray) -> str:
    """SHA-256 of the bytes of images."""
    return hashlib.sha256(np.ascontiguousarray(images).tobytes()).hexdigest()
