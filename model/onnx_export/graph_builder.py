"""GraphBuilder: an ONNX graph put together node by node, its weights streamed to a file beside it.

Knows nothing of models. A weight is written to the data file when it is handed over and not kept,
so that an export needs the memory of its largest matrix.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import onnx
import torch
from onnx import TensorProto, helper
from torch import Tensor

OPSET = 18
"""Of the operators; both runtimes that the tests use know it whole."""
_ALIGNMENT = 4096
"""Weights begin at a page, so that a runtime may map them."""


class GraphBuilder:
    """Collects nodes, inputs, outputs and weights, and writes them.

    Args:
        data: Where the weights go, open for writing.
        data_name: The name of that file, which the graph refers to.
    """

    def __init__(self, data: BinaryIO, *, data_name: str) -> None:
        self._data = data
        self._data_name = data_name
        self._nodes: list[onnx.NodeProto] = []
        self._inputs: list[onnx.ValueInfoProto] = []
        self._outputs: list[onnx.ValueInfoProto] = []
        self._initializers: dict[str, onnx.TensorProto] = {}
        self._prefix = ""
        self._count = 0

    def scope(self, prefix: str) -> None:
        """Let the names of the nodes that follow begin so, for whoever looks at the graph."""
        self._prefix = prefix

    def add_input(self, name: str, kind: int, shape: Sequence[str | int]) -> str:
        """Declare an input; axes given as text are dynamic and equal wherever they occur."""
        self._inputs.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def add_output(self, value: str, name: str, shape: Sequence[str | int]) -> None:
        """Declare a float32 output, under its own name."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=f"output/{name}"))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:  # noqa: ANN401 - of any type
        """Add an operator of one output, and return the output's name."""
        (output,) = self.nodes(kind, *inputs, count=1, **attributes)
        return output

    def nodes(
        self,
        kind: str,
        *inputs: str,
        count: int,
        **attributes: Any,  # noqa: ANN401 - each operator has its own
    ) -> list[str]:
        """Add an operator of several outputs, and return their names."""
        self._count += 1
        name = f"{self._prefix}{kind}_{self._count}"
        outputs = [name if count == 1 else f"{name}.{index}" for index in range(count)]
        self._nodes.append(helper.make_node(kind, inputs, outputs, name=name, **attributes))
        return outputs

    def integers(self, *values: int) -> str:
        """A constant list of integers, as shapes and axes are."""
        return self._small("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def number(self, value: float) -> str:
        """A constant float32."""
        return self._small(f"float_{value!r}", np.array(value, np.float32))

    def weight(self, name: str, tensor: Tensor) -> str:
        """Write a tensor to the data file, once for each name."""
        if name not in self._initializers:
            content = tensor.detach().to(torch.float32).contiguous().numpy()
            self._data.write(bytes(-self._data.tell() % _ALIGNMENT))
            place = {
                "location": self._data_name,
                "offset": str(self._data.tell()),
                "length": str(content.nbytes),
            }
            content.tofile(self._data)
            self._initializers[name] = _external(name, content.shape, place)
        return name

    def save(self, path: Path, *, producer: str, description: str) -> None:
        """Write the graph.

        Args:
            path: Beside the data file.
            producer: Who made it.
            description: What it is.
        """
        graph = helper.make_graph(
            self._nodes,
            "decoder",
            self._inputs,
            self._outputs,
            initializer=list(self._initializers.values()),
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", OPSET)],
            producer_name=producer,
            doc_string=description,
        )
        # What came with the operators; a newer one would shut out older runtimes.
        model.ir_version = helper.OP_SET_ID_VERSION_MAP["ai.onnx", OPSET]
        onnx.save_model(model, path)

    def _small(self, name: str, content: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> str:
        """A constant kept in the graph itself."""
        if name not in self._initializers:
            self._initializers[name] = onnx.numpy_helper.from_array(content, name)
        return name


def _external(name: str, shape: Sequence[int], place: dict[str, str]) -> onnx.TensorProto:
    """A float32 tensor whose numbers lie in another file."""
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in place.items():
        tensor.external_data.add(key=key, value=value)
    return tensor
