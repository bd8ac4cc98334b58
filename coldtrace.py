"""The door: parses the command line, and loads a command only when it is called."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from analysis.prediction_commands import Assumptions
    from tracer.commands import Analysis, Options, Report

Function = TypeVar("Function", bound=Callable[..., Any])

UNTIL = ("ready", "exit")
MAX_FACTOR = 1e9
"""Of options that something is multiplied or divided by."""
FILE = click.Path(path_type=Path, dir_okay=False)
FOLDER = click.Path(path_type=Path, file_okay=False)
OUTPUT_ERRORS = {errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE}
"""Why standard output couldn't be written, if the error names no file."""


def until(_context: click.Context, _param: click.Parameter, value: str) -> str | float:
    """`ready`, `exit` or a number of seconds."""
    if value in UNTIL:
        return value
    try:
        seconds = float(value)
    except ValueError:
        seconds = 0
    if not 0 < seconds < float("inf"):
        raise click.BadParameter(f"{value!r} is neither ready, exit nor a number of seconds")
    return seconds


def page_cache(_context: click.Context, _param: click.Parameter, value: str | None) -> float | None:
    """`cold`, `warm` or the share of the weights that is in memory."""
    if value is None:
        return None
    try:
        share = {"cold": 0.0, "warm": 1.0}.get(value) if value.isalpha() else float(value)
    except ValueError:
        share = None
    if share is None or not 0 <= share <= 1:
        raise click.BadParameter(f"{value!r} is neither cold, warm nor a share from 0 to 1")
    return share


def positive(_context: click.Context, _param: click.Parameter, value: float | None) -> float | None:
    """A number above 0 whose products with others stay finite."""
    if value is not None and not 1 / MAX_FACTOR <= value <= MAX_FACTOR:
        raise click.BadParameter(f"{value:g} is no number above 0, up to {MAX_FACTOR:g}")
    return value


def complete_until(_context: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [word for word in UNTIL if word.startswith(incomplete)]


def recording_options(function: Function) -> Function:
    """What `run` and `attach` have in common."""
    options = (
        click.option(
            "-o",
            "--output",
            type=FILE,
            help="The trace file; never one that exists.  [default: NAME-DATE-TIME.coldtrace]",
        ),
        click.option(
            "--until",
            callback=until,
            shell_complete=complete_until,
            metavar="ready|exit|SECONDS",
            default="ready",
            show_default=True,
            help="When to detach: the command goes on.",
        ),
        click.option(
            "--sampler",
            type=click.Choice(["auto", "bpf", "py-spy"]),
            default="auto",
            show_default=True,
            help="Who takes the stacks; auto: the in-kernel walk, py-spy where that can't.",
        ),
        click.option(
            "--hz",
            type=click.IntRange(1, 1000),
            default=99,
            show_default=True,
            help="Samples a second.",
        ),
        click.option("--user", metavar="NAME", help="The user to run as, or to attach to."),
        click.option("--json", type=FILE, help="Write the result to this file as well, as JSON."),
    )
    for option in reversed(options):
        function = option(function)
    return function


PROFILE = click.option(
    "--profile", type=FILE, help="The profile to use.  [default: this node's own]"
)
MODEL = click.option(
    "--model",
    type=click.Path(path_type=Path, file_okay=False),
    help="Where the model lies, if not where the trace says.",
)
PAGE_CACHE = click.option(
    "--page-cache",
    callback=page_cache,
    metavar="cold|warm|SHARE",
    help="How much of the weights is in memory.",
)


def table_options(function: Function) -> Function:
    """The two tables that `fit` and `evaluate` take."""
    models = click.option("--models", type=FILE, help="The table of their models.")
    starts = click.option("--table", type=FILE, help="A table of starts; takes --models too.")
    return starts(models(function))


def assumption_options(function: Function) -> Function:
    """What `predict` and `plan` assume of a start."""
    options = (
        click.option("--tp", type=click.IntRange(1), default=1, help="Tensor-parallel size."),
        click.option("--pp", type=click.IntRange(1), default=1, help="Pipeline-parallel size."),
        click.option("--enforce-eager", is_flag=True, help="No compilation, no CUDA graphs."),
        click.option("--capture-sizes", type=click.IntRange(0, 8192), help="How many batch sizes."),
        PAGE_CACHE,
        click.option(
            "--compile-cache",
            type=click.Choice(["hit", "miss", "disabled"]),
            help="disabled: compiled again, but with the kernels of earlier starts.",
        ),
        click.option(
            "--cpu-speed",
            type=float,
            callback=positive,
            default=1.0,
            help="Of one core, relative to the profile's node.",
        ),
        click.option("--disk-gbps", type=float, callback=positive, help="GB a second."),
        click.option(
            "--slo-factor",
            type=float,
            callback=positive,
            default=1.5,
            show_default=True,
            help="The SLO bound is that many times the prediction.",
        ),
        PROFILE,
    )
    for option in reversed(options):
        function = option(function)
    return function


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="coldtrace", message="%(prog)s %(version)s")
def cli() -> None:
    """Tell where every millisecond of a vLLM cold start goes, from outside.

    Completion: eval "$(_COLDTRACE_COMPLETE=bash_source coldtrace)", or zsh_source,
    or fish_source.
    """


