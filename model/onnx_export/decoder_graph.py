"""DecoderGraph: the decoder of model/transformer.py as ONNX operators, its cache handed in and out.

Inputs and outputs are named as Hugging Face's optimum names them:

    input_ids, attention_mask, position_ids, past_key_values.N.key, past_key_values.N.value
    logits, present.N.key, present.N.value

All in float32. B texts of T new tokens stand behind P cached ones each; a text shorter than others
is padded at its front, where attention_mask (B, P + T) is 0. One attention mask is made for each
window, and cosines are looked up once for each kind of rotary, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Callable

from onnx import TensorProto
from torch import Tensor

from model.config import ModelConfig
from model.layers import RotaryEmbedding
from model.onnx_export.graph_builder import GraphBuilder
from model.rotary import RotaryConfig

HIDDEN = -3.4028234663852886e38
"""Added to the score of a key that may not be seen: the lowest float32."""
EMBEDDING = "model.embed_tokens.weight"
POSITIONS = "model.position_embeddings.weight"
OUTPUT = "lm_head.weight"

Read = Callable[[str], Tensor]
"""Reads a weight by its canonical name, as float32."""


class DecoderGraph:
    """Writes one model into a graph.

    Args:
        config: What it is made of; the exporter has checked that all of it is known here.
        read: Gives the weights.
        graph: What is written into.
    """

    def __init__(self, config: ModelConfig, *, read: Read, graph: GraphBuilder) -> None:
        self._config = config
        self._read = read
        self._graph = graph

    def write(self) -> None:
        """Add everything, from ids to logits."""
        config, graph = self._config, self._graph
        ids = graph.add_input("input_ids", TensorProto.INT64, ("batch", "new"))
        mask = graph.add_input("attention_mask", TensorProto.INT64, ("batch", "total"))
        positions = graph.add_input("position_ids", TensorProto.INT64, ("batch", "new"))
        past = [self._past(layer) for layer in range(config.num_layers)]
        graph.scope("masks/")
        biases = self._biases(ids, mask)
        tables = self._rotary_tables(positions)
        graph.scope("embedding/")
        x = self._embed(ids, positions)
        presents = []
        for layer in range(config.num_layers):
            graph.scope(f"layer_{layer}/")
            bias, table = biases[config.windows[layer]], tables.get(config.rotaries[layer])
            x, present = self._layer(layer, x, past=past[layer], bias=bias, table=table)
            presents.append(present)
        graph.scope("output/")
        graph.add_output(self._logits(x), "logits", ("batch", "new", config.vocab_size))
        shape = ("batch", config.num_kv_heads, "total", config.head_dim)
        for layer, (keys, values) in enumerate(presents):
            graph.add_output(keys, f"present.{layer}.key", shape)
            graph.add_output(values, f"present.{layer}.value", shape)

    def _past(self, layer: int) -> tuple[str, str]:
        shape = ("batch", self._config.num_kv_heads, "past", self._config.head_dim)
        key, value = (
            self._graph.add_input(f"past_key_values.{layer}.{kind}", TensorProto.FLOAT, shape)
            for kind in ("key", "value")
        )
        return key, value

    def _biases(self, ids: str, mask: str) -> dict[int | None, str]:
        """For each window what is added to the scores: (B, 1, 1, T, S), 0 or HIDDEN."""
        graph = self._graph
        zero, one = graph.integers(0), graph.integers(1)
        new = graph.node("Shape", ids, start=1, end=2)  # (1,) holding T
        total = graph.node("Shape", mask, start=1, end=2)  # (1,) holding S
        scalar = [graph.node("Squeeze", each, zero) for each in (new, total)]
        start, step = (graph.node("Squeeze", each, zero) for each in (zero, one))
        key = graph.node("Range", start, scalar[1], step)  # (S,)
        first = graph.node("Sub", scalar[1], scalar[0])
        query = graph.node("Range", first, scalar[1], step)  # (T,)
        distance = graph.node("Sub", graph.node("Unsqueeze", query, one), key)  # (T, S)
        causal = graph.node("GreaterOrEqual", distance, zero)
        real = graph.node(
            "Unsqueeze", graph.node("Cast", mask, to=TensorProto.BOOL), graph.integers(1, 2, 3)
        )  # (B, 1, 1, 1, S)
        biases: dict[int | None, str] = {}
        for window in dict.fromkeys(self._config.windows):
            seen = causal
            if window is not None:
                near = graph.node("Less", distance, graph.integers(window))
                seen = graph.node("And", seen, near)
            seen = graph.node("And", seen, real)
            biases[window] = graph.node("Where", seen, graph.number(0.0), graph.number(HIDDEN))
        return biases

    def _rotary_tables(self, positions: str) -> dict[RotaryConfig | None, tuple[str, str]]:
        """Cosines and sines of the new positions for each kind of rotary, (B, 1, T, D / 2) each."""
        config, graph = self._config, self._graph
        tables: dict[RotaryConfig | None, tuple[str, str]] = {}
        for number, rotary in enumerate(dict.fromkeys(filter(None, config.rotaries))):
            table = RotaryEmbedding(
                rotary, head_dim=config.head_dim, num_positions=config.max_position_embeddings
            )
            cosines, sines = (
                graph.node(
                    "Unsqueeze",
                    graph.node("Gather", graph.weight(f"rotary.{number}.{name}", part), positions),
                    graph.integers(1),
                )
                for name, part in (("cos", table.cos), ("sin", table.sin))
            )
            tables[rotary] = cosines, sines
        return tables

    def _embed(self, ids: str, positions: str) -> str:
        """Vectors of the tokens, (B, T, C)."""
        graph = self._graph
        x = graph.node("Gather", self._weight(EMBEDDING), ids)
        if self._config.embedding_scale != 1.0:
            x = graph.node("Mul", x, graph.number(self._config.embedding_scale))
        if self._config.learned_positions:
            x = graph.node("Add", x, graph.node("Gather", self._weight(POSITIONS), positions))
        return x

    def _layer(
        self,
        layer: int,
        x: str,
        *,
        past: tuple[str, str],
        bias: str,
        table: tuple[str, str] | None,
    ) -> tuple[str, tuple[str, str]]:
        """One layer: its output (B, T, C), and keys and values (B, Hkv, S, D) of all tokens."""
        graph, name = self._graph, f"model.layers.{layer}."
        normed = self._norm(x, f"{name}input_layernorm")
        attended, present = self._attention(normed, layer, past=past, bias=bias, table=table)
        if self._config.norm_placement == "sandwich":
            attended = self._norm(attended, f"{name}post_attention_layernorm")
            x = graph.node("Add", x, attended)
            added = self._mlp(self._norm(x, f"{name}pre_feedforward_layernorm"), layer)
            added = self._norm(added, f"{name}post_feedforward_layernorm")
        else:
            x = graph.node("Add", x, attended)
            added = self._mlp(self._norm(x, f"{name}post_attention_layernorm"), layer)
        return graph.node("Add", x, added), present

    def _attention(
        self,
        x: str,
        layer: int,
        *,
        past: tuple[str, str],
        bias: str,
        table: tuple[str, str] | None,
    ) -> tuple[str, tuple[str, str]]:
        """Grouped-query attention; the query heads of a key head lie along an axis of their own."""
        config, graph, name = self._config, self._graph, f"model.layers.{layer}.self_attn."
        qkv_bias = config.qkv_bias

        def heads(kind: str, count: int) -> str:  # (B, heads, T, D)
            flat = self._linear(x, f"{name}{kind}_proj", bias=qkv_bias)
            split = graph.node("Reshape", flat, graph.integers(0, 0, count, config.head_dim))
            if config.qk_norm and kind != "v":
                split = self._norm(split, f"{name}{kind}_norm")
            by_head = graph.node("Transpose", split, perm=(0, 2, 1, 3))
            return by_head if table is None or kind == "v" else self._turn(by_head, table)

        q, k, v = (
            heads("q", config.num_heads),
            heads("k", config.num_kv_heads),
            heads("v", config.num_kv_heads),
        )
        keys, values = (
            graph.node("Concat", old, new, axis=2) for old, new in zip(past, (k, v), strict=True)
        )
        group = config.num_heads // config.num_kv_heads
        grouped = graph.node(
            "Reshape", q, graph.integers(0, config.num_kv_heads, group, -1, config.head_dim)
        )
        transposed = graph.node("Transpose", keys, perm=(0, 1, 3, 2))
        scaled = graph.node("Mul", grouped, graph.number(config.attention_scale))
        axis = graph.integers(2)
        scores = graph.node("MatMul", scaled, graph.node("Unsqueeze", transposed, axis))
        weights = graph.node("Softmax", graph.node("Add", scores, bias), axis=-1)
        out = graph.node("MatMul", weights, graph.node("Unsqueeze", values, axis))
        by_head = graph.node(
            "Reshape", out, graph.integers(0, config.num_heads, -1, config.head_dim)
        )
        by_token = graph.node("Transpose", by_head, perm=(0, 2, 1, 3))
        flat = graph.node(
            "Reshape", by_token, graph.integers(0, 0, config.num_heads * config.head_dim)
        )
        return self._linear(flat, f"{name}o_proj", bias=config.output_bias), (keys, values)

    def _turn(self, heads: str, table: tuple[str, str]) -> str:
        """Turn each pair (i, i + D/2) of heads (B, H, T, D) by its position's angle."""
        graph, (cosines, sines) = self._graph, table
        first, second = graph.nodes("Split", heads, count=2, axis=-1, num_outputs=2)
        left = graph.node(
            "Sub", graph.node("Mul", first, cosines), graph.node("Mul", second, sines)
        )
        right = graph.node(
            "Add", graph.node("Mul", second, cosines), graph.node("Mul", first, sines)
        )
        return graph.node("Concat", left, right, axis=-1)

    def _mlp(self, x: str, layer: int) -> str:
        graph, name = self._graph, f"model.layers.{layer}.mlp."
        bias = self._config.mlp_bias
        up = self._linear(x, f"{name}up_proj", bias=bias)
        if self._config.gated_mlp:
            gate = self._activate(self._linear(x, f"{name}gate_proj", bias=bias))
            hidden = graph.node("Mul", gate, up)
        else:
            hidden = self._activate(up)
        return self._linear(hidden, f"{name}down_proj", bias=bias)

    def _activate(self, x: str) -> str:
        """silu, gelu by the error function, or gelu by a hyperbolic tangent."""
        graph = self._graph
        if self._config.activation == "silu":
            return graph.node("Mul", x, graph.node("Sigmoid", x))
        if self._config.activation == "gelu":
            curve = graph.node("Erf", graph.node("Mul", x, graph.number(0.5**0.5)))
        else:
            cube = graph.node("Mul", graph.node("Mul", x, x), x)
            inner = graph.node("Add", x, graph.node("Mul", cube, graph.number(0.044715)))
            curve = graph.node("Tanh", graph.node("Mul", inner, graph.number(_ROOT_2_PI)))
        half = graph.node("Mul", x, graph.number(0.5))
        return graph.node("Mul", half, graph.node("Add", curve, graph.number(1.0)))

    def _norm(self, x: str, name: str) -> str:
        """Normalise the last axis."""
        graph, weight = self._graph, self._weight(f"{name}.weight")
        if self._config.norm == "layer":
            bias = self._weight(f"{name}.bias")
            return graph.node(
                "LayerNormalization", x, weight, bias, axis=-1, epsilon=self._config.norm_eps
            )
        square = graph.node("ReduceMean", graph.node("Mul", x, x), graph.integers(-1))
        length = graph.node("Sqrt", graph.node("Add", square, graph.number(self._config.norm_eps)))
        return graph.node("Mul", graph.node("Div", x, length), weight)

    def _linear(self, x: str, name: str, *, bias: bool) -> str:
        """Multiply by W^T and add b; W is stored as (in, out), as a runtime multiplies it."""
        graph = self._graph
        weight = graph.weight(f"{name}.weight", self._read(f"{name}.weight").T)
        out = graph.node("MatMul", x, weight)
        return graph.node("Add", out, self._weight(f"{name}.bias")) if bias else out

    def _logits(self, x: str) -> str:
        """Logits (B, T, V) of every new token."""
        graph = self._graph
        normed = self._norm(x, "model.norm")
        if not self._config.tie_word_embeddings:
            return self._linear(normed, OUTPUT.removesuffix(".weight"), bias=False)
        matrix = graph.node("Transpose", EMBEDDING, perm=(1, 0))  # stored once, for both uses
        return graph.node("MatMul", normed, matrix)

    def _weight(self, name: str) -> str:
        return self._graph.weight(name, self._read(name))


_ROOT_2_PI = 0.7978845608028654
"""The square root of 2 / pi."""
