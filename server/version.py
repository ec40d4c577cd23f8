"""The version of the installed package."""

from __future__ import annotations

import importlib.metadata


def _installed() -> str:
    try:
        return importlib.metadata.version("kvserve")
    except importlib.metadata.PackageNotFoundError:
        return "0+source"


VERSION = _installed()
"""As pyproject.toml says, or "0+source" in a source tree that was never installed."""
