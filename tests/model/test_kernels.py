"""The native kernels against float64, and against themselves to the bit, on every instruction set.

The contract under test: a result depends on its own row, weights and keys only, never on the
company it is computed in, the chunk it came with, where its blocks lie or how many threads work.
"""

from __future__ import annotations

import kernel_calls as call
import pytest
import torch
from kernel_calls import Request
from torch import Tensor
from torch.nn import functional

from model.native_library import NativeKernels
from model.quantization import FORMATS, PackedLinear, WeightFormat


def normal(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    """Normally distributed float32 numbers."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) * scale


def ulps(value: Tensor, truth: Tensor) -> Tensor:
    """The distance from a float64 truth in units of its last float32 place."""
    _, exponent = torch.frexp(truth)
    return (value.double() - truth).abs() / torch.exp2(exponent.double().clamp(min=-125) - 24)


# ---- linear layers ----

SHAPES = [(16, 32), (37, 96), (64, 320), (150, 576), (1, 64)]
ODD_INPUTS = [(20, 33), (5, 1), (16, 47)]


def rounded_rows(x: Tensor) -> Tensor:
    """What quantised layers see of activations: int8 with a zero of their own in groups of 32."""
    padded = functional.pad(x, (0, -x.shape[1] % 32)).view(len(x), -1, 32)
    low, high = (
        padded.amin(-1, keepdim=True).clamp(max=0),
        padded.amax(-1, keepdim=True).clamp(min=0),
    )
    steps = torch.where(high > low, 254.0 / (high - low), 0.0)
    zero = (-127.0 - low * steps).round()
    whole = ((padded * steps).round() + zero).clamp(-127, 127)
    values = (whole - zero).double() * ((high - low) / 254.0).double()
    return values.flatten(1)[:, : x.shape[1]]


def seen_rows(x: Tensor, weight_format: WeightFormat, kernels: NativeKernels) -> Tensor:
    """What layers see of activations."""
    if weight_format == "bfloat16" and kernels.instruction_set == "amx":
        return x.bfloat16().double()
    return x.double() if weight_format in ("float32", "bfloat16") else rounded_rows(x)


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("shape", SHAPES + ODD_INPUTS)
def test_linear_equals_float64(
    pools: list[NativeKernels], weight_format: WeightFormat, shape: tuple[int, int]
) -> None:
    """A product over the stored weights (and rounded activations) is right to float32 accuracy."""
    kernels = pools[0]
    weight = PackedLinear.from_float(
        normal(*shape, scale=0.05), weight_format=weight_format, kernels=kernels
    )
    bias = normal(shape[0], seed=2)
    x = normal(7, shape[1], seed=1)
    seen = seen_rows(x, weight_format, kernels)
    exact = seen @ weight.dequantize().double().T + bias.double()
    torch.testing.assert_close(
        call.linear(kernels, weight, x, bias).double(), exact, rtol=2e-5, atol=3e-6
    )


@pytest.mark.parametrize("weight_format", FORMATS)
@pytest.mark.parametrize("shape", [(150, 576), (37, 96), (20, 33)])
def test_linear_row_is_the_same_in_any_company(
    pools: list[NativeKernels], weight_format: WeightFormat, shape: tuple[int, int]
) -> None:
    """A row has the same bits alone and among 2 to 40 or 200 rows, with one and two threads."""
    weight = PackedLinear.from_float(normal(*shape), weight_format=weight_format, kernels=pools[0])
    x, bias = normal(200, shape[1], seed=1), normal(shape[0], seed=2)
    alone = torch.cat([call.linear(pools[0], weight, row[None], bias) for row in x])
    for kernels in pools:
        for count in [*range(1, 41), 97, 128, 200]:
            assert torch.equal(call.linear(kernels, weight, x[-count:], bias), alone[-count:])


@pytest.mark.parametrize("weight_format", FORMATS)
def test_linear_adds_to_a_residual(pools: list[NativeKernels], weight_format: WeightFormat) -> None:
    """Accumulating is one float addition of the product to what was there."""
    weight = PackedLinear.from_float(normal(37, 64), weight_format=weight_format, kernels=pools[0])
    x, residual = normal(9, 64, seed=1), normal(9, 37, seed=2)
    expected = residual + call.linear(pools[0], weight, x)
    for kernels in pools:
        assert torch.equal(call.linear_added(kernels, weight, x, residual), expected)


def test_linear_of_extreme_activations(pools: list[NativeKernels]) -> None:
    """Zeros give the bias, an outlier rules its group only, and NaN stays NaN."""
    weight = PackedLinear.from_float(normal(20, 64), weight_format="int8", kernels=pools[0])
    x = normal(4, 64, seed=1)
    x[0] = 0.0
    x[1, 5] = 1e6
    x[2, 40] = torch.nan
    x[3] = 1e-38
    y = call.linear(pools[0], weight, x)
    assert torch.equal(y[0], torch.zeros(20))
    exact = rounded_rows(x[1:2]) @ weight.dequantize().double().T
    torch.testing.assert_close(y[1:2].double(), exact, rtol=1e-5, atol=1e-1)
    assert y[2].isnan().all()
    assert y[3].abs().max() < 1e-30


def test_int8_sums_reach_their_bounds(pools: list[NativeKernels]) -> None:
    """The largest weights and activations of either sign do not overflow or saturate."""
    signs = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0]])
    weight = torch.cat([s * torch.ones(32) for s in signs.flatten()]).view(4, 64)
    for weight_format in ("int8", "int4", "int4_affine"):
        packed = PackedLinear.from_float(weight, weight_format=weight_format, kernels=pools[0])
        for x in (torch.ones(1, 64), -torch.ones(1, 64)):
            exact = x.double() @ packed.dequantize().double().T
            got = call.linear(pools[0], packed, x).double()
            torch.testing.assert_close(got, exact, rtol=1e-6, atol=1e-6)


# ---- attention ----


def request(
    num_keys: int, num_queries: int, *, heads: int, kv_heads: int, head_size: int, seed: int
) -> Request:
    """A request with `num_keys` tokens in the cache, the last `num_queries` of them new."""
    return Request(
        normal(num_queries, heads, head_size, seed=seed),
        normal(num_keys, kv_heads, head_size, seed=seed + 1000),
        normal(num_keys, kv_heads, head_size, seed=seed + 2000),
    )


def stored(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Keys or values (S, Hkv, D) as a cache of a type gives them back."""
    if dtype != torch.int8:
        return x.to(dtype)
    exact = x.abs().amax(-1, keepdim=True) / 127
    scale = exact.bfloat16()
    too_small = scale.float() < exact
    scale = torch.where(too_small, (scale.view(torch.int16) + 1).view(torch.bfloat16), scale)
    return (x * (1 / scale.float())).round() * scale.float()


def exact_attention(r: Request, *, window: int, dtype: torch.dtype) -> Tensor:
    """Softmax attention in float64 over keys and values as the cache stores them."""
    num_queries, heads, head_size = r.q.shape
    k, v = (stored(t, dtype).double().repeat_interleave(heads // t.shape[1], 1) for t in (r.k, r.v))
    scores = torch.einsum("thd,shd->hts", r.q.double(), k) * head_size**-0.5
    position = torch.arange(len(k) - num_queries, len(k))[:, None]
    key = torch.arange(len(k))
    seen = key <= position
    if window:
        seen &= key > position - window
    weights = scores.masked_fill(~seen, -torch.inf).softmax(-1)
    return torch.einsum("hts,shd->thd", weights, v)


HEADS = [(9, 3, 64), (4, 1, 256), (4, 4, 32), (14, 2, 8), (2, 2, 20), (71, 1, 16)]
LENGTHS = [(1, 1), (5, 5), (33, 1), (40, 40), (300, 17), (700, 1), (530, 530), (257, 2)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("heads", "kv_heads", "head_size"), HEADS)
def test_attention_equals_float64(
    pools: list[NativeKernels], dtype: torch.dtype, heads: int, kv_heads: int, head_size: int
) -> None:
    """Ragged requests, grouped heads, windows and all cache types agree with plain softmax."""
    requests = [
        request(s, t, heads=heads, kv_heads=kv_heads, head_size=head_size, seed=i)
        for i, (s, t) in enumerate(LENGTHS)
    ]
    for window in (0, 1, 20, 256, 300):
        outputs = call.attention(pools[1], requests, window=window, dtype=dtype)
        for r, out in zip(requests, outputs, strict=True):
            exact = exact_attention(r, window=window, dtype=dtype)
            torch.testing.assert_close(out.double(), exact, rtol=1e-4, atol=3e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
@pytest.mark.parametrize("window", [0, 100])
@pytest.mark.parametrize(("heads", "kv_heads", "head_size"), [(9, 3, 64), (4, 1, 48), (2, 2, 20)])
def test_attention_row_is_the_same_however_it_came(
    pools: list[NativeKernels],
    dtype: torch.dtype,
    window: int,
    heads: int,
    kv_heads: int,
    head_size: int,
) -> None:
    """A token attends to the same bits alone, in any chunk, crowd, block size or place."""
    whole = request(600, 600, heads=heads, kv_heads=kv_heads, head_size=head_size, seed=1)
    others = [
        request(s, t, heads=heads, kv_heads=kv_heads, head_size=head_size, seed=10 + s)
        for s, t in ((1, 1), (77, 3), (300, 1), (50, 50))
    ]
    (reference,) = call.attention(pools[0], [whole], window=window, dtype=dtype)
    for kernels in pools:
        for start, end in [(0, 1), (0, 7), (30, 34), (255, 256), (256, 257), (250, 300),
                           (511, 600), (599, 600), (1, 600)]:  # fmt: skip
            chunk = whole.last(end - start, until=end)
            for crowd, block_size in (([], 16), (others, 32), (others[:2], 128)):
                *_, out = call.attention(
                    kernels,
                    [*crowd, chunk],
                    window=window,
                    dtype=dtype,
                    block_size=block_size,
                    seed=start + block_size,
                )
                assert torch.equal(out, reference[start:end])


def test_an_int8_cache_is_within_half_a_scale(pools: list[NativeKernels]) -> None:
    """Each number comes back as near as its head's largest allows; zeros stay zeros."""
    r = request(40, 1, heads=2, kv_heads=2, head_size=20, seed=3)
    r.k[5] = 0.0
    r.v[7, 1] *= 1e-30
    paged = call.place(pools[1], [r], block_size=16, dtype=torch.int8)
    blocks = paged.block_table[0]
    for got, source in ((paged.keys_by_token, r.k), (paged.values_by_token, r.v)):
        error = (got[blocks].flatten(0, 1)[:40] - source).abs()
        assert (error <= 0.505 * source.abs().amax(-1, keepdim=True) / 127).all()


def test_what_is_not_finite_stays_so_in_an_int8_cache(pools: list[NativeKernels]) -> None:
    """A request whose keys are not finite gets no number, and its neighbours get theirs."""
    sound = request(40, 3, heads=2, kv_heads=2, head_size=16, seed=4)
    broken = request(40, 3, heads=2, kv_heads=2, head_size=16, seed=5)
    broken.k[39, :, 2] = torch.inf
    (alone,) = call.attention(pools[0], [sound], dtype=torch.int8)
    out, lost = call.attention(pools[0], [sound, broken], dtype=torch.int8)
    assert torch.equal(out, alone)
    assert lost[2].isnan().all()
    assert lost[:2].isfinite().all()


def test_attention_of_equal_keys_is_the_mean(pools: list[NativeKernels]) -> None:
    """With identical keys each query takes the plain mean of the values it sees."""
    v = torch.arange(40.0).view(40, 1, 1).expand(40, 1, 8).contiguous()
    r = Request(normal(40, 1, 8), torch.ones(40, 1, 8), v)
    (out,) = call.attention(pools[0], [r])
    torch.testing.assert_close(out[:, 0, 0], torch.arange(40.0) / 2, rtol=1e-6, atol=1e-6)


# ---- the small operations ----

WIDTHS = [1, 7, 16, 48, 100, 576]


@pytest.mark.parametrize("width", WIDTHS)
def test_norms_equal_float64(pools: list[NativeKernels], width: int) -> None:
    """Both norms are right for any width."""
    x, weight, bias = normal(5, width, scale=3.0) + 1, normal(width, seed=1), normal(width, seed=2)
    exact = functional.rms_norm(x.double(), (width,), weight.double(), 1e-6)
    got = call.rms_norm(pools[1], x, weight, 1e-6).double()
    torch.testing.assert_close(got, exact, rtol=1e-5, atol=1e-6)
    exact = functional.layer_norm(x.double(), (width,), weight.double(), bias.double(), 1e-5)
    got = call.layer_norm(pools[1], x, weight, bias).double()
    torch.testing.assert_close(got, exact, rtol=1e-4, atol=1e-5)


def test_activations_are_within_a_few_ulp(pools: list[NativeKernels]) -> None:
    """SiLU and both GELUs agree with float64 over the whole range that matters."""
    x = torch.cat([torch.linspace(-30, 30, 200_001), normal(10_000, scale=0.01)])[None]
    x64 = x.double()
    cubic = 2 * (2 / torch.pi) ** 0.5 * (x64 + 0.044715 * x64**3)
    silu = call.activation(pools[1], "silu", x)
    assert ulps(silu, x64 * x64.sigmoid()).max() < 6
    tanh = call.activation(pools[1], "gelu_tanh", x).double()
    torch.testing.assert_close(tanh, x64 * cubic.sigmoid(), rtol=5e-6, atol=1e-7)
    exact = functional.gelu(x64)
    torch.testing.assert_close(
        call.activation(pools[1], "gelu", x).double(), exact, rtol=1e-6, atol=3e-7
    )


@pytest.mark.parametrize("kind", call.ACTIVATIONS)
def test_activations_do_not_depend_on_the_lane(pools: list[NativeKernels], kind: str) -> None:
    """Every element has the same bits at any place of a row of any width."""
    x = normal(37, scale=4.0)
    alone = torch.cat([call.activation(pools[0], kind, v.view(1, 1))[0] for v in x])
    for width in range(1, 38):
        assert torch.equal(call.activation(pools[0], kind, x[None, -width:].clone())[0],
                           alone[-width:])  # fmt: skip


@pytest.mark.parametrize("kind", call.ACTIVATIONS)
def test_activations_at_the_ends(pools: list[NativeKernels], kind: str) -> None:
    """Huge arguments saturate, and NaN stays NaN."""
    x = torch.tensor([[-1e4, -200.0, 0.0, 200.0, 1e4, torch.nan]])
    out = call.activation(pools[0], kind, x)[0]
    torch.testing.assert_close(
        out[:5], torch.tensor([0.0, 0.0, 0.0, 200.0, 1e4]), rtol=0, atol=1e-30
    )
    assert out[5].isnan()


def test_gated_activation_multiplies(pools: list[NativeKernels]) -> None:
    """The gated form is the activation times the other half, rounded once more."""
    gate, up = normal(6, 50), normal(6, 50, seed=1)
    expected = call.activation(pools[0], "silu", gate) * up
    assert torch.equal(call.activation(pools[1], "silu", gate, up), expected)


@pytest.mark.parametrize("head_size", [2, 20, 64])
def test_rotary_turns_each_pair(pools: list[NativeKernels], head_size: int) -> None:
    """Pairs (i, i + D/2) turn by the angle of their position."""
    x = normal(5, 3, head_size)
    angles = torch.rand(50, head_size // 2) * 6
    positions = torch.tensor([0, 49, 7, 7, 20])
    cos, sin = angles.cos(), angles.sin()
    first, second = x.chunk(2, -1)
    c, s = cos[positions, None], sin[positions, None]
    expected = torch.cat((first * c - second * s, second * c + first * s), -1)
    got = call.rotary(pools[1], x, positions, cos, sin)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


def test_cache_write_rounds_to_nearest_even(pools: list[NativeKernels]) -> None:
    """bf16 keys and values are torch's own rounding, NaN included, and nothing else is touched."""
    r = request(21, 1, heads=2, kv_heads=2, head_size=20, seed=3)
    r.k[3, 1, 2] = torch.nan
    paged = call.place(pools[1], [r], block_size=16, dtype=torch.bfloat16)
    blocks = paged.block_table[0]
    for stored, source in ((paged.keys_by_token, r.k), (paged.values_by_token, r.v)):
        got = stored[blocks].flatten(0, 1)
        torch.testing.assert_close(got[:21], source.bfloat16(), rtol=0, atol=0, equal_nan=True)
        assert got[21:].isnan().all()
        rest = [i for i in range(len(stored)) if i not in blocks.tolist()]
        assert stored[rest].isnan().all()
