"""The whole model against transformers, in float32, through every way of feeding it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import torch
from checkpoints import RANDOM_CONFIGS, random_model, reference_logprobs
from hf_reference import canonical_tensors, ours_from
from paged import PagedCache
from torch import Tensor
from transformers import (
    Gemma3TextConfig,
    GPT2Config,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from model.formats.hf_config import read_hf_config
from model.transformer import Transformer

TOLERANCE = 3e-4

SHAPE: dict[str, Any] = {
    "vocab_size": 120,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "pad_token_id": 0,
}

UNUSUAL_CONFIGS: dict[str, PretrainedConfig] = {
    "llama-biased-one-kv-head": LlamaConfig(
        **SHAPE | {"num_key_value_heads": 1}, head_dim=20, attention_bias=True, mlp_bias=True
    ),
    "llama-gelu": LlamaConfig(**SHAPE, hidden_act="gelu", tie_word_embeddings=True),
    "llama-yarn-mscale": LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 500.0,
            "factor": 4.0,
            "original_max_position_embeddings": 40,
            "mscale": 0.8,
            "mscale_all_dim": 0.5,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "truncate": False,
        },
    ),
    "llama-yarn-attention-factor": LlamaConfig(
        **SHAPE,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 40,
            "attention_factor": 1.3,
        },
    ),
    "mistral-no-window": MistralConfig(**SHAPE, sliding_window=None),
    "mistral-window-1": MistralConfig(**SHAPE, sliding_window=1),
    "qwen2-window-from-layer-1": Qwen2Config(
        **SHAPE, use_sliding_window=True, sliding_window=10, max_window_layers=1
    ),
    "qwen3-biased-layer-types": Qwen3Config(
        **SHAPE,
        head_dim=16,
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=9,
        layer_types=["full_attention", "sliding_attention", "full_attention"],
    ),
    "gemma3-scaled-untied": Gemma3TextConfig(
        **SHAPE,
        head_dim=16,
        sliding_window=13,
        query_pre_attn_scalar=24,
        attention_bias=True,
        tie_word_embeddings=False,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 300.0},
        },
    ),
    "gpt2-unscaled-untied": GPT2Config(
        vocab_size=120,
        n_positions=160,
        n_embd=48,
        n_layer=3,
        n_head=3,
        n_inner=70,
        activation_function="gelu",
        scale_attn_weights=False,
        tie_word_embeddings=False,
    ),
}
CONFIGS = RANDOM_CONFIGS | UNUSUAL_CONFIGS
ONE_OF_EACH = (
    "rand-llama-untied",
    "rand-mistral",
    "rand-qwen2",
    "rand-qwen3",
    "rand-gemma3",
    "rand-gpt2",
)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@cache
def reference(name: str) -> PreTrainedModel:
    return random_model(CONFIGS[name])


@cache
def expected(name: str) -> tuple[list[int], Tensor]:
    """Random tokens, more than any window, and the reference's log-probabilities."""
    config = CONFIGS[name]
    count = min(80, config.max_position_embeddings)
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(config.vocab_size, (count,), generator=generator).tolist()
    return ids, reference_logprobs(reference(name), ids)


@cache
def ours(name: str) -> Transformer:
    return ours_from(reference(name))


