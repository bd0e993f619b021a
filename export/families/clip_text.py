"""CLIP's text model as a Hugging Face folder: causal, its row is that of the token that ends the text, projected or not."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from edgepos.positions import Learned

from ..config import Config
from ..encoder_graph import OUTPUT, EncoderGraph
from ..tensor_set import TensorSet
from .tower import Tower, TowerNames, read_shape

LAYER = "encoder.layers.{i}."
CLIP_NAMES = TowerNames(
    attn_norm=LAYER + "layer_norm1",
    q=LAYER + "self_attn.q_proj",
    k=LAYER + "self_attn.k_proj",
    v=LAYER + "self_attn.v_proj",
    out=LAYER + "self_attn.out_proj",
    mlp_norm=LAYER + "layer_norm2",
    up=LAYER + "mlp.fc1",
    down=LAYER + "mlp.fc2",
)
LARGEST_ID = 2  # an eos_token_id that old configs state wrongly; transformers then takes the largest id of the text
POSITIONS = 77


@dataclass(frozen=True)
class ClipText:
    """projected: the row goes through a linear without bias."""

    projected: bool
    MODEL_TYPE: str = "clip_text_model"
    DEFAULT_BOS: tuple[int, ...] = (49406,)
    DEFAULT_EOS: tuple[int, ...] = (49407,)
    tokenizer_optional = True

    def build_encoder(self, config: Config, tensors: TensorSet, context: int | None, name: str, folder: Path) -> tuple[ir.Model, tuple[Path, ...]]:
        """(the canonical graph, no further files). Raises FormatError or UnsupportedError naming key or tensor."""
        tensors = tensors.without_prefix("text_model.")
        shape = read_shape(config, (512, 2048, 12, 8), "quick_gelu", 1e-5, causal=True, tensors=tensors)
        vocab, positions = config.size("vocab_size", default=49408), config.size("max_position_embeddings", default=POSITIONS)
        ends = config.token_ids("eos_token_id", self.DEFAULT_EOS, vocab)
        if len(ends) != 1:
            raise config.wrong("eos_token_id", list(ends), "one token id")
        graph = EncoderGraph(name=name, family=self.MODEL_TYPE, context=config.context(context, positions))
        tower = Tower(graph, tensors, shape, CLIP_NAMES)
        x = graph.embed(tensors.take("embeddings.token_embedding.weight", (vocab, shape.dim)))
        table = tensors.take("embeddings.position_embedding.weight", (positions, shape.dim))
        x = tower.norm(tower.blocks(graph.learned_positions(x, table, Learned(positions))), "final_norm", "final_layer_norm")
        kind, token = ("largest_id", 0) if ends[0] == LARGEST_ID else ("token", ends[0])
        x = graph.pool(x, kind, token=token, output=None if self.projected else OUTPUT)
        if self.projected:
            x = tower.linear(x, "projection", "text_projection", config.size("projection_dim", default=512), bias=False, output=OUTPUT)
        tensors.finish(ignore=lambda n: n == "embeddings.position_ids")
        return graph.finish(x), ()


TEXT = ClipText(projected=False)
TEXT_WITH_PROJECTION = ClipText(projected=True)
