"""The C runtime's objects in Python: a checked image, aligned memory, statuses as exceptions."""

from __future__ import annotations

import mmap
import os
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..errors import ContextError, EdgePosError, FormatError
from ..fixedpoint import FNV_OFFSET, fnv1a64
from ..session_rules import whole_number, whole_numbers

try:
    from .._native import ffi, lib
except ImportError as error:
    raise ImportError("the C extension of edgepos is not built here: run 'pip install .' in its checkout") from error

ALIGN = lib.EP_ALIGN
_CONTEXT_ERRORS = (lib.EP_ERR_POSITION, lib.EP_ERR_CONTEXT)
_FORMAT_ERRORS = (lib.EP_ERR_TRUNCATED, lib.EP_ERR_MAGIC, lib.EP_ERR_VERSION, lib.EP_ERR_FORMAT, lib.EP_ERR_PROGRAM)


def status_text(status: int) -> str:
    return ffi.string(lib.ep_status_text(status)).decode("ascii")


def check(status: int, what: str) -> None:
    """Raise the exception of a status other than EP_OK; ``what`` names the call and, if it helps, what to do."""
    if status == lib.EP_OK:
        return
    kind = ContextError if status in _CONTEXT_ERRORS else FormatError if status in _FORMAT_ERRORS else EdgePosError
    raise kind(f"{what}: {status_text(status)}")


def int32_array(name: str, values) -> np.ndarray:
    """``values`` as contiguous int32 [n]; raises EdgePosError if that would change any of them."""
    return np.ascontiguousarray(whole_numbers(name, values), dtype=np.int32)


def int32_pointer(array: np.ndarray):
    return ffi.cast("int32_t *", ffi.from_buffer(array))


def aligned(size: int) -> np.ndarray:
    """uint8 [size] whose address is a multiple of ALIGN."""
    try:
        raw = np.empty(size + ALIGN, np.uint8)
    except MemoryError:
        raise EdgePosError(f"{size} bytes of memory are not available; open a session with a smaller context") from None
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + size]


# Kernel sets and the EP_CPU_ bits they need.
KERNELS = {
    "generic": 0, "avx2": lib.EP_CPU_AVX2, "avxvnni": lib.EP_CPU_AVX2 | lib.EP_CPU_AVXVNNI, "avx512": lib.EP_CPU_AVX2 | lib.EP_CPU_AVX512,
    "neon": lib.EP_CPU_NEON, "dotprod": lib.EP_CPU_NEON | lib.EP_CPU_DOTPROD,
    "i8mm": lib.EP_CPU_NEON | lib.EP_CPU_DOTPROD | lib.EP_CPU_I8MM,
}  # fmt: skip


def kernel_sets() -> list[str]:
    """Names of the kernel sets that this processor runs, the generic ones first."""
    cpu = lib.ep_cpu_detect()
    return [name for name, bits in KERNELS.items() if bits & cpu == bits]


def cpu_bits(kernels: str | None) -> int:
    """EP_CPU_ bits of a kernel set by name; None: of EDGEPOS_KERNELS in the environment, else all that this processor has.

    Raises EdgePosError for a name that is unknown or that this processor cannot run.
    """
    kernels = kernels or os.environ.get("EDGEPOS_KERNELS")
    if not kernels:
        return lib.ep_cpu_detect()
    if kernels not in kernel_sets():
        raise EdgePosError(f"kernels {kernels!r}: this processor runs {', '.join(kernel_sets())}")
    return KERNELS[kernels]


def make_config(context: int | None, n_batch: int = 0, kernels: str | None = None):
    """ep_config without threads, with the kernels of cpu_bits.

    Raises ContextError or EdgePosError for numbers C could not hold or would take as a default, and for kernels that cannot run here.
    """
    context = 0 if context is None else whole_number("context", context, 1, 2**31 - 1, ContextError)
    n_batch = whole_number("n_batch", n_batch, 0, 2**31 - 1)  # 0: the default
    return ffi.new("ep_config *", {"context": context, "n_batch": n_batch, "threads": 1, "cpu": cpu_bits(kernels)})


