"""A pretended GPU: tensors that say cuda:0 and compute on the CPU.

What an operation is given must be on one device, as on a GPU. What makes the host wait for the
device is kept with the line that asked, and everything that would be a launch is counted.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import interpreted  # noqa: F401 - before Triton
import pytest
import torch
from fake_capture import FakeCapture
from torch.overrides import TorchFunctionMode, resolve_name
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map, tree_map_only
from triton.runtime import interpreter

from model.cuda import graphs

ROOT = Path(__file__).parents[2]
CARD = torch.device("cuda", 0)
ASKED_ONLY = {
    "size", "stride", "dim", "numel", "is_contiguous", "__len__", "storage_offset", "nelement",
    "is_floating_point", "element_size", "is_complex", "get_device", "is_pinned", "is_inference",
    "__hash__", "__repr__", "__format__", "untyped_storage", "data_ptr",
}  # fmt: skip
"""Methods that need no device."""
WAITING = {
    "tolist", "item", "__bool__", "__int__", "__float__", "__index__", "nonzero", "masked_select",
    "unique", "__contains__", "equal", "allclose", "argwhere", "cpu",
}  # fmt: skip
"""Operations whose result the host needs at once."""
TENSORS = {"nonzero", "masked_select", "unique", "argwhere"}
"""Those of them whose result stays on the device."""
VIEWS = {
    "view", "_unsafe_view", "transpose", "t", "permute", "slice", "select", "expand", "unsqueeze",
    "squeeze", "split", "split_with_sizes", "as_strided", "alias", "detach", "unbind", "reshape",
    "_reshape_alias", "narrow", "chunk", "lift_fresh", "empty", "empty_strided", "empty_like",
    "new_empty", "resize_",
}  # fmt: skip
"""Operations that launch nothing."""
WHOLE = {"linear", "scaled_dot_product_attention", "rms_norm", "layer_norm", "matmul"}
"""Operations that are one launch, though they are made of others."""


class CardTensor(torch.Tensor):
    """A tensor on the pretended card."""

    inner: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> CardTensor:
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inner.size(),
            strides=inner.stride(),
            storage_offset=inner.storage_offset(),
            dtype=inner.dtype,
            layout=inner.layout,
            device=CARD,
        )
        made.inner = inner
        return made

    def __repr__(self) -> str:
        return f"CardTensor({self.inner!r})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return on_card(func(*inside(args), **inside(kwargs or {})))


def inside(value: Any) -> Any:
    """The tensors that compute."""
    return tree_map(lambda one: one.inner if isinstance(one, CardTensor) else one, value)


def on_card(value: Any) -> Any:
    """The tensors that are shown."""
    return tree_map_only(torch.Tensor, CardTensor, value)


class _Launches(TorchDispatchMode):
    """Counts the operations that would be launches."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        composite = torch._C._dispatch_has_kernel_for_dispatch_key(
            func.name(), "CompositeImplicitAutograd"
        )
        if name not in WHOLE and composite:
            with self:
                result = func.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        if name not in VIEWS:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


