"""`localreact serve`."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from localreact.commands.options import ChatTemplate, Context, Docs, GpuLayers, Model, Root, Threads
from localreact.endpoints.llama import ENGINES, PARALLEL
from localreact.endpoints.resolve import DEFAULT_MODEL, check_model, open_endpoint
from localreact.errors import MissingPartError
from localreact.terminal import printable
from localreact.tools import Toolbox
from localreact.tools.builtin import NAMES, load_tools


def serve(
    model: Model = DEFAULT_MODEL,
    host: Annotated[str, typer.Option(help="Where to listen; anywhere but here needs a key.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any that is free.")] = 8765,
    api_key: Annotated[
        str,
        typer.Option(
            envvar="LOCALREACT_SERVE_KEY",
            show_default=False,
            help="What clients have to show. Others on this machine see options, but not the environment.",
        ),
    ] = "",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which clients may call this server. May be repeated."),
    ] = None,
    allow_origin: Annotated[
        list[str] | None,
        typer.Option(help="The origin of a page elsewhere that may ask: http://HOST:PORT. May be repeated."),
    ] = None,
    parallel: Annotated[
        int, typer.Option(min=1, max=64, help="Replies written at a time; they share the context.")
    ] = PARALLEL,
    queue: Annotated[
        int, typer.Option(min=0, help="Replies that wait beside those; more are sent away (429).")
    ] = 32,
    max_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of a reply at most, where the client doesn't say.")
    ] = 1024,
    timeout: Annotated[float, typer.Option(min=1, help="Seconds for a request, waiting included.")] = 600.0,
    engine: Annotated[
        str, typer.Option(help=f"What holds the model to its turns: {', '.join(ENGINES)}.")
    ] = ENGINES[0],
    ctx: Context = None,
    threads: Threads = None,
    gpu_layers: GpuLayers = 0,
    deterministic: Annotated[
        bool,
        typer.Option("--deterministic", help="Bit for bit the same replies, one at a time."),
    ] = False,
    chat_template: ChatTemplate = None,
    tool: Annotated[
        list[str] | None,
        typer.Option(
            "-T",
            "--tool",
            help=f"A tool for /v1/runs and the page: {', '.join(NAMES)}, FILE.py or FILE.py:NAME. May be "
            "repeated. Without any there are no runs.",
        ),
    ] = None,
    docs: Docs = None,
    root: Root = None,
    allow_effects: Annotated[
        bool,
        typer.Option(
            "--allow-effects", help="Let runs call tools that change something; nobody is asked before."
        ),
    ] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No line for each request.")] = False,
) -> None:
    """Serve a model behind OpenAI's API, with tool calls that its grammar enforces.

    Ctrl-C stops; requests under way have some seconds to end. Exit code 2: wrong use, or a part is missing.
    """
    try:
        from localreact.serve.running import run
        from localreact.serve.settings import Settings
    except ModuleNotFoundError as error:
        raise MissingPartError(
            f"serving needs {error.name}", "Install it with: pip install 'localreact[serve]'"
        ) from error
    check_model(model)
    tools = load_tools(tool or [], docs, root)
    for notice in Toolbox(tools).notices:
        print(printable(notice), file=sys.stderr)
    settings = Settings(
        host=host,
        port=port,
        api_key=api_key,
        hosts=tuple(allow_host or ()),
        origins=tuple(each.lower() for each in allow_origin or ()),
        parallel=parallel,
        queue=queue,
        max_tokens=max_tokens,
        request_seconds=timeout,
        tools=tools,
        allow_effects=allow_effects,
    )
    opening = partial(
        open_endpoint,
        model,
        ctx,
        threads,
        engine,
        deterministic,
        chat_template,
        gpu_layers=gpu_layers,
        parallel=parallel,
    )
    run(settings, opening, lambda said: print(printable(said), file=sys.stderr), quiet)
