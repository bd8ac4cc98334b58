"""`coldtrace fit`, `predict`, `check`, `plan` and `evaluate`, from options to exit status."""

from __future__ import annotations

import json as json_module
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from analysis.features import (
    HIT,
    MISS,
    OFF,
    Caches,
    Model,
    Serving,
    first_sizes,
    read_model,
    weight_files,
)
from analysis.machine import page_cache_share, this_node
from analysis.observations import Observation, observe, read_tables
from analysis.planning import PROBE_PERIOD_S, config_map, plan
from analysis.predictor import DISK, MIN_ROWS, Fit, Prediction, Situation, predict, situation_of
from analysis.profile import (
    TABLES,
    Profile,
    default_path,
    describe,
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
from analysis.report.prediction import (
    comparison_lines,
    evaluation_lines,
    interval,
    prediction_json,
    prediction_lines,
    scores_json,
    substep_line,
)
from analysis.start import Start
from tracer.errors import ColdtraceError, UsageError
from tracer.text import escape

BEYOND = 3
"""Exit status of `check` for a start that took longer than it may."""


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What `predict` is told of a start; None where it has to find out.

    page_cache: share of the weights in memory. capture_sizes: how many batch sizes.
    """

    tp: int = 1
    pp: int = 1
    enforce_eager: bool = False
    capture_sizes: int | None = None
    page_cache: float | None = None
    compile_cache: str | None = None
    cpu_speed: float = 1.0
    disk_gbps: float | None = None
    slo_factor: float = 1.5


# fit ---------------------------------------------------------------------------------


def fit(
    traces: Sequence[Path],
    output: Path | None = None,
    tables: tuple[Path, Path] | None = None,
    node: str | None = None,
    model: Path | None = None,
    page_cache: float | None = None,
    stream: TextIO | None = None,
) -> None:
    """Add the starts of `traces` (files, or folders of them) or of `tables` to a profile,
    and fit all its rows. Raises ColdtraceError where there is nothing to fit."""
    stream = stream or sys.stdout
    if tables is not None:
        new = _of_one_node(read_tables(*tables), node, stream)
    else:
        new = _observations(traces, model, page_cache, stream)
    path = output or _path_for(new)
    old = load(path).rows if path.exists() else ()
    rows = [*old, *(row for row in new if row not in old)]
    if not rows:
        raise ColdtraceError("there are no starts to learn from: name traces, or folders of them")
    profile = made(rows)
    save(profile, path)
    models = len({row.model.name for row in rows})
    print(
        f"{path}: {len(rows)} starts of {models} models ({len(rows) - len(old)} new) on "
        f"{escape(describe(profile.node))}",
        file=stream,
    )
    print(f"A start of this node is predicted within {profile.half_width:.1%}.", file=stream)
    versions = sorted({row.versions.get("vllm", "") for row in rows} - {""})
    if len(versions) > 1:
        print(f"Note: of several versions of vLLM: {escape(', '.join(versions))}", file=stream)
    if len(rows) < MIN_ROWS:
        missing = MIN_ROWS - len(rows)
        print(
            f"So few rows only scale the published starts: {missing} more and they stand alone.",
            file=stream,
        )


def _path_for(rows: Sequence[Observation]) -> Path:
    """This node's own profile, or for another node's starts one beside it."""
    own = default_path()
    if not rows or same_node(rows[0].node, this_node()):
        return own
    return own.with_name(re.sub(r"[^\w.-]", "_", rows[0].node.name) + ".json")


def _observations(
    paths: Iterable[Path], model: Path | None, page_cache: float | None, stream: TextIO
) -> list[Observation]:
    rows = []
    for path in paths:
        if not path.is_dir():
            rows.append(_observation(path, model, page_cache))
            continue
        found = sorted(path.glob("*.coldtrace"))
        if not found:
            raise ColdtraceError(f"{path} holds no *.coldtrace")
        for each in found:
            try:
                rows.append(_observation(each, model, page_cache))
            except ColdtraceError as error:
                print(f"left out: {escape(error.message)}", file=stream)
    return rows


def _observation(path: Path, model: Path | None, page_cache: float | None) -> Observation:
    try:
        return replace(observe(Start.open(path), model, page_cache), source=path.name)
    except ColdtraceError as error:
        if str(path) in error.message:
            raise
        raise ColdtraceError(f"{path}: {error.message}") from error


def _of_one_node(rows: list[Observation], node: str | None, stream: TextIO) -> list[Observation]:
    """A profile is of one node: the one that is asked for, or the most frequent."""
    counts: dict[str, int] = {}
    for row in rows:
        counts[row.node.name] = counts.get(row.node.name, 0) + 1
    if node is not None and node not in counts:
        raise UsageError(f"the table has no node {node}; there are: {', '.join(counts)}")
    chosen = node or max(counts, key=lambda name: counts[name])
    others = [name for name in counts if name != chosen]
    if others and node is None:
        print(
            f"A profile is of one node: this is {chosen}; {', '.join(others)} left out (--node).",
            file=stream,
        )
    return [row for row in rows if row.node.name == chosen]


# predict -------------------------------------------------------------------------------


def predict_start(
    directory: Path,
    profile: Path | None = None,
    assumptions: Assumptions | None = None,
    json: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Print what a start of the model in `directory` will take, term by term."""
    assumptions = assumptions or Assumptions()
    stream = stream or sys.stdout
    known = _profile(profile)
    model, prediction, notes = _prediction(directory, known, assumptions)
    arguments = (model, prediction, known, assumptions.slo_factor, notes)
    if json:
        print(json_module.dumps(prediction_json(*arguments), indent=2), file=stream)
        return
    for line in prediction_lines(*arguments):
        print(line, file=stream)


def _profile(path: Path | None) -> Profile:
    """The profile that is asked for, this node's own, or the published starts."""
    if path is not None:
        return load_fitted(path)
    own = default_path()
    return load_fitted(own) if own.exists() else unlearned(this_node())


def _prediction(
    directory: Path, profile: Profile, assumptions: Assumptions
) -> tuple[Model, Prediction, list[str]]:
    _check(assumptions)
    model = read_model(directory)
    model = replace(model, graph_kb=known_graph_kb(profile, model))
    notes = list(model.notes)
    serving = Serving(
        tp=assumptions.tp,
        pp=assumptions.pp,
        eager=assumptions.enforce_eager,
        capture_sizes=_capture_sizes(profile, assumptions.capture_sizes),
    )
    caches = _caches(directory, profile, assumptions, notes)
    situation = Situation(model, serving, caches)
    prediction = predict(profile.fit, situation, assumptions.cpu_speed, assumptions.disk_gbps)
    notes += _doubts(profile, situation, prediction, assumptions.disk_gbps is not None)
    return model, prediction, notes


def _check(assumptions: Assumptions) -> None:
    if assumptions.enforce_eager and assumptions.capture_sizes:
        raise UsageError("--enforce-eager captures no graphs: leave --capture-sizes out")
    if assumptions.enforce_eager and assumptions.compile_cache is not None:
        raise UsageError("--enforce-eager compiles nothing: leave --compile-cache out")
    if assumptions.disk_gbps is not None and assumptions.page_cache == 1:
        raise UsageError("with a warm page cache no weights come from the disk: leave one out")


def _capture_sizes(profile: Profile, count: int | None) -> tuple[int, ...] | None:
    """As told, or as the last start of the node did that wasn't eager."""
    if count is not None:
        return first_sizes(count)
    graphs = [row.serving.capture_sizes for row in profile.rows if not row.serving.eager]
    return graphs[-1] if graphs else None


def _caches(
    directory: Path, profile: Profile, assumptions: Assumptions, notes: list[str]
) -> Caches:
    share = assumptions.page_cache
    if share is None and assumptions.disk_gbps is not None:
        share = 0.0
    if share is None:
        files = weight_files(directory)
        share = page_cache_share(files)
        if share is None:
            share = 1.0
            if files:
                notes.append("the page cache can't be asked for the weights: taken as warm")
        else:
            notes.append(f"{share:.0%} of the weights are in the page cache now (--page-cache)")
    state = OFF if assumptions.enforce_eager else assumptions.compile_cache
    if state is None:
        state = HIT
        notes.append("a compile cache hit is assumed (--compile-cache)")
    inspection = profile.fit.substeps.get("model_inspection")
    remembers = inspection is not None and "remembered" in inspection.terms
    return Caches(
        page_cache=share,
        compile=state,
        kernels_cold=state == MISS,
        model_info=HIT if remembers and state != MISS else MISS,
    )


def _doubts(
    profile: Profile, situation: Situation, prediction: Prediction, told_disk: bool
) -> Iterator[str]:
    """What a reader has to know to trust the numbers."""
    here = this_node()
    rows = profile.rows
    if rows and not same_node(profile.node, here):
        yield (
            f"the profile is of another node, {describe(profile.node)}: "
            f"the numbers are for that, not for {describe(here)}"
        )
    if not rows and not here.gpu:
        yield "this node has no GPU; the published nodes have: trace a start of it"
    if rows and not told_disk and _reads_unmeasured(profile, prediction):
        yield (
            "no start of this node is known to have read its weights from the disk: the rate is "
            "that of the published node (--disk-gbps)"
        )
    family = situation.model.family
    if family not in _known_families(profile):
        yield (
            f"no start of the architecture {family or '(unnamed)'} is known: predicted from its "
            "sizes alone"
        )
    unknown = [f"{each.id} ({name})" for each in prediction.substeps for name in each.unknown]
    if unknown:
        yield f"not known, so not in the total: {', '.join(unknown)}"
    if situation.serving.ranks > 1 and all(row.serving.ranks == 1 for row in rows):
        yield "no start with several ranks is known: what they cost is not in the total"


def _reads_unmeasured(profile: Profile, prediction: Prediction) -> bool:
    """Whether weights come from a disk that no start of the node has shown."""
    terms = [term for substep in prediction.substeps for term in substep.terms]
    reads = any(term.resource == DISK and term.amount for term in terms)
    return reads and all(row.caches.page_cache in (None, 1.0) for row in profile.rows)


def _known_families(profile: Profile) -> set[str | None]:
    fitted = {family for each in profile.fit.substeps.values() for family in each.families}
    return {*fitted, *(row.model.family for row in profile.rows)}


# check -----------------------------------------------------------------------------------


def check(
    trace: Path,
    profile: Path | None = None,
    max_ratio: float = 1.5,
    model: Path | None = None,
    page_cache: float | None = None,
    stream: TextIO | None = None,
) -> int:
    """Compare a start with its prediction; return 0, or BEYOND where it took more than
    `max_ratio` times as long, and say in which sub-steps."""
    stream = stream or sys.stdout
    known = _profile(profile)
    row = _observation(trace, model, page_cache)
    prediction = predict(known.fit, situation_of(row))
    for line in comparison_lines(row, prediction):
        print(line, file=stream)
    if known.rows and not same_node(known.node, row.node):
        print(f"Note: the profile is of another node, {escape(describe(known.node))}", file=stream)
    print(f"From: {escape(known.basis)}", file=stream)
    if row.total_s <= max_ratio * prediction.total_s:
        return 0
    print(
        f"Beyond {max_ratio:g} x: {row.total_s:.2f} s, predicted {prediction.total_s:.2f} s",
        file=stream,
    )
    for line in _culprits(row, prediction, max_ratio):
        print(line, file=stream)
    return BEYOND


def _culprits(row: Observation, prediction: Prediction, max_ratio: float) -> list[str]:
    """The sub-steps beyond the ratio, the one with the most seconds too many first."""
    foreseen = {each.id: each.seconds for each in prediction.substeps}
    excess = {
        name: seconds - max_ratio * foreseen.get(name, 0.0) for name, seconds in row.seconds.items()
    }
    worst = sorted((name for name in excess if excess[name] > 0), key=lambda name: -excess[name])
    return [substep_line(name, row.seconds[name], foreseen.get(name, 0.0)) for name in worst]


# plan ------------------------------------------------------------------------------------


def plan_pool(
    directory: Path | None,
    arrival_rate: float,
    burst: float,
    reuse_s: float | None,
    cold_start_s: float | None = None,
    profile: Path | None = None,
    assumptions: Assumptions | None = None,
    config_map_name: str | None = None,
    json: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Print how many warm instances to keep and what an autoscaler has to reckon with."""
    stream = stream or sys.stdout
    assumptions = assumptions or Assumptions()
    if (directory is None) == (cold_start_s is None):
        raise UsageError("name a model's directory or --cold-start SECONDS, one of the two")
    if json and config_map_name is not None:
        raise UsageError("--json and --config-map exclude each other")
    if directory is None or cold_start_s is not None:
        name, predicted, reckoned = "any", cold_start_s or 0.0, cold_start_s or 0.0
    else:
        known = _profile(profile)
        model, prediction, _ = _prediction(directory, known, assumptions)
        name, predicted = model.name, prediction.total_s
        reckoned = interval(prediction, known)[1]
    slo_s = assumptions.slo_factor * predicted
    made_plan = plan(name, predicted, reckoned, slo_s, arrival_rate, burst, reuse_s)
    if json:
        print(json_module.dumps(made_plan.to_json(), indent=2), file=stream)
    elif config_map_name is not None:
        print(config_map(made_plan, config_map_name), end="", file=stream)
    else:
        print(f"Warm instances to keep: {made_plan.pool}", file=stream)
        print(f"  = ceil(arrival rate x burst x time empty) = {made_plan.formula}", file=stream)
        print(f"Predicted start: {predicted:.1f} s, reckoned with {reckoned:.1f} s", file=stream)
        print(f"Autoscaler: scale {reckoned:.0f} s ahead of demand", file=stream)
        print(
            f"SLO bound: {slo_s:.0f} s, a start-up probe of {made_plan.probe_failures} failures, "
            f"one every {PROBE_PERIOD_S} s",
            file=stream,
        )


# evaluate ----------------------------------------------------------------------------------


def evaluate(
    profile: Path | None = None,
    tables: tuple[Path, Path] | None = None,
    count: int | None = None,
    json: bool = False,
    stream: TextIO | None = None,
) -> None:
    """Print how far off predictions are for starts that the fit hasn't seen.

    Of a table's starts, or a profile's, or else the published ones; `count`: predict a
    table's nodes after calibrating with their first `count` models.
    """
    stream = stream or sys.stdout
    if count is not None and tables is None:
        raise UsageError("--calibrate needs --table and --models")
    if tables is not None and (profile is not None or count is not None):
        fitted = load_fitted(profile).fit if profile else reference().fit
        results = _transferred(fitted, read_tables(*tables), count or 0)
    elif tables is not None:
        results = _of_table(read_tables(*tables))
    elif profile is not None:
        results = _of_profile(load(profile)) | _published()
    else:
        results = _of_own() | _of_table(read_tables(*TABLES))
    if json:
        print(json_module.dumps({"schema": 1, "results": results}, indent=2), file=stream)
        return
    for line in evaluation_lines(results):
        print(line, file=stream)


def _transferred(fitted: Fit, rows: list[Observation], count: int) -> dict[str, Any]:
    from analysis.evaluation import calibrated, scores, single

    results = {}
    for name in dict.fromkeys(row.node.name for row in rows):
        title = f"node {name} after {count} of its models" if count else f"node {name}, unscaled"
        pairs = calibrated(fitted, single(rows, name), count)
        results[title] = scores_json(scores(pairs))
    return results


def _of_profile(profile: Profile) -> dict[str, Any]:
    from analysis.evaluation import by_family, by_model, leave_out, repeat_spread, scores

    known = reference()
    prior = None if same_node(profile.node, known.node) else known.fit
    results = {}
    for title, key in (("model", by_model), ("family", by_family)):
        groups = {key(row) for row in profile.rows}
        if len(groups) > 1:
            pairs = leave_out(profile.rows, key, prior)
            results[f"leave one {title} out"] = scores_json(scores(pairs))
        elif title == "model":
            raise ColdtraceError(
                f"the profile has starts of {len(groups)} models; to leave one out takes "
                f"{2 - len(groups)} more"
            )
    spread = repeat_spread(profile.rows)
    if spread:
        results["repeats of the same start, by themselves"] = _relative(spread)
    return results


def _of_own() -> dict[str, Any]:
    """This node's own profile, where it has starts of several models."""
    path = default_path()
    if not path.exists():
        return {}
    own = load(path)
    several = len({row.model.name for row in own.rows}) > 1
    found = _of_profile(own) if several else {}
    return {f"this node: {title}": each for title, each in found.items()}


def _published() -> dict[str, Any]:
    return _paper_split(read_tables(*TABLES))


def _of_table(rows: list[Observation]) -> dict[str, Any]:
    from analysis.evaluation import (
        PAPER_EXPERIMENT,
        by_family,
        by_model,
        calibrated,
        is_hybrid,
        leave_out,
        paper_rows,
        scores,
        single,
    )

    results = _paper_split(rows)
    nodes = sorted({row.node.name for row in rows}, key=lambda name: -len(single(rows, name)))
    whole = [row for row in rows if row.experiment == PAPER_EXPERIMENT]
    around = [row for row in rows if whole and row.node == whole[0].node]
    plain = [row for row in whole if not is_hybrid(row)]
    scopes: dict[str, tuple[list[Observation], list[Observation]]] = {
        f"{PAPER_EXPERIMENT}, dense": (paper_rows(rows), []),
        f"{PAPER_EXPERIMENT}, dense and MoE": (plain, around),
        f"{PAPER_EXPERIMENT}, with hybrids": (whole, around),
    } | {f"all of {name}": (single(rows, name), []) for name in nodes}
    for title, (chosen, background) in scopes.items():
        for kind, key in (("model", by_model), ("family", by_family)):
            if len({key(row) for row in chosen}) > 1:
                pairs = leave_out(chosen, key, background=background)
                results[f"leave one {kind} out, {title}"] = scores_json(scores(pairs))
    if not results:
        raise ColdtraceError("the table has starts of one model; to leave one out takes 1 more")
    if len(nodes) > 1:
        from analysis.predictor import fit as fit_rows

        fitted = fit_rows(single(rows, nodes[0]))
        for name in nodes[1:]:
            for count in (0, 2):
                pairs = calibrated(fitted, single(rows, name), count)
                title = f"node {name} from {nodes[0]} and {count} models of it"
                results[title] = scores_json(scores(pairs))
    return results | _by_kind(rows)


def _paper_split(rows: list[Observation]) -> dict[str, Any]:
    from analysis.evaluation import PAPER, PAPER_HELD_OUT, paper_rows, paper_split, scores

    if not {row.model.name for row in paper_rows(rows)} > set(PAPER_HELD_OUT):
        return {}
    found = scores_json(scores(paper_split(rows)))
    return {"the paper's split, its 5 held-out models": found | {"paper": PAPER}}


def _by_kind(rows: list[Observation]) -> dict[str, Any]:
    """Single parameters and states of the caches, where the table varies them."""
    from analysis.evaluation import capture_errors, compile_errors, page_cache_errors

    compiled, missed = compile_errors(rows)
    warm, cold = page_cache_errors(rows)
    found = {
        "capture time by number of sizes": capture_errors(rows),
        "compile time on a cache miss": compiled,
        "total on a compile cache miss": missed,
        "total with a warm page cache": warm,
        "total with a cold page cache": cold,
    }
    return {name: _relative(errors) for name, errors in found.items() if errors}


def _relative(errors: Sequence[float]) -> dict[str, Any]:
    sizes = [abs(error) for error in errors]
    return {"starts": len(sizes), "largest": max(sizes), "mean": sum(sizes) / len(sizes)}


# After a traced start ------------------------------------------------------------------------


def after_start(trace: Path, stream: TextIO, path: Path | None = None) -> None:
    """Show a start beside its prediction and add it to this node's profile.

    Says in one line why not, where the start tells nothing; never raises for that.
    Fitting is left to a process of low priority, which nobody waits for.
    """
    start = Start.open(trace)
    if start.engine is None or start.result.outcome != "ready" or start.result.missed_ns:
        return
    try:
        row = replace(observe(start, node=this_node()), source=trace.name)
        path = path or default_path()
        known = load(path) if path.exists() else unlearned(row.node)
        print("", file=stream)
        for line in comparison_lines(row, predict(known.fit, situation_of(row))):
            print(line, file=stream)
        print(f"Predicted from: {escape(known.basis)}", file=stream)
        learn(row, path)
        print(f"Added to {escape(str(path))} (--no-learn leaves it).", file=stream)
    except ColdtraceError as error:
        print(f"Not added to the node's profile: {escape(error.message)}", file=stream)
        return
    stream.flush()
    _refresh_later(path)


def _refresh_later(path: Path) -> None:
    """Fit the profile in a process of its own, detached from everything."""
    if os.fork() != 0:
        return
    with suppress(BaseException):
        os.setsid()
        os.nice(19)
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.closerange(3, 4096)
        load_fitted(path)
    os._exit(0)
