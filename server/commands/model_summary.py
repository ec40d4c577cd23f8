"""What an installation, a machine and a model's files are, without loading the weights."""

from __future__ import annotations

import torch

from model.device import choose_device
from model.errors import CheckpointError
from model.formats.footprint import Footprint, measure_footprint
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
    kernels, status = load_kernels(config.kernels, threads=num_threads)
    footprint = measure_footprint(
        checkpoint, kernels=kernels, dtype=config.dtype, quantize=config.quantize
    )
    return {
        "torch": torch.__version__,
        "device": _device(config),
        "CPU threads": str(num_threads),
        "CPU kernels": f"{status.path} ({status.reason})",
        "available memory": format_bytes(available_memory()),
        "model": str(path),
        "architecture": model.architecture,
        "layers": str(model.num_layers),
        "heads": f"{model.num_heads} query, {model.num_kv_heads} key/value of {model.head_dim}",
        "hidden size": str(model.hidden_size),
        "vocabulary": str(model.vocab_size),
        "context": f"{model.max_position_embeddings} tokens",
        "chat template": "yes" if checkpoint.chat_template else "no",
        **_describe(footprint, has_kernels=kernels is not None),
    }


def _describe(footprint: Footprint, *, has_kernels: bool) -> dict[str, str]:
    """What would run the model on the CPU, how large it would be, and how much context fits."""
    path = "the native kernels" if has_kernels else "torch"
    if has_kernels and footprint.lacking:
        path = f"torch: the native kernels lack {footprint.lacking}"
    per_token = footprint.cache_bytes_per_token
    left = available_memory() - footprint.weights_bytes
    fits = min(max(0, left) // per_token, footprint.config.max_position_embeddings)
    return {
        "runs on the CPU by": path,
        "parameters": f"{footprint.num_parameters:,}",
        "weights in memory": format_bytes(footprint.weights_bytes),
        "cache": f"{format_bytes(per_token)} a token",
        "context that fits": f"{fits} tokens" if fits else "none: the weights leave no room",
    }