@dataclass(frozen=True)
class Info:
    """What an image says of itself. digest and selftest belong together; the byte counts are per token."""

    vocab: int
    context: int
    n_layers: int
    kv_bits: int
    logits_f: int
    n_ops: int
    n_values: int
    n_tensors: int
    max_position: int  # the largest one it takes
    embedding: int  # numbers of the one row it gives for a text or an image; 0: it gives logits of every token
    classes: int  # 1: that row holds one logit per class
    one_call: int  # 1: a text is one call of an empty session
    channels: int  # of the image it reads; 0: it reads tokens
    height: int
    width: int
    bos: int | None
    eos: tuple[int, ...]
    tokenizer: int  # 0 none, 1 byte-level BPE, 2 SentencePiece BPE, 3 WordPiece, 4 Unigram
    chat: int  # 1: it has a chat form
    selftest: tuple[int, ...]  # token ids; (): it is an image
    digest: int
    kv_bytes_per_token: int
    weight_bytes_per_token: int


class Image:
    """A model image that has passed ep_open. Sessions and tokenizers share it; it never changes.

    model: the ep_model, info: Info, origin: its path or another name for messages.
    """

    def __init__(self, data, origin: str = "model image"):
        """``data`` is any buffer of bytes; one that is not aligned is copied. Raises FormatError with the byte offset of the fault."""
        if memoryview(data).nbytes == 0:
            raise FormatError(f"{origin}: empty; give the model.gguf of a bundle")
        buffer = ffi.from_buffer(data)
        if int(ffi.cast("uintptr_t", buffer)) % ALIGN:
            copy = aligned(len(buffer))
            copy[:] = np.frombuffer(data, np.uint8)
            buffer = ffi.from_buffer(copy)
        self.origin = origin
        self.bytes = len(buffer)
        self._buffer = buffer  # keeps the memory that model points into
        self.model = ffi.new("ep_model *")
        where = ffi.new("uint64_t *")
        status = lib.ep_open(self.model, buffer, self.bytes, where)
        check(status, f"{origin}, byte {where[0]}")
        self.info = self._read_info()

    @classmethod
    def open(cls, path: str | os.PathLike) -> Image:
        """Memory-map and check a model.gguf. Raises FormatError when it cannot be read or is not valid."""
        try:
            with open(path, "rb") as file:
                size = os.fstat(file.fileno()).st_size
                data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if size else b""
        except (OSError, ValueError) as error:
            raise FormatError(f"{os.fspath(path)}: {getattr(error, 'strerror', None) or error}; give the model.gguf of a bundle") from None
        return cls(data, os.fspath(path))

    def _read_info(self) -> Info:
        c = ffi.new("ep_info *")
        check(lib.ep_model_info(self.model, c), self.origin)
        scalars = {
            name: int(getattr(c, name))
            for name in Info.__dataclass_fields__
            if name not in ("bos", "eos", "selftest")
        }
        return Info(
            bos=None if c.bos < 0 else c.bos,
            eos=tuple(ffi.unpack(c.eos, c.n_eos)) if c.n_eos else (),
            selftest=tuple(ffi.unpack(c.selftest, c.n_selftest)) if c.selftest else (),
            **scalars,
        )

    @cached_property
    def checksum(self) -> int:
        """FNV-1a of all its bytes, 64 bits: what `edgepos build --checksum` puts into a program. Reads the whole file."""
        whole = self.bytes // 4 * 4
        return fnv1a64(bytes(self._buffer[whole : self.bytes]), lib.ep_digest(FNV_OFFSET, ffi.cast("int32_t *", self._buffer), whole // 4))

    @property
    def image_shape(self) -> tuple[int, int, int] | None:
        """(height, width, channels) of the image that the model reads; None: it reads tokens."""
        return (self.info.height, self.info.width, self.info.channels) if self.info.channels else None

    def arena_size(self, context: int | None = None, n_batch: int = 0, config=None) -> int:
        """Bytes of memory that a session of one thread needs. Raises ContextError for a context above the model's."""
        config = make_config(context, n_batch) if config is None else config
        if config.context > self.info.context:
            raise ContextError(f"context {config.context} is too long: this model allows at most {self.info.context}")
        size = ffi.new("size_t *")
        check(lib.ep_arena_size(self.model, config, size), "session memory")
        return int(size[0])

    def selftest(self) -> int:
        """Evaluate the self-test; returns its digest. Raises EdgePosError when it is not the one the image carries."""
        config = make_config(len(self.info.selftest) or None)
        size = self.arena_size(config=config)
        arena = aligned(size)
        digest = ffi.new("uint64_t *")
        status = lib.ep_selftest(self.model, config, ffi.from_buffer(arena), size, digest)
        if status == lib.EP_ERR_SELFTEST:
            raise EdgePosError(
                f"{self.origin}: self-test digest {digest[0]:016x} computed, {self.info.digest:016x} in the bundle: "
                "this machine does not compute what the bundle says; report the compiler and the processor"
            )
        check(status, f"{self.origin}, self-test")
        return int(digest[0])
