"""A grid of formats, each exported and measured in a process of its own; what is done stays done."""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from .. import __version__
from ..errors import EdgePosError, UnsupportedError
from ..export import load
from ..file_hash import sha256_of
from .files import dumps, replace_file

POINTS = "points"  # folder of the results, one file per combination, named by the hash of all that decides it


class Sweep:
    """points: one dict per combination, with everything a process on another machine that sees the same files needs."""

    def __init__(
        self, source: Path, output: Path, grid: dict[str, list[str]], texts: list[Path], field: str, tokenizer: Path | None, max_tokens: int
    ):
        """grid: option of the export → its values. Raises EdgePosError when the source cannot be read."""
        self.folder = output / POINTS
        canonical = load(source, tokenizer=tokenizer)
        decided = {
            "source": str(source.resolve()),
            "source_sha256": canonical.source_sha256,
            "tokenizer": None if tokenizer is None else str(tokenizer.resolve()),
            "texts": [str(file.resolve()) for file in texts],
            "texts_sha256": [sha256_of(file) for file in texts],
            "field": field,
            "max_tokens": max_tokens,
            "edgepos": __version__,
        }
        self.points = [decided | {"options": dict(zip(grid, values))} for values in itertools.product(*grid.values())]

    def run(self, jobs: int, scheduler: str | None, progress: Callable[[int], None]) -> list[dict]:
        """The results of all points in order: {"label", "report"}, or {"label", "error"} of one that was refused.

        Those that an earlier run finished are read, not measured again; a refusal is tried again. progress(done) counts points.
        Raises UnsupportedError without Dask's library where a scheduler is given, EdgePosError for a scheduler that does not answer.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EdgePosError(f"{self.folder}: {error.strerror}; choose a writable folder") from None
        results = {name: found for name, found in ((self.name(p), self._stored(p)) for p in self.points) if found is not None}
        left = [p for p in self.points if self.name(p) not in results]
        progress(len(results))
        for point, result in _cluster(scheduler, left) if scheduler else _local(jobs, left):
            results[self.name(point)] = result
            if "report" in result:
                replace_file(self.folder / self.name(point), dumps(result).encode("utf-8"))
            progress(len(results))
        return [results[self.name(point)] for point in self.points]

    @staticmethod
    def name(point: dict) -> str:
        """The file of a point's result."""
        return hashlib.sha256(json.dumps(point, sort_keys=True).encode("utf-8")).hexdigest()[:24] + ".json"

    def _stored(self, point: dict) -> dict | None:
        """What an earlier run wrote, unless it is damaged."""
        try:
            found = json.loads((self.folder / self.name(point)).read_bytes())
        except (OSError, ValueError, RecursionError):
            return None
        return found if isinstance(found, dict) and isinstance(found.get("report"), dict) and isinstance(found.get("label"), str) else None


def measure_point(point: dict) -> dict:
    """Export and measure one combination: {"label", "report"}, or {"label", "error"} with the reason of a refusal."""
    from ..exporter import export_bundle
    from ..float_session import reference
    from ..compiler.match import match
    from .build import measure_accuracy
    from .planned import EXACT, PlannedSession, plans_for
    from .windows import read_texts

    label = " ".join(point["options"].values())
    try:
        canonical = load(point["source"], tokenizer=point["tokenizer"])
        if canonical.source_sha256 != point["source_sha256"]:
            return {"label": label, "error": f"{point['source']}: not the same files as where the sweep began"}
        texts = read_texts([Path(text) for text in point["texts"]], point["field"], point["max_tokens"])
        with tempfile.TemporaryDirectory(prefix="edgepos-") as folder:
            options = dict(point["options"])
            positions = options.pop("positions", EXACT)
            bundle = export_bundle(canonical, Path(folder) / "point.edgepos", **options, tokenizer="source" if canonical.tokenizer else None)
            report, session_of = bundle.report, None
            if positions != EXACT:
                plans = plans_for(match(canonical.model), bundle.context, positions)
                session_of = partial(PlannedSession, bundle.program, plans)
                report["memory"]["model_bytes"] += sum(plan.bytes for plan in {id(plan): plan for plan in plans.values()}.values())
                report["formats"]["positions"] = positions
            accuracy = measure_accuracy(
                bundle, reference(canonical, threads=1), canonical, texts, max_tokens=point["max_tokens"], session_of=session_of
            )
            return {"label": label, "report": {**report, "accuracy": accuracy}}
    except EdgePosError as error:
        return {"label": label, "error": str(error)}


def _local(jobs: int, points: list[dict]) -> Iterable[tuple[dict, dict]]:
    """(point, result) as they come, from processes of this machine."""
    if not points:
        return
    # Started afresh: a fork of a process with the threads of ONNX Runtime may hang.
    pool = ProcessPoolExecutor(min(jobs, len(points)), multiprocessing.get_context("spawn"), _quiet)
    try:
        waiting = {pool.submit(measure_point, point): point for point in points}
        for done in as_completed(waiting):
            yield waiting[done], done.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _quiet() -> None:
    """One thread for each process, and no warning that a refusal does not say too."""
    import warnings

    os.environ["OMP_NUM_THREADS"] = "1"
    warnings.simplefilter("ignore")


def _cluster(scheduler: str, points: list[dict]) -> Iterable[tuple[dict, dict]]:
    """(point, result) as they come, from the workers of a Dask cluster."""
    try:
        from distributed import Client
        from distributed import as_completed as as_they_come
    except ImportError:
        raise UnsupportedError("distributed is not installed; run: pip install 'edgepos[cluster]'") from None
    try:
        client = Client(scheduler, timeout="10s")
    except (OSError, ValueError, TimeoutError) as error:
        raise EdgePosError(f"--scheduler {scheduler}: no answer ({str(error).splitlines()[0] if str(error) else type(error).__name__}); give its address, as tcp://host:8786") from None
    with client:
        waiting = {future: point for future, point in zip(client.map(measure_point, points, pure=False), points)}
        for done in as_they_come(list(waiting)):
            yield waiting[done], done.result()
