"""Predictions, comparisons and evaluations as text and as JSON values."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from analysis.evaluation import PAPER, Scores
from analysis.features import Model
from analysis.observations import UNATTRIBUTED, Observation
from analysis.predictor import (
    CONFIDENCE,
    PredictedSubstep,
    PredictedTerm,
    Prediction,
)
from analysis.profile import Profile, describe
from analysis.signature import Signatures
from tracer.text import escape

MAX_INPUTS = 6


# A prediction ------------------------------------------------------------------------


def interval(prediction: Prediction, profile: Profile) -> tuple[float, float]:
    """Lower and upper end of the total, seconds."""
    total = prediction.total_s
    return max(total * (1 - profile.half_width), 0.0), total * (1 + profile.half_width)


def prediction_lines(
    model: Model,
    prediction: Prediction,
    profile: Profile,
    slo_factor: float,
    notes: Sequence[str],
) -> Iterator[str]:
    """The prediction with every term filled in."""
    lower, upper = interval(prediction, profile)
    total = prediction.total_s
    yield (
        f"Predicted start of {escape(model.name)}: {_at_least(prediction)}{total:.2f} s "
        f"({CONFIDENCE:.0%} of starts within {lower:.2f} to {upper:.2f} s)"
    )
    yield f"SLO bound: {slo_factor * total:.2f} s ({slo_factor:g} x {total:.2f} s)"
    yield f"Model: {escape(describe_model(model))}"
    yield ""
    titles = _titles()
    for substep in prediction.substeps:
        if substep.terms:
            title = titles.get(substep.id, substep.id)
            yield f"{title:<32} {substep.seconds:9.3f} s = {formula(substep, model)}"
    yield f"{'total':<32} {total:9.3f} s"
    yield ""
    yield from _sensitivity_lines(prediction)
    yield f"From: {escape(profile.basis)}"
    yield from (f"Note: {escape(note)}" for note in notes)


def prediction_json(
    model: Model,
    prediction: Prediction,
    profile: Profile,
    slo_factor: float,
    notes: Sequence[str],
) -> dict[str, Any]:
    """The same as JSON values."""
    lower, upper = interval(prediction, profile)
    return {
        "schema": 1,
        "model": model.name,
        "family": model.family,
        "parameters": model.parameters,
        "active_parameters": model.active_parameters,
        "weight_bytes": model.weight_bytes,
        "bytes_by_dtype": dict(model.bytes_by_dtype),
        "parameters_by_dtype": dict(model.parameters_by_dtype),
        "parameter_count": model.loaded_count,
        "total_s": prediction.total_s,
        "interval": {"level": CONFIDENCE, "lower_s": lower, "upper_s": upper},
        "slo": {"factor": slo_factor, "seconds": slo_factor * prediction.total_s},
        "substeps": [_substep_json(each, model) for each in prediction.substeps],
        "sensitivity": [
            {"input": name, "seconds_per_percent": seconds}
            for name, seconds in prediction.sensitivities().items()
        ],
        "node": describe(profile.node),
        "basis": profile.basis,
        "notes": list(notes),
    }


def _substep_json(substep: PredictedSubstep, model: Model) -> dict[str, Any]:
    return {
        "id": substep.id,
        "seconds": substep.seconds,
        "formula": formula(substep, model),
        "family_factor": substep.factor,
        "terms": [
            {
                "name": term.name,
                "amount": term.amount,
                "unit": term.unit,
                "seconds_per_unit": term.rate,
                "seconds": term.seconds,
            }
            for term in substep.terms
        ],
    }


def formula(substep: PredictedSubstep, model: Model) -> str:
    """The terms with their numbers, and the family's factor if there is one."""
    terms = " + ".join(_term(term) for term in substep.terms) or "0"
    if substep.factor == 1:
        return terms
    inside = f"({terms})" if len(substep.terms) > 1 else terms
    return f"{inside} x {substep.factor:.3f} [{escape(model.family or '')}]"


def _at_least(prediction: Prediction) -> str:
    return "at least " if any(substep.unknown for substep in prediction.substeps) else ""


def _term(term: PredictedTerm) -> str:
    if term.seconds is None:
        why = "not in the model's files" if term.amount is None else "no start had it"
        return f"? [{term.name}: {why}]"
    if not term.unit:
        return f"{term.seconds:.3f} s [{term.name}]"
    return f"{term.rate:.3g} s x {term.amount:.6g} {term.unit} [{term.name}]"


