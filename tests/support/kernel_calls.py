"""The native kernels as functions of tensors, for tests: one call of the C interface each."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from cache.pool import SCALE_BYTES
from model.native import CACHE_FORMATS
from model.native_abi import BatchStruct, CacheLayerStruct
from model.native_library import NativeKernels
from model.quantization import PackedLinear

ACTIVATIONS = ("silu", "gelu_tanh", "gelu")


def linear(
    kernels: NativeKernels, weight: PackedLinear, x: Tensor, bias: Tensor | None = None
) -> Tensor:
    """Return x W^T + bias, written over a poisoned buffer with room beside each row."""
    out = torch.full((len(x), weight.shape[0] + 3), torch.nan)
    _linear_into(kernels, weight, x, bias, out, accumulate=False)
    assert out[:, weight.shape[0] :].isnan().all()
    return out[:, : weight.shape[0]].contiguous()


def linear_added(
    kernels: NativeKernels, weight: PackedLinear, x: Tensor, residual: Tensor
) -> Tensor:
    """Return residual + x W^T."""
    out = residual.clone()
    _linear_into(kernels, weight, x, None, out, accumulate=True)
    return out


def _linear_into(
    kernels: NativeKernels,
    weight: PackedLinear,
    x: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    accumulate: bool,
) -> None:
    x = x.contiguous()
    matrix = weight.matrix(bias)
    kernels.library.kv_linear(
        kernels.pool,
        ctypes.byref(matrix),
        x.data_ptr(),
        len(x),
        out.data_ptr(),
        out.shape[1],
        int(accumulate),
    )


def rms_norm(kernels: NativeKernels, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Normalise rows (N, C)."""
    out = torch.empty_like(x)
    kernels.library.kv_rms_norm(
        kernels.pool, x.data_ptr(), weight.data_ptr(), *x.shape, eps, out.data_ptr()
    )
    return out


