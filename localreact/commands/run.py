"""`localreact run`."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import closing, nullcontext, redirect_stdout
from pathlib import Path
from types import FrameType
from typing import Annotated, cast

import typer

from localreact.agent import Agent
from localreact.checks import named
from localreact.commands import asking
from localreact.commands.files import read_json
from localreact.commands.options import ChatTemplate, Context, Docs, GpuLayers, Model, Root, Threads
from localreact.endpoints.llama import ENGINES
from localreact.endpoints.resolve import DEFAULT_MODEL
from localreact.errors import UsageError
from localreact.policy import Strategy
from localreact.protocols import PROTOCOLS
from localreact.run import Running
from localreact.terminal import TerminalView, as_json, print_json, printable
from localreact.tools.builtin import DEFAULT, NAMES, load_tools
from localreact.tools.toolbox import TIMEOUT
from localreact.trace import store
from localreact.trace.otel import exported
from localreact.types import Sampling


def run(
    question: Annotated[
        str | None, typer.Argument(help="What to answer; without it, or as -, standard input.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    protocol: Annotated[
        str | None,
        typer.Option(
            help=f"Format of a turn: {', '.join(PROTOCOLS)}; of a server also native (its own tool "
            "calling), and auto, which tries that first. Default: as the model card says."
        ),
    ] = None,
    engine: Annotated[
        str,
        typer.Option(help=f"What holds the model to its turns: {', '.join(ENGINES)} (no grammar at all)."),
    ] = ENGINES[0],
    docs: Docs = None,
    root: Root = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            "-T",
            "--tool",
            help=f"A tool: {', '.join(NAMES)}, FILE.py or FILE.py:NAME. May be repeated. "
            f"Default: {', '.join(DEFAULT)}.",
        ),
    ] = None,
    tool_choice: Annotated[
        str,
        typer.Option(
            help="auto, none (no tools), required (a call before anything else), or the tool to call first."
        ),
    ] = "auto",
    answer_schema: Annotated[
        Path | None, typer.Option(help="JSON Schema (a file) that the answer has to fit.")
    ] = None,
    max_steps: Annotated[int, typer.Option(help="Turns at most; the last can only finish.")] = 8,
    max_tokens: Annotated[
        int, typer.Option(help="Tokens to generate at most, in all turns together.")
    ] = 4096,
    reasoning_tokens: Annotated[
        int | None,
        typer.Option(
            help="Tokens that a reasoning model may think before each turn, besides those; 0: none. "
            "Default: as the model card says."
        ),
    ] = None,
    deadline: Annotated[float | None, typer.Option(help="Seconds at most.")] = None,
    tool_timeout: Annotated[
        float, typer.Option(help="Seconds at most for a call of a tool that says nothing else.")
    ] = TIMEOUT,
    max_cost: Annotated[
        float | None, typer.Option(help="What the tools may cost, by their own hints, before you are asked.")
    ] = None,
    approve: Annotated[
        bool, typer.Option("--approve", help="Ask before each call of a tool that changes something.")
    ] = False,
    max_turn_tokens: Annotated[int | None, typer.Option(help="Tokens of one turn at most.")] = None,
    max_context: Annotated[
        int | None, typer.Option(help="Tokens of a prompt with its turn at most, below the context's.")
    ] = None,
    summaries: Annotated[
        bool,
        typer.Option("--summaries", help="Where the context is full, let the model sum older steps up."),
    ] = False,
    strategy: Annotated[
        str,
        typer.Option(help="react; or plan: say first what is to be done, then do that step by step."),
    ] = "react",
    archive: Annotated[
        Path | None, typer.Option(help="File to keep what runs find out in, and to recall it from.")
    ] = None,
    check: Annotated[
        list[str] | None,
        typer.Option(
            help="What an answer has to meet: grounded, evidence, called:TOOL, file:PATH, matches:REGEX. "
            "May be repeated."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers (with --temp).")] = 0,
    temp: Annotated[float, typer.Option(help="Temperature; 0 is greedy.")] = 0.0,
    top_k: Annotated[int, typer.Option(help="Choose among the K likeliest tokens only; 0: all.")] = 0,
    top_p: Annotated[
        float, typer.Option(help="Choose among the likeliest tokens that make up this share; 1: all.")
    ] = 1.0,
    min_p: Annotated[
        float, typer.Option(help="Leave out tokens below this share of the likeliest one's chance; 0: none.")
    ] = 0.0,
    repeat_penalty: Annotated[
        float, typer.Option(help="Make tokens among the last 64 less likely; 1: off.")
    ] = 1.0,
    ctx: Context = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Bit for bit the same run every time, at some cost in speed."),
    ] = False,
    chat_template: ChatTemplate = None,
    evidence_gate: Annotated[
        bool,
        typer.Option(
            "--evidence-gate/--no-evidence-gate", help="Admit an answer only after a tool has given a result."
        ),
    ] = True,
    cite: Annotated[
        bool,
        typer.Option(
            "--cite",
            help="Answer with evidence: quotes of what tools said, word for word (protocols json and text, "
            "engine llguidance).",
        ),
    ] = False,
    as_document: Annotated[
        bool, typer.Option("--json", help="Print the whole run as one JSON document.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write the trace here. Default: a file in the user's state folder.")
    ] = None,
    resume: Annotated[
        str | None,
        typer.Option(
            metavar="TRACE",
            help="Go on with a run that was stopped or killed, in its own trace: a file, a run's id or the "
            "beginning of one, or last. Needs the tools and options that it began with.",
        ),
    ] = None,
    other_model: Annotated[
        bool, typer.Option("--other-model", help="Resume even with another model than it began with.")
    ] = False,
    otel: Annotated[
        bool,
        typer.Option("--otel", help="Send OpenTelemetry spans (to OTEL_EXPORTER_OTLP_ENDPOINT), no content."),
    ] = False,
    otel_content: Annotated[
        bool, typer.Option("--otel-content", help="The same, with questions, prompts, results and answers.")
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="Print the answer only.")] = False,
) -> None:
    """Answer a question with tools. The answer goes to stdout, everything else to stderr.

    Exit code 0: finished; 1: the run ended otherwise; 2: wrong use, or a part is missing. Ctrl-C once asks
    for an answer from what there is, twice stops at once.
    """
    text = "" if resume is not None else _question(question)
    if resume is not None and (question is not None or trace is not None):
        raise UsageError(
            "a resumed run has its question and its trace", "Give --resume without a question and --trace."
        )
    resumed = None if resume is None else store.find(resume)
    if trace is not None and trace.is_dir():
        raise UsageError(f"the trace {trace} is a folder", "Give a file, for example --trace run.jsonl.")
    answer = None if answer_schema is None else read_json(answer_schema)
    names = tool if tool is not None else list(DEFAULT)
    tools = load_tools(names, docs, root)
    view = TerminalView(None if as_document else sys.stdout, quiet=quiet)
    spans = exported(otel_content) if otel or otel_content else nullcontext()
    try:
        with (
            spans as observer,
            Agent(
                model,
                tools,
                max_steps=max_steps,
                max_tokens=max_tokens,
                reasoning_tokens=reasoning_tokens,
                deadline=deadline,
                max_turn_tokens=max_turn_tokens,
                max_context=max_context,
                summaries=summaries,
                strategy=cast(Strategy, strategy),
                archive=archive,
                checks=[named(each) for each in check or ()],
                sampling=Sampling(temp, top_k, top_p, min_p, seed, repeat_penalty),
                tool_timeout=tool_timeout,
                approval=asking.approval if approve else None,
                max_cost=max_cost,
                over_budget=asking.over_budget,
                evidence_gate=evidence_gate,
                cite=cite,
                protocol=protocol,
                engine=engine,
                trace=None if resumed else trace or _default_traces(),
                n_ctx=ctx,
                n_threads=threads,
                gpu_layers=gpu_layers,
                deterministic=deterministic,
                chat_template=chat_template,
                observers=[observer] if observer else [],
            ) as agent,
        ):
            if not quiet:
                for notice in (*agent.endpoint.notices, *agent.notices, *map(str, agent.relaxations)):
                    print(printable(notice), file=sys.stderr)
                if docs is None and {"search", "lookup"} & set(names):
                    print("searching the example knowledge base; --docs DIR searches yours", file=sys.stderr)
            if resumed is None:
                running = agent.stream(text, tool_choice=tool_choice, answer=answer)
            else:
                running = agent.stream_resumed(resumed, answer=answer, other_model=other_model)
            if not quiet:
                for relaxation in running.relaxations:
                    print(printable(str(relaxation)), file=sys.stderr)
            status = _follow(agent, running, view, as_document)
    except KeyboardInterrupt:  # while the model was loading
        print("interrupted", file=sys.stderr)
        status = "cancelled"
    finally:
        view.close()
    raise typer.Exit(0 if status == "finished" else 1)


def _follow(agent: Agent, running: Running, view: TerminalView, as_document: bool) -> str:
    """Show a run as it happens; the first Ctrl-C asks it to finish, a second interrupts at once."""
    asked = False

    def interrupt(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        if asked:
            raise KeyboardInterrupt
        asked = True
        running.finish()
        os.write(2, b"\nanswering from what there is; Ctrl-C again stops at once\n")  # print isn't reentrant

    previous = signal.signal(signal.SIGINT, interrupt)
    try:
        with closing(running), redirect_stdout(sys.stderr):  # a tool that prints isn't the answer
            for event in running:
                view.show(event)
        outcome = running.outcome
        if as_document:
            print_json(
                as_json(outcome, agent.endpoint.name, agent.level, agent.protocol_version, running.trace)
            )
        return outcome.status
    finally:
        signal.signal(signal.SIGINT, previous)


def _question(argument: str | None) -> str:
    if argument is None or argument == "-":
        if sys.stdin is None or sys.stdin.isatty():
            raise UsageError(
                "no question given", 'Write it: localreact run "What is 3*45+2*12?", or pipe it in.'
            )
        argument = sys.stdin.buffer.read().decode("utf-8", "replace")
    if not argument.strip():
        raise UsageError("the question is empty", 'Write it: localreact run "What is 3*45+2*12?"')
    return argument.strip().encode("utf-8", "replace").decode()  # an argument may be broken UTF-8


def _default_traces() -> Path | None:
    """Where runs leave their traces when no file is named; None where that can't be written."""
    folder = store.writable_folder()
    if folder is None:
        print(f"no trace is kept: {store.folder()} can't be written", file=sys.stderr)
    return folder
