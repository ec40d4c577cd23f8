"""SimulationConfig: the options of `kvserve simulate`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict


class SimulationConfig(BaseSettings):
    """A fleet on paper; the figures of an engine are those that `kvserve bench` prints."""

    model_config = SettingsConfigDict(
        env_prefix="KVSERVE_SIMULATE_", frozen=True, extra="forbid", use_attribute_docstrings=True
    )

    scenario: Literal["all", "fronts", "bounds", "scaling", "losses", "upgrades"] = "all"
    """What is asked."""
    replicas: Annotated[int, Field(ge=2, le=10_000)] = 1000
    """Replicas of the fleet."""
    prefill_rate: Annotated[float, Field(gt=0)] = 500.0
    """Prompt tokens a second of one replica."""
    alone_rate: Annotated[float, Field(gt=0)] = 50.0
    """Decoded tokens a second of one request alone."""
    crowd_rate: Annotated[float, Field(gt=0)] = 200.0
    """Decoded tokens a second of --crowd requests together."""
    crowd: Annotated[int, Field(ge=2, le=4096)] = 16
    """How many they are."""
    conversations: Annotated[float, Field(gt=0)] = 0.12
    """Conversations that begin at each replica, a second."""
    seconds: Annotated[float, Field(gt=0, le=86_400)] = 60.0
    """For how long they come."""
