"""How good the predictions are: of starts that the fit hasn't seen.

The published figures to compare with are in PAPER: "Breaking the Ice: Analyzing Cold
Start Latency in vLLM" (MLSys 2026, arXiv 2606.07362), dense models, one-variable
regressions on nominal sizes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from analysis.features import DISABLED, HIT
from analysis.observations import Observation, models_by_time
from analysis.predictor import (
    CONFIDENCE,
    MIN_ROWS,
    Fit,
    Prediction,
    calibrate,
    fit,
    predict,
    situation_of,
)
from tracer.errors import ColdtraceError

PAPER = {"mse_s2": 2.42, "largest_s": 2.08}
PAPER_EXPERIMENT = "figure-rest"
PAPER_HELD_OUT = ("falcon-11b", "gemma-7b", "llama3-3b", "mistral-7b", "qwen-7b")
HYBRIDS = frozenset({"granitemoehybrid"})
"""Families with state-space layers, which neither the paper nor the tables' columns describe."""

Pair = tuple[Observation, Prediction]


@dataclass(frozen=True, slots=True)
class Errors:
    """Mean squared, largest and mean relative error; the last None where all took no time."""

    mse_s2: float
    largest_s: float
    mape: float | None


@dataclass(frozen=True, slots=True)
class Scores:
    """The errors of totals, and of each sub-step."""

    starts: int
    mse_s2: float
    largest_s: float
    mape: float
    substeps: Mapping[str, Errors]


def scores(pairs: Sequence[Pair]) -> Scores:
    """The errors of predictions; raise ColdtraceError for none."""
    if not pairs:
        raise ColdtraceError("there are no starts to evaluate")
    whole = _errors([(row.total_s, prediction.total_s) for row, prediction in pairs])
    by_substep: dict[str, list[tuple[float, float]]] = {}
    for row, prediction in pairs:
        for each in prediction.substeps:
            if each.id in row.seconds:
                by_substep.setdefault(each.id, []).append((row.seconds[each.id], each.seconds))
    substeps = {name: _errors(times) for name, times in by_substep.items()}
    return Scores(len(pairs), whole.mse_s2, whole.largest_s, whole.mape or 0.0, substeps)


def _errors(times: Sequence[tuple[float, float]]) -> Errors:
    """Of (measured, predicted) seconds."""
    errors = [predicted - measured for measured, predicted in times]
    relative = [abs(b / a - 1) for a, b in times if a > 0]
    mape = _mean(relative) if relative else None
    return Errors(_mean(error**2 for error in errors), max(map(abs, errors)), mape)


def leave_out(
    rows: Sequence[Observation],
    key: Callable[[Observation], str],
    prior: Fit | None = None,
    background: Sequence[Observation] = (),
) -> list[Pair]:
    """Each row, as predicted from the rows with another key.

    `background` are more rows, whose fit, again without the key, is the prior.
    """
    pairs: list[Pair] = []
    for name in dict.fromkeys(map(key, rows)):
        others = [row for row in rows if key(row) != name]
        if others:
            known = [row for row in background if key(row) != name]
            fitted = fit(others, fit(known)) if known else fit_node(others, prior)
            pairs += predicted(fitted, [row for row in rows if key(row) == name])
    return pairs


def fit_node(rows: Sequence[Observation], prior: Fit | None) -> Fit:
    """The fit of one node's rows: scaled from `prior` while they are few."""
    if prior is None:
        return fit(rows)
    scaled = calibrate(prior, rows)
    return fit(rows, scaled) if len(rows) >= MIN_ROWS else scaled


def predicted(fitted: Fit, rows: Iterable[Observation]) -> list[Pair]:
    """Each row with what `fitted` expects of it."""
    return [(row, predict(fitted, situation_of(row))) for row in rows]


def by_model(row: Observation) -> str:
    return row.model.name


def by_family(row: Observation) -> str:
    return row.model.family or row.model.name


