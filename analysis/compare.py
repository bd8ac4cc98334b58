"""What differs between starts: sub-step by sub-step, and what is behind it.

A side is one start or several. Of several the median counts, and a difference counts
only beyond the spread: the widest range that either side has, and at least what equal
starts are known to differ by.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import TypeVar

from analysis.sides import Kind, Side
from analysis.signature import Signatures

ENOUGH_STARTS = 3
"""From here on a side's range says how much equal starts differ; and at least by"""
LEAST_NS, LEAST_SHARE = 30_000_000, 0.03
FEW_NS, FEW_SHARE = 150_000_000, 0.15
"""these, and these where a side has fewer."""

TOP = 4
"""Of what moved, and of each kind of what is behind it."""
NOTEWORTHY_SHARE = 0.1
"""What moved less than this part of a sub-step's difference isn't behind it."""
NOTEWORTHY_BYTES = 1_000_000
NOTEWORTHY_CORES = 0.2
"""Of other programs: where they use more, starts wait for cores by no fault of their own."""

RUNNABLE: Kind = ("runnable", None)
_Key = TypeVar("_Key")


# The comparison ------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spread:
    """A time of each start of one side."""

    values_ns: tuple[int, ...]

    @property
    def median_ns(self) -> int:
        return round(median(self.values_ns))

    @property
    def range_ns(self) -> int:
        return max(self.values_ns) - min(self.values_ns)


@dataclass(frozen=True, slots=True)
class Moved:
    """A share of a sub-step's time that differs, by the medians."""

    kind: str
    what: str | None
    a_ns: int
    b_ns: int

    @property
    def difference_ns(self) -> int:
        return self.b_ns - self.a_ns


@dataclass(frozen=True, slots=True)
class Cause:
    """Something else that differs: `unit` is "ns", "bytes", "count", "cores" or "text"."""

    subject: str
    unit: str
    a: float | str
    b: float | str


@dataclass(frozen=True, slots=True)
class Difference:
    """One sub-step, or the whole start, on both sides."""

    id: str
    title: str
    a: Spread
    b: Spread
    disturbed_ns: int = 0
    """How much longer one side waited for a core while other programs used some."""
    moved: tuple[Moved, ...] = ()
    causes: tuple[Cause, ...] = ()

    @property
    def difference_ns(self) -> int:
        """B's median less A's."""
        return self.b.median_ns - self.a.median_ns

    @property
    def spread_ns(self) -> int:
        """What equal starts may differ by."""
        few = min(len(self.a.values_ns), len(self.b.values_ns)) < ENOUGH_STARTS
        least_ns, share = (FEW_NS, FEW_SHARE) if few else (LEAST_NS, LEAST_SHARE)
        larger_ns = max(self.a.median_ns, self.b.median_ns)
        equal_ns = max(self.a.range_ns, self.b.range_ns, least_ns, round(share * larger_ns))
        return equal_ns + self.disturbed_ns

    @property
    def is_beyond(self) -> bool:
        return abs(self.difference_ns) > self.spread_ns


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two sides; `substeps` are those that either has, the largest difference first."""

    a: Side
    b: Side
    wall: Difference
    substeps: tuple[Difference, ...]
    circumstances: tuple[Cause, ...]
    """What differs around the starts: versions, machines, caches, commands, other load."""
    others_cores: float
    """The most cores that other programs used during any of the starts."""

    @property
    def is_disturbed(self) -> bool:
        """Whether starts may have waited for cores that other programs used."""
        return self.others_cores > NOTEWORTHY_CORES

    @property
    def beyond(self) -> tuple[Difference, ...]:
        """The sub-steps that differ beyond the spread."""
        return tuple(each for each in self.substeps if each.is_beyond)


def compare(a: Side, b: Side, signatures: Signatures) -> Comparison:
    """Hold two sides against each other."""
    titles: dict[str, str] = {}
    for start in (*a.starts, *b.starts):
        titles |= {substep: start.titles[substep] for substep in start.times_ns}
    others_cores = max(start.others_cores or 0 for start in (*a.starts, *b.starts))
    waits = {substep: _longer_runnable_ns(substep, a, b) for substep in titles}
    if others_cores <= NOTEWORTHY_CORES:
        waits = dict.fromkeys(titles, 0)
    substeps = (
        _difference(substep, title, a, b, waits[substep], signatures)
        for substep, title in titles.items()
    )
    return Comparison(
        a,
        b,
        Difference("wall", "wall clock", _walls(a), _walls(b), sum(waits.values())),
        tuple(sorted(substeps, key=lambda each: -abs(each.difference_ns))),
        tuple(_circumstances(a, b)),
        others_cores,
    )


def _walls(side: Side) -> Spread:
    return Spread(tuple(start.result.wall_ns for start in side.starts))


def _times(substep: str, side: Side) -> Spread:
    return Spread(tuple(start.times_ns.get(substep, 0) for start in side.starts))


def _longer_runnable_ns(substep: str, a: Side, b: Side) -> int:
    """How much longer one side's median waited for a core."""
    in_a, in_b = (
        median(start.shares_ns.get(substep, {}).get(RUNNABLE, 0) for start in side.starts)
        for side in (a, b)
    )
    return round(abs(in_b - in_a))


def _difference(
    substep: str, title: str, a: Side, b: Side, disturbed_ns: int, signatures: Signatures
) -> Difference:
    plain = Difference(substep, title, _times(substep, a), _times(substep, b), disturbed_ns)
    if not plain.is_beyond:
        return plain
    moved = tuple(_moved(substep, plain, a, b))
    causes = tuple(_causes(substep, plain, a, b, signatures))
    return replace(plain, moved=moved, causes=causes)


