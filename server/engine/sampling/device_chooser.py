"""DeviceChooser: choosing tokens on a GPU, all rows in one launch, with one wait for the tokens.

Rows whose logits are edited take the torch path, and with them the rest of their batch; a grammar
does not, as masks travel as words. Owned by the Sampler, on the engine thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from model.cuda.device_sampling import DeviceSampling, RowParams
from model.device_queue import CudaQueue, DeviceQueue
from model.native_abi import NOT_FINITE as ROW_NOT_FINITE
from model.native_abi import NOTHING_ALLOWED as ROW_NOTHING_ALLOWED
from server.engine.grammars.grammar import Words
from server.engine.sampling.draws import Draws
from server.engine.sampling.logit_edits import NOTHING_ALLOWED, LogitEdits
from server.engine.sampling.logprobs import NOT_FINITE
from server.engine.sampling.torch_chooser import TorchChooser
from server.request import Logprob, Request

_REASONS = {ROW_NOT_FINITE: NOT_FINITE, ROW_NOTHING_ALLOWED: NOTHING_ALLOWED}


class DeviceChooser:
    """Chooses and scores tokens; see server.engine.sampler.Chooser.

    Args:
        device: Where the logits are.
        vocab_size: V, the width of the logits.
        queue: What copies to and from the device.
    """

    def __init__(
        self, device: torch.device, vocab_size: int, *, queue: DeviceQueue | None = None
    ) -> None:
        self._torch = TorchChooser(device)
        self._sampling = DeviceSampling(vocab_size, device=device, queue=queue or CudaQueue())
        self._requests: Sequence[Request] = ()
        self._has_edits = False
        self._draws: Draws | None = None

    def begin(self, requests: Sequence[Request], edits: Mapping[int, LogitEdits]) -> None:
        """Learn which requests the rows of the next steps belong to."""
        self._has_edits = bool(edits)
        if edits:
            self._torch.begin(requests, edits)
            return
        params = [request.params for request in requests]
        self._requests = requests
        self._draws = None if all(one.is_greedy for one in params) else Draws(requests)
        self._sampling.begin(
            RowParams(
                temperature=np.array(
                    [0.0 if one.is_greedy else one.temperature for one in params], np.float32
                ),
                top_k=np.array([one.top_k for one in params], np.int32),
                top_p=np.array([one.top_p for one in params], np.float64),
                min_p=np.array([one.min_p for one in params], np.float32),
            )
        )

    @torch.inference_mode()
    def choose(self, logits: Tensor, *, allowed: Words | None) -> tuple[list[int], dict[int, str]]:
        """Choose a token in each row (B, V); failed rows are named with the reason."""
        if self._has_edits:
            return self._torch.choose(logits, allowed=allowed)
        uniforms = None
        if self._draws is not None:
            uniforms = self._draws.at([len(request.token_ids) for request in self._requests])
        tokens, outcomes = self._sampling.choose(logits, uniforms=uniforms, allowed=allowed)
        return tokens, {row: _REASONS[what] for row, what in enumerate(outcomes) if what}

    def score(
        self,
        logits: Tensor,
        token_ids: Sequence[int],
        *,
        rows: Sequence[int],
        num_top: Sequence[int],
    ) -> list[Logprob]:
        """Score one token in each of these rows of `logits`."""
        return self._torch.score(logits, token_ids, rows=rows, num_top=num_top)
