"""The sampler against transformers, NumPy in float64, and itself in other company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from model.native_library import INSTRUCTION_SETS, NativeKernels, NativeUnavailableError
from server.engine.sampler import Sampler
from server.engine.sampling.randomness import uniforms
from server.request import Request, SamplingParams

VOCAB_SIZE = 700


@pytest.fixture(scope="module", params=["torch", *INSTRUCTION_SETS])
def kernels(request: pytest.FixtureRequest) -> NativeKernels | None:
    """What computes: torch, and every instruction set that this processor can run."""
    if request.param == "torch":
        return None
    try:
        return NativeKernels(request.param, threads=2)
    except NativeUnavailableError as error:
        pytest.skip(str(error))


def _request(prompt: list[int] | None = None, *, choice: int = 0, **params: Any) -> Request:
    return Request(
        request_id=str(params),
        token_ids=list(prompt or [1, 2, 3]),
        params=SamplingParams(max_tokens=99, **params),
        choice=choice,
    )


def _logits(rows: int, vocab_size: int = VOCAB_SIZE, *, scale: float = 3.0) -> torch.Tensor:
    return torch.randn(rows, vocab_size, generator=torch.Generator().manual_seed(0)) * scale


def _sample(
    kernels: NativeKernels | None,
    logits: torch.Tensor,
    requests: list[Request],
    *,
    device: str = "cpu",
) -> list[int]:
    output = Sampler(logits.shape[1], device, kernels=kernels).sample(logits, requests)
    assert not output.failed
    return output.token_ids


def _expected(logits: torch.Tensor, request: Request) -> int:
    """The token that transformers' warpers and a float64 inverse CDF give."""
    params = request.params
    warpers = LogitsProcessorList([TemperatureLogitsWarper(params.temperature)])
    if params.top_k:
        warpers.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        warpers.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        warpers.append(MinPLogitsWarper(params.min_p))
    warped = warpers(torch.tensor([request.token_ids]), logits.double().unsqueeze(0))
    sums = warped.softmax(-1)[0].cumsum(-1).numpy()
    words = [np.array([word], np.uint64) for word in (params.seed, request.choice)]
    (number,) = uniforms(*words, np.array([len(request.token_ids)], np.uint64))
    return int(np.searchsorted(sums, number * sums[-1], side="right"))


@pytest.mark.parametrize("vocab_size", [11, 700, 5000])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.3},
        {"temperature": 1.7, "top_k": 1},
        {"temperature": 0.9, "top_k": 40},
        {"temperature": 1.5, "top_k": 600},
        {"temperature": 0.7, "top_p": 0.5},
        {"temperature": 2.0, "top_p": 0.97},
        {"temperature": 9.0, "top_p": 0.999},
        {"temperature": 1.0, "top_p": 1e-9},
        {"temperature": 1.5, "min_p": 0.1},
        {"temperature": 1.5, "min_p": 1.0},
        {"temperature": 1.2, "top_k": 30, "top_p": 0.8, "min_p": 0.02},
        {"temperature": 3.0, "top_k": 500, "top_p": 0.99, "min_p": 0.001},
    ],
)
def test_tokens_equal_transformers_warpers(
    kernels: NativeKernels | None, params: dict[str, Any], vocab_size: int
) -> None:
    """Every row draws the token that transformers' warped distribution has at its number."""
    logits = _logits(40, vocab_size)
    requests = [_request(seed=seed, **params) for seed in range(40)]
    expected = [_expected(row, one) for row, one in zip(logits, requests, strict=True)]
    assert _sample(kernels, logits, requests) == expected


def test_all_tokens_tied_at_a_cut_stay(kernels: NativeKernels | None) -> None:
    """Whatever the cut, tokens as likely as the last one kept can all be drawn."""
    logits = torch.zeros(400, VOCAB_SIZE)
    logits[:, 300:] = -5.0
    for cut in ({"top_k": 2}, {"top_p": 0.001}, {"min_p": 1.0}, {"top_k": 1, "top_p": 0.1}):
        drawn = _sample(kernels, logits, [_request(seed=seed, **cut) for seed in range(400)])
        assert len(set(drawn)) > 150
        assert max(drawn) < 300


