"""The options of a compilation, checked by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ..errors import UnsupportedError
from ..export import CanonicalModel
from .steps import Embed, FloatProgram, Linear, Rotate
from .tokenizer_tensors import PRE_TOKENIZERS

WEIGHTS = ("source", "w4g32", "w8g32", "w8", "w16g32")
ACTIVATIONS = ("a16", "a8g32")
KV = ("kv16", "kv8")
ONNX = ("float", "int8")
CONTEXT_LIMIT = 2**18
SOURCE = "source"  # the tokenizer that comes with the model


@dataclass(frozen=True)
class Options:
    """weights: format of the matrices ("source": the integers of a quantized source, w8g32 where it has none). activations: of
    the inputs of matrices ("a8g32": of those that it costs little). kv: of the cache. context: most tokens of a session. weights_for: (glob, format) of matrices by the names of
    their initializers; the last glob that matches decides."""

    weights: str
    activations: str
    kv: str
    context: int
    weights_for: tuple[tuple[str, str], ...] = ()

    @property
    def kv_bits(self) -> int:
        return int(self.kv.removeprefix("kv"))

    def format_of(self, matrix: str) -> str:
        """The format asked for of the matrix of an initializer."""
        return next((form for glob, form in reversed(self.weights_for) if fnmatchcase(matrix, glob)), self.weights)

    def to_json(self) -> dict:
        """As manifest.json has them."""
        known = {"weights": self.weights, "activations": self.activations, "kv": self.kv, "context": self.context}
        return known | ({"weights_for": [f"{glob}={form}" for glob, form in self.weights_for]} if self.weights_for else {})


def matrix_formats(given: Iterable[str]) -> dict[str, str]:
    """{glob: format} of texts like "layers.0.*=w8g32", in their order. Raises UnsupportedError for one without a name and a format."""
    found: dict[str, str] = {}
    for text in given:
        glob, _, form = text.rpartition("=")
        if not glob or form not in WEIGHTS:
            raise UnsupportedError(f"--weights-for is {text!r}; needed: a matrix (* and ? stand for others), =, and one of {', '.join(WEIGHTS)}")
        found.pop(glob, None)  # the last one counts, in its own place
        found[glob] = form
    return found


def default_weights(weights: str | None, canonical: CanonicalModel) -> str:
    """The option weights, or its default for a source: "source" for one that holds integers, else "w8g32"."""
    return weights if weights is not None else "source" if canonical.grids else "w8g32"


def check(
    *, weights: str, activations: str, kv: str, context: int | None, limit: int, weights_for: Mapping[str, str] | None = None
) -> Options:
    """Options after validation; context None is all the model allows, `limit`.

    Raises UnsupportedError naming the option, what was given and what is allowed.
    """
    for name, value, allowed in (("weights", weights, WEIGHTS), ("activations", activations, ACTIVATIONS), ("kv", kv, KV)):
        if value not in allowed:
            raise UnsupportedError(f"option {name} is {value!r}; allowed: {', '.join(allowed)}")
    for glob, form in (weights_for or {}).items():
        if not isinstance(glob, str) or not glob or form not in WEIGHTS:
            raise UnsupportedError(f"option weights_for has {glob!r}: {form!r}; needed: names with * and ?, and one of {', '.join(WEIGHTS)}")
    asked = limit if context is None else context
    if isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= limit:
        raise UnsupportedError(f"option context is {context!r}; allowed: 1 to {limit}, the model's context")
    if asked > CONTEXT_LIMIT:
        raise UnsupportedError(f"option context is {asked}; allowed: 1 to {CONTEXT_LIMIT}; pass context= to plan for fewer tokens")
    return Options(weights, activations, kv, asked, tuple((weights_for or {}).items()))


def check_matrices(options: Options, source: FloatProgram) -> None:
    """Raises UnsupportedError for a glob of weights_for that no matrix has, or w4g32 for tables of token ids alone, which have 8 bits."""
    embedded = {step.weight for step in source.steps if isinstance(step, Embed)}
    matrices = embedded | {step.weight for step in source.steps if isinstance(step, Linear)}
    for glob, form in options.weights_for:
        found = {name for name in matrices if fnmatchcase(name, glob)}
        if not found:
            some = ", ".join(sorted(matrices)[:3])
            raise UnsupportedError(f"option weights_for: no matrix is named {glob!r}; the model has {len(matrices)}, such as {some}")
        if form == "w4g32" and found <= embedded:
            raise UnsupportedError(f"option weights_for: {glob!r} names a table of token ids, whose rows have 8 bits; leave it out")


def check_tokenizer(tokenizer: str | None, canonical: CanonicalModel) -> None:
    """Raises UnsupportedError when the model's tokenizer is asked for and the runtime cannot have it."""
    if tokenizer not in (SOURCE, None):
        raise UnsupportedError(f"option tokenizer is {tokenizer!r}; allowed: '{SOURCE}' and None")
    if tokenizer is None:
        return
    problem = canonical.tokenizer_problem
    spec = canonical.tokenizer
    if spec is not None and spec.pre_tokenizer not in PRE_TOKENIZERS:
        problem = f"pre-tokenizer '{spec.pre_tokenizer}' is not supported; supported: {', '.join(PRE_TOKENIZERS)}"
    elif spec is not None:
        return
    raise UnsupportedError(f"tokenizer: {problem}; tokenizer=None (--no-tokenizer) exports a model that works on token ids")


def check_onnx(onnx: str) -> None:
    """Raises UnsupportedError for a form of model.onnx that is not known."""
    if onnx not in ONNX:
        raise UnsupportedError(f"option onnx is {onnx!r}; allowed: {', '.join(ONNX)}")


def check_chat_template(chat_template: str | None) -> None:
    """Raises UnsupportedError for anything but the model's template or none."""
    if chat_template not in (SOURCE, None):
        raise UnsupportedError(f"option chat_template is {chat_template!r}; allowed: '{SOURCE}' and None")


def check_length(options: Options, canonical: CanonicalModel, source: FloatProgram) -> None:
    """Raises UnsupportedError when a rotation made for the source's context would be used with another."""
    if source.picture is not None and options.context != canonical.context:
        raise UnsupportedError(f"option context is {options.context}, but an image is {canonical.context} tokens; leave it out")
    spec = next((step.spec for step in source.steps if isinstance(step, Rotate) and step.spec.length_dependent), None)
    if spec is not None and options.context != canonical.context:
        raise UnsupportedError(
            f"option context is {options.context}, but rope_type '{spec.scaling.rope_type}' depends on the length and the source was "
            f"loaded for {canonical.context}; load it with context={options.context}"
        )
