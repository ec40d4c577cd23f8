"""Keras 3 with torch beneath it: an oracle of layers that nobody here wrote."""

from __future__ import annotations

import os
import tempfile
import warnings
from typing import Any

os.environ["KERAS_BACKEND"] = "torch"
os.environ.setdefault(
    "KERAS_HOME", tempfile.mkdtemp(prefix="keras-")
)  # it writes a file of settings

import keras  # after the variables that it reads as it is imported
from torch import Tensor

layers = keras.layers


def compute(layer: Any, *inputs: Tensor, **options: Any) -> Tensor:
    """What a layer makes of tensors, with nothing to remember for gradients."""
    return layer(*inputs, **options).detach()


def saved_and_loaded(model: Any, folder: Any) -> Any:
    """The model once it has been through a file."""
    path = folder / "model.keras"
    with warnings.catch_warnings():
        # Keras asks its own variables for arrays in a way that NumPy deprecates.
        warnings.filterwarnings("ignore", "__array__ implementation", DeprecationWarning)
        model.save(path)
    return keras.saving.load_model(path)


def model_of(layer: Any, *, hidden_size: int) -> Any:
    """Self attention as a model of texts of any length."""
    x = keras.Input((None, hidden_size))
    return keras.Model(x, layer(x, x, use_causal_mask=True))
