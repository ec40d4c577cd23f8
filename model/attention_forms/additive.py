"""Additive attention: a small network judges how well a query and a key match.

Bahdanau, Cho and Bengio, "Neural Machine Translation by Jointly Learning to Align and Translate",
section A.1.2 (arXiv:1409.0473): the form that attention had before the dot product.
"""

from __future__ import annotations

from torch import Tensor

from model.attention_forms.weighted_mean import weighted_mean


def additive_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    query_weight: Tensor,
    key_weight: Tensor,
    score_weight: Tensor,
    mask: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Weigh the values by additive scores.

        score(q, k) = score_weight . tanh(query_weight q + key_weight k)

    Queries and keys need not be of one size. Each score takes A tanh, where a dot product takes D
    multiplications that a matrix product does at once: the reason why it was given up.

    Args:
        q: (..., T, Dq) queries.
        k: (..., S, Dk) keys.
        v: (..., S, Dv) values.
        query_weight: (A, Dq), of a hidden layer of size A.
        key_weight: (A, Dk).
        score_weight: (A,).
        mask: (..., T, S) True where a query may see a key.

    Returns:
        The output (..., T, Dv) and the weights (..., T, S).
    """
    queries = (q @ query_weight.mT)[..., :, None, :]  # (..., T, 1, A)
    keys = (k @ key_weight.mT)[..., None, :, :]  # (..., 1, S, A)
    scores = (queries + keys).tanh() @ score_weight  # (..., T, S)
    return weighted_mean(scores, v, mask=mask)
