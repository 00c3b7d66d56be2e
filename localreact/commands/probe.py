"""`localreact probe`."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from localreact.endpoints import probe as probing
from localreact.endpoints.address import FORMS, looks_like_address, parse_addresses
from localreact.endpoints.resolve import open_server, read_template
from localreact.errors import UsageError
from localreact.terminal import print_json, printable


def probe(
    endpoint: Annotated[str, typer.Argument(help="A server: KIND:URL#MODEL.", envvar="LOCALREACT_MODEL")],
    chat_template: Annotated[
        Path | None, typer.Option(help="A file with a Jinja chat template, instead of the server's own.")
    ] = None,
    as_document: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Find out what a server enforces, by asking for what only an enforced grammar can give.

    Exit code 0: it answered (also where it enforces nothing); 2: wrong use, or it can't be reached.
    """
    if not looks_like_address(endpoint):
        raise UsageError(f"{endpoint!r} is no server: a model in process needs no probing", FORMS)
    template = None if chat_template is None else read_template(chat_template)
    documents = []
    for address in parse_addresses(endpoint):
        with closing(open_server(address, template=template)) as server:
            findings = probing.probe(server)
            documents.append(
                {
                    "endpoint": server.name,
                    "fingerprint": server.fingerprint,
                    "level": server.level,
                    "languages": list(server.languages),
                    "n_ctx": server.n_ctx,
                    "chat_format": server.chat.name,
                    "notices": server.notices,
                    "findings": [
                        {"what": each.what, "holds": each.holds, "how": each.how, "why": each.why}
                        for each in findings
                    ],
                }
            )
            if not as_document:
                _show(documents[-1])
    if as_document:
        print_json(documents[0] if len(documents) == 1 else {"replicas": documents})


def _show(document: dict[str, object]) -> None:
    print(printable(f"{document['endpoint']} ({document['fingerprint']})"))
    print(f"turns are: {document['level']}")
    print(printable(f"context: {document['n_ctx']} tokens; prompts: {document['chat_format']}"))
    findings = document["findings"]
    assert isinstance(findings, list)
    for each in findings:
        mark = {True: "yes", False: "no", None: "?"}[each["holds"]]
        how = f" ({each['how']})" if each["how"] else ""
        why = f": {each['why']}" if each["why"] else ""
        print(printable(f"  {each['what'] + how:45} {mark}{why}"))
