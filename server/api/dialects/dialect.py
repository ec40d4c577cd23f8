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


Offer = Callable[[dict[str, object]], tuple[dict[str, object], tuple[str, ...]]]


def offer_all(body: dict[str, object]) -> tuple[dict[str, object], tuple[str, ...]]:
    """Take all tools of a body for what can be offered; the schema knows better."""
    return body, ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Dialect(Generic[Asked]):
    """A translation of one form of body into a chat, and of errors about the chat back."""

    schema: type[Asked]
    endpoint: Endpoint
    to_chat: Callable[[Asked], ChatBody]
    """Translates a body into the chat that it asks for."""
    names: Mapping[str, str]
    """A chat's field -> the client's; others are the same."""
    tool_schema: str = "function.parameters"
    """Where a tool has the schema of its arguments."""
    offer: Offer = offer_all
    """The body with the tools that can be offered, and the names of the others."""

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
                error.param = self._renamed(self.names.get(error.param, error.param))
            raise

    def _translate(self, message: str) -> str:
        """The message with the client's names where a chat's stand in quotes."""
        known = "|".join(map(re.escape, self.names))
        # A name alone, or at the beginning of a path.
        named = re.sub(rf"'({known})(?=['.\[])", lambda m: f"'{self.names[m[1]]}", message)
        return self._renamed(named)

    def _renamed(self, text: str) -> str:
        """The text with the client's path to the schema of a tool."""
        return re.sub(r"(tools\[\d+\])\.function\.parameters", rf"\1.{self.tool_schema}", text)


def sampling_fields(body: SamplingBody) -> dict[str, object]:
    """The fields that every form shares, as far as the client set them."""
    return {
        name: getattr(body, name)
        for name in SamplingBody.model_fields
        if name in body.model_fields_set
    }
