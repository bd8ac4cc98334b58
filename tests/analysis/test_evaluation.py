"""The published starts, and how well those that the fit hasn't seen are predicted."""

from __future__ import annotations

import pytest

from analysis import evaluation
from analysis.evaluation import (
    PAPER_HELD_OUT,
    by_family,
    by_model,
    calibrated,
    half_width,
    leave_out,
    paper_rows,
    paper_split,
    predicted,
    repeat_spread,
    scores,
    single,
    total_errors,
)
from analysis.observations import Observation, read_tables
from analysis.predictor import fit, predict, situation_of
from analysis.profile import TABLES
from tests.analysis.models import row
from tracer.errors import ColdtraceError


@pytest.fixture(scope="module")
def rows() -> list[Observation]:
    return read_tables(*TABLES)


def test_the_papers_split(rows: list[Observation]) -> None:
    names = {each.model.name for each in paper_rows(rows)}
    assert len(names) == 17 and set(PAPER_HELD_OUT) < names
    found = scores(paper_split(rows))
    assert found.starts == 5
    assert found.mse_s2 <= 0.35 and found.largest_s <= 1.1  # the paper: 2.42 and 2.08


def test_the_split_does_not_see_what_is_held_out(rows: list[Observation]) -> None:
    others = [each for each in rows if each.model.name not in PAPER_HELD_OUT]
    held = [each for each in paper_rows(rows) if each.model.name in PAPER_HELD_OUT]
    fitted = fit(paper_rows(others))
    blind = [predict(fitted, situation_of(each)).total_s for each in held]
    assert blind == [prediction.total_s for _, prediction in paper_split(rows)]


def test_leave_one_out(rows: list[Observation]) -> None:
    dense = paper_rows(rows)
    assert scores(leave_out(dense, by_model)).mape <= 0.013
    assert scores(leave_out(dense, by_family)).mape <= 0.025


def test_leaving_out_leaves_out() -> None:
    rows = [row("a", total_s=1.0, seconds={"imports": 1.0}, family="x")]
    rows += [row("b", total_s=9.0, seconds={"imports": 9.0}, family="y")] * 3
    pairs = leave_out(rows, by_model)
    assert [round(prediction.total_s) for _, prediction in pairs] == [9, 1, 1, 1]


def test_single_parameters(rows: list[Observation]) -> None:
    captures = evaluation.capture_errors(rows)
    assert len(captures) == 7 and max(map(abs, captures)) <= 0.05
    compiled, totals = evaluation.compile_errors(rows)
    assert len(totals) == 10 and max(map(abs, totals)) <= 0.10 and max(map(abs, compiled)) <= 0.10
    warm, cold = evaluation.page_cache_errors(rows)
    assert len(warm) == len(cold) == 11 and max(map(abs, [*warm, *cold])) <= 0.10


@pytest.mark.parametrize("node", ["n3", "node5"])
def test_another_node_after_two_starts(rows: list[Observation], node: str) -> None:
    reference = fit(single(rows, "n1"))
    pairs = calibrated(reference, single(rows, node), 2)
    assert len(pairs) == 9 and scores(pairs).mape <= 0.05


def test_calibrating_with_all_leaves_none(rows: list[Observation]) -> None:
    with pytest.raises(ColdtraceError, match="leave none to evaluate"):
        calibrated(fit(single(rows, "n1")), single(rows, "n3"), 11)


def test_scores_are_the_errors() -> None:
    rows = [row("a", total_s=total, seconds={"imports": total}) for total in (1.0, 3.0)]
    found = scores(predicted(fit(rows), rows))  # the fit is their mean, 2 s
    assert found.mse_s2 == pytest.approx(1.0) and found.largest_s == pytest.approx(1.0)
    assert found.mape == pytest.approx((1 + 1 / 3) / 2)
    assert found.substeps["imports"].largest_s == pytest.approx(1.0)
    with pytest.raises(ColdtraceError):
        scores([])


def test_the_interval_holds_nine_of_ten() -> None:
    rows = [row(total_s=10 + 0.1 * i, seconds={"imports": 10 + 0.1 * i}) for i in range(-5, 6)]
    pairs = predicted(fit(rows), rows)
    width = half_width(pairs)
    inside = sum(abs(error) <= width for error in total_errors(pairs))
    assert inside / len(pairs) >= 0.9 and width < 0.1


def test_the_spread_of_repeats() -> None:
    rows = [row("a", total_s=total) for total in (9.0, 11.0)] + [row("b", total_s=5.0)]
    assert sorted(repeat_spread(rows)) == pytest.approx([-0.1, 0.1])