def half_width(pairs: Sequence[Pair]) -> float:
    """Relative half width of the interval that holds the next start with CONFIDENCE."""
    from scipy.stats import t

    errors = [prediction.total_s / row.total_s - 1 for row, prediction in pairs]
    spread = _mean(error**2 for error in errors) ** 0.5
    quantile: float = t.ppf((1 + CONFIDENCE) / 2, len(errors))
    return float(quantile * spread * (1 + 1 / len(errors)) ** 0.5)


# The paper's own split, and what else the published tables allow to check ------------


def is_dense(row: Observation) -> bool:
    return not row.model.experts and not is_hybrid(row)


def is_hybrid(row: Observation) -> bool:
    return row.model.family in HYBRIDS


def paper_rows(rows: Iterable[Observation]) -> list[Observation]:
    """The starts of the paper's split: dense models, averages of several runs."""
    return [row for row in rows if row.experiment == PAPER_EXPERIMENT and is_dense(row)]


def paper_split(rows: Sequence[Observation]) -> list[Pair]:
    """The paper's held-out models, predicted from its training models."""
    chosen = paper_rows(rows)
    fitted = fit([row for row in chosen if row.model.name not in PAPER_HELD_OUT])
    return predicted(fitted, [row for row in chosen if row.model.name in PAPER_HELD_OUT])


def substep_errors(pairs: Iterable[Pair], substep: str) -> list[float]:
    """Relative errors of one sub-step's time."""
    return [
        each.seconds / row.seconds[substep] - 1
        for row, prediction in pairs
        for each in prediction.substeps
        if each.id == substep and row.seconds.get(substep)
    ]


def capture_errors(rows: Iterable[Observation]) -> list[float]:
    """Capture time against the number of sizes: each size predicted from the others."""
    chosen = [row for row in rows if row.experiment == "batch_size" and row.caches.compile == HIT]
    pairs = leave_out(chosen, lambda row: str(row.serving.capture_sizes)) if chosen else []
    return substep_errors(pairs, "graph_capture")


def compile_errors(rows: Iterable[Observation]) -> tuple[list[float], list[float]]:
    """Compile time and total on a compile cache miss, each model from the others."""
    chosen = [row for row in rows if row.caches.compile == DISABLED]
    pairs = leave_out(chosen, by_model) if chosen else []
    return substep_errors(pairs, "graph_compile"), total_errors(pairs)


def page_cache_errors(rows: Iterable[Observation]) -> tuple[list[float], list[float]]:
    """Totals of starts with warm and with cold page cache, each model from the others."""
    chosen = [row for row in rows if row.experiment == "page_cache"]
    pairs = leave_out(chosen, by_model) if chosen else []
    warm = [pair for pair in pairs if pair[0].caches.page_cache == 1]
    cold = [pair for pair in pairs if pair[0].caches.page_cache == 0]
    return total_errors(warm), total_errors(cold)


def total_errors(pairs: Iterable[Pair]) -> list[float]:
    """Relative errors of totals."""
    return [prediction.total_s / row.total_s - 1 for row, prediction in pairs]


def calibrated(reference: Fit, rows: Sequence[Observation], count: int) -> list[Pair]:
    """The rows of all but the first `count` models, predicted once those have scaled
    `reference`; `rows` are of one node."""
    names = models_by_time(rows)
    if count >= len(names):
        raise ColdtraceError(
            f"{count} models to calibrate with leave none to evaluate: there are {len(names)}"
        )
    first = [row for row in rows if row.model.name in names[:count]]
    fitted = fit_node(first, reference) if first else reference
    return predicted(fitted, [row for row in rows if row.model.name not in names[:count]])


def single(rows: Iterable[Observation], node: str) -> list[Observation]:
    """The rows of one node."""
    return [row for row in rows if row.node.name == node]


def repeat_spread(rows: Iterable[Observation]) -> list[float]:
    """Each start's relative distance from the mean of those that were made just like it."""
    groups: dict[str, list[float]] = {}
    for row in rows:
        key = repr((row.model.name, row.serving, row.caches))
        groups.setdefault(key, []).append(row.total_s)
    return [
        total / _mean(totals) - 1
        for totals in groups.values()
        if len(totals) > 1
        for total in totals
    ]


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers)
