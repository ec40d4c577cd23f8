"""ResponseWriter: writes the answers of /v1/responses, whole and as events in their order."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

from server.api.answers.choices import Piece
from server.api.dialects.answer_blocks import Block, BlockKind, Change, Step
from server.api.dialects.block_writer import BlockWriter, named_event
from server.api.dialects.response_answers import (
    ContentPart,
    FunctionCallItem,
    IncompleteDetails,
    InputTokensDetails,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    OutputTokensDetails,
    ReasoningItem,
    ReasoningText,
    ResponseArgumentsDeltaEvent,
    ResponseArgumentsDoneEvent,
    ResponseChange,
    ResponseFailure,
    ResponseFailureEvent,
    ResponseItemEvent,
    ResponseObject,
    ResponsePartEvent,
    ResponseReasoningEcho,
    ResponseStateEvent,
    ResponseTextDeltaEvent,
    ResponseTextDoneEvent,
    ResponseTextEcho,
    ResponseThoughtsDeltaEvent,
    ResponseThoughtsDoneEvent,
    ResponseUsage,
)
from server.api.dialects.tool_kinds import out_of_namespace
from server.api.generation_call import GenerationCall
from server.api.protocols import TokenizerLike
from server.api.schemas.response_schemas import NamespaceTool, ResponseBody, TextFormat
from server.api.schemas.wire_types import ErrorDetail
from server.errors import ApiError
from server.request import FinishReason

_PREFIXES = {BlockKind.TEXT: "msg", BlockKind.THOUGHTS: "rs", BlockKind.CALL: "fc"}
_Status = Literal["in_progress", "completed", "incomplete", "failed"]


class ResponseWriter(BlockWriter):
    """Writes one response.

    Args:
        call: What was asked, as a chat.
        tokenizer: See Writer.
        body: What was asked, as it was sent: the answer repeats it.
    """

    def __init__(
        self, call: GenerationCall, tokenizer: TokenizerLike, *, body: ResponseBody
    ) -> None:
        super().__init__(call, tokenizer)
        self._body = body
        self._number = call.id.partition("-")[2]
        self._sequence_number = 0
        self._namespaces = [t.name for t in body.tools if isinstance(t, NamespaceTool)]

    def failure(self, error: ApiError) -> bytes:
        """What ends a stream that fails: the response as far as it came, and the error."""
        response = self._response("failed")
        response.error = ResponseFailure(code=error.type, message=error.message)
        failed = ResponseStateEvent(type="response.failed", response=response, **self._next())
        shape = ErrorDetail(
            message=error.message, type=error.type, param=error.param, code=error.code
        )
        event = ResponseFailureEvent(
            error=shape,
            message=error.message,
            param=error.param,
            code=error.code,
            **self._next(),
        )
        return named_event(failed) + named_event(event)

    def _whole(self, last: Piece) -> ResponseObject:
        return self._response(_status(last))

    def _opening(self, _index: int) -> Iterator[ResponseStateEvent]:
        begun = self._response("in_progress")
        begun.output = []
        begun.usage = None
        yield ResponseStateEvent(type="response.created", response=begun, **self._next())
        yield ResponseStateEvent(type="response.in_progress", response=begun, **self._next())

    def _closing(self, _index: int, piece: Piece) -> ResponseStateEvent:
        response = self._response(_status(piece))
        if response.status == "incomplete":
            return ResponseStateEvent(type="response.incomplete", response=response, **self._next())
        return ResponseStateEvent(type="response.completed", response=response, **self._next())

    def _events(self, change: Change) -> Iterator[ResponseChange]:
        block = change.block
        has_parts = block.kind is not BlockKind.CALL
        if change.step is Step.GAINS:
            yield self._gain(block, change.text)
        elif change.step is Step.OPENS:
            item = self._item(block, "in_progress")
            yield ResponseItemEvent(
                type="response.output_item.added",
                output_index=block.index,
                item=item,
                **self._next(),
            )
            if has_parts:
                yield ResponsePartEvent(
                    type="response.content_part.added", part=_part(block, ""), **self._at(block)
                )
        else:
            yield self._done(block)
            if has_parts:
                part = _part(block, block.text)
                yield ResponsePartEvent(
                    type="response.content_part.done", part=part, **self._at(block)
                )
            yield ResponseItemEvent(
                type="response.output_item.done",
                output_index=block.index,
                item=self._item(block, _item_status(block)),
                **self._next(),
            )

    def _gain(self, block: Block, text: str) -> ResponseChange:
        where = self._at(block)
        if block.kind is BlockKind.TEXT:
            return ResponseTextDeltaEvent(delta=text, **where)
        if block.kind is BlockKind.THOUGHTS:
            return ResponseThoughtsDeltaEvent(delta=text, **where)
        return ResponseArgumentsDeltaEvent(delta=text, **where)

    def _done(self, block: Block) -> ResponseChange:
        where = self._at(block)
        if block.kind is BlockKind.TEXT:
            return ResponseTextDoneEvent(text=block.text, **where)
        if block.kind is BlockKind.THOUGHTS:
            return ResponseThoughtsDoneEvent(text=block.text, **where)
        return ResponseArgumentsDoneEvent(name=block.name, arguments=block.text, **where)

    def _at(self, block: Block) -> dict[str, Any]:
        """Where an event inside an item belongs."""
        return {"item_id": self._item_id(block), "output_index": block.index, **self._next()}

    def _next(self) -> dict[str, Any]:
        number, self._sequence_number = self._sequence_number, self._sequence_number + 1
        return {"sequence_number": number}

    def _item_id(self, block: Block) -> str:
        return f"{_PREFIXES[block.kind]}_{self._number}_{block.index}"

    def _item(self, block: Block, status: ItemStatus) -> OutputItem:
        """An item; one that has just begun is empty."""
        begins = status == "in_progress"
        text, item_id = "" if begins else block.text, self._item_id(block)
        if block.kind is BlockKind.CALL:
            namespace, name = out_of_namespace(block.name, self._namespaces)
            return FunctionCallItem(
                id=item_id,
                status=status,
                call_id=block.call_id,
                name=name,
                namespace=namespace,
                arguments=text,
            )
        if block.kind is BlockKind.THOUGHTS:
            thoughts = [] if begins else [ReasoningText(text=text)]
            return ReasoningItem(id=item_id, status=status, content=thoughts)
        content = [] if begins else [OutputText(text=text)]
        return MessageItem(id=item_id, status=status, content=content)

    def _response(self, status: _Status) -> ResponseObject:
        """The response as it stands."""
        call, body = self.call, self._body
        params = call.requests[0].params
        cut = IncompleteDetails(reason="max_output_tokens") if status == "incomplete" else None
        return ResponseObject(
            id=f"resp_{self._number}",
            created_at=call.created,
            completed_at=int(time.time()) if status == "completed" else None,
            status=status,
            incomplete_details=cut,
            model=call.model,
            output=[self._item(block, _item_status(block)) for block in self._reader.blocks],
            usage=self._response_usage(),
            seed=call.seed,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            metadata=body.metadata,
            parallel_tool_calls=body.parallel_tool_calls,
            reasoning=ResponseReasoningEcho(effort=body.reasoning.effort),
            temperature=params.temperature,
            text=ResponseTextEcho(format=body.text.format or TextFormat(type="text")),
            tool_choice=body.tool_choice,
            tools=body.tools,
            top_p=params.top_p,
        )

    def _response_usage(self) -> ResponseUsage:
        usage = self.usage()
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(
                cached_tokens=usage.prompt_tokens_details.cached_tokens
            ),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(
                reasoning_tokens=self._reader.num_reasoning_tokens
            ),
            total_tokens=usage.total_tokens,
        )


def _status(last: Piece) -> Literal["completed", "incomplete"]:
    return "incomplete" if last.finish_reason is FinishReason.LENGTH else "completed"


def _item_status(block: Block) -> ItemStatus:
    return "completed" if block.is_complete else "incomplete"


def _part(block: Block, text: str) -> ContentPart:
    return OutputText(text=text) if block.kind is BlockKind.TEXT else ReasoningText(text=text)
