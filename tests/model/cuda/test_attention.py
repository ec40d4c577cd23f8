"""Interpreted Triton attention against float64, and against itself to the bit."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from interpreted import repair, unrepair
from torch import Tensor

from cache.view import BatchLayout
from model.cuda.attention import TritonAttention, prompt_tiles


class Scene:
    """Requests in shuffled blocks of a pool that is not a number wherever nothing was written."""

    def __init__(
        self,
        lengths: list[int],
        new: list[int],
        *,
        head_dim: int = 64,
        page: int = 16,
        group: int = 3,
        kv_heads: int = 2,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        generator = torch.Generator().manual_seed(3)
        num_blocks = 1 + sum(-(-length // page) for length in lengths)
        shape = (num_blocks, page, kv_heads, head_dim)
        self.keys, self.values = (torch.full(shape, torch.nan, dtype=dtype) for _ in range(2))
        free = list(range(1, num_blocks))
        random.Random(5).shuffle(free)
        width = max(-(-length // page) for length in lengths)
        table = np.zeros((len(lengths), width), np.int64)
        for row, length in enumerate(lengths):
            for index in range(-(-length // page)):
                table[row, index] = block = free.pop()
                count = min(page, length - index * page)
                for cache in (self.keys, self.values):
                    numbers = torch.randn(count, kv_heads, head_dim, generator=generator)
                    cache[block, :count] = numbers.to(dtype)
        self.q = torch.randn(sum(new), kv_heads * group, head_dim, generator=generator).to(dtype)
        self.lengths, self.new, self.table = lengths, new, table

    def layout(self, rows: slice = slice(None), *, extra: int = 0) -> BatchLayout:
        """The batch of some of the requests; `extra` blocks of width that nobody uses."""
        lengths, new = np.array(self.lengths[rows]), self.new[rows]
        starts = np.concatenate([[0], np.cumsum(new)])
        table = np.pad(self.table[rows], ((0, 0), (0, extra)))
        page = self.keys.shape[1]
        return BatchLayout(
            slots=torch.zeros(0, dtype=torch.int64),
            query_starts=torch.from_numpy(starts).int(),
            key_lengths=torch.from_numpy(lengths).int(),
            host_key_lengths=lengths,
            block_table=torch.from_numpy(table).int(),
            query_lengths=tuple(new),
            num_decodes=new.count(1),
            max_key_length=(int(lengths.max()) + page - 1) // page * page + extra * page,
        )

    def attend(self, backend: TritonAttention, *, window: int | None = None) -> Tensor:
        return backend.attend(
            self.q,
            self.keys,
            self.values,
            self.layout(),
            scale=self.q.shape[-1] ** -0.5,
            window=window,
        )

    def expected(self, window: int | None) -> Tensor:
        """Softmax attention in float64, one request after the other."""
        out, row = [], 0
        group = self.q.shape[1] // self.keys.shape[2]
        for index, (length, count) in enumerate(zip(self.lengths, self.new, strict=True)):
            at = torch.arange(length)
            blocks = torch.from_numpy(self.table[index])[at // self.keys.shape[1]]
            k, v = (
                cache[blocks, at % cache.shape[1]].double().repeat_interleave(group, 1)
                for cache in (self.keys, self.values)
            )
            position = torch.arange(length - count, length)[:, None]
            seen = at <= position
            if window:
                seen &= at > position - window
            scores = torch.einsum("thd,nhd->htn", self.q[row : row + count].double(), k)
            scores = scores * self.q.shape[-1] ** -0.5
            weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
            out.append(torch.einsum("htn,nhd->thd", weights, v))
            row += count
        return torch.cat(out)


def error(out: Tensor, wanted: Tensor) -> float:
    """The largest difference in units of the largest number; NaN counts as infinite."""
    found = ((out.double() - wanted).abs().max() / wanted.abs().max()).item()
    return float("inf") if math.isnan(found) else found


BOUNDS = {torch.float32: 1e-6, torch.bfloat16: 4e-3}
SHAPES = [
    (64, 16, 3, None),
    (64, 32, 1, 40),
    (128, 16, 4, None),
    (128, 32, 8, 100),
    (256, 16, 2, 17),
    (24, 16, 2, None),
]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("head_dim", "page", "group", "window"), SHAPES)
def test_decode_equals_float64(dtype, head_dim, page, group, window):
    """One new token of each request, of all lengths from the first token on."""
    scene = Scene([1, 77, 160], [1] * 3, head_dim=head_dim, page=page, group=group, dtype=dtype)
    out = scene.attend(TritonAttention(capability=80), window=window)
    assert error(out, scene.expected(window)) < BOUNDS[dtype]


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize(("head_dim", "page", "group", "window"), SHAPES)
def test_prompts_equal_float64(dtype, head_dim, page, group, window):
    """Whole prompts, chunks of longer ones and decode rows in one batch."""
    scene = Scene(
        [17, 40, 90, 33], [1, 40, 13, 20], head_dim=head_dim, page=page, group=group, dtype=dtype
    )
    out = scene.attend(TritonAttention(capability=80), window=window)
    assert error(out, scene.expected(window)) < BOUNDS[dtype]


def test_a_window_may_begin_in_any_split():
    """Splits with nothing to see count for nothing."""
    scene = Scene([1, 63, 64, 65, 300], [1] * 5)
    backend = TritonAttention(capability=80, split=64)
    assert error(scene.attend(backend, window=100), scene.expected(100)) < 1e-6


def test_fresh_memory_that_is_not_a_number_does_not_matter(monkeypatch):
    """What others left in the memory of the splits' results is never read."""
    scene = Scene([5, 130], [1, 1])
    backend = TritonAttention(capability=80, split=64)
    first = scene.attend(backend)
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: empty(*args, **kwargs).fill_(
        torch.nan))  # fmt: skip
    assert torch.equal(scene.attend(backend), first)


def test_a_row_is_the_same_in_any_company():
    """Alone, in a batch of four and with more splits than it needs: bitwise the same."""
    scene = Scene([5, 130, 64, 200], [1] * 4)
    backend = TritonAttention(capability=80, split=64)
    together = scene.attend(backend)
    for row in range(4):
        for extra in (0, 20):
            part = slice(row, row + 1)
            alone = backend.attend(
                scene.q[part], scene.keys, scene.values, scene.layout(part, extra=extra),
                scale=64**-0.5, window=None,
            )  # fmt: skip
            assert torch.equal(alone[0], together[row])


def test_tiles_cover_every_new_token_of_a_prompt():
    """Requests with one new token have none; the last tile of a prompt may be partly empty."""
    assert prompt_tiles((1, 5, 1, 2), tokens=2).tolist() == [[1, 0], [1, 1], [1, 2], [3, 0]]
    assert prompt_tiles((1, 1), tokens=2).shape == (0, 2)


def test_the_interpreter_needs_its_repair():
    """As it comes, bfloat16 is far outside the bound: the tests above could not pass."""
    scene = Scene([77], [1], dtype=torch.bfloat16)
    unrepair()
    try:
        out = scene.attend(TritonAttention(capability=80))
    finally:
        repair()
    assert not error(out, scene.expected(None)) < BOUNDS[torch.bfloat16]
