"""NativeTransformer against Transformer for every family, and against itself to the bit."""

from __future__ import annotations

from functools import cache

import pytest
import torch
from checkpoints import RANDOM_CONFIGS, random_model
from hf_reference import ours_from
from native_models import native_from
from paged import PagedCache
from torch import Tensor

from model.native import NativeTransformer
from model.native_library import (
    INSTRUCTION_SETS,
    InstructionSet,
    NativeKernels,
    NativeUnavailableError,
)
from model.quantization import WeightFormat
from model.transformer import Transformer

TOLERANCE = 3e-4
FORMATS: tuple[WeightFormat, ...] = ("float32", "bfloat16", "int8", "int4", "int4_affine")
ONE_OF_EACH = (
    "rand-llama-tied",
    "rand-mistral",
    "rand-qwen2",
    "rand-qwen3",
    "rand-gemma3",
    "rand-gpt2",
)


@cache
def kernels(instruction_set: InstructionSet, threads: int) -> NativeKernels:
    return NativeKernels(instruction_set, threads=threads)


@pytest.fixture(params=INSTRUCTION_SETS)
def instruction_set(request: pytest.FixtureRequest) -> InstructionSet:
    """Each instruction set this processor can run."""
    name: InstructionSet = request.param
    try:
        kernels(name, 1)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    return name


@cache
def torch_model(name: str) -> Transformer:
    return ours_from(random_model(RANDOM_CONFIGS[name]))


def native(
    name: str, instruction_set: InstructionSet, threads: int, weight_format: WeightFormat
) -> NativeTransformer:
    return native_from(
        torch_model(name), kernels=kernels(instruction_set, threads), weight_format=weight_format
    )


def token_ids(name: str, *, seed: int = 7, count: int = 80) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    config = torch_model(name).config
    count = min(count, config.max_position_embeddings)
    return torch.randint(config.vocab_size, (count,), generator=generator).tolist()


def whole(
    model: NativeTransformer, ids: list[int], *, dtype: torch.dtype = torch.float32
) -> Tensor:
    """Log-probabilities after every token, all in one pass of a request alone."""
    return PagedCache.for_model(model, dtype=dtype).step(model, {"a": ids})["a"]


