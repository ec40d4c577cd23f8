"""What `prompt_logprobs` shows: each token of the prompt with its likeliest alternatives.

The form is vLLM's: for each position an object from token ids to what is known of them, null for
the first, of which the model says nothing. Ranks count from 1; that of a token of the prompt is
null where it is not among the alternatives asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

from server.api.answers.choices import TokenNames, finite
from server.api.schemas.wire_types import PromptLogprob
from server.request import Logprob


def prompt_scores(
    logprobs: Sequence[Logprob | None], num_top: int, names: TokenNames
) -> list[dict[str, PromptLogprob] | None]:
    """The scores of a prompt.

    Args:
        logprobs: One for each token; they may hold more alternatives than are shown.
        num_top: Alternatives shown for each position.
        names: How tokens are shown.
    """
    return [None if each is None else _score(each, num_top, names) for each in logprobs]


def _score(logprob: Logprob, num_top: int, names: TokenNames) -> dict[str, PromptLogprob]:
    """The token itself first, then the alternatives, each once."""
    ranks = {id_: rank for rank, (id_, _) in enumerate(logprob.top, start=1)}
    values = {logprob.token_id: logprob.logprob, **dict(logprob.top[:num_top])}
    return {
        str(id_): PromptLogprob(
            logprob=finite(value),
            rank=ranks.get(id_),
            decoded_token=names.show(id_).data.decode(errors="replace"),
        )
        for id_, value in values.items()
    }
