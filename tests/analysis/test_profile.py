"""Profiles on disk: what they keep, whom they refuse, how they learn."""

from __future__ import annotations

import fcntl
import json
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from analysis import profile as profiles
from analysis.features import Node
from analysis.predictor import predict, situation_of
from analysis.profile import (
    Profile,
    default_path,
    fit_reference,
    known_graph_kb,
    learn,
    load,
    load_fitted,
    made,
    reference,
    same_node,
    save,
    unlearned,
)
from tests.analysis.models import NODE, row, with_model
from tracer.errors import ColdtraceError

ROWS = [
    row(f"m{gb}", 10 + gb, gb, 10.0 + gb, {"imports": 10.0, "load_weights": float(gb)})
    for gb in (1, 2, 4, 8, 3)
]


def test_a_profile_survives_the_disk(tmp_path: Path) -> None:
    path = tmp_path / "a" / "p.json"
    profile = made(ROWS)
    save(profile, path)
    assert load(path) == profile
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert json.loads(path.read_text())["rows"][0]["model"]["name"] == "m1"
    assert [each.name for each in path.parent.iterdir()] == ["p.json"]


def test_fitting_again_needs_no_traces(tmp_path: Path) -> None:
    save(made(ROWS), tmp_path / "p")
    again = made(load(tmp_path / "p").rows)
    assert again.fit == made(ROWS).fit


def test_without_starts_the_published_ones_speak() -> None:
    profile = unlearned(NODE)
    assert profile.rows == () and "no start of this node yet" in profile.basis
    assert "arXiv 2606.07362" in profile.basis
    assert profile.fit == reference().fit


@pytest.mark.parametrize("count", [1, 3])
def test_few_starts_scale_the_published_ones(count: int) -> None:
    profile = made(ROWS[:count])
    assert profile.fit.scales and f"{4 - count} more and they decide" in profile.basis
    assert profile.half_width >= reference().half_widths[count]


def test_more_starts_stand_alone() -> None:
    profile = made(ROWS)
    assert profile.basis == "5 starts of this node"
    for each in ROWS:
        prediction = predict(profile.fit, situation_of(each))
        found = {sub.id: sub.seconds for sub in prediction.substeps if sub.id in each.seconds}
        assert found == pytest.approx(each.seconds, rel=0.02)


def test_learning_adds_a_row_and_leaves_the_fit_to_others(tmp_path: Path) -> None:
    path = tmp_path / "state" / "p.json"
    for number, each in enumerate(ROWS, 1):
        learn(each, path)
        profile = load(path)
        assert len(profile.rows) == number and profile.is_stale
    fitted = load_fitted(path)
    assert not fitted.is_stale and fitted.basis == "5 starts of this node"
    assert load(path) == fitted  # kept for the next one


def test_a_profile_keeps_the_latest_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiles, "MAX_ROWS", 3)
    save(made(ROWS[:3]), tmp_path / "p")
    learn(ROWS[4], tmp_path / "p")
    profile = load(tmp_path / "p")
    assert [each.model.name for each in profile.rows] == ["m2", "m4", "m3"] and profile.is_stale


def test_another_nodes_start_is_not_learned(tmp_path: Path) -> None:
    save(made(ROWS), tmp_path / "p")
    before = (tmp_path / "p").read_bytes()
    stranger = row(node=replace(NODE, name="other", gpu="Another GPU"))
    with pytest.raises(ColdtraceError, match="it is not added"):
        learn(stranger, tmp_path / "p")
    assert (tmp_path / "p").read_bytes() == before
    with pytest.raises(ColdtraceError, match="of different nodes"):
        made([*ROWS, stranger])


def test_whoever_writes_is_waited_for_but_not_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(profiles, "LOCK_S", 0.1)
    with open(tmp_path / "p.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ColdtraceError, match="in use by another"):
            learn(ROWS[0], tmp_path / "p")
    learn(ROWS[0], tmp_path / "p")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "is no profile"),
        ("[1]", "is no profile"),
        ('{"a": 1}', "is no profile"),
        ("[" * 100_000, "is no profile"),
        ('{"coldtrace_profile": 2, "made_by": "9.1"}', r"a newer coldtrace \(9.1\); update"),
        ('{"coldtrace_profile": 1}', "is damaged"),
        ('{"coldtrace_profile": NaN}', "is no profile"),
    ],
)
def test_a_bad_profile_is_one_line(tmp_path: Path, content: str, said: str) -> None:
    (tmp_path / "p").write_text(content)
    with pytest.raises(ColdtraceError, match=said):
        load(tmp_path / "p")


def test_a_damaged_row_is_one_line(tmp_path: Path) -> None:
    save(made(ROWS), tmp_path / "p")
    data: dict[str, Any] = json.loads((tmp_path / "p").read_text())
    for change in ({"rows": [{}]}, {"fit": {}}, {"node": {"who": 1}}, {"half_width": "x"}):
        (tmp_path / "p").write_text(json.dumps(data | change))
        with pytest.raises(ColdtraceError):
            load(tmp_path / "p")


def test_a_profile_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ColdtraceError, match="can't write"):
        learn(ROWS[0], tmp_path / "file" / "p")
    with pytest.raises(ColdtraceError, match="can't read the profile"):
        load(tmp_path / "none")


def test_where_a_profile_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert default_path() == tmp_path / ".local/share/coldtrace/profile.json"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert default_path() == tmp_path / "data/coldtrace/profile.json"
    monkeypatch.setattr(profiles, "_is_mine", lambda folder: False)  # root's, after sudo
    assert tmp_path not in default_path().parents


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (Node("a", "cpu", 8, "gpu"), Node("b", "cpu", 8, "gpu"), True),
        (Node("a", "cpu", 8, "gpu"), Node("a", "cpu", 16, "gpu"), False),
        (Node("a", "cpu", 8, "gpu"), Node("a", "cpu", 8, "other"), False),
        (Node("n1", "cpu", 0, "gpu"), Node("n2", "cpu", 0, "gpu"), False),
    ],
)
def test_the_same_node(one: Node, other: Node, same: bool) -> None:
    assert same_node(one, other) == same


def test_the_size_of_a_graph_is_remembered() -> None:
    profile: Profile = made([with_model(ROWS[0], graph_kb=123.0), *ROWS[1:]])
    assert known_graph_kb(profile, replace(ROWS[0].model, graph_kb=None)) == 123.0
    assert known_graph_kb(profile, replace(ROWS[0].model, weight_bytes=1)) is None


def test_the_shipped_fit_is_that_of_the_shipped_tables() -> None:
    shipped = json.loads((profiles.FOLDER / "fit.json").read_text())
    fitted = fit_reference()
    assert shipped["node"] == fitted["node"]
    assert shipped["half_widths"] == pytest.approx(fitted["half_widths"], rel=1e-3)
    for name, each in fitted["fit"]["substeps"].items():
        known = shipped["fit"]["substeps"][name]
        assert known["terms"] == pytest.approx(each["terms"], rel=1e-3, abs=1e-6)
