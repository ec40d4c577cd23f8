"""export_decoder: from a checkpoint to a folder with an ONNX decoder and its text files.

Refuses by name what the graph does not say: a field of the configuration that has any but its
default, an activation, or a tensor that nothing in the graph would read. Reads one tensor at a
time; the folder appears whole or not at all.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path

import torch
from torch import Tensor

from model.config import ModelConfig
from model.errors import ExportError
from model.formats.loader import Checkpoint, TensorSource, open_checkpoint
from model.onnx_export.decoder_graph import OUTPUT, DecoderGraph
from model.onnx_export.graph_builder import GraphBuilder
from model.onnx_export.text_files import write_text_files

GRAPH = "model.onnx"
DATA = "model.onnx_data"
ACTIVATIONS = ("silu", "gelu", "gelu_tanh")
KNOWN_FIELDS = frozenset(
    {
        "architecture",
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_layers",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "max_position_embeddings",
        "windows",
        "rotaries",
        "attention_scale",
        "norm",
        "norm_eps",
        "activation",
        "gated_mlp",
        "qkv_bias",
        "output_bias",
        "mlp_bias",
        "qk_norm",
        "norm_placement",
        "learned_positions",
        "tie_word_embeddings",
        "embedding_scale",
        "weights_dtype",
    }
)
"""What the graph follows. A field that comes later is refused unless it has its default."""
KNOWN_VALUES = {"qk_norm": (None, "head"), "norm_placement": ("pre", "sandwich")}
"""What the graph follows of some of them."""


def export_decoder(path: Path, folder: Path) -> None:
    """Write a checkpoint as ONNX, with its tokenizer and its template beside it.

    Args:
        path: A GGUF file or a folder in Hugging Face layout.
        folder: Made by this call; it must not exist.

    Raises:
        ExportError: The folder exists, or the model has something that the graph cannot say.
        ModelError: The checkpoint cannot be read.
    """
    if folder.exists():
        raise ExportError(f"{folder} exists already; name a folder that does not.")
    checkpoint = open_checkpoint(path)
    check_exportable(checkpoint.config)
    with _whole_or_nothing(folder) as unfinished:
        with (unfinished / DATA).open("wb") as data:
            graph = GraphBuilder(data, data_name=DATA)
            weights = _Weights(checkpoint)
            DecoderGraph(checkpoint.config, read=weights.read, graph=graph).write()
            weights.check_all_read()
        graph.save(
            unfinished / GRAPH,
            producer="kvserve",
            description=f"{checkpoint.config.architecture} decoder with its cache, float32",
        )
        write_text_files(path, checkpoint, folder=unfinished)


def check_exportable(config: ModelConfig) -> None:
    """Refuse what the graph cannot say.

    Raises:
        ExportError: Names the field and its value.
    """
    for field in fields(config):
        value = getattr(config, field.name)
        default = field.default_factory() if callable(field.default_factory) else field.default
        known = value in KNOWN_VALUES.get(field.name, (value,)) and field.name in KNOWN_FIELDS
        if not known and (default is MISSING or value != default):
            raise ExportError(
                f"The {config.architecture} model has {field.name} = {value!r}, which the ONNX "
                f"export does not support; it supports only {default!r}."
            )
    if any(rotary and rotary.dimensions for rotary in config.rotaries):
        raise ExportError(
            f"The {config.architecture} model turns only some dimensions of each head by their "
            "position, which the ONNX export does not support."
        )
    if config.activation not in ACTIVATIONS:
        raise ExportError(
            f"The activation is {config.activation!r}; the ONNX export supports "
            f"{', '.join(ACTIVATIONS)}."
        )


class _Weights:
    """The tensors of a checkpoint, and which of them were asked for."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._sources: dict[str, TensorSource] = {
            source.name: source for source in checkpoint.sources()
        }
        self._unread = set(self._sources)
        if checkpoint.config.tie_word_embeddings:
            self._unread.discard(OUTPUT)  # a file may repeat the embeddings

    def read(self, name: str) -> Tensor:
        """Read one, as float32.

        Raises:
            ExportError: The checkpoint does not have it.
        """
        if name not in self._sources:
            raise ExportError(f"The checkpoint has no tensor {name}.")
        self._unread.discard(name)
        return self._sources[name].load(torch.float32)

    def check_all_read(self) -> None:
        """Refuse a model whose tensors mean something that the graph leaves out.

        Raises:
            ExportError: Names one.
        """
        if self._unread:
            raise ExportError(
                f"The tensor {min(self._unread)} has no place in the ONNX decoder "
                f"(and {len(self._unread) - 1} more have none)."
            )


@contextmanager
def _whole_or_nothing(folder: Path) -> Iterator[Path]:
    """Give a folder beside the target, and let it become the target once all is well."""
    folder.absolute().parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.absolute().parent))
    try:
        yield unfinished
        unfinished.chmod(0o755)  # mkdtemp lets nobody else in
        unfinished.rename(folder)
    except BaseException:
        shutil.rmtree(unfinished)
        raise
