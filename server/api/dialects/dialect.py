"""Dialect: another form of a chat request, and its client's names in what is said about it.

Knows no particular form: those are in responses.py and messages.py beside it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from server.api.fields.fields import Endpoint
from server.api.schemas.requests import Body, ChatBody, SamplingBody
from server.errors import ApiError

Asked = TypeVar("Asked", bound=Body)
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect(Generic[Asked]):
    """A translation of one form of body into a chat, and of errors about the chat back."""

    schema: type[Asked]
    endpoint: Endpoint
    to_chat: Callable[[Asked], ChatBody]
    """What a body asks for, as a chat."""
    names: Mapping[str, str]
    """A chat's field -> the client's; others are the same."""

    def fields(self, names: Sequence[str]) -> tuple[str, ...]:
        """The client's names of a chat's fields."""
        return tuple(self.names.get(name, name) for name in names)

    def speak(self, work: Callable[[], Result]) -> Result:
        """Run `work` on a chat and translate the field names of its errors into the client's.

        Raises:
            ApiError: It failed.
        """
        try:
            return work()
        except ApiError as error:
            error.message = self._translate(error.message)
            error.args = (error.message,)
            if error.param is not None:
                error.param = self.names.get(error.param, error.param)
            raise

    def _translate(self, message: str) -> str:
        """The message with the client's names where a chat's stand in quotes."""
        known = "|".join(map(re.escape, self.names))
        # A name alone, or at the beginning of a path.
        return re.sub(rf"'({known})(?=['.\[])", lambda m: f"'{self.names[m[1]]}", message)


def sampling_fields(body: SamplingBody) -> dict[str, object]:
    """The fields that every form shares, as far as the client set them."""
    return {
        name: getattr(body, name)
        for name in SamplingBody.model_fields
        if name in body.model_fields_set
    }
