"""Tool calls as models write them: the formats and their parser.

ToolFormat describes how a model was trained to call functions; `ToolCallParser` finds the calls in
text that arrives in pieces. Text that may become a call is held back only as long as it may. Never
runs a function and knows no wire format.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from server.api.structured_output.call_scanner import CallScanner
from server.api.transport.exchange import chance


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolFormat:
    """How calls stand in a text: `begin`, one object or several, `end`."""

    name: str
    begin: str = ""
    """The mark before calls; without one only an answer that starts with a call has any."""
    opening: str = ""
    """A mark that may stand before the first call all the same."""
    end: str = ""
    """The mark behind each call, which then has its own `begin`."""
    separators: str = ""
    """What may stand between calls, white space aside."""
    arguments: str = "arguments"
    call_id: Callable[[], str] = lambda: f"call_{chance().token(12)}"

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks, which may be control tokens."""
        return tuple(filter(None, (self.begin, self.opening, self.end)))


HERMES = ToolFormat(name="hermes", begin="<tool_call>", end="</tool_call>")
LLAMA3_JSON = ToolFormat(
    name="llama3_json", opening="<|python_tag|>", separators=";", arguments="parameters"
)
MISTRAL = ToolFormat(
    name="mistral",
    begin="[TOOL_CALLS]",
    separators="[,]",
    call_id=lambda: chance().token(5)[:9],  # its template insists on nine letters or digits
)
PLAIN_JSON = ToolFormat(name="json", separators="[,]")
TOOL_FORMATS: Mapping[str, ToolFormat] = {
    one.name: one for one in (HERMES, LLAMA3_JSON, MISTRAL, PLAIN_JSON)
}


def format_of_template(template: str) -> ToolFormat:
    """The format a chat template shows its model; plain JSON if it shows none that we know."""
    if MISTRAL.begin in template:
        return MISTRAL
    if HERMES.begin in template:
        return HERMES
    if LLAMA3_JSON.opening in template or "Environment: ipython" in template:
        return LLAMA3_JSON
    return PLAIN_JSON


@dataclass(frozen=True, kw_only=True, slots=True)
class CallPiece:
    """Delta of a tool call; the first of each has its id and name."""

    index: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None


Found = str | CallPiece
"""Ordinary text, or a piece of a call."""


