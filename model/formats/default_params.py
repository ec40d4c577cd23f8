"""checked_defaults: the sampling parameters that a model's authors recommend, held to bounds.

They become those of every request that gives none of its own, so that they must be what a request
may ask for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from model.errors import ConfigError

_BOUNDS: Mapping[str, tuple[float, float]] = {
    "temperature": (0, 2),
    "top_p": (0, 1),
    "top_k": (-1, (1 << 63) - 1),
    "min_p": (0, 1),
    "repetition_penalty": (0.01, 100),
}


def checked_defaults(found: Mapping[str, object], source: str) -> dict[str, float]:
    """The parameters that are there.

    Args:
        found: Name -> value; None is absent.
        source: Where they stand, for the message.

    Raises:
        ConfigError: A value is no number, or out of its bounds; names it and the bound.
    """
    checked: dict[str, float] = {}
    for name, value in found.items():
        if value is None:
            continue
        least, most = _BOUNDS[name]
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        is_whole = name != "top_k" or (isinstance(value, int | float) and value == value // 1)
        if not (is_number and math.isfinite(value) and is_whole and least <= value <= most):  # type: ignore[arg-type,operator]  # it is a number, if the others are asked
            kind = "a whole number" if name == "top_k" else "a number"
            raise ConfigError(
                f"{source}: {name} must be {kind} from {least} to {most} (got {str(value)[:80]})."
            )
        checked[name] = value  # type: ignore[assignment]  # as above
    return checked
