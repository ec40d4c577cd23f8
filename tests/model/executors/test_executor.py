"""Every executor computes what the model computes of each sequence as a whole."""

from __future__ import annotations

import pytest
import torch
from checkpoints import RANDOM_CONFIGS, random_model
from cuda_on_cpu import cuda_executor
from flat_batches import LIMITS, FlatRequests
from hf_reference import ours_from
from native_models import native_from
from torch import Tensor

from model.executors.executor import Executor
from model.executors.native_executor import NativeExecutor
from model.executors.torch_executor import TorchExecutor
from model.native_library import NativeKernels, NativeUnavailableError
from model.transformer import Transformer

FLOAT = torch.float32


@pytest.fixture(scope="module")
def model() -> Transformer:
    return ours_from(random_model(RANDOM_CONFIGS["rand-llama-tied"]))


@pytest.fixture(params=["torch", "native", "cuda"])
def executor(request: pytest.FixtureRequest, model: Transformer) -> Executor:
    if request.param == "torch":
        return TorchExecutor(model, limits=LIMITS, dtype=FLOAT, device=torch.device("cpu"))
    if request.param == "cuda":
        return cuda_executor(model)
    try:
        kernels = NativeKernels("portable", threads=1)
    except NativeUnavailableError as error:
        pytest.skip(str(error))
    native = native_from(model, kernels=kernels)
    return NativeExecutor(native, limits=LIMITS, dtype=FLOAT)


def run(executor: Executor, requests: FlatRequests, **tokens: list[int]) -> tuple[Tensor, Tensor]:
    batch = requests.batch(**tokens)
    executor.prepare(batch)
    hidden, logits = executor.submit(batch).result()
    return hidden.clone(), logits.clone()


def logprobs_of(model: Transformer, tokens: list[int]) -> Tensor:
    with torch.inference_mode():
        return model(torch.tensor(tokens), torch.arange(len(tokens))).log_softmax(-1)


def test_every_pass_equals_the_whole_sequence(executor, model):
    """Chunks, single tokens and steps of one form after another all see what came before."""
    requests, sequences = FlatRequests(), {"a": [], "b": [], "c": []}
    steps = [
        {"a": 20},
        {"a": 1, "b": 7},
        {"a": 1, "b": 1, "c": 33},
        *[{"a": 1, "b": 1, "c": 1}] * 7,
        {"b": 1, "a": 1},
        {"c": 1, "a": 5},
    ]
    for number, step in enumerate(steps):
        new = {
            name: [(31 * number + 7 * i + ord(name)) % 250 for i in range(count)]
            for name, count in step.items()
        }
        _, logits = run(executor, requests, **new)
        for row, (name, tokens) in enumerate(new.items()):
            sequences[name] += tokens
            expected = logprobs_of(model, sequences[name])[-1]
            torch.testing.assert_close(logits[row].log_softmax(-1), expected, rtol=1e-4, atol=1e-4)


def test_only_the_wanted_rows_have_logits(executor):
    """A pass gives as many rows of logits as it was asked for, be it none."""
    requests = FlatRequests()
    batch = requests.batch(a=[1], b=[2, 3, 4])
    for rows in ([], [3], [0, 3]):
        wanted = batch._replace(sample_rows=rows)
        executor.prepare(wanted)
        hidden, logits = executor.submit(wanted).result()
        assert hidden.shape[0] == 4
        assert logits.shape == (len(rows), executor.vocab_size)
        torch.testing.assert_close(logits, executor.logits(hidden[rows]), rtol=1e-5, atol=1e-5)


def test_a_row_of_the_table_serves_whoever_has_it_now(executor, model):
    """A request in the place of one that has ended reads its own blocks."""
    requests = FlatRequests()
    run(executor, requests, a=list(range(40)))
    requests.manager.release(requests.regions["a"])
    run(executor, requests, b=[9] * 3)
    run(executor, requests, c=list(range(50, 90)))
    _, logits = run(executor, requests, b=[8])
    expected = logprobs_of(model, [9, 9, 9, 8])[-1]
    torch.testing.assert_close(logits[0].log_softmax(-1), expected, rtol=1e-4, atol=1e-4)


def test_the_pool_has_the_size_that_was_asked_for(executor):
    """Nothing but the limits decides how large the pool is."""
    assert executor.pool.num_blocks == LIMITS.num_blocks
    assert executor.pool.block_size == LIMITS.block_size
