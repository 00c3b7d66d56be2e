"""The protocol `native`: the server's own tool calling, with the same tools, policy, budgets and events.

No grammar of ours holds here. One reply may hold several calls: all are executed, in order, each as a
step of its own, and `round_trips` counts the replies. Text without a call is the answer, as that API has
it; `insufficient` is offered as a tool.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from localreact import context, guards, paging, policy
from localreact.budgets import SHORTEST_TURN
from localreact.context import Transcript
from localreact.endpoints.base import Endpoint
from localreact.endpoints.chat_api import (
    ChatApi,
    Message,
    NativeCall,
    Reply,
    known_objection,
    objection_to_native,
    remember,
)
from localreact.endpoints.http import StoppedError, stopped_by
from localreact.endpoints.probe import REFUSALS
from localreact.endpoints.server import ServerEndpoint
from localreact.errors import ProtocolError, ServerError, UsageError
from localreact.loop import Loop, concluded
from localreact.policy import Plan
from localreact.protocols.base import answered
from localreact.protocols.strict_json import load_object, load_value
from localreact.run import Ending, Events, RunState
from localreact.trace.events import (
    GuardActed,
    ProtocolChanged,
    StepStarted,
    ToolEnded,
    TurnCompleted,
    TurnRead,
    TurnRefused,
)
from localreact.types import (
    Completion,
    Excerpt,
    Finish,
    Limits,
    Observation,
    Segment,
    Span,
    Timings,
    ToolCall,
    ToolSpec,
    Turn,
)

NATIVE = ("native", "auto")
VERSION = "native/1"
LEVEL = "the server's own tool calling, checked only"
SYSTEM = "Answer the question with the help of the tools. Answer briefly once you have what you need."
INSUFFICIENT = ToolSpec(
    "insufficient",
    "Say what is missing, where the tools can't give what an answer needs.",
    {"type": "object", "properties": {"missing": {"type": "string"}}, "required": ["missing"]},
)


def open_native(endpoint: Endpoint, loop: Loop, replaceable: bool) -> NativeLoop | None:
    """The endpoint's own tool calling, with what holds for another loop. Where it is `replaceable` and
    doesn't work: None, and a notice says why.

    Raises:
        UsageError: the endpoint has none.
    """
    api = ChatApi(endpoint) if isinstance(endpoint, ServerEndpoint) else None
    wanted = {
        "citations": loop.policy.cite,
        "plans": loop.policy.strategy == "plan",
        "a repeat_penalty": loop.sampling.repeat_penalty != 1 and api is not None and not api.penalises,
    }
    if lacking := [name for name, is_wanted in wanted.items() if is_wanted]:
        if replaceable:
            return None
        raise UsageError(f"the protocol native has no place for {lacking[0]}", "Use the json protocol.")
    if api is None:
        if replaceable:
            return None
        raise UsageError(
            f"{endpoint.name} has no tool calling of its own",
            "The protocol native is for one server: -m openai:http://host:8000/v1#MODEL.",
        )
    if replaceable and (why := objection_to_native(api)):
        endpoint.notices.append(f"protocol {loop.protocol.version}, since the server {why}")
        return None
    return NativeLoop(api, loop, replaceable)


class BrokenNativeError(ProtocolError):
    """The model's own tool calling doesn't work after all; another protocol may go on with the run."""


@dataclass(frozen=True)
class NativeLoop:
    """`replaceable`: where the format breaks, BrokenNativeError is raised, for another protocol to go on."""

    api: ChatApi
    loop: Loop
    replaceable: bool = False

    @property
    def objection(self) -> str:
        """Why it can't be used after all, as an earlier run found out; empty where it can."""
        return known_objection(self.api) if self.replaceable else ""

    def run(self, state: RunState, question: str, cancel: threading.Event) -> Events[Ending]:
        messages: list[Message] = [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": question},
        ]
        shown = 0
        while True:
            if cancel.is_set():
                return Ending("cancelled", "stopped between two turns")
            state.late = state.late or policy.is_late(state, self.loop.budgets)
            plan = policy.next_turn(state, self.loop.budgets, self.loop.policy, self._room(messages))
            if isinstance(plan, Ending):
                return plan
            if plan.reason:
                yield GuardActed(len(state.steps) + 1, str(plan.closing), "closed", plan.reason)
            yield StepStarted(
                step=len(state.steps) + 1,
                prompt=tuple(Segment(json.dumps(each, ensure_ascii=False)) for each in messages[shown:]),
                tools=tuple(dict.fromkeys(tool.name for tool in plan.spec.tools)),
                answer=plan.spec.answer,
                insufficient=plan.spec.insufficient,
                max_tokens=plan.max_tokens,
                closing=plan.closing or "",
            )
            shown = len(messages)
            limits = Limits(plan.max_tokens, self.loop.deadline(state), cancel)
            started = time.monotonic()
            try:
                reply = self.api.reply(
                    messages, self._tools, self._choice(plan, state), limits, self.loop.sampling
                )
            except StoppedError as error:
                completion = Completion("", error.stopped)
                yield TurnCompleted(len(state.steps) + 1, completion)
                state.add(completion)
                return Ending(error.stopped, "stopped in the middle of a turn")
            except ServerError as error:
                if not state.steps and error.status in REFUSALS:
                    self._broken(f"refuses tools: {error.message}")
                raise
            completion = _completion(reply, time.monotonic() - started)
            yield TurnCompleted(len(state.steps) + 1, completion)
            messages.append(reply.message)
            ending = yield from self._read(state, messages, plan, reply, completion, limits)
            if ending is not None:
                return ending

    @property
    def _tools(self) -> list[ToolSpec]:
        names = [spec.name for spec in self.loop.toolbox.specs]
        own = [] if INSUFFICIENT.name in names or not names else [INSUFFICIENT]
        return [*self.loop.toolbox.specs, *own]

    def _choice(self, plan: Plan, state: RunState) -> str:
        if not plan.spec.tools:
            return "none"
        wanted = self.loop.policy.tool_choice != "auto" and not state.steps
        return "required" if wanted else "auto"

    def _broken(self, why: str) -> None:
        if self.replaceable:
            remember(self.api, why)
            raise BrokenNativeError(why)

    def _refuse(
        self, state: RunState, plan: Plan, completion: Completion, message: str, same_reply: bool = False
    ) -> Events[None]:
        yield TurnRefused(len(state.steps) + 1, message)
        state.add(completion, problem="refused", closing=plan.closing, same_reply=same_reply)
        if state.refused_turns > 1:
            self._broken(f"breaks the format: {message}")

    def _read(
        self,
        state: RunState,
        messages: list[Message],
        plan: Plan,
        reply: Reply,
        completion: Completion,
        limits: Limits,
    ) -> Events[Ending | None]:
        """Act on a reply; the ending, if it is one."""
        step = len(state.steps) + 1
        if reply.cut:
            yield TurnRefused(step, "the tokens ran out inside the turn")
            state.add(completion, problem="length", closing=plan.closing)
            self._say(messages, reply.calls, "your reply was cut off; be brief")
            return None
        if reply.calls:
            return (yield from self._calls(state, messages, plan, reply, completion, limits))
        try:
            turn = self._answer(reply)
        except ProtocolError as error:
            yield from self._refuse(state, plan, completion, error.message)
            self._say(messages, (), error.message)
            return None
        yield TurnRead(step, turn)
        problem, guard = policy.objection(turn, plan, self.loop.policy), "turn"
        if not problem:
            ending, problem = concluded(
                state, self.loop.budgets, self.loop.policy, plan, turn, completion.usage
            )
            if not problem:
                state.add(completion, turn, closing=plan.closing)
                return ending
            guard = "check"
        observation = Observation("finish", problem, ok=False, executed=False)
        state.add(completion, turn, observation, closing=plan.closing, unmet=guard == "check")
        yield ToolEnded(step, f"{state.run_id}:{step}", observation, 0.0)
        yield GuardActed(step, guard, "refused", problem)
        if not state.has_evidence and len(state.steps) > 1:
            self._broken("ignores tools: it answers without calling any")
        self._say(messages, (), problem)
        return None

    def _calls(
        self,
        state: RunState,
        messages: list[Message],
        plan: Plan,
        reply: Reply,
        completion: Completion,
        limits: Limits,
    ) -> Events[Ending | None]:
        for number, call in enumerate(reply.calls):
            step = len(state.steps) + 1
            share = completion if number == 0 else Completion("", completion.stop)
            closed = ""
            if number:
                plan, closed = self._after_the_calls_before(state, plan)
            turn: Turn | None = None
            try:
                turn = _turn(reply.thought if number == 0 else "", call)
                problem = policy.objection(turn, plan, self.loop.policy)
            except ProtocolError as error:
                problem = error.message
            if closed and (problem or not isinstance(turn, Finish)):  # the model is told; it takes no step
                messages.append(_result(call, f"not executed: {closed}"))
                yield GuardActed(step - 1, "turn", "refused", f"{call.name} not executed: {closed}")
                continue
            if turn is None:
                yield from self._refuse(state, plan, share, problem, same_reply=number > 0)
                messages.append(_result(call, problem))
                continue
            yield TurnRead(step, turn)
            if isinstance(turn, Finish) and not problem:
                state.add(share, turn, closing=plan.closing, same_reply=number > 0)
                return policy.ending_of(turn, plan, self.loop.policy)  # insufficient: no check is made
            if not problem and (stopped := stopped_by(limits)):
                problem = f"not executed: the run is being stopped ({stopped})"
            call_id, seconds = f"{state.run_id}:{step}", 0.0
            observation = Observation(call.name, problem, ok=False, executed=False)
            if isinstance(turn, ToolCall) and not problem:
                observation, seconds, interrupted = yield from self.loop.make_call(
                    state, turn, share.usage, limits.cancel or threading.Event()
                )
                if interrupted:
                    state.add(share, turn, observation, same_reply=number > 0)
                    yield ToolEnded(step, call_id, observation, seconds)
                    raise KeyboardInterrupt
            acts = guards.acts_on(state.steps, turn, observation, self.loop.policy.guards)
            observation = replace(observation, note=guards.note(acts))
            said, excerpt = self._fit(messages, call, observation, step)
            observation = replace(observation, excerpt=excerpt)
            clipped = said if said != observation.content else None
            state.add(share, turn, observation, shown=clipped, closing=plan.closing, same_reply=number > 0)
            messages.append(_result(call, said + f"\nNote: {observation.note}" * bool(observation.note)))
            yield ToolEnded(step, call_id, observation, seconds, clipped)
            if not observation.executed:
                yield GuardActed(step, "turn", "refused", observation.content)
            for act in acts:
                yield GuardActed(act.step, act.guard, act.action, act.detail)
        return None

    def _after_the_calls_before(self, state: RunState, plan: Plan) -> tuple[Plan, str]:
        """What of the plan still holds for a later call of one reply, and why none is made any more."""
        judged = guards.judge(state.steps, self.loop.policy.guards)
        tools = tuple(tool for tool in plan.spec.tools if tool.name not in judged.tools)
        plan = replace(plan, spec=replace(plan.spec, tools=tools, excluded=judged.calls))
        if len(state.steps) >= self.loop.budgets.max_steps - 1:
            return plan, "the last step is kept for an answer"
        if state.failed_calls >= self.loop.budgets.max_tool_errors:
            return plan, f"{state.failed_calls} calls in a row failed"
        return plan, judged.stuck

    def _room(self, messages: Sequence[Message]) -> policy.Room:
        needed, size = self.api.count(messages, self._tools), self.api.server.n_ctx
        return policy.Room(needed, min(size, self.loop.budgets.max_context or size))

    def _fit(
        self, messages: Sequence[Message], call: NativeCall, observation: Observation, step: int
    ) -> tuple[str, Excerpt | None]:
        """What the model is shown of a result: nothing asks for the rest here."""
        room = self._room(messages)
        left = room.left - room.kept_for_last_turn(self.loop.budgets) - 2 * SHORTEST_TURN
        return paging.fit(
            observation, step, left, lambda text: self.api.count([_result(call, text)], ()), more=False
        )

    def _answer(self, reply: Reply) -> Finish:
        if not reply.content:
            raise ProtocolError("your reply was empty: call a tool, or answer")
        if self.loop.policy.answer_type is None:
            return Finish(reply.thought, answer=reply.content)
        value, end = load_value(reply.content, 0)
        if reply.content[end:].strip():
            raise ProtocolError("the answer is to be one JSON value, and nothing after it")
        return answered(reply.thought, value)

    def _say(self, messages: list[Message], calls: Sequence[NativeCall], problem: str) -> None:
        """Tell the model of a problem; calls want an answer each."""
        messages += [_result(call, f"not executed: {problem}") for call in calls]
        if not calls:
            messages.append({"role": "user", "content": problem})


