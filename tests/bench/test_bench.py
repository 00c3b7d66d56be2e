from __future__ import annotations

import json
import os
import shutil
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from localreact.bench.others import LlamaServerProcess
from localreact.bench.report import compare, notes, plot, table
from localreact.bench.scale import scale_up
from localreact.bench.speed import FREE, OURS, STEPPED, load_report, speed
from localreact.bench.statistics import ratio
from localreact.bench.workload import cases
from localreact.cli import app
from localreact.endpoints.llama import LlamaEndpoint
from localreact.endpoints.resolve import DEFAULT_MODEL
from localreact.errors import LocalReactError, UsageError
from tests.endpoints.test_real_servers import BINARY


@pytest.fixture(scope="module")
def report(tiny_gguf: Path) -> dict[str, object]:
    return speed(str(tiny_gguf), "short", questions=1, rounds=2, engines=["gbnf"]).as_json()


def rows(report: dict[str, object]) -> dict[str, dict[str, float]]:
    found = report["rows"]
    assert isinstance(found, tuple)
    return {row["arm"]: row for row in found}


def test_every_arm_writes_every_turn(report: dict[str, object]) -> None:
    by_arm = rows(report)
    assert {OURS, FREE, STEPPED, "localreact, gbnf", "create_completion, grammar"} <= set(by_arm)
    assert len({row["cases"] for row in by_arm.values()}) == 1
    left_out = report["left_out"]
    assert isinstance(left_out, dict)
    assert set(left_out) <= {"outlines as shipped"}  # it uses a deprecated function: an error in tests


def test_others_can_be_left_out(tiny_gguf: Path) -> None:
    options = [
        "-m",
        str(tiny_gguf),
        "--own",
        "--kind",
        "short",
        "--questions",
        "1",
        "--rounds",
        "1",
        "--json",
    ]
    done = CliRunner().invoke(app, ["bench", "speed", *options])
    arms = [row["arm"] for row in json.loads(done.stdout)["rows"]]
    assert OURS in arms
    assert not [arm for arm in arms if "create_completion" in arm]


def test_the_same_text_has_as_many_tokens_however_it_is_written(report: dict[str, object]) -> None:
    by_arm = rows(report)
    ours = by_arm[OURS]
    assert ours["sampled"] + ours["forced"] == by_arm[STEPPED]["sampled"]
    assert ours["forced"] > 0 == by_arm[f"{OURS}, not forcing"]["forced"]


def test_masking_always_computes_a_mask_a_sampled_token(report: dict[str, object]) -> None:
    always = rows(report)[f"{OURS}, always masking"]
    assert always["masks"] == always["sampled"]
    assert rows(report)[OURS]["masks"] <= always["masks"]


def test_shares_of_time_add_up(report: dict[str, object]) -> None:
    ours = rows(report)[OURS]
    assert 0 < ours["model_share"] + ours["constraint_share"] <= 1.0001


def test_a_report_is_shown_compared_plotted_and_read_back(report: dict[str, object], tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps(report), "utf-8")
    again = load_report(path)
    assert len(again["rows"]) == len(rows(report))
    assert table(again).row_count == len(again["rows"])
    assert compare(again, again).row_count == len(again["rows"])
    assert notes(again)[0].startswith("pp ")
    for name in ("p.png", "p.svg"):
        plot([again], tmp_path / name)
        assert (tmp_path / name).stat().st_size > 1000


def test_saved_results_of_both_kinds_are_drawn_side_by_side(
    report: dict[str, object], tiny_gguf: Path, tmp_path: Path
) -> None:
    paths = [tmp_path / "speed.json", tmp_path / "scale.json"]
    for path, document in zip(paths, (report, scale_up(str(tiny_gguf), "depth")), strict=True):
        path.write_text(json.dumps(document), "utf-8")
    out = tmp_path / "both.svg"
    done = CliRunner().invoke(app, ["bench", "plot", *map(str, paths), "-o", str(out)])
    assert done.exit_code == 0, done.output
    drawn = out.read_text("utf-8")
    assert OURS in drawn
    assert "depth" in drawn
    with pytest.raises(UsageError, match="txt"):
        plot([report], tmp_path / "p.txt")


def test_what_cant_be_started_is_left_out_with_what_it_said(tiny_gguf: Path) -> None:
    left_out = speed(
        str(tiny_gguf),
        "short",
        questions=1,
        rounds=1,
        engines=[],
        llama_server="/no/server",
        guidance=sys.executable,
        create_completion=False,
    ).left_out
    assert "No such file" in left_out["llama-server, grammar"]
    assert "No module named 'guidance'" in left_out["guidance"]