def describe_model(model: Model) -> str:
    """Family, size and which count was used."""
    parts = [model.family or "unknown architecture"]
    if model.parameters:
        parts.append(f"{model.parameters / 1e9:.4g} billion parameters")
    if model.experts and model.active_parameters:
        parts.append(f"{model.active_parameters / 1e9:.4g} billion used by a token")
    if model.weight_bytes:
        kinds = "/".join(model.bytes_by_dtype)
        kind = f" of {kinds}" if kinds else ""
        parts.append(f"{model.weight_bytes / 1e9:.4g} GB{kind} to load")
    if model.quantization:
        parts.append(f"quantized by {model.quantization}")
    return ", ".join(parts) + f" ({model.loaded_count})"


def _sensitivity_lines(prediction: Prediction) -> Iterator[str]:
    found = list(prediction.sensitivities().items())[:MAX_INPUTS]
    if not found:
        return
    name, seconds = found[0]
    yield f"Most sensitive to {_changed(name)}: 10 % {_sense(name)} adds {10 * seconds:.2f} s"
    rest = ", ".join(f"{_changed(name)} {10 * seconds:.2f} s" for name, seconds in found[1:])
    if rest:
        yield f"  then {rest}"


def _changed(name: str) -> str:
    return name.replace("cpu", "CPU").replace("gpu", "GPU")


def _sense(name: str) -> str:
    return "less" if name.endswith(" speed") else "more"


def _titles() -> dict[str, str]:
    steps = Signatures.load().steps
    return {sub.id: sub.title for step in steps for sub in step.substeps} | {UNATTRIBUTED: "Rest"}


# Measured beside predicted ------------------------------------------------------------


def comparison_lines(row: Observation, prediction: Prediction) -> Iterator[str]:
    """Each step as it was and as it was expected."""
    expected = {each.id: each.seconds for each in prediction.substeps}
    yield f"{'step':<32} {'measured':>9} {'predicted':>10} {'ratio':>6}"
    for step in Signatures.load().steps:
        names = [sub.id for sub in step.substeps]
        measured = sum(row.seconds.get(name, 0.0) for name in names)
        foreseen = sum(expected.get(name, 0.0) for name in names)
        if measured >= 0.0005 or foreseen >= 0.0005:
            yield _compared(step.title, measured, foreseen)
    yield _compared("Rest", row.seconds.get(UNATTRIBUTED, 0.0), expected.get(UNATTRIBUTED, 0.0))
    yield _compared("total", row.total_s, prediction.total_s)


def substep_line(name: str, measured: float, foreseen: float) -> str:
    """One sub-step that took other than predicted."""
    ratio = f"{measured / foreseen:.2f} x" if foreseen > 0 else "not at all"
    title = _titles().get(name, name)
    return f"  {title} ({name}): {measured:.3f} s, predicted {foreseen:.3f} s ({ratio})"


def _compared(title: str, measured: float, foreseen: float) -> str:
    ratio = f"{measured / foreseen:6.2f}" if foreseen > 0 else "     -"
    return f"{title:<32} {measured:9.3f} {foreseen:10.3f} {ratio}"


# An evaluation --------------------------------------------------------------------------


def scores_json(scores: Scores) -> dict[str, Any]:
    """Errors as JSON values; `mape` is a share, 0.01 for one per cent."""
    return {
        "starts": scores.starts,
        "mse_s2": scores.mse_s2,
        "largest_s": scores.largest_s,
        "mape": scores.mape,
        "substeps": {name: asdict(errors) for name, errors in scores.substeps.items()},
    }


def evaluation_lines(results: Mapping[str, Any]) -> Iterator[str]:
    """A line an evaluation; those of totals first."""
    yield f"{'':<46} {'starts':>6} {'MSE s^2':>8} {'largest s':>9} {'MAPE':>7}"
    tables = {name: each for name, each in results.items() if "mape" in each}
    for name, each in tables.items():
        yield (
            f"{name:<46} {each['starts']:6} {each['mse_s2']:8.3f} "
            f"{each['largest_s']:9.2f} {each['mape']:7.2%}"
        )
        if each.get("paper"):
            yield f"{'  the paper':<46} {'':6} {PAPER['mse_s2']:8.2f} {PAPER['largest_s']:9.2f}"
    for name, each in results.items():
        if name not in tables:
            yield (
                f"{name}: {each['starts']} starts, largest error {each['largest']:.1%}, "
                f"mean {each['mean']:.1%}"
            )
    yield from _substep_table(tables)


def _substep_table(tables: Mapping[str, Any]) -> Iterator[str]:
    if not tables:
        return
    name, first = next(iter(tables.items()))
    yield ""
    yield f"{name}, by sub-step:"
    for substep, errors in first["substeps"].items():
        mape = "-" if errors["mape"] is None else f"{errors['mape']:.2%}"
        yield (
            f"  {substep:<44} {'':6} {errors['mse_s2']:8.3f} {errors['largest_s']:9.2f} {mape:>7}"
        )
