"""EngineStatus: what the engine can do for a client now."""

from __future__ import annotations

import enum


class EngineStatus(enum.StrEnum):
    """The stations of an engine's life, by the names that clients see; DEAD is reached from all."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    """It finishes what runs and takes nothing new."""
    DEAD = "dead"