@cli.command(context_settings={"allow_interspersed_args": False})
@recording_options
@click.option("--cold", is_flag=True, help="First drop the model's files from the page cache.")
@click.option(
    "--cold-compile",
    is_flag=True,
    help="Begin only where the compile caches are empty, else say which variables to set.",
)
@click.option(
    "--learn/--no-learn", default=True, help="Add the start to this node's profile, or leave it."
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def run(command: tuple[str, ...], learn: bool, **options: Any) -> None:
    """Start COMMAND and trace it until it is ready; needs root.

    COMMAND runs as the user who called sudo, or as --user, found on that user's
    PATH, in the foreground, and stays there once coldtrace has detached: signals
    are forwarded, and coldtrace ends with its exit status. All that coldtrace
    says goes to standard error.

    The environment is the one that sudo was called with, which sudo itself takes
    away, and what stands on sudo's command line (sudo A=1 coldtrace ...). Without
    sudo it is the present one; with --user then HOME, USER, LOGNAME and SHELL are
    that user's, and SUDO_* are dropped.

    --cold drops the files of the model that COMMAND names, and no others; the
    line that it prints says how much is left. --cold-compile changes nothing: it
    says what to set for fresh compile caches, and starts nothing until it is set.

    \b
    sudo coldtrace run -- vllm serve MODEL --port 8000
    """
    from tracer.commands import run

    run(command, _options(options), _analysis(learn))


@cli.command()
@click.option("--pid", type=click.IntRange(1), required=True, help="Any process of the start.")
@recording_options
def attach(pid: int, **options: Any) -> None:
    """Trace a start that is under way, until it is ready; needs root.

    The whole tree of processes is taken, from the server down. What was before
    can't be seen: the result says how long that was. Ctrl-C ends the trace and
    leaves the processes alone.
    """
    from tracer.commands import attach

    attach(pid, _options(options), _analysis())


@cli.command()
@click.argument("file", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option(
    "--view",
    type=click.Choice(["paper", "pipeline"]),
    default="paper",
    show_default=True,
    help="Which steps the sub-steps are grouped in.",
)
@click.option("--imports", is_flag=True, help="Show the time of imports, by package.")
@click.option("--files", is_flag=True, help="Show the files that were read.")
@click.option("--step", metavar="ID", help="Show one step or sub-step by its functions.")
@click.option("--critical-path", is_flag=True, help="Show who waited for whom, and the slack.")
@click.option("--html", type=FILE, help="Write one page to look at, which needs no network.")
@click.option("--perfetto", type=FILE, help="Write trace events for ui.perfetto.dev.")
@click.option("--speedscope", type=FILE, help="Write profiles for speedscope.app.")
@click.option("--folded", type=FILE, help="Write folded stacks for flame graph tools.")
@click.option("--csv", type=FOLDER, help="Write tables as CSV files into this folder.")
def analyze(
    file: Path,
    as_json: bool,
    view: str,
    imports: bool,
    files: bool,
    step: str | None,
    critical_path: bool,
    **outputs: Path | None,
) -> None:
    """Show the trace in FILE: offline, without root, on any machine.

    With files to write, which replace those that exist, it prints only what is asked
    for as well.
    """
    from analysis.commands import analyze

    given = {name: output for name, output in outputs.items() if output is not None}
    analyze(
        file,
        json=as_json,
        view=view,
        imports=imports,
        files=files,
        step=step,
        outputs=given,
        critical_path=critical_path,
    )


@cli.command()
@click.argument("a", metavar="A")
@click.argument("b", metavar="B")
@click.option("--html", type=FILE, help="Write the comparison to this file as well, as a page.")
def compare(a: str, b: str, html: Path | None) -> None:
    """Show what differs between the starts A and B, and what is behind it.

    Each is a trace, several with commas between, or a folder of traces: of several
    the medians are held against each other, and the spread tells what counts.
    """
    from analysis.commands import compare

    compare(a, b, html)


@cli.command()
@click.argument("traces", nargs=-1, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=FILE, help="The profile.  [default: this node's own]")
@table_options
@click.option("--node", help="Which node of the table the profile is of.")
@MODEL
@PAGE_CACHE
def fit(table: Path | None, models: Path | None, **options: Any) -> None:
    """Learn from TRACES, or folders of them: add them to a profile and fit it."""
    from analysis.prediction_commands import fit

    fit(tables=_tables(table, models), **options)


@cli.command()
@click.argument("model_dir", type=click.Path(path_type=Path))
@assumption_options
@click.option("--json", is_flag=True, help="Print the prediction as JSON.")
def predict(model_dir: Path, profile: Path | None, json: bool, **options: Any) -> None:
    """Tell how long a start of the model in MODEL_DIR takes, term by term."""
    from analysis.prediction_commands import predict_start

    predict_start(model_dir, profile, _assumptions(options), json)


@cli.command()
@click.argument("trace", type=FILE)
@PROFILE
@click.option("--max-ratio", type=float, callback=positive, default=1.5, show_default=True)
@MODEL
@PAGE_CACHE
def check(trace: Path, **options: Any) -> None:
    """Compare TRACE with its prediction; for CI.

    Exits with 3 if it took more than --max-ratio times as long, and names the
    sub-steps that did.
    """
    from analysis.prediction_commands import check

    sys.exit(check(trace, **options))


@cli.command()
@click.argument("model_dir", type=click.Path(path_type=Path), required=False)
@click.option("--arrival-rate", type=float, required=True, help="New instances a second.")
@click.option("--burst", type=float, default=1.0, help="Times that, in a burst.")
@click.option("--reuse", "reuse_s", type=float, help="Seconds until one is given back.")
@click.option(
    "--cold-start", "cold_start_s", type=float, callback=positive, help="Instead of MODEL_DIR."
)
@assumption_options
@click.option("--json", is_flag=True, help="Print the plan as JSON.")
@click.option("--config-map", "config_map_name", metavar="NAME", help="As Kubernetes takes it.")
def plan(
    model_dir: Path | None,
    arrival_rate: float,
    burst: float,
    reuse_s: float | None,
    cold_start_s: float | None,
    profile: Path | None,
    json: bool,
    config_map_name: str | None,
    **options: Any,
) -> None:
    """Size a warm pool and an autoscaler by the predicted start of MODEL_DIR."""
    from analysis.prediction_commands import plan_pool

    plan_pool(
        model_dir,
        arrival_rate,
        burst,
        reuse_s,
        cold_start_s,
        profile,
        _assumptions(options),
        config_map_name,
        json,
    )


@cli.command()
@PROFILE
@table_options
@click.option(
    "--calibrate",
    "count",
    type=click.IntRange(0),
    help="Scale the profile by the first N models of the table, evaluate the rest.",
)
@click.option("--json", is_flag=True, help="Print the errors as JSON.")
def evaluate(table: Path | None, models: Path | None, **options: Any) -> None:
    """Tell how far off predictions are for starts that the fit hasn't seen."""
    from analysis.prediction_commands import evaluate

    evaluate(tables=_tables(table, models), **options)


@cli.command()
def doctor() -> None:
    """Say what tracing needs here, what is missing and what mends it."""
    from tracer.doctor import examine

    if not examine(click.echo):
        sys.exit("no trace can be made here: see MISSING above")


def _assumptions(options: dict[str, Any]) -> Assumptions:
    from analysis.prediction_commands import Assumptions

    return Assumptions(**options)


def _tables(table: Path | None, models: Path | None) -> tuple[Path, Path] | None:
    if table is not None and models is not None:
        return table, models
    if table is not None or models is not None:
        raise click.UsageError("--table and --models belong together")
    return None


def _options(options: dict[str, Any]) -> Options:
    from tracer.commands import Options

    return Options(**options)


def _analysis(learn: bool = False) -> Analysis:
    from analysis.progress import Progress
    from analysis.ready import ReadyRule
    from tracer.commands import Analysis

    return Analysis(ReadyRule.load(), Progress(sys.stderr), partial(_load_report, learn))


def _load_report(learn: bool) -> Report:
    """Load all that a report takes: the user may not be able to read where it lies."""
    from rich.cells import cell_len

    from analysis.commands import analyze
    from analysis.prediction_commands import after_start
    from analysis.profile import reference
    from analysis.report import json as _json  # noqa: F401
    from analysis.report import terminal as _terminal  # noqa: F401
    from tracer.errors import ColdtraceError

    cell_len("\N{GRINNING FACE}")  # rich reads its table of wide characters late
    reference()  # read once

    def report(trace: Path, json: Path | None) -> None:
        analyze(trace, stream=sys.stderr)
        if json is not None:
            try:
                with open(json, "w", encoding="utf-8") as file:
                    analyze(trace, json=True, stream=file)
            except OSError as error:
                raise ColdtraceError(f"can't write {json}: {error.strerror}") from error
        if learn:
            after_start(trace, sys.stderr)

    return report


def main() -> None:
    """Run the command line; end with one line for what the user can mend."""
    from tracer.errors import ColdtraceError
    from tracer.text import escape

    _replace_closed_streams()
    try:
        try:
            cli()
        finally:
            sys.stdout.flush()
    except ColdtraceError as error:
        click.echo(f"coldtrace: {escape(error.message)}", err=True)
        sys.exit(error.exit_status)
    except OSError as error:
        if error.errno not in OUTPUT_ERRORS or error.filename is not None:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # for what is still in the buffer
        if error.errno != errno.EPIPE:  # a reader that has seen enough is no error to tell
            click.echo(f"coldtrace: can't write to standard output: {error.strerror}", err=True)
        sys.exit(1)


def _replace_closed_streams() -> None:
    """Python has None where the caller closed a stream: print would write nothing, or what
    is for standard error to standard output. What is for standard output must not vanish:
    a descriptor that can't be written fails."""
    if sys.stdout is None:
        unwritable = os.open(os.devnull, os.O_RDONLY)
        sys.stdout = open(unwritable, "w")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


if __name__ == "__main__":
    main()
