"""Plots as SVG texts, to stand inside a page. matplotlib is the extra `eval`."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

from localreact.errors import MissingPartError
from localreact.eval.ledgers import BY_NAME
from localreact.eval.summary import model_names

_FAILURES = (
    "format_failure",
    "truncated",
    "empty",
    "parser_loss",
    "forged",
    "several_actions",
    "unknown_tool",
    "invalid_arguments",
    "barred",
    "repeated_call",
    "tool_error",
)
_COLOURS = ("#2f6f9f", "#d98032", "#4f9a5b", "#b5495b", "#7d66a9", "#8a6d4b", "#c77fb0", "#6f7478")
_VERDICTS = {
    "right": ("#3f8f5a", "right"),
    "insufficient_right": ("#9cc7a6", "insufficient, rightly"),
    "wrong": ("#c8553d", "wrong"),
    "invented": ("#8f2f3f", "invented"),
    "insufficient_wrong": ("#e0a458", "insufficient, wrongly"),
    "no_ending": ("#9aa0a6", "no ending"),
}


def check_available() -> None:
    """
    Raises:
        MissingPartError: matplotlib isn't installed.
    """
    _figure(1, 1)


def plots_of(summary: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Titles and SVGs: how tasks ended, what went wrong, and what it cost, an arm beside the other.

    Raises:
        MissingPartError: matplotlib isn't installed.
    """
    arms = [arm for arm in summary["arms"] if arm["runs"]]
    if not arms:
        return []
    return [
        ("How the tasks ended", _verdicts(arms)),
        ("Success, with its 95% interval", _success(arms)),
        ("What went wrong, in percent of what each is counted against, with 95% intervals", _ledgers(arms)),
        ("Seconds a task: prompts, generating, and of that the grammar", _cost(arms)),
    ]


def _names(arms: Sequence[Mapping[str, Any]]) -> list[str]:
    names = model_names(arms)
    return [f"{arm['arm']}\n{names[arm['model']]}" if len(names) > 1 else arm["arm"] for arm in arms]


def _verdicts(arms: Sequence[Mapping[str, Any]]) -> str:
    figure, axes = _figure(8, 1.2 + 0.5 * len(arms))
    left = [0.0] * len(arms)
    for verdict, (colour, label) in _VERDICTS.items():
        widths = [arm["verdicts"][verdict] for arm in arms]
        if any(widths):
            bars = axes.barh(_names(arms), widths, left=left, color=colour, label=label, height=0.65)
            axes.bar_label(
                bars, [str(width) if width else "" for width in widths], label_type="center", color="white"
            )
            left = [before + width for before, width in zip(left, widths, strict=True)]
    axes.invert_yaxis()
    axes.set_xlabel("tasks")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.55 / len(arms) - 0.1), ncols=3, frameon=False)
    return _svg(figure)


def _success(arms: Sequence[Mapping[str, Any]]) -> str:
    figure, axes = _figure(8, 1.0 + 0.45 * len(arms))
    _bars(axes, [arm["success"] for arm in arms], list(range(len(arms))), "#2f6f9f", 0.6)
    axes.set_yticks(range(len(arms)), _names(arms))
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent of tasks")
    return _svg(figure)


def _ledgers(arms: Sequence[Mapping[str, Any]]) -> str:
    shown = [name for name in _FAILURES if any(arm["ledgers"][name]["of"] for arm in arms)]
    height = 0.8 / len(arms)
    figure, axes = _figure(8, 1.2 + len(shown) * max(0.45, 0.2 * len(arms)))
    for index, arm in enumerate(arms):
        places = [row + (index - (len(arms) - 1) / 2) * height for row in range(len(shown))]
        shares = [arm["ledgers"][name] for name in shown]
        _bars(axes, shares, places, _COLOURS[index % len(_COLOURS)], height, _names(arms)[index])
    labels = [
        f"{BY_NAME[name].name.replace('_', ' ')}\n(of {BY_NAME[name].of.replace('_', ' ')})" for name in shown
    ]
    axes.set_yticks(range(len(shown)), labels)
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("percent")
    axes.legend(frameon=False, loc="best")
    return _svg(figure)


def _cost(arms: Sequence[Mapping[str, Any]]) -> str:
    figure, axes = _figure(8, 1.2 + 0.5 * len(arms))
    left = [0.0] * len(arms)
    parts = {
        "prompts": [arm["cost"]["prompt_s"] for arm in arms],
        "generating": [arm["cost"]["generate_s"] - arm["cost"]["constraint_s"] for arm in arms],
        "grammar": [arm["cost"]["constraint_s"] for arm in arms],
    }
    for (label, seconds), colour in zip(parts.items(), ("#9db8c9", "#2f6f9f", "#d98032"), strict=True):
        widths = [each / arm["runs"] for each, arm in zip(seconds, arms, strict=True)]
        axes.barh(_names(arms), widths, left=left, color=colour, label=label, height=0.6)
        left = [before + width for before, width in zip(left, widths, strict=True)]
    for row, (end, arm) in enumerate(zip(left, arms, strict=True)):
        if arm["cost"]["tokens_per_second"]:
            axes.annotate(
                f"  {arm['cost']['tokens_per_second']:.0f} tokens/s", (end, row), va="center", fontsize=9
            )
    axes.margins(x=0.25)
    axes.invert_yaxis()
    axes.set_xlabel("seconds a task")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.55 / len(arms) - 0.1), ncols=3, frameon=False)
    return _svg(figure)


def _bars(
    axes: Any,
    shares: Sequence[Mapping[str, Any]],
    places: Sequence[float],
    colour: str,
    height: float,
    label: str = "",
) -> None:
    """Shares with their intervals; nothing where nothing was counted."""
    there = [(place, share) for place, share in zip(places, shares, strict=True) if share["of"]]
    values = [100 * share["share"] for _, share in there]
    below = [100 * max(0.0, share["share"] - share["low"]) for _, share in there]
    above = [100 * max(0.0, share["high"] - share["share"]) for _, share in there]
    axes.barh(
        [place for place, _ in there],
        values,
        height=height * 0.9,
        color=colour,
        label=label or None,
        xerr=[below, above],
        error_kw={"elinewidth": 1, "capsize": 2, "ecolor": "#444444"},
    )


def _figure(width: float, height: float) -> tuple[Any, Any]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingPartError(
            "the HTML report needs matplotlib, and it isn't installed",
            "Run: pip install 'localreact[eval]'; or leave the report out with --no-html.",
        ) from error
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _svg(figure: Any) -> str:
    """The same text for the same figures, letters as text, without a document's head."""
    import matplotlib as mpl

    out = io.StringIO()
    with mpl.rc_context({"svg.hashsalt": "localreact", "svg.fonttype": "none"}):
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return text[text.index("<svg") :]
