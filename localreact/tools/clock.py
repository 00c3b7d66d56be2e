"""`clock`: the one thing that a model can't know from its training."""

from __future__ import annotations

from datetime import datetime, timezone

from localreact.tools.decorator import tool


@tool
def clock() -> str:
    """Tell the current date, weekday and time."""
    return tell(datetime.now().astimezone())


def tell(now: datetime) -> str:
    """A time with its zone, in words and as ISO 8601, and the same in UTC."""
    weekdays = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    utc = now.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{weekdays[now.weekday()]}, {now.isoformat(sep=' ', timespec='seconds')} (UTC: {utc})"
