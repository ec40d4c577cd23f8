"""Builds the native kernels; everything else about the package stands in pyproject.toml.

One shared library per instruction set, from the same sources: plain C++17 without Python or torch
headers, loaded through ctypes.  The build is optional: without a compiler, or for a processor the
compiler does not know, the installation goes on and the torch path runs.
"""

import os
import platform
import shlex
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

KERNELS = Path("model/kernels")
COMMON_FLAGS = [
    "-std=c++17",
    "-O3",
    "-fPIC",
    "-shared",
    "-pthread",
    "-fvisibility=hidden",
    "-fno-math-errno",
    "-ffp-contract=off",  # what is fused is written out: results must not depend on the compiler
    "-Wall",
    "-Wextra",
    "-Wno-psabi",
    "-Wno-maybe-uninitialized",  # false alarms inside GCC 12's own AVX-512 headers
    "-Wno-uninitialized",
]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [
    "-DKVSERVE_AVX512",
    *AVX2,
    *(f"-mavx512{part}" for part in ("f", "bw", "dq", "vl", "vnni")),
    "-mprefer-vector-width=512",
]
AMX = [f"-m{part}" for part in ("avx512bf16", "amx-tile", "amx-bf16")]
X86_VARIANTS = {
    "amx": ["-DKVSERVE_AMX", *AMX, *AVX512],
    "avx512": AVX512,
    "avxvnni": ["-DKVSERVE_AVXVNNI", "-mavxvnni", "-DKVSERVE_AVX2", *AVX2],
    "avx2": ["-DKVSERVE_AVX2", *AVX2],
}
ARM_VARIANTS = {
    "i8mm": ["-DKVSERVE_I8MM", "-DKVSERVE_DOTPROD", "-march=armv8.2-a+dotprod+i8mm"],
    "dotprod": ["-DKVSERVE_DOTPROD", "-march=armv8.2-a+dotprod"],
}
VARIANTS = {
    "x86_64": X86_VARIANTS,
    "amd64": X86_VARIANTS,
    "aarch64": ARM_VARIANTS,
    "arm64": ARM_VARIANTS,
}


def variants() -> dict[str, list[str]]:
    """The instruction sets worth compiling for on this machine, with their flags."""
    return {**VARIANTS.get(platform.machine().lower(), {}), "portable": []}


class BuildKernels(build_ext):
    """Compiles each variant with one call of the C++ compiler, all at the same time."""

    def get_ext_filename(self, fullname: str) -> str:
        """A plain library name: these are not Python extension modules."""
        return str(Path(*fullname.split("."))) + ".so"

    def build_extensions(self) -> None:
        """Builds what can be built; a failure costs speed, never the installation."""
        with ThreadPoolExecutor() as threads:
            for extension, error in threads.map(self._try_build, self.extensions):
                if error:
                    self.warn(f"{extension.name} was not built and will not be used: {error}")

    def _try_build(self, extension: Extension) -> tuple[Extension, str | None]:
        target = Path(self.get_ext_fullpath(extension.name))
        target.parent.mkdir(parents=True, exist_ok=True)
        # Built beside the target and moved: a process that has the old library mapped keeps it.
        fresh = target.with_suffix(f".{os.getpid()}.tmp")
        compiler = shlex.split(os.environ.get("CXX", "c++"))
        command = [*compiler, *COMMON_FLAGS, *extension.extra_compile_args, *extension.sources]
        try:
            subprocess.run([*command, "-o", str(fresh)], check=True)  # noqa: S603 - our own command
            fresh.replace(target)
        except (OSError, subprocess.CalledProcessError) as error:
            fresh.unlink(missing_ok=True)
            return extension, str(error)
        return extension, None


setup(
    ext_modules=[
        Extension(
            f"model.kernels.kernels_{name}",
            sources=sorted(str(path) for path in KERNELS.glob("*.cpp")),
            depends=sorted(str(path) for path in KERNELS.glob("*.h")),
            extra_compile_args=flags,
            optional=True,
        )
        for name, flags in variants().items()
    ],
    cmdclass={"build_ext": BuildKernels},
)
