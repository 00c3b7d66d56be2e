"""Writes turns with guidance, for `localreact bench speed --guidance PYTHON`.

Run by that interpreter as a file, and with nothing of localreact: guidance wants other versions of packages
that we use. Arguments: model, tokens of context, threads. A line of JSON in (`prompt`, `grammar` in Lark,
`max_tokens`), one out (`seconds`, `sampled`, `forced`, or `error`).
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def main() -> None:
    try:
        from guidance import models
        from guidance.library import lark
    except ImportError as error:
        print(json.dumps({"error": f"{error} ({sys.executable})"}), flush=True)
        return
    path, n_ctx, threads = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    model = models.LlamaCpp(path, n_ctx=n_ctx, n_threads=threads, n_threads_batch=threads, echo=False)
    prompt: str | None = None
    state: Any = None
    for line in sys.stdin:
        asked = json.loads(line)
        turn = lark(asked["grammar"], name="turn", temperature=0.0, max_tokens=asked["max_tokens"])
        if asked["prompt"] != prompt:
            prompt = asked["prompt"]
            state = model + prompt
            state + turn  # until then the prompt isn't in memory
        started = time.perf_counter()
        written = state + turn
        seconds = time.perf_counter() - started
        usage = written._get_usage()  # there is no public name for it
        forced = usage.ff_tokens
        print(
            json.dumps({"seconds": seconds, "sampled": usage.output_tokens - forced, "forced": forced}),
            flush=True,
        )


if __name__ == "__main__":
    main()
