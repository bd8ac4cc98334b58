"""A node's profile: the rows of its starts and what was fitted to them, as JSON on disk.

The rows stay in it, so that fitting again needs no traces. Without rows the published
starts speak (analysis/reference/); `python -m analysis.profile` fits those anew.
"""

from __future__ import annotations

import fcntl
import json
import os
import pwd
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

from analysis.features import Model, Node
from analysis.observations import Observation, read_tables
from analysis.predictor import MIN_ROWS, Fit
from tracer.errors import ColdtraceError

SCHEMA = 1
KIND = "coldtrace_profile"
MAX_BYTES = 64 << 20
MAX_ROWS = 1000
LOCK_S = 2.0
FOLDER = Path(__file__).parent / "reference"
TABLES = (FOLDER / "starts.csv", FOLDER / "models.csv")
REFERENCE_NODE = "n1"
OTHER_NODES = ("n3", "node5")
CITATION = (
    "published starts of vLLM 0.10.1.1 on an H100 NVL (Kabakibo, Trivedi, Wang: Breaking the "
    "Ice, MLSys 2026, arXiv 2606.07362)"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """What the published starts tell. `half_widths` are those of predictions for
    another node after 0, 1, 2, ... starts of it."""

    node: Node
    fit: Fit
    half_widths: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Profile:
    """A node, its starts, and the fit of the first `fitted_rows` of them.

    `half_width` is the relative half width of the interval of a total; `basis` says
    for people what the fit is made from.
    """

    node: Node
    rows: tuple[Observation, ...]
    fit: Fit
    half_width: float
    basis: str
    fitted_rows: int

    @property
    def is_stale(self) -> bool:
        """Whether rows have come since the fit."""
        return self.fitted_rows != len(self.rows)


@cache
def reference() -> Reference:
    """The published starts' fit, as it is shipped."""
    data = json.loads((FOLDER / "fit.json").read_text("utf-8"))
    node = Node(**data["node"])
    return Reference(node, Fit.from_json(data["fit"]), tuple(data["half_widths"]))


def unlearned(node: Node) -> Profile:
    """The profile of a node that no start is known of."""
    known = reference()
    basis = f"no start of this node yet: {CITATION}"
    return Profile(node, (), known.fit, known.half_widths[0], basis, 0)


def made(rows: Sequence[Observation], uses_reference: bool = True) -> Profile:
    """The profile of the node that `rows` are from; raise ColdtraceError where they are
    of several."""
    from analysis.evaluation import by_model, fit_node, half_width, leave_out, predicted

    node = rows[0].node
    stranger = next((row.node for row in rows if not same_node(row.node, node)), None)
    if stranger is not None:
        raise ColdtraceError(
            f"these starts are of different nodes, {describe(node)} and {describe(stranger)}; "
            "a profile is of one"
        )
    known = reference()
    prior = known.fit if uses_reference and not same_node(node, known.node) else None
    fitted = fit_node(rows, prior)
    if prior is not None and len(rows) < MIN_ROWS:
        typical = known.half_widths[min(len(rows), len(known.half_widths) - 1)]
        width = max(typical, half_width(predicted(fitted, rows)))
        missing = MIN_ROWS - len(rows)
        basis = f"{_starts(len(rows))} of this node scale it ({missing} more and they decide): "
        return Profile(node, tuple(rows), fitted, width, basis + CITATION, len(rows))
    pairs = leave_out(rows, by_model, prior)
    if len({row.model.name for row in rows}) < 2:
        pairs = predicted(fitted, rows)
    return Profile(
        node,
        tuple(rows),
        fitted,
        half_width(pairs),
        f"{_starts(len(rows))} of this node",
        len(rows),
    )


def _starts(count: int) -> str:
    return "1 start" if count == 1 else f"{count} starts"


def refreshed(profile: Profile) -> Profile:
    """With the fit of all its rows."""
    return made(profile.rows) if profile.is_stale else profile


def same_node(one: Node, other: Node) -> bool:
    """Whether two are the same as far as both are known; a name may change."""
    pairs = ((one.cpu, other.cpu), (one.cores, other.cores), (one.gpu, other.gpu))
    named = one.name == other.name or (one.cores and other.cores)
    return bool(named) and all(a == b or not a or not b for a, b in pairs)


def describe(node: Node) -> str:
    """A node for people."""
    parts = [node.cpu, f"{node.cores} cores" if node.cores else "", node.gpu or "no GPU"]
    return f"{node.name} ({', '.join(part for part in parts if part)})"


def known_graph_kb(profile: Profile, model: Model) -> float | None:
    """The size of the model's traced graph, where a start of it has shown it."""
    for row in reversed(profile.rows):
        same = (row.model.name, row.model.weight_bytes) == (model.name, model.weight_bytes)
        if same and row.model.graph_kb is not None:
            return row.model.graph_kb
    return None


# On disk ---------------------------------------------------------------------------


def default_path() -> Path:
    """Where the profile of this node lies for the present user."""
    home = os.environ.get("HOME", "")
    data = os.environ.get("XDG_DATA_HOME", "")
    if not _is_mine(home):  # root's environment, after sudo
        home, data = pwd.getpwuid(os.getuid()).pw_dir, ""
    folder = Path(data) if data.startswith("/") else Path(home) / ".local" / "share"
    return folder / "coldtrace" / "profile.json"


def _is_mine(folder: str) -> bool:
    try:
        return os.stat(folder).st_uid == os.getuid()
    except OSError:
        return False


def load(path: Path) -> Profile:
    """Read a profile; raise ColdtraceError, one line, where it is none."""
    try:
        with open(path, "rb") as file:
            text = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ColdtraceError(f"can't read the profile {path}: {error.strerror}") from error
    try:
        data = json.loads(text, parse_constant=_refuse) if len(text) <= MAX_BYTES else None
    except (ValueError, RecursionError):
        data = None
    if not isinstance(data, dict) or not isinstance(data.get(KIND), int):
        raise ColdtraceError(f"{path} is no profile of coldtrace; `coldtrace fit` makes one")
    if data[KIND] > SCHEMA:
        raise ColdtraceError(
            f"{path} was written by a newer coldtrace ({data.get('made_by')}); update this one"
        )
    try:
        return Profile(
            node=Node(**data["node"]),
            rows=tuple(Observation.from_json(row) for row in data["rows"]),
            fit=Fit.from_json(data["fit"]),
            half_width=float(data["half_width"]),
            basis=str(data["basis"]),
            fitted_rows=int(data["fitted_rows"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ColdtraceError(f"the profile {path} is damaged: {error!r}") from error


def _refuse(constant: str) -> None:
    raise ValueError(constant)


def save(profile: Profile, path: Path) -> None:
    """Replace the file at once, so that nobody reads half of one."""
    data = {
        KIND: SCHEMA,
        "made_by": metadata.version("coldtrace"),
        "node": asdict(profile.node),
        "basis": profile.basis,
        "half_width": profile.half_width,
        "fitted_rows": profile.fitted_rows,
        "fit": profile.fit.to_json(),
        "rows": [row.to_json() for row in profile.rows],
    }
    _write(path, data)


def _write(path: Path, data: Mapping[str, Any]) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with open(handle, "w") as file:
                json.dump(data, file, indent=1)
                file.write("\n")
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ColdtraceError(f"can't write {path}: {error.strerror}") from error


def learn(row: Observation, path: Path) -> None:
    """Add a start to the profile in `path`, without fitting: whoever predicts does that.

    Raises ColdtraceError where it can't, within LOCK_S.
    """
    with _locked(path):
        profile = load(path) if path.exists() else unlearned(row.node)
        if not same_node(profile.node, row.node):
            raise ColdtraceError(
                f"{path} is the profile of {describe(profile.node)}, this start was on "
                f"{describe(row.node)}; it is not added"
            )
        rows = (*profile.rows, row)[-MAX_ROWS:]
        save(replace(profile, rows=rows, fitted_rows=min(profile.fitted_rows, len(rows) - 1)), path)


def load_fitted(path: Path) -> Profile:
    """Read a profile and fit what has come since the last time, for the next one too."""
    profile = load(path)
    if not profile.is_stale:
        return profile
    profile = refreshed(profile)
    with suppress(ColdtraceError), _locked(path):
        if len(load(path).rows) == len(profile.rows):
            save(profile, path)
    return profile


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Be the only writer of `path`."""
    lock = path.with_name(f"{path.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = open(lock, "w")  # noqa: SIM115
    except OSError as error:
        raise ColdtraceError(f"can't write {lock}: {error.strerror}") from error
    with file:
        deadline = time.monotonic() + LOCK_S
        while True:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if time.monotonic() > deadline:
                    raise ColdtraceError(f"{path} is in use by another coldtrace") from error
                time.sleep(0.05)
        yield


# The published starts ----------------------------------------------------------------


def fit_reference() -> dict[str, Any]:
    """What reference/fit.json holds, from the tables beside it."""
    from analysis.evaluation import calibrated, half_width, single
    from analysis.predictor import fit

    rows = read_tables(*TABLES)
    own = single(rows, REFERENCE_NODE)
    fitted = fit(own)
    widths = [
        half_width(
            [pair for node in OTHER_NODES for pair in calibrated(fitted, single(rows, node), count)]
        )
        for count in range(MIN_ROWS)
    ]
    return {"node": asdict(own[0].node), "half_widths": widths, "fit": fitted.to_json()}


if __name__ == "__main__":
    _write(FOLDER / "fit.json", fit_reference())
