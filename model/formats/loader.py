"""Checkpoint and load_model: from a path to a model that is ready to run.

Chooses the reader, builds the Transformer without memory, and fills it strictly: what is missing,
surplus or misshapen is named before the first weight is read. One tensor at a time is held beyond
the model's own weights. Knows no file format.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import torch
from gguf import GGMLQuantizationType
from torch import Tensor

from model.chat_template import ChatTemplate
from model.config import ModelConfig
from model.device import choose_device
from model.errors import CheckpointError
from model.formats.gguf_checkpoint import GGUFCheckpoint
from model.formats.hub import resolve_model
from model.formats.safetensors_checkpoint import SafetensorsCheckpoint
from model.native import NativeTransformer
from model.native_library import NativeKernels
from model.native_support import unsupported_feature
from model.quantization import PackedLinear, WeightFormat
from model.tokenizer import Tokenizer
from model.transformer import Transformer

__all__ = [
    "Checkpoint",
    "LoadedModel",
    "Progress",
    "TensorSource",
    "load_model",
    "open_checkpoint",
    "resolve_model",
]

logger = logging.getLogger(__name__)

DType = Literal["auto", "float32", "bfloat16"]
Quantization = Literal["int8", "int4"]
Progress = Callable[[int, int], None]
"""Called with the bytes loaded so far and the bytes in all."""

LISTED = 5
"""How many tensors of a kind an error names."""
OUTPUT = "lm_head.weight"
KEPT = ("model.position_embeddings.weight", ".mlp.gate.weight", ".shared_expert_gate.weight")
"""Ends of the names of matrices that are never rounded: one is only looked up, and to round the
others would change which experts are chosen."""


class TensorSource(Protocol):
    """One tensor of a checkpoint under its canonical name, not read yet."""

    @property
    def name(self) -> str:
        """Its name in the Transformer, or in the file if it has none there."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape, in the Transformer's layout."""

    @property
    def stored_as(self) -> str:
        """The type in the file, such as F32, BF16 or Q4_K."""

    def load(self, dtype: torch.dtype) -> Tensor:
        """Read it from the file into memory of its own."""

    def raw_blocks(self) -> Tensor | None:
        """Read its rows of GGUF blocks as they are, uint8; None if the file holds numbers."""


class Checkpoint(Protocol):
    """What a file or folder says about a model; weights are read when they are asked for."""

    @property
    def config(self) -> ModelConfig:
        """The shape of the model."""

    @property
    def tokenizer(self) -> Tokenizer:
        """Its vocabulary."""

    @property
    def chat_template(self) -> ChatTemplate | None:
        """How a conversation becomes a prompt, if the model has been taught one."""

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Every id that ends a text, apart from the tokenizer's own."""

    @property
    def default_params(self) -> Mapping[str, float]:
        """Sampling parameters its authors recommend."""

    def sources(self) -> Iterator[TensorSource]:
        """All tensors of the file, those the Transformer does not know included."""