class PretendCuda(TorchFunctionMode):
    """While it is active there is a card; see the module."""

    def __init__(self) -> None:
        super().__init__()
        self._launches = _Launches()
        self.waits: list[str] = []

    @property
    def num_launches(self) -> int:
        """Launches so far, Triton's included."""
        return self._launches.counts.total()

    @property
    def counts(self) -> Mapping[str, int]:
        """Launches so far by name."""
        return self._launches.counts

    def waited(self, what: str) -> None:
        """Note that the host waits, and where it was asked to."""
        frames = [
            frame
            for frame in traceback.extract_stack()
            if frame.filename.startswith(str(ROOT)) and "tests/support" not in frame.filename
        ]
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else "?"
        self.waits.append(f"{what} at {where}")

    def launched(self, name: str) -> None:
        """Note a launch that is none of torch's."""
        self._launches.counts[name] += 1

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        parts = (resolve_name(func) or getattr(func, "__name__", str(func))).split(".")
        name = parts[-1]
        if name in ("__get__", "__set__", "__delete__"):
            with torch._C.DisableTorchFunction():
                return func(*args, **kwargs)
        tensors: list[torch.Tensor] = []
        tree_map_only(torch.Tensor, tensors.append, (args, kwargs))
        there = [one for one in tensors if isinstance(one, CardTensor)]
        kwargs.pop("pin_memory", None)
        device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
        if name == "pin_memory":
            return args[0]
        if name == "to":
            return self._moved(func, args, kwargs)
        if not there and not (device and device.type == "cuda"):
            return func(*args, **kwargs)
        if name in ASKED_ONLY and there:
            with torch._C.DisableTorchFunction():
                return func(*args, **kwargs)
        if name in ("numpy", "__array__"):
            raise TypeError("a tensor of the card has no NumPy array")
        self._check(name, tensors, args, kwargs)
        return self._computed(func, name, args, kwargs, made=device)

    def _check(self, name: str, tensors: Sequence[torch.Tensor], args, kwargs) -> None:
        """Refuse mixed devices, and note what waits."""
        strangers = [one for one in tensors if not isinstance(one, CardTensor) and one.dim() > 0]
        if strangers and name != "copy_":
            raise RuntimeError(f"{name}: expected all tensors to be on the same device")
        if name == "copy_":
            non_blocking = kwargs.get("non_blocking") or (len(args) > 2 and args[2])
            if strangers and not non_blocking:
                self.waited("copy_")
        if name in WAITING:
            self.waited(name)
        if name in ("tensor", "as_tensor"):
            self.waited("a tensor made of a list")
        if name in ("__getitem__", "__setitem__"):
            index = args[1] if isinstance(args[1], tuple) else (args[1],)
            is_read = name == "__getitem__" or isinstance(args[2], torch.Tensor)
            if is_read and any(
                isinstance(one, CardTensor) and one.dtype == torch.bool for one in index
            ):
                self.waited("an index of booleans")

    def _computed(self, func, name: str, args, kwargs, *, made: torch.device | None):
        if made is not None and made.type == "cuda":
            kwargs["device"] = torch.device("cpu")
        with self._launches:
            out = func(*inside(args), **inside(kwargs))
        if (name in WAITING and name not in TENSORS) or (made and made.type == "cpu"):
            return out
        in_place = name.endswith("_") and not name.endswith("__")
        in_place |= name == "__setitem__" or (name.startswith("__i") and name != "__invert__")
        target = args[0] if in_place else kwargs.get("out")
        return target if isinstance(target, CardTensor) else on_card(out)

    def _moved(self, func, args, kwargs):
        source = args[0]
        target, rest = _destination(args[1:], kwargs)
        was_there = isinstance(source, CardTensor)
        goes_there = was_there if target is None else target.type == "cuda"
        inner = source.inner if was_there else source
        if target is not None and target.type == "meta":
            return func(source, target, *rest, **kwargs)
        if was_there != goes_there and not kwargs.get("non_blocking"):
            self.waited("to")
        with self._launches if goes_there and was_there else nullcontext():
            out = inner.to(*rest, **kwargs) if rest or kwargs else inner
        if was_there != goes_there and out is inner:
            out = inner.clone()
        if not goes_there:
            return out
        return source if was_there and out is inner else CardTensor(out)


def _destination(args, kwargs) -> tuple[torch.device | None, list[torch.dtype]]:
    """Where `to` brings a tensor, and as what; leaves its other options in `kwargs`."""
    target, rest = kwargs.pop("device", None), []
    for one in args:
        if isinstance(one, torch.device | str):
            target = one
        elif isinstance(one, torch.Tensor):
            target, rest = one.device, [*rest, one.dtype]
        elif isinstance(one, torch.dtype):
            rest.append(one)
        elif one is True:
            kwargs["non_blocking"] = True
    return (None if target is None else torch.device(target)), rest


class Event:
    """A CUDA event; to wait for one counts unless a later one was waited for already."""

    card: PretendCuda | None = None
    num_recorded = 0
    num_reached = 0

    def __init__(self, **_options: object) -> None:
        self._number = 0

    def record(self, stream: object = None) -> None:
        Event.num_recorded += 1
        self._number = Event.num_recorded

    def synchronize(self) -> None:
        assert self._number
        if self._number > Event.num_reached and Event.card is not None:
            Event.num_reached = self._number
            Event.card.waited("an event")


@contextmanager
def pretended(monkeypatch: pytest.MonkeyPatch) -> Iterator[PretendCuda]:
    """A machine with one card of compute capability 8.0, and the kernels interpreted on it."""
    card = PretendCuda()
    call = interpreter.GridExecutor.__call__

    def launch(self, *args: object, **kwargs: object) -> object:
        assert all(isinstance(one, CardTensor) for one in args if isinstance(one, torch.Tensor)), (
            f"{self.fn.__name__} is given a tensor that is not on the card"
        )
        card.launched(self.fn.__name__)
        with torch._C.DisableTorchFunction():
            return call(self, *inside(args), **inside(kwargs))

    monkeypatch.setattr(interpreter.GridExecutor, "__call__", launch)
    answers: dict[str, Callable[..., object]] = {
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "get_device_capability": lambda _device=None: (8, 0),
        "get_device_name": lambda _device=None: "Pretended",
        "get_arch_list": lambda: ["sm_80"],
        "mem_get_info": lambda _device=None: (2**30, 2**31),
        "set_device": lambda _device: None,
        "empty_cache": lambda: None,
        "reset_peak_memory_stats": lambda _device: None,
        "memory_allocated": lambda _device: 0,
        "max_memory_allocated": lambda _device: 2**20,
        "synchronize": lambda _device=None: card.waited("synchronize"),
    }
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(graphs, "CudaCapture", FakeCapture)
    for name, value in {"card": card, "num_recorded": 0, "num_reached": 0}.items():
        monkeypatch.setattr(Event, name, value)
    with card:
        yield card
