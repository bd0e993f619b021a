"""Images from files without a library of images: .npy (uint8), and binary PPM and PGM."""

from __future__ import annotations

import io
import os
from pathlib import Path

import numpy as np

from .bounded_file import read_bounded
from .errors import EdgePosError, FormatError
from .numpy_files import reading

MOST_BYTES = 2**30  # of a file: far above any image that a program reads
HEADER = 4096  # bytes of a PPM or PGM within which its pixels begin
KINDS = "a .npy file (uint8 [height, width, channels] or [n, height, width, channels]), or a binary .ppm or .pgm with 8 bits a sample"


def read_images(path: str | os.PathLike) -> np.ndarray:
    """The images of a file, uint8 [n, height, width, channels]. Raises FormatError for a file of another kind or a damaged one,
    EdgePosError when it cannot be read."""
    path = Path(path)
    try:
        data = read_bounded(path, f"image {path}", MOST_BYTES)
    except OSError as error:
        raise EdgePosError(f"image {path}: cannot be read ({error.strerror}); give {KINDS}") from None
    if data[:2] in (b"P5", b"P6"):
        return _portable(path, data)[None]
    if data[:6] == b"\x93NUMPY":
        return _array(path, data)
    raise FormatError(f"image {path}: {'empty' if not data else 'of another kind'}; give {KINDS}")


def _array(path: Path, data: bytes) -> np.ndarray:
    """A .npy file, read without unpickling; the header's sizes are checked against the file before anything is made."""
    stream = io.BytesIO(data)
    with reading(f"image {path}", f"give {KINDS}"):
        version = np.lib.format.read_magic(stream)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, kind = read(stream)
    size = 1
    for n in shape:
        size *= n
    if kind != np.uint8 or len(shape) not in (2, 3, 4) or min(shape) < 1 or size != len(data) - stream.tell():
        raise FormatError(f"image {path}: {kind} {list(shape)} in {len(data) - stream.tell()} bytes; give {KINDS}")
    array = np.frombuffer(data, np.uint8, size, stream.tell()).reshape(shape, order="F" if fortran else "C")
    array = array[..., None] if array.ndim == 2 else array
    return array if array.ndim == 4 else array[None]


def _portable(path: Path, data: bytes) -> np.ndarray:
    """P6 (three channels) or P5 (one): width, height and the largest sample between white space and comments, then one byte of white
    space, then the samples."""
    numbers, at, end = [], 2, min(len(data), HEADER)
    while len(numbers) < 3:
        while at < end and (data[at : at + 1].isspace() or data[at : at + 1] == b"#"):
            at = data.find(b"\n", at) if data[at : at + 1] == b"#" else at + 1
            at = len(data) if at < 0 else at
        start = at
        while at < end and data[at : at + 1].isdigit():
            at += 1
        if start == at or at - start > 9:
            raise FormatError(f"image {path}: byte {start} of the header is no size; give {KINDS}")
        numbers.append(int(data[start:at]))
    width, height, most = numbers
    channels = 3 if data[:2] == b"P6" else 1
    found, needed = len(data) - at - 1, width * height * channels
    if most != 255 or not data[at : at + 1].isspace() or width < 1 or height < 1 or found < needed:
        raise FormatError(f"image {path}: {width} × {height} × {channels} samples up to {most}, {found} bytes of them; give {KINDS}")
    return np.frombuffer(data, np.uint8, needed, at + 1).reshape(height, width, channels)
