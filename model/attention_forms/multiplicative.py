"""Multiplicative attention: the score is a product of query and key, and nothing divides it.

Luong, Pham and Manning, "Effective Approaches to Attention-based Neural Machine Translation",
section 3.1 (arXiv:1508.04025): the forms "dot" and "general". Without the factor 1/sqrt(D) that
model/attention.py has, the variance of a score grows with D and the softmax saturates.
"""

from __future__ import annotations

from torch import Tensor

from model.attention_forms.weighted_mean import weighted_mean


def multiplicative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    weight: Tensor | None = None,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Weigh the values by q . k, or by q . (weight k).

    Args:
        q: (..., T, Dq) queries.
        k: (..., S, Dk) keys; Dk = Dq without a weight.
        v: (..., S, Dv) values.
        weight: (Dq, Dk) of the form "general"; None is the form "dot".
        mask: (..., T, S) True where a query may see a key.

    Returns:
        The output (..., T, Dv) and the weights (..., T, S).
    """
    keys = k if weight is None else k @ weight.mT
    return weighted_mean(q @ keys.mT, v, mask=mask)
