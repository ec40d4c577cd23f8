"""Triton's kernels in its interpreter, on the CPU; import it before anything of model.cuda.

The interpreter multiplies bfloat16 as if it were integers and cuts float32 off where every GPU
rounds to nearest even: both are put right here, see test_interpreted.
"""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

os.environ["TRITON_INTERPRET"] = "1"  # read when Triton is imported
pytest.importorskip("triton")

from triton import language as tl
from triton.runtime import interpreter

_dot = interpreter.InterpreterBuilder.create_dot
_convert = interpreter._convert_float


def _widened(value):
    if value.dtype.scalar != tl.bfloat16:
        return value
    bits = (value.data.astype(np.uint32) << 16).view(np.float32)
    return interpreter.TensorHandle(bits, tl.float32)


def _exact_dot(self, a, b, d, *options):
    return _dot(self, _widened(a), _widened(b), d, *options)


def _rounded(values, source, target, mode):
    if source == tl.float32 and target == tl.bfloat16:
        floats = torch.from_numpy(np.ascontiguousarray(values).view(np.float32))
        return floats.bfloat16().view(torch.int16).numpy().view(np.uint16)
    return _convert(values, source, target, mode)


def repair() -> None:
    """Make the interpreter's bfloat16 that of a GPU."""
    interpreter.InterpreterBuilder.create_dot = _exact_dot
    interpreter._convert_float = _rounded


def unrepair() -> None:
    """Leave the interpreter as it comes."""
    interpreter.InterpreterBuilder.create_dot = _dot
    interpreter._convert_float = _convert


repair()
