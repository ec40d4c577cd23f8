"""instructor against the server, in each of its ways to get a structure."""

from __future__ import annotations

from typing import Literal

import openai
import pytest
from pydantic import BaseModel

instructor = pytest.importorskip("instructor")
exceptions = pytest.importorskip("instructor.core.exceptions")

pytestmark = pytest.mark.clients
HI = [{"role": "user", "content": "The owl is old. Describe the animal as JSON."}]


class Animal(BaseModel):
    kind: Literal["owl", "bat"]
    old: bool


@pytest.mark.parametrize("mode", ["TOOLS", "JSON_SCHEMA"])
def test_an_instance_comes_back(url, mode):
    """The answer is an instance of the model."""
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as raw:
        client = instructor.from_openai(raw, mode=instructor.Mode[mode])
        animal = client.chat.completions.create(
            model="smollm2", messages=HI, response_model=Animal, max_retries=0, max_tokens=60
        )
    assert isinstance(animal, Animal)


def test_partials_stream(url):
    """Partial instances grow until the last is whole."""
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as raw:
        client = instructor.from_openai(raw, mode=instructor.Mode.TOOLS)
        partials = list(
            client.chat.completions.create_partial(
                model="smollm2", messages=HI, response_model=Animal, max_retries=0, max_tokens=60
            )
        )
    assert Animal.model_validate(partials[-1].model_dump())


def test_an_object_that_is_cut_off_is_known_as_incomplete(url):
    """The mode that sends json_object hears from the finish reason that there should be more."""
    with openai.OpenAI(base_url=url, api_key="any", max_retries=0) as raw:
        client = instructor.from_openai(raw, mode=instructor.Mode.JSON)
        with pytest.raises(exceptions.IncompleteOutputException):
            client.chat.completions.create(
                model="smollm2",
                messages=HI,
                response_model=Animal,
                max_retries=0,
                max_tokens=2,
                temperature=0,  # `{}` is whole, and the likeliest object is longer
            )