def _moved(substep: str, plain: Difference, a: Side, b: Side) -> list[Moved]:
    shares = [[start.shares_ns.get(substep, {}) for start in side.starts] for side in (a, b)]
    medians = _medians(*shares)
    least_ns = NOTEWORTHY_SHARE * abs(plain.difference_ns)
    moved = [Moved(*kind, round(in_a), round(in_b)) for kind, (in_a, in_b) in medians.items()]
    moved = [each for each in moved if abs(each.difference_ns) > least_ns]
    return sorted(moved, key=lambda each: -abs(each.difference_ns))[:TOP]


def _medians(
    a: Sequence[Mapping[_Key, int]], b: Sequence[Mapping[_Key, int]]
) -> dict[_Key, tuple[float, float]]:
    """The medians on both sides of each key that any start has; one that lacks it has 0."""
    keys = dict.fromkeys(key for start in (*a, *b) for key in start)
    return {
        key: (median(start.get(key, 0) for start in a), median(start.get(key, 0) for start in b))
        for key in keys
    }


# What is behind a difference -------------------------------------------------------------


def _causes(
    substep: str, plain: Difference, a: Side, b: Side, signatures: Signatures
) -> Iterator[Cause]:
    yield from _cache_causes(substep, a, b, signatures)
    disk = [[start.disk_bytes.get(substep, {}) for start in side.starts] for side in (a, b)]
    yield from _largest("read from disk: ", "bytes", _medians(*disk), NOTEWORTHY_BYTES)
    if substep == signatures.imports:
        packages = [[start.packages_ns for start in side.starts] for side in (a, b)]
        least_ns = NOTEWORTHY_SHARE * abs(plain.difference_ns)
        yield from _largest("import of ", "ns", _medians(*packages), least_ns)
    titles = {group.id: group.title.lower() for group in signatures.files}
    opened = [[start.files.get(substep, {}) for start in side.starts] for side in (a, b)]
    by_title = {
        titles[kind]: counts
        for kind, counts in _medians(*opened).items()
        if abs(counts[1] - counts[0]) > NOTEWORTHY_SHARE * max(counts)
    }
    yield from _largest("files opened: ", "count", by_title, 0)


def _largest(
    prefix: str, unit: str, medians: Mapping[str, tuple[float, float]], least: float
) -> Iterator[Cause]:
    """Those that differ most, by more than `least`."""
    apart = {name: pair for name, pair in medians.items() if abs(pair[1] - pair[0]) > least}
    for name in sorted(apart, key=lambda name: -abs(apart[name][1] - apart[name][0]))[:TOP]:
        yield Cause(f"{prefix}{name}", unit, *apart[name])


def _cache_causes(substep: str, a: Side, b: Side, signatures: Signatures) -> Iterator[Cause]:
    """The caches that this sub-step uses and that weren't equally warm."""
    used = {cache.id for cache in signatures.caches if substep in (*cache.missed, *cache.hit)}
    used |= {
        f"page_cache.{kind}"
        for start in (*a.starts, *b.starts)
        for kind in start.files.get(substep, {})
    }
    yield from (cause for cache, cause in _unequal_caches(a, b) if cache in used)


def _unequal_caches(a: Side, b: Side) -> Iterator[tuple[str, Cause]]:
    """The ids of the caches that weren't equally warm, and how warm they were."""
    states = [_states(side) for side in (a, b)]
    titles = {cache.id: cache.title for start in a.starts for cache in start.result.caches}
    for cache, title in titles.items():
        in_a, in_b = (of.get(cache, "unknown") for of in states)
        if in_a != in_b:
            yield cache, Cause(title.lower(), "text", in_a, in_b)


def _states(side: Side) -> dict[str, str]:
    """What each cache was: "cold", or "cold or warm" where the starts differ."""
    states: dict[str, set[str]] = {}
    for start in side.starts:
        for cache in start.result.caches:
            states.setdefault(cache.id, set()).add(cache.state)
    return {cache: " or ".join(sorted(found)) for cache, found in states.items()}


def _circumstances(a: Side, b: Side) -> Iterator[Cause]:
    versions = [_all(dict(start.result.versions) for start in side.starts) for side in (a, b)]
    hosts = [_all(start.host for start in side.starts) for side in (a, b)]
    for kind, pair in (("version of ", versions), ("machine's ", hosts)):
        for name in dict.fromkeys((*pair[0], *pair[1])):
            in_a, in_b = (of.get(name, "-") for of in pair)
            if in_a != in_b:
                yield Cause(f"{kind}{name}", "text", in_a, in_b)
    yield from (cause for _, cause in _unequal_caches(a, b))
    words = [
        dict.fromkeys(w for start in side.starts for w in start.result.command) for side in (a, b)
    ]
    only = [
        " ".join(word for word in of if word not in other) for of, other in (words, words[::-1])
    ]
    if any(only):
        yield Cause("only in the command", "text", only[0] or "-", only[1] or "-")
    others = [
        [start.others_cores for start in side.starts if start.others_cores is not None]
        for side in (a, b)
    ]
    if all(others):
        by_others = (median(others[0]), median(others[1]))
        if abs(by_others[1] - by_others[0]) > NOTEWORTHY_CORES:
            yield Cause("cores used by other programs", "cores", *by_others)


def _all(of_starts: Iterable[Mapping[str, object]]) -> dict[str, str]:
    """Each name's values in all starts of a side, as one text."""
    found: dict[str, dict[str, None]] = {}
    for values in of_starts:
        for name, value in values.items():
            found.setdefault(name, {})[str(value)] = None
    return {name: " or ".join(values) for name, values in found.items()}