def test_draws_follow_the_distribution(kernels: NativeKernels | None) -> None:
    """Over the positions of one seed the tokens have the model's frequencies (chi-square)."""
    logits = torch.log(torch.tensor([0.4, 0.3, 0.2, 0.06, 0.04]))
    requests = [_request([0] * length, seed=11) for length in range(1, 4001)]
    drawn = _sample(kernels, logits.repeat(4000, 1), requests)
    expected = logits.exp().numpy() * 4000
    chi_square = ((np.bincount(drawn, minlength=5) - expected) ** 2 / expected).sum()
    assert chi_square < 23.5  # 4 degrees of freedom: exceeded once in ten thousand


@pytest.mark.parametrize("seed", [0, 1234, -1, -(2**63), 2**63 - 1])
def test_a_seed_gives_the_same_tokens_in_any_company(
    kernels: NativeKernels | None, seed: int
) -> None:
    """(seed, choice, position) decide alone; another of any of the three draws otherwise."""
    logits = _logits(1).repeat(50, 1)
    prompts = [[0] * length for length in range(1, 51)]
    own = [_request(prompt, seed=seed) for prompt in prompts]
    drawn = _sample(kernels, logits, own)
    for row in (0, 17, 49):
        neighbours = [_request(seed=99), own[row], _request(temperature=0.0)]
        assert _sample(kernels, logits[:3], neighbours)[1] == drawn[row]
    other_seed = 1235 if seed == 1234 else 5
    assert _sample(kernels, logits, [_request(p, seed=other_seed) for p in prompts]) != drawn
    assert _sample(kernels, logits, [_request(p, seed=seed, choice=1) for p in prompts]) != drawn
    assert len(set(drawn)) > 5


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("vocab_size", [701, 49152])
def test_rows_are_bitwise_the_same_in_batches_of_any_size(
    kernels: NativeKernels | None, vocab_size: int, threads: int
) -> None:
    """Tokens and log-probabilities of mixed requests equal, to the bit, those they get alone."""
    mix: list[dict[str, Any]] = [
        {"temperature": 0.0, "logprobs": 5},
        {"logprobs": 20},
        {"temperature": 0.8, "top_p": 0.9, "logprobs": 0},
        {"top_k": 40, "repetition_penalty": 1.2, "logprobs": 1},
        {"temperature": 1.4, "top_k": 50, "top_p": 0.95, "min_p": 0.05},
        {"temperature": 2.0, "top_p": 0.8, "presence_penalty": 0.4, "logprobs": 3},
        {"logit_bias": {5: 4.0}, "min_tokens": 4},
    ]
    requests = [_request(seed=row, **mix[row % len(mix)]) for row in range(33)]
    logits = _logits(33, vocab_size, scale=4.0)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        alone = [
            _outcome(kernels, logits[row : row + 1], requests[row : row + 1])[0]
            for row in range(33)
        ]
        for size in (2, 3, 7, 8, 16, 31, 32, 33):
            start = 33 - size
            assert _outcome(kernels, logits[start:], requests[start:]) == alone[start:]
    finally:
        torch.set_num_threads(before)


def _outcome(
    kernels: NativeKernels | None, logits: torch.Tensor, requests: list[Request]
) -> list[tuple[int, Any]]:
    sampler = Sampler(logits.shape[1], eos_token_ids=frozenset({2}), kernels=kernels)
    output = sampler.sample(logits, requests)
    return list(zip(output.token_ids, output.logprobs, strict=True))


@pytest.mark.parametrize("temperature", [0.0, 1e-310, 1e-45, 1e-39, 1e-30, 1e-6, 1e-4])
def test_tiny_temperatures_are_greedy(kernels: NativeKernels | None, temperature: float) -> None:
    """Down to numbers that float32 cannot hold, a tiny temperature picks the likeliest token."""
    logits = _logits(30)
    requests = [_request(temperature=temperature, seed=seed) for seed in range(30)]
    assert _sample(kernels, logits, requests) == logits.argmax(-1).tolist()


