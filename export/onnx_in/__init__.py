"""Front end for ONNX graphs of other exporters, and for PyTorch modules.

A foreign graph is followed from the token ids to the logits (`reader.py`) and rewritten as the canonical graph (`writer.py`); then both
run in ONNX Runtime on random ids, and a difference beyond float32's precision is an error (`check.py`). docs/onnx.md explains it.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import onnx_ir as ir

from edgepos.errors import UnsupportedError

from ..block_rows import BlockRows
from ..canonical import CanonicalModel, read_license, readable, sha256_of
from ..encoder_graph import OUTPUT, EncoderGraph
from ..graph import GraphBuilder
from ..hf_folder import TokenizerRead, read_tokenizer
from ..image_graph import ImageGraph
from ..preprocessing import PREPROCESSOR
from ..sentence_head import SentenceHead, read_sentence_head
from .activations import Softcap, identify
from .branches import has_branches, put_in_place
from .check import check_same, lengths_of
from .constants import FLOATS, Constants, as_numpy
from .files import check_model, external_files, open_onnx
from .frame import Frame, OutputFound, frame_of, needed, reading_length, row_output
from .images import FirstFound, ImageFrame, Pixels, image_frame
from .last_row import LastFound, keep_all
from .module import load_module, token_ids
from .pooling import EncoderFound, row_of
from .precision import widen
from .reader import Reader
from .sources import Linear, TokenIds
from .values import Form, Function, Sources, pure
from .writer import LimitFound, Writer

DEFAULT_CONTEXT = 2048  # where nothing in the graph bounds it
MOST_POSITIONS = 2**18
FAMILY = "onnx"
LOGITS = "logits of a model whose attention goes in both directions"


@dataclass(frozen=True, eq=False)
class Found:
    """A canonical graph; its values beside those of the source with the same numbers; the vocabulary; the name of its value that is the
    source's output; the source without branches; where its rotation depends on the length, the longest text that has that of short
    ones and the shortest that has the context's; the shapes of empty caches by name; weights that are codes in the source; tables that it has
    in 16 bits only (`Writer.narrow`); the id of its padding; the id whose embedding it makes zero; files that decided the pooling."""

    model: ir.Model
    foreign: dict[ir.Value, ir.Value]
    vocab_size: int
    output: str
    source: ir.Model
    changes: tuple[int, int] | None
    caches: dict[str, tuple[int, ...]]
    grids: dict[str, BlockRows]
    narrow: dict[str, float]
    padding: int | None
    zeroed: int | None
    files: tuple[Path, ...] = ()


def load_onnx(
    path: Path, *, context: int | None = None, tokenizer: str | os.PathLike | None = None, image_processor: str | os.PathLike | None = None
) -> CanonicalModel:
    """The canonical model of an ONNX file.

    context: positions to plan for; None: as many as the graph's tables hold, 2048 where it has none. tokenizer: a tokenizer.json or
    the folder that holds one; None: the model works on token ids. image_processor: of a model of images, its preprocessor_config.json or
    the folder with it; None: beside the file.
    Raises FormatError for a damaged file, UnsupportedError naming the node that is not understood.
    """
    model = open_onnx(path)
    files = [path, *(path.parent / name for name in external_files(model))]
    processor = Path(image_processor) if image_processor is not None else path.parent / PREPROCESSOR
    if image_processor is None and not processor.is_file():
        processor = None
    return _canonical(
        model, readable(path.stem), path.name, context, tokenizer, sha256_of(files), read_license(path.parent), folder=path.parent, processor=processor
    )


def load_model(
    model: ir.Model, *, name: str, context: int | None = None, usual: int | None = None, tokenizer: str | os.PathLike | None = None,
    image_processor: str | os.PathLike | None = None, labels: tuple[str, ...] | None = None,
) -> CanonicalModel:
    """The same for a model in memory, which has no files. usual: the context where neither `context` nor the graph says one. labels: names
    of the classes whose logits a model of images gives; None: it gives an embedding."""
    check_model(model, name, None)
    usual, processor = min(usual or DEFAULT_CONTEXT, MOST_POSITIONS), None if image_processor is None else Path(image_processor)
    return _canonical(model, readable(name), name, context, tokenizer, {}, None, usual, processor=processor, labels=labels)


def _canonical(
    model: ir.Model, name: str, origin: str, context: int | None, tokenizer, hashes: dict[str, str], license, usual: int = DEFAULT_CONTEXT,
    folder: Path | None = None, processor: Path | None = None, labels: tuple[str, ...] | None = None,
) -> CanonicalModel:
    widen(model)
    frame = image_frame(model.graph, origin, processor, labels)
    if frame is not None:
        return _image_model(model, frame, name, origin, context, tokenizer, hashes, license)
    if processor is not None and folder is None:
        raise UnsupportedError(f"{origin}: image_processor is for models that read an image; leave it out")
    frame = frame_of(model.graph, origin)
    positions = context if context is not None else frame.fixed or usual
    if isinstance(positions, bool) or not isinstance(positions, int) or not 1 <= positions <= MOST_POSITIONS:
        raise UnsupportedError(f"option context is {positions!r}; allowed: 1 to {MOST_POSITIONS}")
    if frame.fixed is not None and positions > frame.fixed:
        raise UnsupportedError(f"{origin}: context is {positions}, but the graph was exported for {frame.fixed} tokens; export it for any length")
    encoder = False
    while True:
        try:
            found = rewrite(model, frame, name, positions, encoder=encoder, folder=folder)
            break
        except EncoderFound:
            encoder = True
        except LastFound as row:
            if frame.fixed is not None:
                raise UnsupportedError(f"{origin}: gives the last of {frame.fixed} tokens alone, which shows nothing of the others; export it for any length") from None
            frame = replace(frame, last={**frame.last, row.name: row.axis})
        except OutputFound as output:
            frame = replace(frame, logits=model.graph.outputs[output.index])
        except LimitFound as limit:
            if context is not None or limit.positions >= positions:
                found = f"{origin}: context is {positions}, but a table in the graph has {limit.positions} positions"
                raise UnsupportedError(f"{found}; pass a context up to that") from None
            positions = limit.positions
    frame = frame.with_caches(found.caches)
    if found.changes is not None:  # longer texts turn by other frequencies: shorter ones show that all else is the same
        limit, same_from = found.changes
        short = rewrite(model, frame, name, limit, encoder=encoder, folder=folder)
        check_same(model, frame, short, limit, origin)
        check_same(model, frame, found, positions, origin, same_from)
    else:
        check_same(model, frame, found, positions, origin)
    if found.padding is not None:
        warnings.warn(f"{origin}: the graph takes token id {found.padding} for padding; a text of a bundle has none, so that id is read like any other", stacklevel=3)
    spec, problem, bos, eos, read = _no_tokenizer() if tokenizer is None else read_tokenizer(Path(tokenizer), found.vocab_size, whole_texts=encoder)
    return CanonicalModel(
        model=found.model,
        tokenizer=spec,
        name=name,
        context=positions,
        vocab_size=found.vocab_size,
        source_sha256=hashes | sha256_of([*found.files, *read]),
        license=license,
        eos_ids=eos,
        bos_id=bos,
        grids={name: rows for name, rows in found.grids.items() if name in found.model.graph.initializers},
        tokenizer_problem=problem,
    )


def _image_model(
    model: ir.Model, frame: ImageFrame, name: str, origin: str, context: int | None, tokenizer, hashes: dict[str, str], license
) -> CanonicalModel:
    """The canonical model of a graph that reads an image."""
    if tokenizer is not None:
        raise UnsupportedError(f"{origin}: reads an image, so there is nothing for a tokenizer; leave it out")
    tried = set()
    while True:
        try:
            found = rewrite(model, frame, name, frame.fixed, encoder=True, folder=None)
            break
        except FirstFound as wanted:
            if wanted.first in tried:
                raise UnsupportedError(f"{origin}: {wanted.first} tokens in front of the patches here and another number there; supported: one number") from None
            tried.add(wanted.first)
            frame = frame.behind(wanted.first)
    if context not in (None, frame.fixed):
        raise UnsupportedError(f"{origin}: context {context} is not possible; an image is {frame.fixed} tokens")
    check_same(model, frame, found, frame.fixed, origin)
    return CanonicalModel(
        model=found.model, tokenizer=None, name=name, context=frame.fixed, vocab_size=1, source_sha256=hashes | sha256_of(frame.files), license=license,
        eos_ids=(), bos_id=None, tokenizer_problem="the model reads images",
    )  # fmt: skip


def _no_tokenizer() -> TokenizerRead:
    """What a graph has by itself."""
    return None, "an ONNX graph or module has none; give one with tokenizer= (--tokenizer)", None, (), []


def rewrite(model: ir.Model, frame: Frame, name: str, context: int, *, encoder: bool, folder: Path | None) -> Found:
    """The canonical graph of a foreign one; of an encoder that ends in rows of all tokens, with what the folder says of their pooling.

    Raises UnsupportedError naming the node that is not understood, LimitFound when the graph's tables are shorter than the context,
    LastFound when it takes the last row of all tokens, EncoderFound when the attention turns out to go in both directions.
    """
    if has_branches(model.graph) or frame.last:
        output, model = list(model.graph.outputs).index(frame.logits), model.clone()
        frame = frame.of_copy(model.graph, output)
        keep_all(model.graph, frame.last)
        put_in_place(model.graph, frame, lengths_of(frame, context) + [context] * (frame.fixed is None), reading_length(frame, model.graph))
        frame = frame.of_copy(model.graph, output)
    graph = model.graph
    length = reading_length(frame, graph)
    constants = Constants(graph, [(frame.ids, None), *frame.others.items()], length)
    sources = Sources(length)
    inv_freqs = [np.ravel(as_numpy(v.const_value)) for v in graph.initializers.values() if _may_be_frequencies(v.const_value)]
    image = isinstance(frame, ImageFrame)
    if image:
        builder = ImageGraph(name=name, family=FAMILY, picture=frame.picture)
    else:
        builder = (EncoderGraph if encoder else GraphBuilder)(name=name, family=FAMILY, context=context)
    writer = Writer(builder, sources, constants, context, inv_freqs, frame.fixed, encoder, frame.how if image else None)
    reader = Reader(graph, constants, writer)
    if image:
        p = frame.picture
        reader.values[frame.ids] = Pixels((1, p.channels, p.height, p.width))
    else:
        reader.values[frame.ids] = sources.form(sources.new(TokenIds(), 1), (1,) * (len(frame.ids.shape) - 1) + (length,))
    constants.note_shape(frame.ids, reader.values[frame.ids].shape)
    reader.read(needed(graph, frame.logits))
    constants.check_sizes(list(reader.met), max(lengths_of(frame, context)))  # before ONNX Runtime computes them
    writer.at = frame.logits.producer()
    result = reader.value(frame.logits)
    facts = {"source": model, "changes": writer.changes, "caches": {v.name: shape for v, shape in reader.caches.items()}, "grids": writer.grids, "narrow": writer.narrow, "padding": writer.padding, "zeroed": writer.zeroed}
    if not encoder:
        other = row_output(graph, frame)
        if other is not None and not _may_be_logits(writer, result):
            raise OutputFound(list(graph.outputs).index(other))
        return Found(builder.finish(_head(writer, result)), writer.foreign, int(result.shape[-1]), "logits", **facts)
    if image:
        value, compared = _image_row(writer, result)
        if frame.labels is not None or frame.logits.name == "logits":
            builder.classes(int(value.shape[1]), frame.labels)
        return Found(builder.finish(value), writer.foreign, 1, compared, **facts)
    if frame.logits.name == "logits":
        raise writer.refuse(LOGITS, "embeddings of such models, and logits of causal decoders")
    if writer.embedding is None:
        raise writer.refuse("an encoder without a table of embeddings", "models that read token ids")
    value, compared, files = _embedding(writer, result, folder)
    return Found(builder.finish(value), writer.foreign, len(writer.embedding[1]), compared, **facts, files=files)


def _image_row(writer: Writer, result) -> tuple[ir.Value, str]:
    """(the one row, the name of the canonical value that is the foreign output): of the rows of all tokens the class token's, their mean
    where there is none."""
    row = row_of(writer, result)
    if row is not None:
        row.name = OUTPUT
        return row, OUTPUT
    if not isinstance(result, Form) or len(result.shape) != 3:
        raise writer.refuse("an output that is neither the rows of all tokens nor one row for the image", "models of images with such an output")
    x = writer.value(result)
    return writer.graph.pool(x, "first" if writer.graph.picture.first else "mean", output=OUTPUT), x.name


def _may_be_logits(writer: Writer, result) -> bool:
    """Whether an output is the function of a linear, not the rows of all tokens."""
    if not isinstance(result, (Form, Function)):
        return False
    return any(isinstance(source.what, Linear) for source in writer.sources.used(result.codes))


def _embedding(writer: Writer, result, folder: Path | None) -> tuple[ir.Value, str, tuple[Path, ...]]:
    """(the embedding, the name of the canonical value that is the foreign output, files that decided the pooling)."""
    row = row_of(writer, result)
    if row is not None:
        row.name = OUTPUT
        return row, OUTPUT, ()
    if not isinstance(result, Form) or len(result.shape) != 3:
        raise writer.refuse("an output that is neither the rows of all tokens nor one row for all", "encoders with such an output")
    x = writer.value(result)
    if _may_be_logits(writer, result) and x.shape[2] == len(writer.embedding[1]):
        raise writer.refuse(LOGITS, "embeddings of such models, and logits of causal decoders")
    head = read_sentence_head(folder, int(x.shape[2])) if folder is not None else SentenceHead()
    return head.add(writer.graph, x), x.name, head.files


def _head(writer: Writer, logits) -> ir.Value:
    """The logits as the output of the canonical graph."""
    cap = 0.0
    if isinstance(logits, Function):
        found = identify(logits.samples)
        if not isinstance(found, Softcap):
            raise writer.refuse(f"logits that are a function ({found or 'unknown'}) of a result", "a linear, or a softcap of one")
        cap, logits = found.cap, pure(logits.codes)
    used = writer.sources.used(logits.codes) if isinstance(logits, Form) else []
    if len(used) != 1 or not isinstance(used[0].what, Linear):
        raise writer.refuse("an output that is not made by a linear", "a decoder whose output is the logits of every token")
    rows = writer.rows(logits)
    if rows.codes.shape != (1, writer.length, used[0].width) or (rows.codes.ravel() != used[0].base + np.arange(rows.codes.size)).any():
        raise writer.refuse("logits of some tokens or of a part of the vocabulary", "the logits of every token")
    return writer.head(used[0], rows, cap)


def _may_be_frequencies(tensor: ir.TensorProtocol) -> bool:
    return tensor.dtype in FLOATS and 0 < tensor.size <= 4096 and sum(int(d) > 1 for d in tensor.shape) <= 1


__all__ = ["load_model", "load_module", "load_onnx", "token_ids"]
