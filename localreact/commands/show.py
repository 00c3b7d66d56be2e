"""A recorded run on the terminal: the events of the trace go to the view that shows runs as they happen."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from localreact.protocols import PROTOCOLS, protocol
from localreact.terminal import TerminalView, printable
from localreact.trace.events import Event, ProtocolChanged, RunStarted, StepStarted, TextDelta, TurnCompleted
from localreact.trace.reading import Trace


def show_trace(trace: Trace, prompts: bool = False) -> None:
    """The answer on stdout, the rest on stderr, as `localreact run` has it."""
    view, version = TerminalView(sys.stdout), ""
    print(printable(trace.started.question), file=sys.stderr)
    for event in trace.events:
        if isinstance(event, RunStarted | ProtocolChanged):
            version = event.protocol
        if isinstance(event, RunStarted) and event.resumed is not None:
            print(f"— resumed after {event.resumed} steps —", file=sys.stderr)
        if isinstance(event, StepStarted):
            view.close()
            if prompts:
                text = "".join(segment.text for segment in event.prompt)
                print(printable(f"\n— prompt of step {event.step} —\n{text}\n—"), file=sys.stderr)
        for each in _with_deltas(event, trace, version):
            view.show(each)
    view.close()
    if trace.ended is None:
        print("— the trace ends here —", file=sys.stderr)


def _with_deltas(event: Event, trace: Trace, version: str) -> Iterator[Event]:
    """The event after the stretches of text that led to it, which traces don't keep. (Of a server's own
    calls there are none.)"""
    name, _, _ = version.removeprefix("react-").partition("/")
    if isinstance(event, TurnCompleted) and name in PROTOCOLS:
        if event.completion.reasoning:
            yield TextDelta(event.step, "reasoning", event.completion.reasoning)
        reader = protocol(name, trace.started.setup.get("spelling")).reader()
        for field, text in reader.feed(event.completion.text):
            if field != "answer" or not trace.started.settings.get("answer_schema"):
                yield TextDelta(event.step, field, text)
    yield event