@dataclass(frozen=True, slots=True)
class Packing:
    """How matrices are packed for the native kernels, each as soon as it is read."""

    kernels: NativeKernels
    quantize: Quantization | None
    """What to round to; None keeps what the file has."""
    keeps_blocks: bool
    """Whether quantised GGUF blocks stay as they are."""

    def pack(self, source: TensorSource, *, dtype: torch.dtype) -> PackedLinear:
        """Read one matrix and pack it; only one copy is held beside the result."""
        shape = (source.shape[0], source.shape[1])
        if self.quantize is None and self.keeps_blocks:
            blocks = source.raw_blocks()
            if blocks is not None:
                return PackedLinear.from_gguf(
                    blocks,
                    qtype=GGMLQuantizationType[source.stored_as],
                    shape=shape,
                    kernels=self.kernels,
                )
        own: WeightFormat = "float32" if dtype == torch.float32 else "bfloat16"
        chosen = own if self.quantize is None or source.name.endswith(KEPT) else self.quantize
        return PackedLinear.from_float(
            source.load(dtype), weight_format=chosen, kernels=self.kernels
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadedModel:
    """A model ready to run, and all that its files say about using it."""

    name: str
    path: Path
    model: Transformer
    config: ModelConfig
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    eos_token_ids: frozenset[int]
    default_params: Mapping[str, float]
    """Some of temperature, top_p, top_k, min_p and repetition_penalty."""
    native: NativeTransformer | None
    """The same weights, run by the native kernels; None where torch runs the model."""
    dtype: torch.dtype
    """Of matrices that are not quantised, and of the cache."""
    device: torch.device
    num_parameters: int
    num_bytes: int
    """Memory of the weights."""


def load_model(
    path: Path,
    *,
    dtype: DType = "auto",
    device: str = "auto",
    kernels: NativeKernels | None = None,
    quantize: Quantization | None = None,
    context: int | None = None,
    progress: Progress | None = None,
) -> LoadedModel:
    """Read a GGUF file, or a folder in Hugging Face layout.

    Args:
        path: The file or folder, as `resolve_model` finds it.
        dtype: Of the matrices; auto is float32 if the file has it so, else bfloat16, and leaves
            quantised GGUF blocks packed if there are kernels for them. Norms and biases are
            float32 always.
        device: As for `choose_device`; where the weights are quantised, auto is the CPU.
        kernels: What runs the model on a CPU; None is torch.
        quantize: Round the matrices to groups of 8 or 4 bits; needs kernels.
        context: The longest sequence to be run, if it is less than the model's context; it
            decides between rotary factors for short and for long sequences.
        progress: Told how far the loading is.

    Raises:
        ModelError: Something in the files is broken, missing or not supported.
    """
    checkpoint = open_checkpoint(path)
    sources = {source.name: source for source in checkpoint.sources()}
    config = checkpoint.config if context is None else checkpoint.config.limited_to(context)
    resolved = resolve_dtype(dtype, config, sources)
    with torch.device("meta"):
        model = Transformer(config, dtype=resolved)
    _check_fit(model, sources)
    num_parameters = sum(parameter.numel() for parameter in model.parameters())
    if quantize and device == "auto":
        device = "cpu"
    target, resolved = _place(device, num_parameters, resolved, may_widen=dtype == "auto")
    if resolved == torch.float32:
        model = model.float()
    kernels = _usable_kernels(kernels, checkpoint.config, target)
    if quantize and kernels is None:
        raise CheckpointError(f"Quantising to {quantize} needs the native kernels of a CPU.")
    packing = None
    if kernels is not None:
        packing = Packing(kernels, quantize, keeps_blocks=dtype == "auto")
    with ThreadPoolExecutor(1, "text") as beside:  # while the weights are packed without Python
        text = beside.submit(_read_text, checkpoint)
        _fill(model, sources, device=target, packing=packing, progress=progress)
    tokenizer, chat_template = text.result()
    native = None
    if kernels is not None:
        native = NativeTransformer(model.config, dict(model.named_weights()), kernels=kernels)
    own_end = () if tokenizer.eos_token_id is None else (tokenizer.eos_token_id,)
    return LoadedModel(
        name=_display_name(path),
        path=path,
        model=model.eval(),
        native=native,
        config=config,
        tokenizer=tokenizer,
        chat_template=chat_template,
        eos_token_ids=checkpoint.eos_token_ids.union(own_end),
        default_params=checkpoint.default_params,
        dtype=resolved,
        device=target,
        num_parameters=num_parameters,
        num_bytes=sum(weight.nbytes for _, weight in model.named_weights()),
    )


def open_checkpoint(path: Path) -> Checkpoint:
    """Choose the reader of a path.

    Raises:
        CheckpointError: There is nothing, or nothing this project reads.
    """
    if path.is_dir():
        return SafetensorsCheckpoint(path)
    if path.is_file():
        return GGUFCheckpoint(path)
    raise CheckpointError(f"{path} does not exist; expected a GGUF file or a folder.")


def _read_text(checkpoint: Checkpoint) -> tuple[Tokenizer, ChatTemplate | None]:
    """Build what turns text into ids, and try out the template in its process."""
    return checkpoint.tokenizer, checkpoint.chat_template


def _check_fit(model: Transformer, sources: Mapping[str, TensorSource]) -> None:
    """Say in one error all that does not fit."""
    expected = {name: tuple(tensor.shape) for name, tensor in model.named_parameters()}
    # A tied model's file may repeat the embeddings as the output matrix.
    allowed = {*expected, OUTPUT} if model.config.tie_word_embeddings else set(expected)
    complaints = [
        _complaint("missing", [name for name in expected if name not in sources]),
        _complaint("surplus", [name for name in sources if name not in allowed]),
        _complaint(
            "misshapen",
            [
                f"{name} {sources[name].shape} instead of {shape}"
                for name, shape in expected.items()
                if name in sources and sources[name].shape != shape
            ],
        ),
    ]
    if any(complaints):
        raise CheckpointError(
            f"The tensors do not fit the configuration: {'; '.join(filter(None, complaints))}."
        )


def _complaint(kind: str, names: list[str]) -> str:
    if not names:
        return ""
    rest = f" and {len(names) - LISTED} more" if len(names) > LISTED else ""
    return f"{kind} {', '.join(names[:LISTED])}{rest}"


def _fill(
    model: Transformer,
    sources: Mapping[str, TensorSource],
    *,
    device: torch.device,
    packing: Packing | None,
    progress: Progress | None,
) -> None:
    """Replace every parameter by its tensor, packed if it is a matrix and there are kernels."""
    parameters = dict(model.named_parameters())
    total = sum(parameter.nbytes for parameter in parameters.values())
    done = 0
    for name, parameter in parameters.items():
        if packing and parameter.ndim == 2:
            model.set_weight(name, packing.pack(sources[name], dtype=parameter.dtype))
        else:
            model.set_weight(name, sources[name].load(parameter.dtype).to(device))
        done += parameter.nbytes
        if progress:
            progress(done, total)
    model.to(device)  # the tables that no checkpoint holds


def _place(
    device: str, num_parameters: int, dtype: torch.dtype, *, may_widen: bool
) -> tuple[torch.device, torch.dtype]:
    """Choose the device, and float32 for one that has no bfloat16.

    Raises:
        CheckpointError: The device cannot be used, or bfloat16 was asked for and it has none.
    """
    choice = choose_device(device, weights_bytes=num_parameters * dtype.itemsize)
    if dtype == torch.bfloat16 and not choice.has_bfloat16:
        if not may_widen:
            raise CheckpointError(
                f"The dtype is bfloat16, which {choice.reason}, does not multiply: use float32."
            )
        dtype = torch.float32
        choice = choose_device(device, weights_bytes=num_parameters * dtype.itemsize)
    logger.info("device: %s (%s)", choice.device, choice.reason)
    if choice.device.type == "cuda":
        torch.cuda.set_device(choice.device)
    return choice.device, dtype


def _usable_kernels(
    kernels: NativeKernels | None, config: ModelConfig, device: torch.device
) -> NativeKernels | None:
    """The kernels, if they compute on this device and can run this model."""
    if kernels is None or device.type != "cpu":
        return None
    feature = unsupported_feature(config)
    if feature is not None:
        logger.warning("torch runs this model: the native kernels lack %s", feature)
        return None
    return kernels


def resolve_dtype(
    dtype: DType, config: ModelConfig, sources: Mapping[str, TensorSource]
) -> torch.dtype:
    """Return the type of the matrices: auto is float32 if all are so in the file."""
    if dtype == "auto":
        matrices = [source for source in sources.values() if len(source.shape) == 2]
        is_float32 = all(source.stored_as == "F32" for source in matrices)
        dtype = "float32" if is_float32 else config.weights_dtype
    return {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]


def _display_name(path: Path) -> str:
    """Return the name a client sees: of the file, the folder, or the hub's repository."""
    for part in reversed(path.parts):
        if part.startswith("models--"):
            return part.removeprefix("models--").replace("--", "/")
    return path.stem if path.is_file() else path.resolve().name
