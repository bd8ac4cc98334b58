"""fit, predict, check, plan and evaluate, as they are called."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from analysis.prediction_commands import after_start
from analysis.profile import TABLES, default_path, load
from tests.analysis.models import LLAMA, make_model, traced_start, whole_model
from tests.test_cli import HEAVY, coldtrace, loaded_by, one_line

STARTS, MODELS = TABLES


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home without a profile."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    return tmp_path


@pytest.fixture
def model(home: Path) -> Path:
    return whole_model(home / "m")


def test_fit_then_predict_on_the_nodes_own_starts(home: Path, model: Path) -> None:
    for number, ms in enumerate((400, 500, 600, 500)):
        traced_start(home / "traces" / str(number), model, ms)
    folders = [str(home / "traces" / str(number)) for number in range(4)]
    done = coldtrace("fit", *folders)
    assert "4 starts of 1 models (4 new)" in done.stdout, done.stderr
    assert load(default_path()).basis == "4 starts of this node"
    done = coldtrace("predict", str(model), "--enforce-eager", "--json")
    predicted = json.loads(done.stdout)
    assert predicted["total_s"] == pytest.approx(0.6, abs=0.02)
    assert predicted["basis"] == "4 starts of this node"
    assert predicted["interval"]["lower_s"] < 0.6 < predicted["interval"]["upper_s"]
    done = coldtrace("fit", folders[0])  # again, and nothing new
    assert "4 starts of 1 models (0 new)" in done.stdout


def test_few_starts_say_how_many_more(home: Path, model: Path) -> None:
    trace = traced_start(home, model)
    done = coldtrace("fit", str(trace), "-o", str(home / "p.json"))
    assert "3 more and they stand alone" in done.stdout, done.stderr


def test_a_folder_leaves_out_what_teaches_nothing(home: Path, model: Path) -> None:
    traced_start(home / "a", model)
    traced_start(home / "b", model, outcome="failed").rename(home / "a" / "failed.coldtrace")
    done = coldtrace("fit", str(home / "a"))
    assert "left out: " in done.stdout and "never became ready" in done.stdout
    assert "1 starts of 1 models" in done.stdout


def test_predict_without_a_profile_uses_the_published_starts(model: Path) -> None:
    done = coldtrace("predict", str(model), "--page-cache", "cold")
    assert "From: no start of this node yet: published starts" in done.stdout, done.stderr
    assert "SLO bound" in done.stdout and "Most sensitive to" in done.stdout
    assert "read from disk" in done.stdout


def test_predict_answers_within_a_second(model: Path) -> None:
    began = time.monotonic()
    coldtrace("predict", str(model))
    assert time.monotonic() - began < 1
    call = f"try: coldtrace.cli(['predict', {str(model)!r}])\nexcept SystemExit: pass"
    assert not loaded_by(f"import coldtrace\n{call}") & {"numpy", "sklearn", "scipy"}


def test_the_formula_adds_up(model: Path) -> None:
    predicted = json.loads(coldtrace("predict", str(model), "--json").stdout)
    for substep in predicted["substeps"]:
        terms = sum(term["seconds"] or 0 for term in substep["terms"])
        assert substep["seconds"] == pytest.approx(terms * substep["family_factor"])
        for term in substep["terms"]:
            if term["seconds"] is not None:
                assert term["seconds"] == pytest.approx(term["amount"] * term["seconds_per_unit"])
    assert predicted["total_s"] == pytest.approx(sum(s["seconds"] for s in predicted["substeps"]))
    assert predicted["slo"]["seconds"] == pytest.approx(1.5 * predicted["total_s"])


def test_an_unknown_architecture_is_predicted_as_far_as_it_goes(home: Path) -> None:
    folder = make_model(home / "odd", LLAMA | {"architectures": ["OddForCausalLM"]})
    done = coldtrace("predict", str(folder))
    assert done.returncode == 0 and ": at least " in done.stdout
    assert "no start of the architecture odd is known" in done.stdout
    assert "not known, so not in the total: " in done.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--enforce-eager", "--capture-sizes", "3"], "leave --capture-sizes out"),
        (["--enforce-eager", "--compile-cache", "hit"], "leave --compile-cache out"),
        (["--page-cache", "warm", "--disk-gbps", "2"], "no weights come from the disk"),
        (["--profile", "none.json"], "can't read the profile none.json"),
    ],
)
def test_contradictions_are_one_line(model: Path, arguments: list[str], said: str) -> None:
    assert said in one_line(coldtrace("predict", str(model), *arguments))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predict", "none"], "none is no directory"),
        (["fit"], "no starts to learn from"),
        (["fit", "none.coldtrace"], "none.coldtrace: no such file"),
        (["fit", "--table", str(STARTS), "--models", str(STARTS)], "lacks the columns"),
        (["fit", "--table", str(STARTS), "--models", str(MODELS), "--node", "n9"], "no node n9"),
        (["check", "none.coldtrace"], "none.coldtrace: no such file"),
        (["evaluate", "--calibrate", "2"], "needs --table and --models"),
        (["plan", "--arrival-rate", "1"], "one of the two"),
        (["plan", "--arrival-rate", "0", "--cold-start", "9"], "has to be a number above 0"),
    ],
)
def test_bad_input_is_one_line(home: Path, arguments: list[str], said: str) -> None:
    assert said in one_line(coldtrace(*arguments, cwd=home))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["predict", "m", "--page-cache", "1.5"], "neither cold, warm nor a share"),
        (["predict", "m", "--page-cache", "nan"], "neither cold, warm nor a share"),
        (["predict", "m", "--cpu-speed", "0"], "is no number above 0"),
        (["predict", "m", "--disk-gbps", "inf"], "is no number above 0"),
        (["predict", "m", "--cpu-speed", "1e-320"], "is no number above 0"),
        (["predict", "m", "--slo-factor", "1e308"], "is no number above 0"),
        (["predict", "m", "--tp", "0"], "0 is not in the range"),
        (["fit", "--table", "x"], "--table and --models belong together"),
    ],
)
def test_bad_options_are_clicks(home: Path, arguments: list[str], said: str) -> None:
    done = coldtrace(*arguments, cwd=home)
    assert done.returncode == 2 and said in done.stderr and not done.stdout


def test_a_profile_of_another_node_is_said(home: Path, model: Path) -> None:
    profile = str(home / "p.json")
    table = ["--table", str(STARTS), "--models", str(MODELS)]
    assert "this is n1; n3, node5 left out" in coldtrace("fit", *table, "-o", profile).stdout
    done = coldtrace("predict", str(model), "--profile", profile)
    assert done.returncode == 0 and "the profile is of another node, n1" in done.stdout
    trace = traced_start(home, model)
    assert "of different nodes" in one_line(coldtrace("fit", str(trace), "-o", profile))


def test_another_nodes_table_has_a_profile_of_its_own(home: Path) -> None:
    done = coldtrace("fit", "--table", str(STARTS), "--models", str(MODELS), "--node", "n3")
    assert done.returncode == 0, done.stderr
    assert not default_path().exists()
    profile = load(default_path().with_name("n3.json"))
    assert len(profile.rows) == 11 and profile.node.name == "n3"
    assert profile.basis == "11 starts of this node"


def test_check_within_and_beyond(home: Path, model: Path) -> None:
    for number in range(4):
        traced_start(home / str(number), model, 500 + number)
    profile = str(home / "p.json")
    coldtrace("fit", *(str(home / str(number)) for number in range(4)), "-o", profile)
    good = traced_start(home / "good", model, 560)
    done = coldtrace("check", str(good), "--profile", profile)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Model loading" in done.stdout
    slow = traced_start(home / "slow", model, 1500)
    done = coldtrace("check", str(slow), "--profile", profile)
    assert done.returncode == 3 and "Beyond 1.5 x: 1.60 s" in done.stdout
    culprits = done.stdout.partition("Beyond")[2]
    assert "load_weights" in culprits and "engine_config" not in culprits
    assert coldtrace("check", str(slow), "--profile", profile, "--max-ratio", "9").returncode == 0


def test_a_failed_start_is_not_checked(home: Path, model: Path) -> None:
    trace = traced_start(home, model, outcome="failed")
    assert "never became ready" in one_line(coldtrace("check", str(trace)))


def test_plan_in_every_form(model: Path) -> None:
    arguments = ["plan", "--cold-start", "45", "--arrival-rate", "0.1", "--burst", "2"]
    assert "ceil(0.1/s x 2 x 45.0 s) = 9" in coldtrace(*arguments).stdout
    assert json.loads(coldtrace(*arguments, "--json").stdout)["warm_pool"] == 9
    assert '  warm-pool: "9"' in coldtrace(*arguments, "--config-map", "pool").stdout
    done = coldtrace("plan", str(model), "--arrival-rate", "0.1", "--json")
    plan = json.loads(done.stdout)
    assert plan["model"] == "m" and plan["cold_start_s"] > plan["predicted_s"] > 0


def test_evaluate_prints_the_papers_figures_beside_its_own(home: Path) -> None:
    found = json.loads(coldtrace("evaluate", "--json").stdout)["results"]
    split = found["the paper's split, its 5 held-out models"]
    assert split["paper"] == {"mse_s2": 2.42, "largest_s": 2.08}
    assert split["mse_s2"] < 0.7 and split["largest_s"] < 1.3
    assert {"mse_s2", "largest_s", "mape"} == set(split["substeps"]["load_weights"])


def test_evaluate_a_table_of_a_node_never_seen(home: Path) -> None:
    lines = STARTS.read_text().splitlines()
    rows = [line.replace(",n3,", ",new,") for line in lines if line.split(",")[1] == "n3"]
    (home / "new.csv").write_text("\n".join([lines[0], *rows]) + "\n")
    table = ["--table", str(home / "new.csv"), "--models", str(MODELS), "--calibrate", "2"]
    found = json.loads(coldtrace("evaluate", *table, "--json").stdout)["results"]
    assert found["node new after 2 of its models"]["mape"] <= 0.05
    assert found["node new after 2 of its models"]["starts"] == 9


def test_too_few_models_to_evaluate(home: Path, model: Path) -> None:
    trace = traced_start(home, model)
    coldtrace("fit", str(trace), "-o", str(home / "p.json"))
    done = coldtrace("evaluate", "--profile", str(home / "p.json"))
    assert "to leave one out takes 1 more" in one_line(done)


# After a traced start ------------------------------------------------------------------


def wait_until_fitted(path: Path) -> None:
    deadline = time.monotonic() + 30
    while load(path).is_stale:
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_start_is_shown_beside_its_prediction_and_learned(home: Path, model: Path) -> None:
    shown = io.StringIO()
    after_start(traced_start(home, model), shown)
    text = shown.getvalue()
    assert "measured  predicted" in text and "Added to " in text and "no start of this node" in text
    assert len(load(default_path()).rows) == 1
    wait_until_fitted(default_path())
    assert "1 start of this node" in load(default_path()).basis


@pytest.mark.parametrize("change", [{"outcome": "failed"}, {"seen_from_ns": 5_050_000_000}])
def test_what_is_no_whole_start_is_not_learned(
    home: Path, model: Path, change: dict[str, object]
) -> None:
    shown = io.StringIO()
    after_start(traced_start(home, model, **change), shown)  # type: ignore[arg-type]
    assert shown.getvalue() == "" and not default_path().exists()


def test_a_profile_that_cannot_be_used_breaks_nothing(home: Path, model: Path) -> None:
    default_path().parent.mkdir(parents=True)
    default_path().write_text("no JSON")
    shown = io.StringIO()
    after_start(traced_start(home, model), shown)
    assert "Not added to the node's profile: " in shown.getvalue()
    assert default_path().read_text() == "no JSON"


def test_the_report_of_a_recording_loads_nothing_heavy() -> None:
    loaded = loaded_by("import coldtrace; coldtrace._load_report(True)")
    assert not loaded & ({*HEAVY, "scipy"} - {"rich"})


def test_help_of_every_command_is_light() -> None:
    for command in ("fit", "predict", "check", "plan", "evaluate"):
        call = f"try: coldtrace.cli([{command!r}, '--help'])\nexcept SystemExit: pass"
        assert not loaded_by(f"import coldtrace\n{call}") & {*HEAVY, "analysis", "tracer"}


def test_no_learn_is_an_option_of_run() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("coldtrace")), "run", "--help"],
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "200"},
    )
    assert "--learn / --no-learn" in done.stdout