def test_greedy_ties_go_to_the_lowest_id(kernels: NativeKernels | None) -> None:
    """Of equal logits the first is chosen, across blocks and inside."""
    logits = torch.zeros(2, VOCAB_SIZE)
    logits[1, [299, 310, 690]] = 1.0
    assert _sample(kernels, logits, [_request(temperature=0.0)] * 2) == [0, 299]


def test_penalties_see_the_tokens_they_should(kernels: NativeKernels | None) -> None:
    """A greedy token of the prompt stays under presence and frequency, not under repetition."""
    logits = _logits(3)
    logits[:] = logits[0]
    best, second = logits[0].topk(2).indices.tolist()
    logits[:, best] = logits[:, second] * 1.2
    requests = [
        _request([best], temperature=0.0, presence_penalty=2.0),
        _request([best], temperature=0.0, frequency_penalty=2.0),
        _request([best], temperature=0.0, repetition_penalty=1.5),
    ]
    reference = RepetitionPenaltyLogitsProcessor(1.5)(torch.tensor([[best]]), logits[2:].clone())
    untouched = logits.clone()
    assert (
        _sample(kernels, logits, requests)
        == [best, best, int(reference.argmax())]
        == [best, best, second]
    )
    assert torch.equal(logits, untouched)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_bias_of_a_hundred_forces_or_bans(
    kernels: NativeKernels | None, temperature: float
) -> None:
    """A bias of 100 makes a token certain, one of -100 impossible."""
    logits = _logits(2, scale=1.0)
    best = int(logits[1].argmax())
    forced = _request(temperature=temperature, logit_bias={65: 100.0})
    banned = _request(temperature=temperature, logit_bias={best: -100.0})
    drawn = _sample(kernels, logits, [forced, banned])
    assert drawn[0] == 65
    assert drawn[1] != best


def test_min_tokens_holds_back_what_would_end_the_request(kernels: NativeKernels | None) -> None:
    """End and stop tokens wait for min_tokens; under ignore_eos an end token ends nothing."""
    logits = torch.zeros(4, VOCAB_SIZE)
    logits[:, 2], logits[:, 3] = 9.0, 8.0
    stop = frozenset({3})
    requests = [
        _request(temperature=0.0, min_tokens=1),
        _request(temperature=0.0, min_tokens=1, stop_token_ids=stop),
        _request(temperature=0.0, min_tokens=1, ignore_eos=True),
        _request(temperature=0.0),
    ]
    sampler = Sampler(VOCAB_SIZE, eos_token_ids=frozenset({2, VOCAB_SIZE + 5}), kernels=kernels)
    assert sampler.sample(logits, requests).token_ids == [3, 0, 2, 2]
    for request in requests:
        request.token_ids.append(0)
    assert sampler.sample(logits, requests).token_ids == [2, 2, 2, 2]


def test_only_allowed_tokens_are_chosen(kernels: NativeKernels | None) -> None:
    """A mask leaves no other token, and the reported log-probabilities do not know it."""
    logits = _logits(2)
    allowed = _words({0: [600], 1: [4]})
    requests = [_request(temperature=0.0, logprobs=1), _request(seed=1)]
    output = Sampler(VOCAB_SIZE, kernels=kernels).sample(logits, requests, allowed=allowed)
    assert output.token_ids == [600, 4]
    assert output.logprobs[0] is not None
    assert output.logprobs[0].logprob == pytest.approx(float(logits.log_softmax(-1)[0, 600]))
    assert output.logprobs[0].top[0][0] == int(logits[0].argmax())