def layer_norm(kernels: NativeKernels, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Normalise rows (N, C), eps 1e-5."""
    out = torch.empty_like(x)
    kernels.library.kv_layer_norm(
        kernels.pool,
        x.data_ptr(),
        weight.data_ptr(),
        bias.data_ptr(),
        *x.shape,
        1e-5,
        out.data_ptr(),
    )
    return out


def activation(kernels: NativeKernels, kind: str, gate: Tensor, up: Tensor | None = None) -> Tensor:
    """Return act(gate) times up, or act(gate)."""
    out = torch.empty_like(gate)
    kernels.library.kv_gated_activation(
        kernels.pool,
        ACTIVATIONS.index(kind),
        gate.data_ptr(),
        None if up is None else up.data_ptr(),
        *gate.shape,
        gate.shape[1],
        out.data_ptr(),
    )
    return out


def rotary(
    kernels: NativeKernels, x: Tensor, positions: Tensor, cos: Tensor, sin: Tensor
) -> Tensor:
    """Turn heads (N, H, D); cos and sin are (P, D/2)."""
    out = x.clone()
    n, heads, head_size = x.shape
    kernels.library.kv_rotary(
        kernels.pool,
        out.data_ptr(),
        n,
        heads * head_size,
        heads,
        head_size,
        positions.data_ptr(),
        cos.data_ptr(),
        sin.data_ptr(),
    )
    return out


@dataclass(frozen=True)
class Request:
    """Keys and values (S, Hkv, D) of one request, and queries (T, H, D) of its last T tokens."""

    q: Tensor
    k: Tensor
    v: Tensor

    def last(self, count: int, *, until: int | None = None) -> Request:
        """The same request when only tokens up to `until` exist and `count` of them are new."""
        end = len(self.k) if until is None else until
        offset = len(self.k) - len(self.q)
        return Request(self.q[end - offset - count : end - offset], self.k[:end], self.v[:end])


@dataclass(frozen=True)
class Paged:
    """A pool layer holding some requests, everything else in it NaN."""

    keys: Tensor  # (blocks, block_size, Hkv, D) for its size; the kernels divide a block by head
    values: Tensor
    block_table: Tensor
    head_size: int

    @property
    def keys_by_token(self) -> Tensor:
        """The keys as (blocks, block_size, Hkv, D)."""
        blocks, block_size, kv_heads, _ = self.keys.shape
        by_head, scales = self._numbers(self.keys)
        by_token = by_head.view(blocks, kv_heads, self.head_size, block_size).permute(0, 3, 1, 2)
        return by_token if scales is None else by_token * scales

    @property
    def values_by_token(self) -> Tensor:
        """The values as (blocks, block_size, Hkv, D)."""
        blocks, block_size, kv_heads, _ = self.values.shape
        by_head, scales = self._numbers(self.values)
        by_token = by_head.view(blocks, kv_heads, block_size, self.head_size).transpose(1, 2)
        return by_token if scales is None else by_token * scales

    def _numbers(self, stored: Tensor) -> tuple[Tensor, Tensor | None]:
        """The numbers (blocks, Hkv, bs * D) and, in int8, the scales (blocks, bs, Hkv, 1)."""
        blocks, block_size, kv_heads, _ = stored.shape
        by_head = stored.view(blocks, kv_heads, -1)
        if stored.dtype != torch.int8:
            return by_head, None
        numbers, scales = by_head.split([block_size * self.head_size, 2 * block_size], 2)
        widened = scales.contiguous().view(torch.bfloat16).float()
        return numbers.contiguous().float(), widened.transpose(1, 2).unsqueeze(-1)

    @property
    def layer(self) -> CacheLayerStruct:
        """Describe it to the kernels."""
        _, block_size, kv_heads, _ = self.keys.shape
        return CacheLayerStruct(
            keys=self.keys.data_ptr(),
            values=self.values.data_ptr(),
            format=CACHE_FORMATS[self.keys.dtype],
            block_size=block_size,
            kv_heads=kv_heads,
            head_size=self.head_size,
        )


def place(
    kernels: NativeKernels,
    requests: list[Request],
    *,
    block_size: int,
    dtype: torch.dtype,
    seed: int = 0,
) -> Paged:
    """Write the requests' keys and values into shuffled blocks, with the kernel under test."""
    counts = [-(-len(request.k) // block_size) for request in requests]
    total = sum(counts) + 3
    _, kv_heads, head_size = requests[0].k.shape
    if dtype == torch.int8:  # bytes of ones are NaN as a scale
        keys = torch.full((total, block_size, kv_heads, head_size + SCALE_BYTES), -1, dtype=dtype)
    else:
        keys = torch.full((total, block_size, kv_heads, head_size), torch.nan, dtype=dtype)
    order = torch.randperm(total, generator=torch.Generator().manual_seed(seed)).tolist()
    table = torch.zeros(len(requests), max(counts), dtype=torch.int64)
    paged = Paged(keys, keys.clone(), table, head_size)
    for row, (request, count) in enumerate(zip(requests, counts, strict=True)):
        blocks = [order.pop() for _ in range(count)]
        table[row, :count] = torch.tensor(blocks)
        slots = (torch.tensor(blocks)[:, None] * block_size + torch.arange(block_size)).flatten()
        slots = slots[: len(request.k)].contiguous()
        k, v = request.k.contiguous(), request.v.contiguous()
        kernels.library.kv_cache_write(
            kernels.pool,
            ctypes.byref(paged.layer),
            k.data_ptr(),
            v.data_ptr(),
            len(k),
            kv_heads * head_size,
            slots.data_ptr(),
        )
    return paged


def attention(
    kernels: NativeKernels,
    requests: list[Request],
    *,
    window: int = 0,
    cap: float = 0.0,
    sinks: Tensor | None = None,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> list[Tensor]:
    """Attend for all requests in one flat batch; returns (T, H, D) for each."""
    paged = place(kernels, requests, block_size=block_size, dtype=dtype, seed=seed)
    q = torch.cat([request.q for request in requests])
    n, heads, head_size = q.shape
    starts = torch.tensor([0, *(len(request.q) for request in requests)]).cumsum(0)
    lengths = torch.tensor([len(request.k) for request in requests])
    batch = BatchStruct(
        requests=len(requests),
        query_starts=starts.data_ptr(),
        key_lengths=lengths.data_ptr(),
        block_table=paged.block_table.data_ptr(),
        max_blocks=paged.block_table.shape[1],
    )
    out = torch.full((n, heads * head_size + 5), torch.nan)
    kernels.library.kv_attention(
        kernels.pool,
        ctypes.byref(paged.layer),
        ctypes.byref(batch),
        q.data_ptr(),
        heads * head_size,
        heads,
        head_size**-0.5,
        cap,
        None if sinks is None else sinks.data_ptr(),
        window,
        out.data_ptr(),
        out.shape[1],
    )
    assert out[:, heads * head_size :].isnan().all()
    rows = out[:, : heads * head_size].reshape(n, heads, head_size)
    return list(rows.split([len(request.q) for request in requests]))