def assert_close(actual: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(actual, wanted, rtol=0, atol=TOLERANCE)


@pytest.mark.parametrize("name", CONFIGS)
def test_whole_sequence_equals_transformers(name: str) -> None:
    """Without a cache every log-probability at every position is that of transformers."""
    ids, wanted = expected(name)
    model = ours(name)
    with torch.inference_mode():
        logits = model(torch.tensor(ids), torch.arange(len(ids)))
    assert_close(logits.log_softmax(-1), wanted)


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("name", CONFIGS)
def test_chunks_through_the_cache_equal_transformers(name: str, chunk: int) -> None:
    """However a prompt is cut, the log-probabilities through the paged cache are the same."""
    ids, wanted = expected(name)
    paged = PagedCache.for_model(ours(name))
    pieces = [
        paged.step(ours(name), {"a": ids[start : start + chunk]})["a"]
        for start in range(0, len(ids), chunk)
    ]
    assert_close(torch.cat(pieces), wanted)


@pytest.mark.parametrize("block_size", [1, 16])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_mixed_batch_equals_alone(name: str, block_size: int) -> None:
    """Decodes and prompt chunks of several requests in one pass do not change each other."""
    ids, wanted = expected(name)
    paged = PagedCache.for_model(ours(name), block_size=block_size)
    paged.step(ours(name), {"a": ids[:40], "b": ids[:3], "c": ids[:1], "d": ids[:17]})
    step = {"c": ids[1:2], "a": ids[40:41], "b": ids[3:60], "d": ids[17:19], "e": ids[:33]}
    out = paged.step(ours(name), step)
    for request, start in {"a": 40, "b": 3, "c": 1, "d": 17, "e": 0}.items():
        assert_close(out[request], wanted[start : start + len(step[request])])


@pytest.mark.parametrize("name", ["rand-llama-tied", "rand-gemma3"])
def test_neighbour_that_is_not_a_number_does_no_harm(name: str) -> None:
    """A request whose keys and values are NaN leaves the others of its batch as they were."""
    ids, wanted = expected(name)
    paged = PagedCache.for_model(ours(name))
    paged.step(ours(name), {"ill": ids[:9], "well": ids[:30]})
    for block in paged.tables["ill"]:
        paged.pool.storage[:, :, block].fill_(torch.nan)
    out = paged.step(ours(name), {"ill": ids[9:10], "well": ids[30:31]})
    assert out["ill"].isnan().all()
    assert_close(out["well"], wanted[30:31])


def test_rows_select_logits() -> None:
    """Asking for some rows gives those rows of all logits, in the order asked for."""
    model = ours("rand-llama-untied")
    ids = torch.arange(10)
    rows = torch.tensor([9, 2])
    assert_close(model(ids, ids, rows=rows), model(ids, ids)[rows])


def test_built_on_meta_and_filled_equals_built_in_place() -> None:
    """A model built without memory and filled afterwards computes the same logits."""
    name = "rand-gemma3"
    source = reference(name)
    with torch.device("meta"):
        model = Transformer(read_hf_config(source.config.to_dict()), dtype=torch.float32)
    model.load_state_dict(canonical_tensors(source), assign=True)
    ids = torch.arange(40)
    assert torch.equal(model(ids, ids), ours(name)(ids, ids))


def test_emptied_tables_are_made_anew() -> None:
    """After to_empty and reset_tables only the weights are missing."""
    name = "rand-llama-rope-yarn"
    with torch.device("meta"):
        model = Transformer(ours(name).config, dtype=torch.float32)
    model.to_empty(device="cpu").load_state_dict(ours(name).state_dict())
    model.reset_tables(torch.device("cpu"))
    ids = torch.arange(40)
    assert torch.equal(model(ids, ids), ours(name)(ids, ids))


def test_bfloat16_weights_compute_in_float32() -> None:
    """With bfloat16 matrices the result is that of the same numbers stored as float32."""
    narrow = ours_from(reference("rand-gemma3"), dtype=torch.bfloat16)
    wide = Transformer(narrow.config, dtype=torch.float32)
    wide.load_state_dict(narrow.state_dict())
    ids, positions = torch.tensor(expected("rand-gemma3")[0]), torch.arange(80)
    with torch.inference_mode():
        assert narrow.model.norm.weight.dtype == torch.float32
        assert narrow.model.layers[0].mlp.up_proj.weight.dtype == torch.bfloat16
        assert_close(narrow(ids, positions).log_softmax(-1), wide(ids, positions).log_softmax(-1))


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_gradients_equal_transformers(name: str) -> None:
    """The gradient of a loss with respect to every weight is that of transformers."""
    theirs, model = reference(name), ours_from(reference(name))
    ids = torch.tensor(expected(name)[0][:30])
    for parameter in theirs.parameters():
        parameter.grad = None
    theirs(ids[None]).logits[0].log_softmax(-1)[:-1].gather(1, ids[1:, None]).mean().backward()
    model(ids, torch.arange(30)).log_softmax(-1)[:-1].gather(1, ids[1:, None]).mean().backward()
    for parameter in theirs.parameters():
        parameter.data, parameter.grad = parameter.grad, parameter.data
    try:
        wanted = canonical_tensors(theirs)
    finally:
        for parameter in theirs.parameters():
            parameter.data, parameter.grad = parameter.grad, parameter.data
    for key, parameter in model.named_parameters():
        offset = 1 if name == "rand-gemma3" and "norm" in key else 0
        torch.testing.assert_close(parameter.grad + offset, wanted[key], rtol=1e-3, atol=1e-4)
