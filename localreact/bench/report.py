"""Reports as tables, plots and comparisons."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from rich.table import Table

from localreact.errors import MissingPartError, UsageError


def table(report: Mapping[str, Any]) -> Table:
    """A report (as JSON) for a terminal."""
    result = Table(
        title=f"{report['model']}, {report['kind']} turns, {report['rounds']} rounds, median times"
    )
    result.add_column("arm")
    for name in ("tokens/s", "ms/turn", "first ms", "sampled + forced", "masks", "model", "constraint"):
        result.add_column(name, justify="right")
    for name in ("whole", "÷ free tokens/s", "same text ÷ this"):
        result.add_column(name, justify="right")
    for row in report["rows"]:
        share = row["model_share"]
        result.add_row(
            row["arm"],
            f"{row['tokens_per_s']:.0f}",
            f"{row['ms_per_turn']:.0f}",
            f"{row['first_ms']:.0f}" if row["first_ms"] else "",
            f"{row['sampled']:.0f} + {row['forced']:.0f}",
            f"{row['masks']:.1f}",
            f"{share:.1%}" if share else "",
            f"{row['constraint_share']:.1%}" if share else "",
            f"{row['whole']}/{row['cases']}",
            _ratio(row["to_free"]),
            _ratio(row["faster_than_stepped"]),
        )
    return result


def notes(report: Mapping[str, Any]) -> list[str]:
    """What belongs beside the table."""
    peak = report["peak_memory"]
    lines = [
        f"pp {report['pp']:.0f} tokens/s · tg {report['tg']:.0f} tokens/s "
        f"(the memory's bandwidth would allow {report['roofline_tg']:.0f})"
        + (f" · peak memory {peak / 2**20:.0f} MiB" if peak else "")
    ]
    lines += [f"left out: {arm}: {why}" for arm, why in report["left_out"].items()]
    if report["contended"]:
        lines.append("others are using this machine: these figures mean nothing")
    return lines


def compare(before: Mapping[str, Any], after: Mapping[str, Any]) -> Table:
    """Two reports of the same model and kind, arm by arm. Tokens a second move with the machine; the ratios
    within a report less so."""
    result = Table(title=f"{before['model']}, {before['kind']} → {after['model']}, {after['kind']}")
    result.add_column("arm")
    for name in ("tokens/s", "÷ free tokens/s", "same text ÷ this"):
        result.add_column(name, justify="right")
    old = {row["arm"]: row for row in before["rows"]}
    for row in after["rows"]:
        if (was := old.get(row["arm"])) is not None:
            result.add_row(
                row["arm"],
                f"{was['tokens_per_s']:.0f} → {row['tokens_per_s']:.0f}",
                _change(was["to_free"], row["to_free"]),
                _change(was["faster_than_stepped"], row["faster_than_stepped"]),
            )
    return result


def plot(reports: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Side by side: of `speed` bars of tokens a second, of `scale` a line for every column. PNG or SVG by the
    name's ending.

    Raises:
        MissingPartError: matplotlib isn't there.
        UsageError: matplotlib draws no such files.
    """
    try:
        import matplotlib
    except ImportError:
        raise MissingPartError(
            "plots need matplotlib", "Install it with: pip install 'localreact[bench]'"
        ) from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [panel for each in reports for panel in _panels(each)]
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(6 * len(panels), 4.5), squeeze=False, layout="constrained"
    )
    for draw, axis in zip(panels, axes[0], strict=True):
        draw(axis)
        axis.spines[["top", "right"]].set_visible(False)
    metadata = {"Date": None} if path.suffix == ".svg" else {}  # the same plot from the same figures
    try:
        with matplotlib.rc_context({"svg.hashsalt": "localreact", "svg.fonttype": "none"}):
            figure.savefig(path, metadata=metadata)
    except ValueError as error:
        raise UsageError(str(error)) from None
    finally:
        pyplot.close(figure)


def _panels(report: Mapping[str, Any]) -> list[Callable[[Any], None]]:
    if report["benchmark"] == "speed":
        return [partial(_bars, report)]
    return [partial(_line, report, name) for name in list(report["points"][0])[1:]]


def _bars(report: Mapping[str, Any], axis: Any) -> None:
    rows = list(reversed(report["rows"]))
    colours = ["#2a6f97" if row["arm"].startswith("localreact") else "#a9a9a9" for row in rows]
    bars = axis.barh([row["arm"] for row in rows], [row["tokens_per_s"] for row in rows], color=colours)
    axis.bar_label(bars, [f"{row['tokens_per_s']:.0f}" for row in rows], padding=3)
    axis.set_title(f"{report['model']}, {report['kind']} turns")
    axis.set_xlabel("tokens per second")


def _line(report: Mapping[str, Any], name: str, axis: Any) -> None:
    points = report["points"]
    size = next(iter(points[0]))
    axis.plot([each[size] for each in points], [each[name] for each in points], "o-", color="#2a6f97")
    axis.set_ylim(bottom=0)
    axis.set_title(report["model"])
    axis.set_xlabel(size.replace("_", " "))
    axis.set_ylabel(name.replace("_", " "))


def _ratio(value: Mapping[str, float] | None) -> str:
    return f"{value['value']:.2f} [{value['low']:.2f}, {value['high']:.2f}]" if value else ""


def _change(was: Mapping[str, float] | None, now: Mapping[str, float] | None) -> str:
    return f"{was['value']:.2f} → {now['value']:.2f}" if was and now else ""