def _words(rows: dict[int, list[int]]) -> np.ndarray:
    """Masks of all rows up to the last, as a grammar gives them."""
    bits = np.zeros((max(rows) + 1, -(-VOCAB_SIZE // 32) * 32), np.uint8)
    for row, ids in rows.items():
        bits[row, ids] = 1
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


def test_masks_and_own_bans_hold_together(kernels: NativeKernels | None) -> None:
    """A step's mask and a request's own allowed, banned and stop tokens all rule out; then stop."""
    logits = _logits(4, scale=0.1)
    everything = list(range(VOCAB_SIZE))
    requests = [
        _request(temperature=0.0, allowed_token_ids=(4, 600), seed=1),
        _request(temperature=0.0, allowed_token_ids=(5, 9, 32), bad_words=((9,), (3, 32))),
        _request([7], temperature=0.0, bad_words=((600,),), min_tokens=1),
        _request(temperature=0.0),
    ]
    requests[1].token_ids.append(3)
    sampler = Sampler(VOCAB_SIZE, eos_token_ids=frozenset({4}), kernels=kernels)
    masks = _words({0: [600, 1], 1: everything, 2: [4, 599, 600], 3: everything})
    free = int(logits[3].argmax())
    assert sampler.sample(logits, requests, allowed=masks).token_ids == [600, 5, 599, free]
    later = sampler.sample(logits, requests)
    assert later.token_ids[1] == 5
    assert later.token_ids[0] == (4 if logits[0, 4] > logits[0, 600] else 600)
    nothing = sampler.sample(logits, requests, allowed=_words({0: [5], 3: everything}))
    assert nothing.is_contradiction(0)
    assert nothing.is_contradiction(1)
    assert not nothing.is_contradiction(3)


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_row_without_an_answer_fails_alone(
    kernels: NativeKernels | None, temperature: float
) -> None:
    """NaN, infinity, or nothing to choose fails its row; the others get what they get alone."""
    logits = _logits(6)
    logits[0, 699], logits[1, 5], logits[2] = torch.nan, torch.inf, -torch.inf
    logits[4, 1] = 1.0
    requests = [_request(temperature=temperature, top_p=0.9, logprobs=2) for _ in range(6)]
    requests[4] = _request(temperature=temperature, repetition_penalty=1e-45)
    output = Sampler(VOCAB_SIZE, kernels=kernels).sample(logits, requests)
    assert output.failed.keys() == {0, 1, 2, 4}
    assert "not a number" in output.failed[0]
    assert "no token" in output.failed[4]
    assert output.logprobs[0] is None
    for row in (3, 5):
        assert (output.token_ids[row], output.logprobs[row]) == _outcome(
            kernels, logits[row : row + 1], [requests[row]]
        )[0]


def test_a_forgotten_request_id_can_be_used_again(kernels: NativeKernels | None) -> None:
    """A new request of an old id starts from its own tokens, forgotten or not."""
    logits = _logits(1)
    best = int(logits.argmax())
    sampler = Sampler(VOCAB_SIZE, kernels=kernels)
    first = _request([best], temperature=0.0, repetition_penalty=1e9)
    second = _request([7], temperature=0.0, repetition_penalty=1e9)
    assert first.request_id == second.request_id
    assert sampler.sample(logits, [first]).token_ids != [best]
    assert sampler.sample(logits, [second]).token_ids == [best]
    sampler.forget(second.request_id)
    assert sampler.sample(logits, [first]).token_ids != [best]
    sampler.forget("never seen")


def test_prompt_tokens_are_scored_by_the_model_alone(kernels: NativeKernels | None) -> None:
    """Prompt scores are raw log-probabilities of the given tokens, with alternatives."""
    logits = _logits(5)
    scored = Sampler(VOCAB_SIZE, kernels=kernels).prompt_logprobs(logits, [9, 8, 7, 6, 5], 2)
    exact = logits.double().log_softmax(-1)
    for row, one in enumerate(scored):
        assert one.logprob == pytest.approx(float(exact[row, 9 - row]), abs=1e-5)
        assert [token_id for token_id, _ in one.top] == exact[row].topk(2).indices.tolist()


def test_an_empty_batch_is_an_empty_answer(kernels: NativeKernels | None) -> None:
    """Without requests nothing is chosen."""
    assert _sample(kernels, _logits(0), []) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_chooses_the_tokens_of_the_cpu() -> None:
    """The same numbers lead to the same tokens on a GPU."""
    logits = _logits(16, 5000)
    requests = [_request(seed=seed, top_p=0.9, repetition_penalty=1.1) for seed in range(16)]
    assert _sample(None, logits.cuda(), requests, device="cuda") == _sample(None, logits, requests)
