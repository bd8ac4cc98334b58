"""One small non-negative regression a sub-step, on the parameter that physics gives it.

A fit is numbers only: predicting needs no scikit-learn. Fitting goes in stages:

- the published starts give every coefficient (`fit` without a prior);
- one to three starts of a node scale it (`calibrate`): slopes by resource, constants
  to what those starts took;
- from MIN_ROWS starts on the node's own rows decide (`fit` with that as a prior, which
  counts only where the rows can't tell two terms apart).

The engine's code for an architecture makes some sub-steps a few per cent faster or
slower than sizes tell. That is one factor a family and sub-step, shrunk by the
evidence for it (BayesianRidge), and 1 for a family that was never seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from analysis.features import DISABLED, HIT, MISS, OFF, Caches, Model, Serving
from analysis.observations import PUBLISHED_SIZES, UNATTRIBUTED, Observation
from tracer.errors import ColdtraceError

CPU, DISK, MEMORY, GPU = "cpu", "disk", "memory", "gpu"
MIN_ROWS = 4
PRIOR_WEIGHT = 0.02
"""What the prior's word on a term counts beside one start: it decides ties, no more."""
NO_PRIOR_WEIGHT = 1e-3
SCALE_WEIGHT = 0.1
FAMILY_ROUNDS = 4
NEGLIGIBLE = 0.01
CONFIDENCE = 0.9


@dataclass(frozen=True, slots=True)
class Situation:
    """A start before it happens."""

    model: Model
    serving: Serving = field(default_factory=Serving)
    caches: Caches = field(default_factory=Caches)

    @property
    def is_compiled(self) -> bool:
        return not self.serving.eager and self.caches.compile != OFF

    @property
    def graph_sizes(self) -> tuple[int, ...]:
        """The batch sizes that are captured."""
        sizes = self.serving.capture_sizes
        if self.serving.eager:
            return ()
        return PUBLISHED_SIZES if sizes is None else sizes


Value = Callable[[Situation], float | None]


@dataclass(frozen=True, slots=True)
class Term:
    """One term of a regression: its coefficient is seconds a unit of `value`.

    `resource` is what a faster node makes faster, `source` the input it comes from
    ("" for a constant), `value` None where the model's files don't tell.
    """

    name: str
    unit: str
    resource: str
    source: str
    value: Value

    @property
    def is_constant(self) -> bool:
        return not self.source


@dataclass(frozen=True, slots=True)
class SubstepModel:
    """The terms of a sub-step; `by_family` where the architecture's own code runs in it."""

    id: str
    terms: tuple[Term, ...]
    by_family: bool = False


# What physics gives each sub-step --------------------------------------------------


def _constant(name: str, resource: str, when: Callable[[Situation], bool]) -> Term:
    return Term(name, "", resource, "", lambda s: float(when(s)))


def _times(amount: float | None, factor: float) -> float | None:
    """0 x unknown is 0."""
    return 0.0 if factor == 0 else None if amount is None else amount * factor


def _gb(s: Situation) -> float | None:
    """Weights that a rank keeps, in GB."""
    return None if s.model.weight_bytes is None else s.model.weight_bytes / 1e9 / s.serving.ranks


def _cold_gb(s: Situation) -> float | None:
    """Weights that come from the disk: all ranks share one page cache."""
    share = 1.0 if s.caches.page_cache is None else s.caches.page_cache
    size = s.model.weight_bytes
    return _times(None if size is None else size / 1e9, 1 - share)


