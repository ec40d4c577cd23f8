"""What an installation, a machine and a model's files are, without loading the weights."""

from __future__ import annotations

import torch

from model.device import choose_device
from model.errors import CheckpointError
from model.formats.loader import open_checkpoint, resolve_model
from model.native_library import load_kernels
from server.config import EngineConfig
from server.engine.planning.cache_plan import format_bytes
from server.engine.planning.resources import available_memory, cpu_count


def _device(config: EngineConfig) -> str:
    """The device that would be taken, and why, or why the one that was asked for cannot be."""
    try:
        choice = choose_device(config.device)
    except CheckpointError as error:
        return str(error)
    return f"{choice.device} ({choice.reason})"


def summarise(config: EngineConfig) -> dict[str, str]:
    """Describe what `kvserve serve` with the same options would start from.

    Raises:
        ModelError: The model cannot be found or read.
    """
    path = resolve_model(config.model)
    checkpoint = open_checkpoint(path)
    model = checkpoint.config
    num_threads = config.threads or cpu_count()
    _, kernels = load_kernels(config.kernels, threads=num_threads)
    return {
        "torch": torch.__version__,
        "device": _device(config),
        "CPU threads": str(num_threads),
        "CPU kernels": f"{kernels.path} ({kernels.reason})",
        "available memory": format_bytes(available_memory()),
        "model": str(path),
        "architecture": model.architecture,
        "layers": str(model.num_layers),
        "heads": f"{model.num_heads} query, {model.num_kv_heads} key/value of {model.head_dim}",
        "hidden size": str(model.hidden_size),
        "vocabulary": str(model.vocab_size),
        "context": f"{model.max_position_embeddings} tokens",
        "chat template": "yes" if checkpoint.chat_template else "no",
    }
