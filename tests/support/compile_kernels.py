"""Compiles every launch of the Triton kernels for cards that need not be here.

Run by .ci/check-cuda-kernels; prints what each needs and fails where that is too much.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from model.cuda.kernels import attention_kernels, layer_kernels, sampling_kernels
from model.cuda.launch_table import SPLIT_TOKENS, Launch, decode_launch, prompt_launch

CARDS = (80, 90, 120)
"""Compute capabilities, times ten."""
MOST_REGISTERS = 255
MOST_SHARED_MEMORY = 99 * 1024
"""Bytes that a program may have on every one of these cards."""
NAMES = {torch.bfloat16: "bf16", torch.float32: "fp32"}
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+)")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """One kernel with its constants, as it is launched on one kind of card."""

    name: str
    kernel: Any
    pointers: Mapping[str, str]
    """Parameter -> type of what it points to."""
    constants: Mapping[str, object]
    floats: tuple[str, ...] = ()
    warps: int = 4
    stages: int = 1
    card: int = 80
    must_have: tuple[str, ...] = ()
    """Instructions that the code is expected to use."""
    must_lack: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Needs:
    """What the code of a variant takes."""

    registers: int
    stack: int
    shared_memory: int
    instructions: str


def compile_variant(variant: Variant) -> Needs:
    """Compile for a card and read what came of it."""
    names = variant.kernel.arg_names
    signature = {}
    for name in names:
        if name in variant.constants:
            signature[name] = "constexpr"
        elif name in variant.pointers:
            signature[name] = f"*{variant.pointers[name]}"
        else:
            signature[name] = "fp32" if name in variant.floats else "i32"
    # Torch's memory and the rows of all matrices begin at multiples of 16 bytes.
    aligned = {
        (index,): [["tt.divisibility", 16]]
        for index, name in enumerate(names)
        if name in variant.pointers
    }
    source = ASTSource(
        fn=variant.kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in variant.constants.items()},
        attrs=aligned,
    )
    compiled = triton.compile(
        source,
        target=GPUTarget("cuda", variant.card, 32),
        options={"num_warps": variant.warps, "num_stages": variant.stages},
    )
    registers, stack = _resources(compiled.asm["cubin"])
    return Needs(registers, stack, compiled.metadata.shared, compiled.asm["ptx"])


def _resources(binary: bytes) -> tuple[int, int]:
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary)
        file.flush()
        command = [str(tool), "--dump-resource-usage", file.name]
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    match = RESOURCES.search(printed)
    assert match, printed
    return int(match[1]), int(match[2])


def attention_variants(card: int) -> Iterator[Variant]:
    """Decode, merge and prompt kernels of the head sizes, groups and dtypes that models have."""
    shapes = [
        (64, 3, 0, torch.bfloat16),
        (128, 4, 0, torch.bfloat16),
        (128, 8, 4096, torch.bfloat16),
        (256, 4, 512, torch.bfloat16),
        (64, 3, 0, torch.float32),
        (128, 4, 0, torch.float32),
    ]
    for head_dim, group, window, dtype in shapes:
        name = f"{NAMES[dtype]} D{head_dim} G{group} window {window}"
        sizes = {"D": head_dim, "D_ROOM": head_dim}
        shared = {
            "GROUP": group, "KV_HEADS": 4, "PAGE": 16, "WINDOW": window,
            "IEEE": dtype == torch.float32, **sizes,
        }  # fmt: skip
        cache = dict.fromkeys(("q", "keys", "values"), NAMES[dtype])
        lists = dict.fromkeys(("table", "lengths"), "i32")
        launch = decode_launch(head_dim=head_dim, group=group, dtype=dtype)
        exact = ("tf32",) if dtype == torch.float32 else ()
        yield Variant(
            name=f"decode_split {name}",
            kernel=attention_kernels.decode_split,
            pointers={**cache, **lists, "partials": "fp32", "weights": "fp32"},
            constants={**shared, **_tiles(launch), "SPLIT": SPLIT_TOKENS},
            floats=("scale",),
            warps=launch.warps,
            stages=launch.stages,
            card=card,
            must_lack=exact,
        )
        prompt = prompt_launch(head_dim=head_dim, group=group, dtype=dtype, capability=card)
        uses_wgmma = card == 90 and dtype == torch.bfloat16
        yield Variant(
            name=f"attend_prompt {name}",
            kernel=attention_kernels.attend_prompt,
            pointers={**cache, **lists, "starts": "i32", "tiles": "i32", "out": NAMES[dtype]},
            constants={**shared, **_tiles(prompt)},
            floats=("scale",),
            warps=prompt.warps,
            stages=prompt.stages,
            card=card,
            must_have=("wgmma",) if uses_wgmma else (),
            must_lack=exact,
        )
        yield Variant(
            name=f"decode_merge {name}",
            kernel=attention_kernels.decode_merge,
            pointers={"partials": "fp32", "weights": "fp32", "lengths": "i32", "out": NAMES[dtype]},
            constants={**sizes, "SPLIT": SPLIT_TOKENS},
            warps=1,
            card=card,
        )


def other_variants(card: int) -> Iterator[Variant]:
    """The small kernels of a layer, and the one that chooses tokens."""
    for dtype in (torch.bfloat16, torch.float32):
        kind = NAMES[dtype]
        yield Variant(
            name=f"embed {kind}",
            kernel=layer_kernels.embed,
            pointers={
                "ids": "i32", "positions": "i32",
                **dict.fromkeys(("weight", "position_weight", "out"), kind),
            },
            constants={"C": 4096, "BLOCK": 1024, "SCALED": True, "POSITIONED": True},
            floats=("scale",),
            card=card,
        )  # fmt: skip
        yield Variant(
            name=f"add_norm {kind}",
            kernel=layer_kernels.add_norm,
            pointers={
                **dict.fromkeys(("x", "residual", "out"), kind), "weight": "fp32", "bias": "fp32",
            },
            constants={"C": 4096, "C_ROOM": 4096, "ADDS": True, "CENTRED": True},
            floats=("eps",),
            card=card,
        )  # fmt: skip
        yield Variant(
            name=f"turn_and_write {kind}",
            kernel=layer_kernels.turn_and_write,
            pointers={
                **dict.fromkeys(("qkv", "q_out", "keys", "values"), kind),
                **dict.fromkeys(("cos", "sin", "q_norm", "k_norm"), "fp32"),
                "positions": "i32", "slots": "i32",
            },
            constants={
                "HEADS": 32, "KV_HEADS": 8, "D": 128, "HALF_ROOM": 64, "TURNED": True,
                "NORMED": True,
            },
            floats=("eps",),
            warps=1,
            card=card,
        )  # fmt: skip
        yield Variant(
            name=f"activate {kind}",
            kernel=layer_kernels.activate,
            pointers={"x": kind, "out": kind},
            constants={"WIDTH": 14336, "BLOCK": 1024, "KIND": "gelu_tanh", "GATED": True},
            card=card,
        )
    yield Variant(
        name="choose",
        kernel=sampling_kernels.choose,
        pointers={
            "logits": "fp32", "temperatures": "fp32", "min_ps": "fp32", "top_ps": "fp64",
            "uniforms": "fp64",
            **dict.fromkeys(("allowed", "has_mask", "top_ks", "chosen", "outcomes"), "i32"),
        },
        constants={"V": 128256, "BLOCK": 1024},
        card=card,
    )  # fmt: skip


def _tiles(launch: Launch) -> dict[str, int]:
    return {"ROWS": launch.rows, "TILE": launch.tile}


def complaints(variant: Variant, needs: Needs) -> Iterator[str]:
    """What is wrong with the code of a variant."""
    if needs.stack:
        yield f"{needs.stack} bytes of stack"
    if needs.registers > MOST_REGISTERS:
        yield f"{needs.registers} registers"
    if needs.shared_memory > MOST_SHARED_MEMORY:
        yield f"{needs.shared_memory} bytes of shared memory"
    yield from (f"no {word}" for word in variant.must_have if word not in needs.instructions)
    yield from (f"{word}" for word in variant.must_lack if word in needs.instructions)


def main() -> None:
    """Compile all, print a line for each, and fail if any is wrong."""
    only = sys.argv[1:]
    failed = False
    for card in CARDS:
        for variant in (*attention_variants(card), *other_variants(card)):
            if only and not any(word in variant.name for word in only):
                continue
            started = time.monotonic()
            needs = compile_variant(variant)
            wrong = list(complaints(variant, needs))
            failed |= bool(wrong)
            sys.stdout.write(
                f"sm_{card} {variant.name}: {needs.registers} registers, {needs.stack} stack, "
                f"{needs.shared_memory} shared, {time.monotonic() - started:.1f} s"
                f"{'  WRONG: ' + ', '.join(wrong) if wrong else ''}\n"
            )
            sys.stdout.flush()
    sys.exit(failed)


if __name__ == "__main__":
    main()
