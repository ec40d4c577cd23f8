"""An exported folder run by the runtimes it is for: onnxruntime and OpenVINO."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Arrays = Mapping[str, NDArray[np.generic]]
Run = Callable[[Arrays], dict[str, NDArray[np.float32]]]


def onnxruntime_run(folder: Path) -> Run:
    """What onnxruntime computes, by the names of the outputs."""
    import onnxruntime  # noqa: PLC0415 - a second each; few tests need it

    session = onnxruntime.InferenceSession(
        folder / "model.onnx", providers=["CPUExecutionProvider"]
    )
    names = [output.name for output in session.get_outputs()]
    return lambda inputs: dict(zip(names, session.run(names, dict(inputs)), strict=True))


def openvino_run(folder: Path) -> Run:
    """What OpenVINO computes, in float32."""
    import openvino  # noqa: PLC0415 - a second each; few tests need it

    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(folder / "model.onnx", "CPU", settings)

    def run(inputs: Arrays) -> dict[str, NDArray[np.float32]]:
        result = compiled(dict(inputs))
        return {
            name: np.array(value) for port, value in result.items() for name in port.get_names()
        }

    return run


RUNTIMES = {"onnxruntime": onnxruntime_run, "openvino": openvino_run}


class ExportedDecoder:
    """Feeds texts to an exported decoder, and keeps their cache between steps.

    Args:
        run: What computes.
        cache_shape: (layers, key heads, head size).
        batch: How many texts.
    """

    def __init__(self, run: Run, cache_shape: tuple[int, int, int], *, batch: int = 1) -> None:
        self._run = run
        layers, heads, size = cache_shape
        empty = np.zeros((batch, heads, 0, size), np.float32)
        self._past = {
            f"past_key_values.{layer}.{kind}": empty
            for layer in range(layers)
            for kind in ("key", "value")
        }
        self._mask = np.zeros((batch, 0), np.int64)

    def step(self, ids: list[list[int]], *, mask: list[list[int]] | None = None) -> NDArray:
        """Log-probabilities (B, T, V) after each new token.

        Args:
            ids: (B, T) the new tokens.
            mask: (B, T) which of them are real; all if None.
        """
        new = np.ones_like(ids) if mask is None else np.array(mask)
        self._mask = np.concatenate([self._mask, new], axis=1).astype(np.int64)
        positions = np.maximum(self._mask.cumsum(axis=1) - 1, 0)[:, -new.shape[1] :]
        outputs = self._run(
            {
                "input_ids": np.array(ids, np.int64),
                "attention_mask": self._mask,
                "position_ids": positions,
                **self._past,
            }
        )
        self._past = {
            past: outputs[past.replace("past_key_values", "present")] for past in self._past
        }
        logits = outputs["logits"].astype(np.float64)
        shifted = logits - logits.max(axis=-1, keepdims=True)
        return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))

    @property
    def past_length(self) -> int:
        """Tokens in the cache."""
        return next(iter(self._past.values())).shape[2]
