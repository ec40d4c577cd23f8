"""Fields: typed, bounded access to a configuration somebody else wrote.

Every refusal names the field, the value found and what would be accepted.
Knows nothing of what the fields mean; config.py and rotary.py do.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from model.errors import ConfigError

LARGEST_SIZE = 2**31 - 1
"""No dimension of a real model comes near it; beyond it a file is broken or hostile."""
MAX_LAYERS = 1024
"""The same for the number of layers."""


@dataclass(frozen=True, slots=True)
class Fields:
    """A mapping of named values, read with the type that is expected of each.

    A value of None counts as absent, as it does in config.json.
    """

    values: Mapping[str, object]
    prefix: str = ""
    """Stands before each name: in the mapping for GGUF keys, in messages only for `within`."""
    path: str = ""

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> object:
        """Return the raw value, or None when it is absent."""
        return self.values.get(self.prefix + name)

    def name(self, name: str) -> str:
        """Return the name as the file spells it, for messages."""
        return f"{self.path}{self.prefix}{name}"

    def within(self, name: str) -> Fields:
        """Return the fields of a nested mapping, empty when it is absent."""
        value = self.get(name)
        if value is None:
            value = {}
        if not isinstance(value, Mapping):
            raise self.error(name, value, "a mapping")
        return Fields(value, path=f"{self.name(name)}.")

    def over(self, defaults: Mapping[str, object]) -> Fields:
        """Return the same fields with defaults for those that are not there, not even as null."""
        return replace(self, values={**defaults, **self.values})

    def without(self, names: Collection[str]) -> Fields:
        """Return the same fields but those."""
        hidden = {self.prefix + name for name in names}
        return replace(self, values={k: v for k, v in self.values.items() if k not in hidden})

    def numbers(self, name: str) -> tuple[float, ...]:
        """Return a list of numbers above 0."""
        value = self._require(name, None)
        if not isinstance(value, list) or not all(
            isinstance(item, int | float) and item > 0 for item in value
        ):
            raise self.error(name, value, "a list of numbers above 0")
        return tuple(float(item) for item in value)

    def integer(
        self,
        name: str,
        default: int | None = None,
        *,
        minimum: int = 1,
        maximum: int = LARGEST_SIZE,
    ) -> int:
        """Return a whole number within bounds; without a default it must be there."""
        value = self._require(name, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(name, value, "a whole number")
        if not minimum <= value <= maximum:
            raise self.error(name, value, f"between {minimum} and {maximum}")
        return value

    def number(
        self, name: str, default: float | None = None, *, minimum: float | None = None
    ) -> float:
        """Return a finite number above zero, or not below `minimum` if one is given."""
        value = self._require(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(name, value, "a number")
        if not abs(value) <= sys.float_info.max:
            raise self.error(name, value, "a finite number")
        if minimum is None and value <= 0:
            raise self.error(name, value, "above 0")
        if minimum is not None and value < minimum:
            raise self.error(name, value, f"at least {minimum}")
        return float(value)

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self._require(name, default)
        if not isinstance(value, bool):
            raise self.error(name, value, "true or false")
        return value

    def text(self, name: str, default: str | None = None, *, known: Collection[str] = ()) -> str:
        """Return a string, one of the `known` ones if any are given."""
        value = self._require(name, default)
        if not isinstance(value, str):
            raise self.error(name, value, "a string")
        if known and value not in known:
            raise self.error(name, value, "one of " + ", ".join(sorted(known)))
        return value

    def strings(self, name: str, *, length: int) -> list[str] | None:
        """Return a list of exactly `length` strings, or None when it is absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.error(name, value, "a list of strings")
        if len(value) != length:
            raise self.error(name, f"{len(value)} entries", f"{length}, one for each layer")
        return value

    def refuse(self, name: str, *, neutral: Collection[object]) -> None:
        """Refuse a feature that is not implemented unless its field has a neutral value."""
        value = self.get(name)
        if value is not None and value not in neutral:
            accepted = " or ".join(repr(item) for item in neutral) or "its absence"
            raise self.error(name, value, f"{accepted}; the feature is not supported")

    def error(self, name: str, value: object, expected: str) -> ConfigError:
        """Return the error that says what was found in a field and what was expected."""
        shown = repr(value)
        shown = shown if len(shown) <= 80 else shown[:77] + "..."
        return ConfigError(f"{self.name(name)} is {shown}; expected {expected}.")

    def _require(self, name: str, default: object) -> object:
        value = self.get(name)
        value = default if value is None else value
        if value is None:
            raise ConfigError(f"{self.name(name)} is missing.")
        return value
