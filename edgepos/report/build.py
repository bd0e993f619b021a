"""Measure a bundle against its source: every section of report.json."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ..compiler.manifest import ids_sha256
from ..compiler.options import matrix_formats
from ..compiler.pipeline import compile
from ..errors import EdgePosError
from .accuracy import loss_by_position, run, worst_tokens
from .changes import measure_changes
from .continuations import continuations
from .embedding import compare_embeddings, sentences
from .encodings import encoding_curves
from .images import Images, compare_images
from .layers import trace_layers
from .metrics import Comparison
from .onnx_forms import MOST_TOKENS, compare_embedding_forms, compare_forms, has_forms
from .pairs import Pairs, compare_pairs
from .peers import MEASURED, on_the_same_text, read_peers
from .provenance import provenance
from .remembering import Remembering
from .scores import score_errors
from .verdict import verdict
from .windows import WINDOW, Text, first_tokens, text_windows

LAYER_WINDOW = 64
SCORE_WINDOW = 512
MOST_TRACED = 8  # images on which formats are tried
SWAP_TOKENS = 256  # docs/report.md says why
CALIBRATION_CHARS = 65536  # far more than the tokens of a calibration


def measure(
    bundle,
    reference,
    canonical,
    text: Text | Images,
    *,
    max_tokens: int = 8192,
    window: int = WINDOW,
    swap_tokens: int = SWAP_TOKENS,
    threads: int = 1,
    command: list[str] | None = None,
    force: bool = False,
    peers: list[dict] | None = None,
    pairs: Pairs | None = None,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict:
    """The bundle's report with every section of docs/report.md measured on `text`, of a model of images on Images.

    `reference` is the float session of the source, `canonical` its CanonicalModel. At most `max_tokens` tokens are used, in windows of
    at most `window`; changes of formats are tried on the first `swap_tokens` of them. command: as typed, for the report. force: measure
    on the text of the calibration, too. peers: what others reached, see peers.py. pairs: labelled texts, for an embedding model. `progress(what, done, total)` counts tokens, and
    matrices after that. Raises EdgePosError when the source is not what the bundle was made from, the text is that of the calibration,
    or the text or context is too short for a prediction.
    """
    report = dict(bundle.report)
    _check_source(bundle, canonical)
    tell = progress or (lambda what, done, total: None)
    tokenizer = bundle.tokenizer if bundle.image.info.tokenizer else None
    if not force:
        _check_calibration(bundle, tokenizer, text)
    context = min(bundle.context, canonical.context)
    shared = Remembering(reference, MOST_TOKENS if has_forms(bundle) else swap_tokens)
    if bundle.image.image_shape:
        session = bundle.session(threads=threads)
        accuracy = compare_images(reference, session, text, bool(bundle.image.info.classes), partial(tell, "images"))
        cut = list(text.pixels[:MOST_TRACED])
    elif bundle.image.info.embedding:
        session = bundle.session(context=context, threads=threads)
        accuracy, cut = _embeddings(bundle, shared, session, text, max_tokens, partial(tell, "sentences"))
        if pairs is not None:
            accuracy["labels"] = compare_pairs(shared, session, bundle.tokenizer, pairs)
        if has_forms(bundle):
            report["onnx"] = compare_embedding_forms(bundle, shared, cut, threads)
    else:
        cut = text_windows(tokenizer, text, max_tokens, context, window)
        session = bundle.session(context=max(map(len, cut)), threads=threads)
        comparison = run(shared, session, cut, _counted(cut, partial(tell, "text")))
        accuracy = _figures(comparison, cut, tokenizer)
        report["attention"] = {"loss": loss_by_position(comparison)}
        report["generation"] = continuations(reference, session, tokenizer, cut[0])
        if has_forms(bundle):
            report["onnx"] = compare_forms(bundle, shared, cut, threads)
    report["accuracy"] = {"text": text.name, "text_sha256": text.sha256, **accuracy}
    report["peers"] = on_the_same_text([*(peers or []), *read_peers(MEASURED)], report["accuracy"], canonical.source_sha256.values())
    report["verdict"] = verdict(accuracy)
    tell("operators", 0, len(bundle.program.ops))
    one, few = (cut[0], cut) if bundle.image.image_shape else (cut[0][:LAYER_WINDOW], first_tokens(cut, swap_tokens))
    report["layers"] = trace_layers(bundle.program, canonical.model, one, threads)
    scores = score_errors(bundle.program, session, canonical.model, cut[0] if bundle.image.image_shape else cut[0][:SCORE_WINDOW], threads)
    report["attention"] = {**report.get("attention", {}), "scores": scores}
    report["changes"] = measure_changes(
        bundle.program, canonical.model, few, report["layers"], reference=shared, session=session, kept=canonical.grids or (),
        globs="weights_for" in bundle.manifest["options"], wide_cache=_wide_cache(bundle, canonical), threads=threads, progress=partial(tell, "matrices"),
    )  # fmt: skip
    report["encodings"] = encoding_curves(canonical, context)
    report["provenance"] = provenance(bundle, command)
    return report


def measure_accuracy(
    bundle, reference, canonical, text: Text, *, max_tokens: int = 8192, threads: int = 1, session_of: Callable[[int], Any] | None = None
) -> dict:
    """The `accuracy` section alone; arguments and errors as in `measure`. session_of: context → the integers to measure, default the bundle's."""
    make = session_of or (lambda tokens: bundle.session(context=tokens, threads=threads))
    tokenizer = bundle.tokenizer if bundle.image.info.tokenizer else None
    context = min(bundle.context, canonical.context)
    if bundle.image.info.embedding:
        found, _ = _embeddings(bundle, reference, make(context), text, max_tokens, None)
    else:
        cut = text_windows(tokenizer, text, max_tokens, context)
        found = _figures(run(reference, make(max(map(len, cut))), cut), cut, tokenizer)
    return {"text": text.name, "text_sha256": text.sha256, **found}