def test_a_llama_server_that_ends_at_once_is_told_apart_from_a_slow_one(tiny_gguf: Path) -> None:
    server = LlamaServerProcess(shutil.which("false") or "", tiny_gguf, 512, 1)
    with closing(server), pytest.raises(LocalReactError, match="ended at once, with exit code 1"):
        server.complete({})


@pytest.mark.skipif(
    "LOCALREACT_GUIDANCE" not in os.environ, reason="LOCALREACT_GUIDANCE names no interpreter"
)
def test_guidance_writes_whole_turns() -> None:
    python = os.environ["LOCALREACT_GUIDANCE"]
    found = speed(DEFAULT_MODEL, "short", 1, 1, [], guidance=python, create_completion=False)
    assert not found.left_out
    theirs = next(row for row in found.rows if row.arm == "guidance")
    assert theirs.whole == theirs.cases
    assert theirs.sampled > 0 < theirs.forced


@pytest.mark.llama_server
@pytest.mark.skipif(not BINARY, reason="no llama-server here (LOCALREACT_LLAMA_SERVER)")
def test_a_llama_server_is_started_and_stopped() -> None:
    found = speed(DEFAULT_MODEL, "short", 1, 1, [], llama_server=BINARY, create_completion=False)
    assert not found.left_out
    ours, theirs = ({r.arm: r for r in found.rows}[arm] for arm in (OURS, "llama-server, grammar"))
    assert theirs.whole == theirs.cases
    assert abs(theirs.sampled - ours.sampled - ours.forced) < 5


def test_where_a_result_goes_is_looked_at_before_anything_is_measured(tmp_path: Path) -> None:
    for option in ("--save", "--plot"):
        with pytest.raises(UsageError, match="there is no folder"):
            CliRunner().invoke(
                app, ["bench", "scale", option, str(tmp_path / "no" / "x.svg")], catch_exceptions=False
            )


def test_what_is_no_report_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    path.write_text("[]")
    with pytest.raises(LocalReactError, match="no result"):
        load_report(path)


def test_a_workload_is_the_turns_of_real_runs(tiny: LlamaEndpoint) -> None:
    _, usual = cases(tiny, "usual", 2)
    assert usual[0].spec.tools
    assert not usual[0].spec.answer
    assert "What is 3*45+2*12?" in usual[0].prompt
    _, long = cases(tiny, "long", 2)
    assert len(long) == 2
    assert "story" in long[0].prompt


@pytest.mark.parametrize("axis", ["tools", "depth", "steps", "prefix"])
def test_one_thing_grows(tiny_gguf: Path, axis: str) -> None:
    points = scale_up(str(tiny_gguf), axis)["points"]
    assert len(points) >= 4
    sizes = [next(iter(point.values())) for point in points]
    assert sizes == sorted(sizes)


def test_a_long_run_evaluates_only_what_is_new(tiny_gguf: Path) -> None:
    points = scale_up(str(tiny_gguf), "steps")["points"]
    assert points[-1]["prompt_tokens"] > 2 * points[0]["prompt_tokens"]
    assert len({point["evaluated_tokens"] for point in points[1:]}) <= 2  # one digit or two in its number


def test_masks_over_ever_larger_parts_of_a_vocabulary(tiny_gguf: Path) -> None:
    points = scale_up(str(tiny_gguf), "vocabulary")["points"]
    assert points[0]["vocabulary"] > 256
    assert all(point["mask_ms"] > 0 < point["allows_ms"] for point in points)


def test_a_ratio_of_totals_lies_in_its_interval() -> None:
    random = np.random.default_rng(1)
    below = random.uniform(1, 2, 40)
    found = ratio(list(2 * below + random.normal(0, 0.1, 40)), list(below))
    assert found.low < 2 < found.high
    assert found.high - found.low < 0.2
    assert ratio([2.0, 4.0], [1.0, 2.0]).value == 2
    with pytest.raises(ValueError, match="as many"):
        ratio([], [])


@pytest.mark.parametrize(
    "arguments", [["speed", "--kind", "odd"], ["speed", "--questions", "99"], ["scale", "--axis", "odd"]]
)
def test_wrong_use_says_what_is_right(arguments: list[str]) -> None:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code != 0
    assert isinstance(result.exception, LocalReactError)