def run_native(
    native: NativeLoop,
    loop: Loop,
    state: RunState,
    transcript: Transcript,
    cancel: threading.Event,
    changed: ProtocolChanged,
) -> Events[Ending]:
    """A native run; where it breaks, `changed` is said with the reason, and the other loop goes on from what
    was done. `transcript` ends with the question."""
    question = "".join(
        segment.text for segment in context.question(state.question, loop.policy.answer_type, state.recalled)
    )
    try:
        return (yield from replace(native, loop=loop).run(state, question, cancel))
    except BrokenNativeError as error:
        state.forgiven = state.refused_turns
        yield replace(changed, reason=error.message)
    for step in state.steps:
        if step.turn is not None and step.observation is not None:
            seen = step.observation.content if step.shown is None else step.shown
            transcript.model(loop.protocol.write(step.turn))
            transcript.user(loop.protocol.observation(replace(step.observation, content=seen)))
    return (yield from loop.run(state, transcript, cancel))


def _turn(thought: str, call: NativeCall) -> Turn:
    """
    Raises:
        ProtocolError: the arguments are no JSON object.
    """
    arguments = load_object(call.arguments or "{}")
    if call.name == INSUFFICIENT.name and isinstance(arguments.get("missing"), str):
        return Finish(thought, missing=arguments["missing"])
    return ToolCall(thought, call.name, arguments)


def _result(call: NativeCall, content: str) -> Message:
    return {"role": "tool", "tool_call_id": call.id, "content": content}


def _completion(reply: Reply, seconds: float) -> Completion:
    text = json.dumps(reply.message, ensure_ascii=False)
    return Completion(
        text,
        "length" if reply.cut else "eog",
        spans=(Span("sampled", text),),
        usage=reply.usage,
        timings=Timings(generate_s=seconds),
        neutralised=reply.neutralised,
    )