@pytest.mark.parametrize("name", RANDOM_CONFIGS)
def test_equals_the_torch_model(instruction_set: InstructionSet, name: str) -> None:
    """In float32 the log-probabilities of every family are those of the torch path."""
    model = native(name, instruction_set, 2, "float32")
    ids = token_ids(name)
    with torch.inference_mode():
        wanted = torch_model(name)(torch.tensor(ids), torch.arange(len(ids))).log_softmax(-1)
    torch.testing.assert_close(whole(model, ids), wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", ["rand-llama-tied", "rand-gemma3", "rand-gpt2"])
@pytest.mark.parametrize("weight_format", FORMATS[1:])
def test_narrow_formats_equal_their_own_values(
    instruction_set: InstructionSet, name: str, weight_format: WeightFormat
) -> None:
    """A packed model is near the torch model of its dequantised weights."""
    model = native(name, instruction_set, 2, weight_format)
    wide = Transformer(model.config, dtype=torch.float32)
    wide.load_state_dict(
        {
            key: weight if isinstance(weight, Tensor) else weight.dequantize()
            for key, weight in model.weights.items()
        }
    )
    ids = token_ids(name)
    with torch.inference_mode():
        wanted = wide(torch.tensor(ids), torch.arange(len(ids))).log_softmax(-1)
    got = whole(model, ids)
    if weight_format == "bfloat16" and instruction_set != "amx":  # which rounds activations, too
        torch.testing.assert_close(got, wanted, rtol=0, atol=TOLERANCE)
    else:
        divergence = (wanted.exp() * (wanted - got)).sum(-1).mean()
        assert divergence < 2e-2  # these random models are sharper than trained ones


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_one_answer_whoever_else_is_there(
    instruction_set: InstructionSet, name: str, weight_format: WeightFormat
) -> None:
    """Any chunking, company, block size and thread count leave every log-probability's bits."""
    ids, other = token_ids(name), token_ids(name, seed=8)
    cache_type = torch.bfloat16 if weight_format == "bfloat16" else torch.float32
    reference = whole(native(name, instruction_set, 1, weight_format), ids, dtype=cache_type)
    for threads in (1, 2):
        model = native(name, instruction_set, threads, weight_format)
        for cuts in ([1] * 80, [7, 1, 40, 1, 31], [64, 16], [79, 1]):
            paged = PagedCache.for_model(model, block_size=16, dtype=cache_type)
            start = 0
            for i, cut in enumerate(cuts):
                batch = {"a": ids[start : start + cut]}
                for neighbour in range(i % 5):
                    count = 1 if neighbour % 2 else 3 + i % 4
                    batch[f"{neighbour} from {i // 20}"] = other[:count]
                if i % 2:  # the request is not always the first
                    batch = dict(reversed(batch.items()))
                got = paged.step(model, batch)["a"]
                assert torch.equal(got, reference[start : start + cut])
                start += cut


def test_a_shared_prefix_gives_the_same_answer(instruction_set: InstructionSet) -> None:
    """Reading a prefix that another request computed gives the same bits as computing it."""
    name = "rand-llama-tied"
    model = native(name, instruction_set, 2, "int8")
    ids = token_ids(name)
    reference = whole(model, ids)
    paged = PagedCache.for_model(model, block_size=16)
    paged.step(model, {"first": ids[:48] + ids[:5]})
    paged.tables["second"] = paged.tables["first"][:3]
    paged.lengths["second"] = 48
    assert torch.equal(paged.step(model, {"second": ids[48:]})["second"], reference[48:])


def test_rows_select_logits(instruction_set: InstructionSet) -> None:
    """Asking for some rows gives those rows of all logits, in the order asked for."""
    model = native("rand-qwen2", instruction_set, 2, "int8")
    ids = torch.tensor(token_ids("rand-qwen2", count=10))
    outputs = []
    for rows in (None, torch.tensor([9, 2])):
        view, positions = PagedCache.for_model(model).view({"a": 10})
        outputs.append(model(ids, positions, view, rows))
    assert torch.equal(outputs[1], outputs[0][[9, 2]])


@pytest.mark.parametrize("name", ["rand-llama-tied", "rand-gemma3"])
def test_neighbour_that_is_not_a_number_does_no_harm(
    instruction_set: InstructionSet, name: str
) -> None:
    """A request whose keys and values are NaN gets NaN, and the others what they always get."""
    model = native(name, instruction_set, 2, "int8")
    ids = token_ids(name)
    reference = whole(model, ids[:31])
    paged = PagedCache.for_model(model)
    paged.step(model, {"ill": ids[:9], "well": ids[:30]})
    for block in paged.tables["ill"]:
        paged.pool.storage[:, :, block].fill_(torch.nan)
    out = paged.step(model, {"ill": ids[9:10], "well": ids[30:31]})
    assert out["ill"].isnan().all()
    assert torch.equal(out["well"], reference[30:])


def test_indices_out_of_bounds_are_refused() -> None:
    """Every index of a batch is checked before anything is computed."""
    try:
        model = native("rand-gpt2", "portable", 1, "float32")
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    paged = PagedCache.for_model(model)
    view, positions = paged.view({"a": 4})
    ids = torch.zeros(4, dtype=torch.int64)
    with pytest.raises(ValueError, match="input id"):
        model(ids - 1, positions, view)
    with pytest.raises(ValueError, match="position"):
        model(ids, positions + 10**6, view)
    view.layout.key_lengths.fill_(10**6)
    with pytest.raises(ValueError, match="block table"):
        model(ids, positions, view)
    view.layout.key_lengths.fill_(4)
    view.layout.block_table.fill_(-1)
    with pytest.raises(ValueError, match="outside the pool"):
        model(ids, positions, view)
    view.layout.slots.fill_(10**9)
    with pytest.raises(ValueError, match="slot"):
        model(ids, positions, view)


def test_tied_weights_are_kept_once(instruction_set: InstructionSet) -> None:
    """A tied model has no output matrix beside its embedding."""
    tied = native("rand-llama-tied", instruction_set, 1, "int8")
    matrix = torch_model("rand-llama-tied").model.embed_tokens.weight
    assert "lm_head.weight" not in tied.weights
    assert tied.weights["model.embed_tokens.weight"].nbytes < 1.2 * matrix.numel() + 1024