class ToolCallParser:
    """Finds the calls in one answer.

    Args:
        tool_format: How the model writes them.
        names: The functions there are; an object that names another is text.
        is_call: Whether the answer can be nothing but calls, so that none of it is text.
    """

    def __init__(
        self, tool_format: ToolFormat, names: Collection[str], *, is_call: bool = False
    ) -> None:
        self._is_call = is_call
        self._format = tool_format
        self._names = names
        self._pending = ""
        """Read from the model, not looked at yet."""
        self._raw = ""
        """Looked at, and text after all unless a call comes of it."""
        self._space = ""
        """White space that is dropped if a call follows."""
        self._scanner: CallScanner | None = None
        self._started = False
        """Whether the current object is certainly a call."""
        self._follows_call = False
        """Whether separators belong to a call."""
        self._step = self._read_text if tool_format.begin else self._read_start
        self._found: list[Found] = []
        self.num_calls = 0

    def feed(self, text: str) -> list[Found]:
        """Read more of the answer and return what is certain."""
        self._pending += text
        while self._pending and self._step():
            pass
        return self._take()

    def finish(self) -> list[Found]:
        """The answer has ended: return what was held back."""
        if self._is_call:
            self._begin_known()
            return self._take()
        held = self._raw + self._pending
        ends_a_call = self._follows_call and self._format.end.startswith(held)
        self._say("" if ends_a_call else held)
        self._raw = self._pending = ""
        if self._space and not self.num_calls:
            self._found.append(self._space)
        self._space = ""
        return self._take()

    def _begin_known(self) -> None:
        """Tell of a call that was cut off before it named its function, if there is only one."""
        cut = self._raw + self._pending + self._space
        if cut and not self.num_calls and len(self._names) == 1:
            (name,) = self._names
            call_id = self._format.call_id()
            self._found.append(CallPiece(index=0, id=call_id, name=name))
            self.num_calls += 1
        self._raw = self._pending = self._space = ""

    def _take(self) -> list[Found]:
        found, self._found = self._found, []
        return found

    # Each step reads from _pending; it returns False when it needs more.

    def _read_text(self) -> bool:
        """Text in which a mark may stand."""
        before, mark, after = self._pending.partition(self._format.begin)
        if mark:
            self._say(before)
            self._raw, self._pending, self._step = mark, after, self._read_between
            return True
        held = _overlap(self._pending, self._format.begin)
        certain = len(self._pending) - held
        self._say(self._pending[:certain])
        self._pending = self._pending[certain:]
        return False

    def _read_start(self) -> bool:
        """The beginning of an answer that is calls or text."""
        text = self._pending.lstrip()
        opening = self._format.opening
        if not text or (opening and len(text) < len(opening) and opening.startswith(text)):
            return False
        marked = bool(opening) and text.startswith(opening)
        skipped = len(self._pending) - len(text) + (len(opening) if marked else 0)
        if marked or text[0] == "{" or text[0] in self._format.separators[:1]:
            self._raw, self._pending = self._pending[:skipped], self._pending[skipped:]
            self._step = self._read_between
        else:
            self._step = self._read_rest
        return True

    def _read_rest(self) -> bool:
        """Text in which no call can begin."""
        self._say(self._pending)
        self._pending = ""
        return False

    def _read_between(self) -> bool:
        """What stands before an object and behind it."""
        text = self._pending.lstrip(" \t\r\n" + self._format.separators)
        skipped = self._pending[: len(self._pending) - len(text)]
        self._raw += "" if self._follows_call else skipped
        self._pending = text
        if not text:
            return False
        if text[0] == "{" and not (self._format.end and self._started):
            self._scanner = CallScanner(self._names)
            self._step = self._read_object
        elif self._format.end and self._started and text.startswith(self._format.end):
            self._leave(text[len(self._format.end) :])
        elif self._format.end.startswith(text) and self._started:
            return False
        else:
            self._give_up()
        return True

    def _read_object(self) -> bool:
        scanner = self._scanner
        assert scanner is not None
        for position, char in enumerate(self._pending):
            scanner.push(char)
            if scanner.is_broken:
                self._raw += "" if self._started else self._pending[:position]
                self._pending = self._pending[position:]
                self._give_up()
                return True
            if scanner.is_call:
                self._extend_call(scanner)
            if scanner.is_complete:
                self._pending = self._pending[position + 1 :]
                self._step = self._read_between
                self._started = bool(self._format.end)
                return True
        self._raw += "" if self._started else self._pending
        self._pending = ""
        return False

    def _extend_call(self, scanner: CallScanner) -> None:
        if not self._started:
            self._started, self._follows_call = True, True
            self._raw = self._space = ""
            self._found.append(
                CallPiece(index=self.num_calls, id=self._format.call_id(), name=scanner.name)
            )
            self.num_calls += 1
        arguments = scanner.take_arguments()
        if arguments:
            self._add_arguments(arguments)

    def _add_arguments(self, arguments: str) -> None:
        """One delta for all that a piece brings."""
        last = self._found[-1] if self._found else None
        if isinstance(last, CallPiece) and last.id is None:
            arguments = last.arguments + arguments
            self._found.pop()
        self._found.append(CallPiece(index=self.num_calls - 1, arguments=arguments))

    def _leave(self, rest: str) -> None:
        """A call has got its end mark."""
        self._pending, self._started, self._follows_call = rest, False, False
        self._step = self._read_text

    def _give_up(self) -> None:
        """What was held since the last call is text."""
        self._say(self._raw)
        self._raw, self._started, self._follows_call = "", False, False
        self._step = self._read_text if self._format.begin else self._read_rest

    def _say(self, text: str) -> None:
        """Ordinary text; white space waits for what it separates."""
        text = self._space + text
        kept = text.rstrip()
        self._space = text[len(kept) :]
        if kept:
            self._found.append(kept)


def _overlap(text: str, mark: str) -> int:
    """Length of the longest ending of the text that the mark begins with."""
    lengths = range(min(len(mark) - 1, len(text)), 0, -1)
    return next((length for length in lengths if text.endswith(mark[:length])), 0)
