"""`clock`: the one thing that a model can't know from its training."""

from __future__ import annotations

from datetime import datetime, timezone

from localreact.tools.decorator import tool
from localreact.types import ToolExample


@tool(
    examples=[
        ToolExample(
            question="What day is it today?",
            thought="I should look at the clock.",
            arguments={},
            result="Tuesday, 2019-03-05 14:20:00+01:00 (UTC: 2019-03-05T13:20:00Z)",
            conclusion="The clock says that it is Tuesday, 5 March 2019.",
            answer="Tuesday, 5 March 2019",
        )
    ]
)
def clock() -> str:
    """Tell the current date, weekday and time."""
    return tell(datetime.now().astimezone())


def tell(now: datetime) -> str:
    """A time with its zone, in words and as ISO 8601, and the same in UTC."""
    weekdays = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
    utc = now.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    return f"{weekdays[now.weekday()]}, {now.isoformat(sep=' ', timespec='seconds')} (UTC: {utc})"
