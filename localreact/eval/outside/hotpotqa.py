"""HotpotQA's distractor setting: each question with a knowledge base of its own, ten paragraphs large."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from localreact.errors import UsageError


def records(place: Path, out: Path) -> Iterator[dict[str, Any]]:
    """The tasks of a file such as `hotpot_dev_distractor_v1.json`, paragraphs written beside them.

    Raises:
        UsageError: the file can't be read, or is something else.
    """
    try:
        document = json.loads(place.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{place} can't be read as HotpotQA's: {error}") from error
    if not isinstance(document, list):
        raise UsageError(f"{place} is no list of questions", "Give hotpot_dev_distractor_v1.json.")
    for number, each in enumerate(document, 1):
        try:
            yield _task(each, out)
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{place}, question {number} is none of HotpotQA's: {error!r}") from error


def _task(each: Mapping[str, Any], out: Path) -> dict[str, Any]:
    name = re.sub(r"[^\w.-]", "_", each["_id"])
    folder = out / "kb" / name
    folder.mkdir(parents=True, exist_ok=True)
    paragraphs = {}
    for number, (title, sentences) in enumerate(each["context"]):
        paragraphs[title] = sentences
        text = f"# {title}\n\n{''.join(sentences).strip()}\n"
        (folder / f"{number:02}.md").write_text(text, "utf-8")
    facts = [(title, at) for title, at in each["supporting_facts"] if at < len(paragraphs.get(title, ()))]
    evidence = [" ".join(paragraphs[title][at].split()) for title, at in facts]
    return {
        "id": name,
        "group": str(each.get("type", "")),
        "question": each["question"],
        "tools": ["search", "lookup"],
        "docs": f"kb/{name}",
        "check": {"same": [each["answer"]]},
        "tags": [each["level"]] if each.get("level") else [],
        "evidence": list(dict.fromkeys(filter(None, evidence))),
    }
