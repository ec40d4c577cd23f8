"""Low-rank attention: the keys and values of a whole text, projected to a fixed number of them.

Wang et al., "Linformer: Self-Attention with Linear Complexity" (arXiv:2006.04768), equation 7.
The projection mixes positions, later ones included: it serves encoders, and a decoder cannot use
it, as each new token would change every projected key.
"""

from __future__ import annotations

from torch import Tensor

from model.attention_forms.weighted_mean import weighted_mean


def low_rank_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    key_projection: Tensor,
    value_projection: Tensor,
) -> tuple[Tensor, Tensor]:
    """Attend to R mixtures of the S keys, of the same mixtures of values or of others.

    Args:
        q: (..., T, D) queries.
        k: (..., S, D) keys.
        v: (..., S, Dv) values.
        key_projection: (R, S), E in the paper.
        value_projection: (R, S), F in the paper.

    Returns:
        The output (..., T, Dv) and the weights (..., T, R).
    """
    scores = q @ (key_projection @ k).mT * q.shape[-1] ** -0.5  # (..., T, R)
    return weighted_mean(scores, value_projection @ v)
