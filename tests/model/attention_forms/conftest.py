"""What the tests of all forms share."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True)
def _seeded() -> None:
    """Draw the same numbers in every run."""
    torch.manual_seed(0)
