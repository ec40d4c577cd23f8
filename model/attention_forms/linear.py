"""Linear attention: a feature map in the softmax's place, so that the past fits a fixed state.

Katharopoulos et al., "Transformers are RNNs" (arXiv:2006.16236). With weights phi(q) . phi(k) the
sum over the past can be kept instead of the past:

    output = phi(q) S / (phi(q) . z),   S = sum of phi(k) v^T,   z = sum of phi(k)

Training computes all tokens in parallel; a server feeds them one by one. Both are here, and equal.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


def elu_features(x: Tensor) -> Tensor:
    """Map to elu(x) + 1, which is positive: the paper's choice, equation 7.

    Below 0 that is exp(x), here written so: (exp(x) - 1) + 1 rounds to 0 from -17 on.
    """
    return torch.where(x > 0, x + 1, x.clamp(max=0).exp())


def relu_features(x: Tensor) -> Tensor:
    """Map to relu(x) and a little, so that no normaliser is zero (arXiv:2009.14794, section 4)."""
    return functional.relu(x) + 1e-3


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally to all tokens in parallel.

    Args:
        q: (..., T, F) queries, mapped already.
        k: (..., T, F) keys, mapped already.
        v: (..., T, Dv) values.

    Returns:
        The output (..., T, Dv).
    """
    weights = (q @ k.mT).tril()  # (..., T, T)
    return weights @ v / weights.sum(dim=-1, keepdim=True)


@dataclass(slots=True)
class LinearState:
    """The past of one text, as the recurrence keeps it: of one size however long the text is."""

    products: Tensor
    """(..., F, Dv) the sum of phi(k) v^T."""
    keys: Tensor
    """(..., F) the sum of phi(k)."""

    @classmethod
    def empty(cls, *leading: int, features: int, value_size: int) -> LinearState:
        """A state that has seen nothing, for these leading axes."""
        return cls(torch.zeros(*leading, features, value_size), torch.zeros(*leading, features))

    def step(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Take one token in and attend from it to all so far, itself included.

        Args:
            q: (..., F) its query, mapped already.
            k: (..., F) its key, mapped already.
            v: (..., Dv) its value.

        Returns:
            The output (..., Dv).
        """
        self.products += k[..., :, None] * v[..., None, :]
        self.keys += k
        weighted = (q[..., None, :] @ self.products)[..., 0, :]
        return weighted / (q * self.keys).sum(dim=-1, keepdim=True)

    @property
    def num_bytes(self) -> int:
        """Bytes that the state takes."""
        return self.products.nbytes + self.keys.nbytes
