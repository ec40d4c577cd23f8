"""The known families, found in the files of this package: each file that has a FAMILY is one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import MappingProxyType

from model.families.family import Family


def _find() -> Iterator[Family]:
    package = __name__.rpartition(".")[0]
    for module in iter_modules([str(Path(__file__).parent)]):
        if f"{package}.{module.name}" != __name__:
            family = getattr(import_module(f"{package}.{module.name}"), "FAMILY", None)
            if isinstance(family, Family):
                yield family


FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _find()})
"""By ModelConfig.architecture, which is the model_type of a config.json."""
GGUF_FAMILIES: Mapping[str, Family] = MappingProxyType(
    {family.gguf_name: family for family in FAMILIES.values() if family.gguf_name}
)
"""By general.architecture."""
