"""The streaming parser that all families share: reasoning, then content and tool calls.

Guarantees: however the text is split into pieces, the joined deltas are the same; content is emitted
as soon as it cannot be anything else; text that never becomes a call is emitted as content.

Only this is trimmed: newlines just inside ``<think>`` and just after it, white space before a tool
call, white space between or after tool calls with no content in it.
"""

from __future__ import annotations

from collections.abc import Callable

from openclaw_rl.render.calls import CallScanner, NotACall
from openclaw_rl.types import Delta

THINK, THINK_END, CALL = "<think>", "</think>", "<tool_call>"


class StreamParser:
    """Each state is a method that consumes what it can of the buffer and returns whether to continue.

    ``new_scanner`` makes a call scanner, given the number of calls so far; without it no tool calls
    are parsed. ``<think>`` counts only at the start of the reply.
    """

    def __init__(
        self, reasons: bool, in_think: bool, new_scanner: Callable[[int], CallScanner] | None
    ) -> None:
        self._new_scanner = new_scanner
        self._scanner: CallScanner | None = None
        self._buffer = ""
        self._held = ""  # text before the call being read, emitted if it is not a call
        self._num_calls = 0
        self._after_call = False
        self._out: list[Delta] = []
        self._state: Callable[[bool], bool] = self.content
        if reasons:
            self._state = self._reasoning_lead if in_think else self._start

    def feed(self, text: str) -> list[Delta]:
        self._buffer += text
        return self._run(final=False)

    def finish(self) -> list[Delta]:
        return self._run(final=True)

    def _run(self, final: bool) -> list[Delta]:
        while self._state(final):
            pass
        out, self._out = merge(self._out), []
        return out

    # --- states ------------------------------------------------------------------------------

    def _start(self, final: bool) -> bool:
        body = self._buffer.lstrip()
        if body.startswith(THINK):
            self._buffer, self._state = body[len(THINK) :], self._reasoning_lead
            return True
        if THINK.startswith(body) and not final:
            return False
        self._state = self.content
        return True

    def _reasoning_lead(self, final: bool) -> bool:
        return self._skip_newlines(self._reasoning)

    def _reasoning(self, final: bool) -> bool:
        head, tag, rest = self._buffer.partition(THINK_END)
        if tag:
            self._emit_reasoning(head.rstrip("\n"))
            self._buffer, self._state = rest, self._content_lead
            return True
        keep = 0 if final else partial_suffix(head, THINK_END)
        sure = head if final else head[: len(head) - keep].rstrip("\n")
        self._emit_reasoning(sure)
        self._buffer = head[len(sure) :]
        return False

    def _content_lead(self, final: bool) -> bool:
        return self._skip_newlines(self.content)

    def _skip_newlines(self, then: Callable[[bool], bool]) -> bool:
        self._buffer = self._buffer.lstrip("\n")
        if self._buffer:
            self._state = then
        return bool(self._buffer)

    def content(self, final: bool) -> bool:
        if self._new_scanner is None:
            self.emit_content(self._buffer)
            self._buffer = ""
            return False
        head, tag, rest = self._buffer.partition(CALL)
        if tag:
            self.emit_content(head.rstrip())
            self.open_call(head[len(head.rstrip()) :] + tag, rest)
            return True
        keep = 0 if final else partial_suffix(head, CALL)
        sure = head if final else head[: len(head) - keep].rstrip()
        if not (self._after_call and sure.isspace()):
            self.emit_content(sure)
        self._buffer = head[len(sure) :]
        return False

    def plain(self, final: bool) -> bool:
        """Content that is no longer searched for calls."""
        self.emit_content(self._buffer)
        self._buffer = ""
        return False

    def open_call(self, held: str, rest: str) -> None:
        assert self._new_scanner is not None
        self._scanner = self._new_scanner(self._num_calls)
        self._held, self._buffer, self._state = held, rest, self._call

    def after_call(self) -> Callable[[bool], bool]:
        """The state that follows a stretch of calls."""
        return self.content

    def _call(self, final: bool) -> bool:
        scanner = self._scanner
        assert scanner is not None
        used, failed = 0, False
        for used, char in enumerate(self._buffer, start=1):  # noqa: B007
            try:
                scanner.feed(char)
            except NotACall:
                failed = True
            if failed or scanner.done:
                break
        rest, self._buffer = self._buffer[used:], ""
        if final and not (failed or scanner.done):
            scanner.finish()
            failed = scanner.pending
        self._take(scanner)
        if not (failed or scanner.done):
            return False
        self._leave_call(scanner.raw if failed else "", rest)
        return True

    def _take(self, scanner: CallScanner) -> None:
        if scanner.next_index > self._num_calls:
            self._held, self._after_call, self._num_calls = "", True, scanner.next_index
        self._out += scanner.deltas
        scanner.deltas.clear()

    def _leave_call(self, raw: str, rest: str) -> None:
        """The opening tag is emitted as content first, or it would be read again."""
        self.emit_content(self._held)
        self._held = ""
        self._buffer, self._scanner, self._state = raw + rest, None, self.after_call()

    # --- output ------------------------------------------------------------------------------

    def emit_content(self, text: str) -> None:
        if text:
            self._after_call = False
            self._out.append(Delta(content=text))

    def _emit_reasoning(self, text: str) -> None:
        if text:
            self._out.append(Delta(reasoning=text))


def partial_suffix(text: str, tag: str) -> int:
    """How many characters at the end of ``text`` may be the beginning of ``tag``."""
    longest = min(len(text), len(tag) - 1)
    return next((size for size in range(longest, 0, -1) if text.endswith(tag[:size])), 0)


def merge(deltas: list[Delta]) -> list[Delta]:
    """Neighbours of one kind become one; the delta that names a call stays on its own."""
    out: list[Delta] = []
    for delta in deltas:
        last = out[-1] if out else None
        if last is None or last.tool_name or delta.tool_name or _kind(last) != _kind(delta):
            out.append(delta)
            continue
        out[-1] = Delta(
            content=last.content + delta.content,
            reasoning=last.reasoning + delta.reasoning,
            tool_index=delta.tool_index,
            arguments=last.arguments + delta.arguments,
        )
    return out


def _kind(delta: Delta) -> tuple[bool, int | None]:
    return bool(delta.reasoning), delta.tool_index