def _figures(comparison: Comparison, cut: list[list[int]], tokenizer) -> dict:
    return {**comparison.result(), "intervals": comparison.intervals(), "worst": worst_tokens(comparison, cut, tokenizer)}


def _embeddings(bundle, reference, session, text: Text, max_tokens: int, progress) -> tuple[dict, list[list[int]]]:
    """(figures, ids of the sentences) of an embedding model."""
    if not text.content:
        raise EdgePosError(f"text {text.name}: an embedding model is measured on sentences; give a text instead of token ids")
    return compare_embeddings(reference, session, bundle.tokenizer, sentences(text.content), max_tokens, progress)


def _counted(cut: list[list[int]], progress: Callable[[int, int], None]) -> Callable[[int], None]:
    """A callback for `run` that adds up its tokens."""
    total, done = sum(map(len, cut)), 0

    def step(n: int) -> None:
        nonlocal done
        done += n
        progress(done, total)

    return step


def _check_calibration(bundle, tokenizer, text: Text) -> None:
    """Raise EdgePosError when the fixed points were chosen on the beginning of this very text."""
    known = bundle.manifest["calibration"]
    if isinstance(text, Images):
        if known.get("sha256") == text.sha256:
            raise EdgePosError(f"images {text.name}: the bundle was calibrated on them, so they would flatter; give others, or --force to measure on them")
        return
    document = (text.documents or (text.content,))[0]
    count = known.get("tokens")
    if not isinstance(count, int) or (isinstance(document, str) and tokenizer is None):
        return
    ids = tokenizer.encode(document[:CALIBRATION_CHARS], bos=False) if isinstance(document, str) else list(document)
    bos = [] if tokenizer is None or tokenizer.bos_id is None else [tokenizer.bos_id]
    if any(known.get("sha256") == ids_sha256(start[:count]) for start in (ids, bos + ids)):
        raise EdgePosError(f"text {text.name}: the bundle was calibrated on it, so it would flatter; give another text, or --force to measure on it")


def _wide_cache(bundle, canonical):
    """The bundle's program with 16 instead of 8 bits in the KV cache; None for one that has 16."""
    header = bundle.program.header
    if header.kv_bits == 16:
        return None
    options, single = bundle.manifest["options"], matrix_formats(bundle.manifest["options"].get("weights_for", ()))
    return compile(
        canonical, weights=options["weights"], activations=options.get("activations", "a16"), weights_for=single, kv="kv16",
        context=header.context, choices=bundle.manifest["choices"], tokenizer=None,
    )  # fmt: skip


def _check_source(bundle, canonical) -> None:
    wanted = bundle.manifest["source"]["sha256"]
    for name, digest in canonical.source_sha256.items():
        if wanted.get(name) != digest:
            raise EdgePosError(f"source {canonical.name}: {name} is not the file that this bundle was made from; give that source, or export again")