def _layers(s: Situation) -> float | None:
    return None if s.model.layers is None else -(-s.model.layers // s.serving.pp)


def _matrices(s: Situation) -> float | None:
    return None if s.model.matrices is None else s.model.matrices / s.serving.pp


def _graph_kb(s: Situation) -> float | None:
    size = s.model.estimated_graph_kb
    return None if size is None else size / s.serving.pp


def _active_b(s: Situation) -> float | None:
    """Parameters that a token uses on one rank, in billions."""
    count = s.model.active_parameters
    return None if count is None else count / 1e9 / s.serving.ranks


def _tokenizer_mb(s: Situation) -> float | None:
    return None if s.model.tokenizer_bytes is None else s.model.tokenizer_bytes / 1e6


def _always(s: Situation) -> bool:
    return True


def _is_hit(s: Situation) -> bool:
    return s.is_compiled and s.caches.compile == HIT


def _is_miss(s: Situation) -> bool:
    return s.is_compiled and s.caches.compile in (MISS, DISABLED)


def _is_cold(s: Situation) -> bool:
    return s.caches.kernels_cold


def _captures(s: Situation) -> bool:
    return bool(s.graph_sizes)


def _is_moe(s: Situation) -> bool:
    return s.model.experts > 0


_EVERY = _constant("constant", CPU, _always)
_TOKENIZER = Term("tokenizer", "MB", CPU, "tokenizer size", _tokenizer_mb)
_RANKS = Term("further ranks", "ranks", CPU, "ranks", lambda s: s.serving.ranks - 1.0)


def _when(name: str, term: Term, when: Callable[[Situation], bool]) -> Term:
    """`term`, but 0 unless `when`."""
    return replace(term, name=name, value=lambda s: term.value(s) if when(s) else 0.0)


_LAYERS = Term("layers", "layers", CPU, "layers", _layers)
_MATRICES = Term("matrices", "matrices", CPU, "layers", _matrices)
_GRAPH = Term("graph size", "kB", CPU, "layers", _graph_kb)
_ACTIVE = Term("parameters used", "billion", GPU, "parameters", _active_b)
_WEIGHTS = Term("weights", "GB", MEMORY, "weight bytes", _gb)
_OTHER_LOADERS = ("runai_streamer", "tensorizer")


def _loaded_by(name: str) -> Callable[[Situation], bool]:
    return lambda s: s.serving.load_format == name


def _graphs(s: Situation) -> float | None:
    return _times(_layers(s), len(s.graph_sizes))


SUBSTEPS = (
    SubstepModel("interpreter_start", (_EVERY,)),
    SubstepModel("imports", (_EVERY,)),
    SubstepModel("platform_detection", (_EVERY,)),
    SubstepModel("engine_config", (_EVERY,)),
    SubstepModel(
        "model_inspection",
        (
            _constant("not remembered", CPU, lambda s: s.caches.model_info == MISS),
            _constant("remembered", CPU, lambda s: s.caches.model_info == HIT),
        ),
    ),
    SubstepModel("engine_process_start", (_EVERY,)),
    SubstepModel("worker_start", (_EVERY, _RANKS)),
    SubstepModel("device_init", (_EVERY, _RANKS)),
    SubstepModel("api_server_tokenizer", (_EVERY, _TOKENIZER)),
    SubstepModel("engine_tokenizer", (_EVERY, _TOKENIZER)),
    SubstepModel("model_structure", (_EVERY, _LAYERS)),
    SubstepModel(
        "load_weights",
        (
            Term("read from disk", "GB", DISK, "weight bytes", _cold_gb),
            _when("weights", _WEIGHTS, lambda s: s.serving.load_format not in _OTHER_LOADERS),
            *(_when(f"weights by {name}", _WEIGHTS, _loaded_by(name)) for name in _OTHER_LOADERS),
        ),
        by_family=True,
    ),
    SubstepModel("weight_postprocess", (_EVERY, _WEIGHTS)),
    SubstepModel(
        "dynamo_transform",
        (
            _constant("constant", CPU, lambda s: s.is_compiled),
            _when("matrices", _MATRICES, lambda s: s.is_compiled),
        ),
        by_family=True,
    ),
    SubstepModel(
        "graph_compile",
        (
            _constant("miss", CPU, _is_miss),
            _when("layers on a miss", _LAYERS, _is_miss),
            _when("graph size on a miss", _GRAPH, _is_miss),
            _constant("kernels built", CPU, lambda s: _is_miss(s) and _is_cold(s)),
            _when(
                "expert layers built",
                _LAYERS,
                lambda s: _is_miss(s) and _is_cold(s) and _is_moe(s),
            ),
            _constant("hit", CPU, _is_hit),
            _when("layers on a hit", _LAYERS, _is_hit),
        ),
        by_family=True,
    ),
    SubstepModel(
        "graph_cache_load",
        (
            _constant("hit", CPU, _is_hit),
            _when("layers on a hit", _LAYERS, _is_hit),
            _when("graph size on a hit", _GRAPH, _is_hit),
            _constant("miss", CPU, _is_miss),
        ),
        by_family=True,
    ),
    SubstepModel(
        "profile_run",
        (
            _constant("constant", GPU, _always),
            _ACTIVE,
            _constant("compiled", GPU, lambda s: s.is_compiled),
            _when("parameters used, compiled", _ACTIVE, lambda s: s.is_compiled),
            _constant("kernels built", CPU, _is_cold),
        ),
        by_family=True,
    ),
    SubstepModel("kv_cache_allocation", (_constant("constant", GPU, _always), _RANKS)),
    SubstepModel("kernel_warmup", (_constant("constant", GPU, _always),)),
    SubstepModel(
        "graph_capture",
        (
            _constant("constant", GPU, _captures),
            Term("layers x sizes", "graphs", GPU, "captured sizes", _graphs),
            Term(
                "parameters used x tokens",
                "billion",
                GPU,
                "captured sizes",
                lambda s: _times(_active_b(s), sum(s.graph_sizes)),
            ),
            Term(
                "expert layers x sizes",
                "graphs",
                GPU,
                "captured sizes",
                lambda s: _times(_graphs(s), _is_moe(s)),
            ),
            Term(
                "layers x sizes, not compiled",
                "graphs",
                GPU,
                "captured sizes",
                lambda s: _times(_graphs(s), not s.is_compiled),
            ),
        ),
        by_family=True,
    ),
    SubstepModel("app_build", (_EVERY,)),
    SubstepModel("listen", (_EVERY,)),
    SubstepModel(UNATTRIBUTED, (_EVERY, _TOKENIZER)),
)


# A fit ---------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SubstepFit:
    """Seconds a unit of each term; a term that no start had is not in it.

    `families` are relative: 0.03 is 3 % more than the terms tell.
    """

    terms: Mapping[str, float]
    families: Mapping[str, float] = field(default_factory=dict)
    rows: int = 0

    def factor(self, model: Model) -> float:
        """What the model's family multiplies the terms with."""
        return 1 + self.families.get(model.family or "", 0.0)


@dataclass(frozen=True, slots=True)
class Fit:
    """The coefficients of all sub-steps. `scales` are those of a calibration, by resource."""

    substeps: Mapping[str, SubstepFit]
    scales: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values; `from_json` reads them back."""
        substeps = {
            name: {"terms": dict(each.terms), "families": dict(each.families), "rows": each.rows}
            for name, each in self.substeps.items()
        }
        return {"substeps": substeps, "scales": dict(self.scales)}

    @classmethod
    def from_json(cls, data: Any) -> Fit:
        """Raises ColdtraceError for what `to_json` never wrote."""
        try:
            substeps = {
                str(name): SubstepFit(
                    _numbers(each["terms"]), _numbers(each["families"]), int(each["rows"])
                )
                for name, each in data["substeps"].items()
            }
            return cls(substeps, _numbers(data["scales"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ColdtraceError(f"the profile's fit can't be read: {error!r}") from error


def _numbers(data: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): float(value) for name, value in data.items()}


def situation_of(row: Observation) -> Situation:
    """What was known of a start before it happened."""
    return Situation(row.model, row.serving, row.caches)


def fit(rows: Sequence[Observation], prior: Fit | None = None) -> Fit:
    """The coefficients that fit `rows` best, none of them negative.

    `prior` has a word where the rows can't tell; raises ColdtraceError for no rows.
    """
    if not rows:
        raise ColdtraceError("there are no starts to learn from")
    substeps = {}
    for model in SUBSTEPS:
        known = prior.substeps.get(model.id) if prior else None
        fitted = _fit_substep(model, rows, known)
        if fitted is not None:
            substeps[model.id] = fitted
    return Fit(substeps, prior.scales if prior else {})


def _fit_substep(
    model: SubstepModel, rows: Sequence[Observation], prior: SubstepFit | None
) -> SubstepFit | None:
    import numpy as np
    from sklearn.linear_model import BayesianRidge

    values, seconds, families = _equations(model, rows)
    if not seconds:
        return prior
    x: Any = np.array(values)
    y: Any = np.array(seconds)
    seen = x.any(axis=0)
    named = sorted({family for family in families if family})
    members: Any = np.array([[family == name for name in named] for family in families], float)
    effects = np.array([prior.families.get(name, 0.0) if prior else 0.0 for name in named])
    coefficients = _non_negative(model, x, y, 1 + members @ effects, prior)
    for _ in range(FAMILY_ROUNDS if model.by_family and len(named) >= 3 else 0):
        plain = x @ coefficients
        used = plain > NEGLIGIBLE * y.max()
        if members[used].any(axis=0).sum() < 3:
            break
        weights = plain[used] ** 2  # an error of the same seconds is a smaller share of more
        ridge = BayesianRidge(fit_intercept=False)
        ridge.fit(members[used], y[used] / plain[used] - 1, weights / weights.mean())
        effects = ridge.coef_
        coefficients = _non_negative(model, x, y, 1 + members @ effects, prior)
    terms = dict(prior.terms) if prior else {}
    for index, term in enumerate(model.terms):
        if seen[index]:
            terms[term.name] = float(coefficients[index])
    by_family = dict(prior.families) if prior else {}
    by_family.update(zip(named, map(float, effects), strict=True))
    return SubstepFit(terms, {k: v for k, v in by_family.items() if v}, len(seconds))


def _equations(
    model: SubstepModel, rows: Iterable[Observation]
) -> tuple[list[list[float]], list[float], list[str]]:
    """Terms, seconds and family of each row that knows them all."""
    values, seconds, families = [], [], []
    for row in rows:
        situation = situation_of(row)
        terms = [term.value(situation) for term in model.terms]
        if model.id in row.seconds and None not in terms:
            values.append([value for value in terms if value is not None])
            seconds.append(row.seconds[model.id])
            families.append(row.model.family or "")
    return values, seconds, families


def _non_negative(
    model: SubstepModel, x: Any, y: Any, factors: Any, prior: SubstepFit | None
) -> Any:
    """Non-negative least squares; the prior is one more start a term, of little weight."""
    import numpy as np
    from sklearn.linear_model import LinearRegression

    if not y.any():
        return np.zeros(len(model.terms))
    sizes = x.max(axis=0)
    sizes[sizes == 0] = 1
    expected = np.zeros(len(sizes))
    weight = NO_PRIOR_WEIGHT
    if prior is not None:
        known = [prior.terms.get(term.name, 0.0) for term in model.terms]
        expected, weight = np.array(known) * sizes, PRIOR_WEIGHT
    free = np.array([term.is_constant for term in model.terms]) & (expected == 0)
    strength = np.where(free, 0.0, weight * y.mean() / np.maximum(expected, y.mean()))
    design = np.vstack([x / sizes * factors[:, None], np.diag(strength)])
    target = np.concatenate([y, strength * expected])
    regression = LinearRegression(positive=True, fit_intercept=False)
    return regression.fit(design, target).coef_ / sizes


# A node with few starts ------------------------------------------------------------


def calibrate(reference: Fit, rows: Sequence[Observation]) -> Fit:
    """`reference` scaled to the node that `rows` are from.

    Slopes scale with the resource that they use, by one non-negative regression over
    all sub-steps; constants become what the rows took beside the slopes.
    """
    scales = _resource_scales(reference, rows)
    substeps = {}
    for model in SUBSTEPS:
        known = reference.substeps.get(model.id, SubstepFit({}))
        scaled = {
            term.name: known.terms[term.name] * scales[term.resource]
            for term in model.terms
            if term.name in known.terms
        }
        calibrated = _with_constants(model, replace(known, terms=scaled), rows)
        if calibrated.terms:
            substeps[model.id] = calibrated
    return Fit(substeps, scales)


def _resource_scales(reference: Fit, rows: Sequence[Observation]) -> dict[str, float]:
    import numpy as np
    from sklearn.linear_model import LinearRegression

    resources = (CPU, DISK, MEMORY, GPU)
    shares, ratios = [], []
    for row in rows:
        for model in filter(_has_slopes, SUBSTEPS):
            parts = _parts(model, reference, situation_of(row))
            expected = sum(parts.values())
            if model.id in row.seconds and expected > 0:
                weight = expected**0.5  # long sub-steps tell more of a resource than short ones
                ratios.append(weight * row.seconds[model.id] / expected)
                shares.append([weight * parts.get(each, 0.0) / expected for each in resources])
    design = np.vstack([np.array(shares).reshape(-1, 4), SCALE_WEIGHT * np.eye(4)])
    target = np.concatenate([ratios, np.full(4, SCALE_WEIGHT)])
    scales = LinearRegression(positive=True, fit_intercept=False).fit(design, target).coef_
    return {name: float(value) for name, value in zip(resources, scales, strict=True)}


def _has_slopes(model: SubstepModel) -> bool:
    return model.id != UNATTRIBUTED and not all(term.is_constant for term in model.terms)


def _parts(model: SubstepModel, reference: Fit, situation: Situation) -> dict[str, float]:
    """Expected seconds by resource; what isn't known counts nothing."""
    known = reference.substeps.get(model.id)
    parts: dict[str, float] = {}
    if known is None:
        return parts
    for term in model.terms:
        value = term.value(situation) or 0.0
        seconds = value * known.terms.get(term.name, 0.0) * known.factor(situation.model)
        parts[term.resource] = parts.get(term.resource, 0.0) + seconds
    return parts


def _with_constants(
    model: SubstepModel, known: SubstepFit, rows: Sequence[Observation]
) -> SubstepFit:
    """`known` with the constants that fit the rows best once its slopes are taken off.

    A slope that it lacks is 0: the constants hold what there is of it.
    """
    import numpy as np

    values, seconds, families = _equations(model, rows)
    if not seconds:
        return known
    x: Any = np.array(values)
    fixed = np.array([not term.is_constant for term in model.terms])
    slopes = np.array([known.terms.get(term.name, 0.0) for term in model.terms]) * fixed
    factors = np.array([1 + known.families.get(family, 0.0) for family in families])
    rest = np.maximum(np.array(seconds) - (x @ slopes) * factors, 0.0)
    constants = _non_negative(model, x * ~fixed, rest, factors, known) * ~fixed
    terms = dict(known.terms)
    for index, term in enumerate(model.terms):
        if x[:, index].any():
            terms[term.name] = float(constants[index] + slopes[index])
    return SubstepFit(terms, known.families, len(seconds))


# Predicting ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PredictedTerm:
    """One term filled in: `seconds` = `amount` x `rate`; rate None: no start had it."""

    name: str
    unit: str
    source: str
    resource: str
    amount: float | None
    rate: float | None

    @property
    def seconds(self) -> float | None:
        return None if self.amount is None or self.rate is None else self.amount * self.rate


@dataclass(frozen=True, slots=True)
class PredictedSubstep:
    """A sub-step's terms and the family's factor on their sum."""

    id: str
    terms: tuple[PredictedTerm, ...]
    factor: float

    @property
    def seconds(self) -> float:
        """As far as it is known: `unknown` says what isn't in it."""
        return self.factor * sum(term.seconds or 0.0 for term in self.terms)

    @property
    def unknown(self) -> tuple[str, ...]:
        return tuple(term.name for term in self.terms if term.seconds is None)


@dataclass(frozen=True, slots=True)
class Prediction:
    """Seconds from exec to ready."""

    substeps: tuple[PredictedSubstep, ...]

    @property
    def total_s(self) -> float:
        return sum(substep.seconds for substep in self.substeps)

    def sensitivities(self) -> dict[str, float]:
        """Seconds that one per cent more of each input, or one per cent less of a
        resource's speed, adds; the largest first."""
        found: dict[str, float] = {}
        for substep in self.substeps:
            for term in substep.terms:
                seconds = substep.factor * (term.seconds or 0.0) / 100
                for name in (term.source, f"{term.resource} speed"):
                    if name:
                        found[name] = found.get(name, 0.0) + seconds
        return dict(sorted(found.items(), key=lambda item: -item[1]))


def predict(
    fitted: Fit,
    situation: Situation,
    cpu_speed: float = 1.0,
    disk_gbps: float | None = None,
) -> Prediction:
    """What `fitted` expects of a start.

    `cpu_speed` is relative to the fit's node, `disk_gbps` replaces its disk (GB/s).
    """
    substeps = []
    for model in SUBSTEPS:
        known = fitted.substeps.get(model.id)
        if known is None:
            continue
        terms = tuple(
            _predicted(term, known, situation, cpu_speed, disk_gbps)
            for term in model.terms
            if term.value(situation) != 0
        )
        substeps.append(PredictedSubstep(model.id, terms, known.factor(situation.model)))
    return Prediction(tuple(substeps))


def _predicted(
    term: Term,
    known: SubstepFit,
    situation: Situation,
    cpu_speed: float,
    disk_gbps: float | None,
) -> PredictedTerm:
    rate = known.terms.get(term.name)
    if rate is not None and term.resource == CPU:
        rate /= cpu_speed
    if term.resource == DISK and disk_gbps is not None:
        rate = 1 / disk_gbps / known.factor(situation.model)
    amount = term.value(situation)
    return PredictedTerm(term.name, term.unit, term.source, term.resource, amount, rate)
