"""ViT and CLIP's vision model as Hugging Face folders: one row of an image, or logits of classes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx_ir as ir

from ..config import Config
from ..encoder_graph import OUTPUT
from ..image_graph import ImageGraph, Picture, Preprocessing, fold
from ..preprocessing import read_preprocessing
from ..tensor_set import TensorSet, Weight
from .clip_text import CLIP_NAMES
from .tower import Tower, TowerNames, read_shape

LAYER = "encoder.layer.{i}."
VIT_NAMES = TowerNames(
    attn_norm=LAYER + "layernorm_before",
    q=LAYER + "attention.attention.query",
    k=LAYER + "attention.attention.key",
    v=LAYER + "attention.attention.value",
    out=LAYER + "attention.output.dense",
    mlp_norm=LAYER + "layernorm_after",
    up=LAYER + "intermediate.dense",
    down=LAYER + "output.dense",
)
BASE = (768, 3072, 12, 12)  # width, MLP width, layers and heads where a config does not say


def _picture(config: Config, patch: int) -> Picture:
    """Sizes of the image behind a class token; image_size is a number or [height, width], patch the side of patches where the config has none."""
    given = config.values.get("image_size", 224)
    sides = given if isinstance(given, list) else [given, given]
    if len(sides) != 2:
        raise config.wrong("image_size", given, "a number, or [height, width]")
    height, width = (Config({"image_size": side}, config.origin).size("image_size") for side in sides)
    return Picture(config.size("num_channels", default=3), height, width, config.size("patch_size", default=patch), first=1)


def _start(graph: ImageGraph, tensors: TensorSet, how: Preprocessing, dim: int, kernel: str, bias: bool, token: tuple[str, tuple[int, ...]], table: Weight) -> ir.Value:
    """The patches behind a class token, with their positions."""
    p = graph.picture
    weight = tensors.take(f"{kernel}.weight", (dim, p.channels, p.patch, p.patch))
    added = _floats(tensors.take(f"{kernel}.bias", (dim,))) if bias else None
    w, rows = fold(p, how, _floats(weight), added, [_floats(tensors.take(*token)).reshape(dim)], _floats(table).reshape(p.tokens, dim))
    return graph.patches(Weight(f"{kernel}.weight", w, w.shape), Weight("patches.rows_by_position", rows, rows.shape))


def _floats(weight: Weight) -> np.ndarray:
    return np.asarray(weight.array, np.float32).reshape(weight.shape)


@dataclass(frozen=True)
class Vit:
    """classes: a linear on the class token gives a logit for each."""

    classes: bool
    MODEL_TYPE: str = "vit"

    def build_image(self, config: Config, tensors: TensorSet, name: str, folder: Path) -> tuple[ir.Model, tuple[Path, ...]]:
        """(the canonical graph, other files that decided it). Raises FormatError or UnsupportedError naming key or tensor.

        The pooler of transformers (a dense layer on the class token) is no part of an embedding and is left out.
        """
        tensors = tensors.without_prefix("vit.")
        shape = read_shape(config, BASE, "gelu", 1e-12, causal=False, tensors=tensors)
        picture = _picture(config, 16)
        how, file = read_preprocessing(folder, picture.channels)
        graph = ImageGraph(name=name, family=self.MODEL_TYPE, picture=picture)
        tower = Tower(graph, tensors, shape, VIT_NAMES)
        table = tensors.take("embeddings.position_embeddings", (1, picture.tokens, shape.dim))
        x = _start(graph, tensors, how, shape.dim, "embeddings.patch_embeddings.projection", True, ("embeddings.cls_token", (1, 1, shape.dim)), table)
        biases = (config.flag("qkv_bias", default=True),) * 3
        x = tower.norm(tower.blocks(x, biases), "final_norm", "layernorm")
        x = graph.pool(x, "first", output=None if self.classes else OUTPUT)
        if self.classes:
            named = _class_names(config)
            count = config.size("num_labels", default=2) if named is None else len(named)
            x = tower.linear(x, "classifier", "classifier", count, output=OUTPUT)
            graph.classes(count, named)  # behind the linear, whose tensor bounds the count
        tensors.finish(ignore=lambda n: n.startswith("pooler.dense.") or n == "embeddings.mask_token")
        return graph.finish(x), (file,)


def _class_names(config: Config) -> list[str] | None:
    """Names of the classes by number, or None where the config has none."""
    named = config.values.get("id2label")
    if named is None:
        return None
    keys = [str(i) for i in range(len(named))] if isinstance(named, dict) else None
    if not keys or set(named) != set(keys) or not all(isinstance(label, str) for label in named.values()):
        raise config.wrong("id2label", named, "an object that names the classes 0, 1, 2 …")
    return [named[key] for key in keys]


@dataclass(frozen=True)
class ClipVision:
    """projected: the row goes through a linear without bias."""

    projected: bool
    MODEL_TYPE: str = "clip_vision_model"

    def build_image(self, config: Config, tensors: TensorSet, name: str, folder: Path) -> tuple[ir.Model, tuple[Path, ...]]:
        """As of Vit."""
        tensors = tensors.without_prefix("vision_model.")
        shape = read_shape(config, BASE, "quick_gelu", 1e-5, causal=False, tensors=tensors)
        picture = _picture(config, 32)
        how, file = read_preprocessing(folder, picture.channels)
        graph = ImageGraph(name=name, family=self.MODEL_TYPE, picture=picture)
        tower = Tower(graph, tensors, shape, CLIP_NAMES)
        table = tensors.take("embeddings.position_embedding.weight", (picture.tokens, shape.dim))
        x = _start(graph, tensors, how, shape.dim, "embeddings.patch_embedding", False, ("embeddings.class_embedding", (shape.dim,)), table)
        x = graph.pool(tower.blocks(tower.norm(x, "embed_norm", "pre_layrnorm")), "first")
        weight, bias = (tensors.take(f"post_layernorm.{part}", (shape.dim,)) for part in ("weight", "bias"))
        x = graph.layer_norm(x, "final_norm", weight, bias, shape.epsilon, output=None if self.projected else OUTPUT)
        if self.projected:
            x = tower.linear(x, "projection", "visual_projection", config.size("projection_dim", default=512), bias=False, output=OUTPUT)
        tensors.finish(ignore=lambda n: n == "embeddings.position_ids")
        return graph.finish(x), (file,)


VIT = Vit(classes=False)
VIT_CLASSES = Vit(classes=True)
VISION = ClipVision(projected=False)
VISION_WITH_PROJECTION = ClipVision(projected=True)
