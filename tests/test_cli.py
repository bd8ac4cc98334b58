"""The door: fast, and one line for what the user can mend."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ("bcc", "numpy", "sklearn", "rich", "psutil")
COMMANDS = ("run", "attach", "analyze", "compare", "doctor")

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def coldtrace(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("coldtrace")), *arguments]
    options = {"capture_output": True, "text": True, "timeout": 60} | options
    return subprocess.run(command, **options)  # type: ignore[call-overload,no-any-return]


def loaded_by(code: str) -> set[str]:
    """The top-level packages that `code` brings in."""
    program = f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return {name.partition(".")[0] for name in done.stderr.split()}


@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["run", "--help"]])
def test_the_door_loads_nothing_heavy(arguments: list[str]) -> None:
    call = f"try: coldtrace.cli({arguments!r})\nexcept SystemExit: pass"
    loaded = loaded_by(f"import coldtrace\n{call}")
    assert not loaded & {*HEAVY, "tracer", "analysis", "probes"}
    assert "click" in loaded


def test_the_root_process_loads_nothing_heavy_but_bcc() -> None:
    loaded = loaded_by("import coldtrace; coldtrace._analysis(); coldtrace._options({})")
    assert {"tracer", "analysis"} <= loaded
    assert not loaded & set(HEAVY)


def test_version_is_the_distributions() -> None:
    from importlib.metadata import version

    assert coldtrace("--version").stdout == f"coldtrace {version('coldtrace')}\n"


def test_help_names_every_command() -> None:
    text = coldtrace("--help").stdout
    assert all(re.search(rf"^  {command} ", text, re.MULTILINE) for command in COMMANDS)


def test_completion() -> None:
    asked = {"_COLDTRACE_COMPLETE": "bash_complete", "COMP_CWORD": "1"}
    done = coldtrace(env=os.environ | asked | {"COMP_WORDS": "coldtrace a"})
    assert set(done.stdout.split()) == {"plain,attach", "plain,analyze"}
    asked["COMP_CWORD"] = "3"
    done = coldtrace(env=os.environ | asked | {"COMP_WORDS": "coldtrace run --until r"})
    assert done.stdout.split() == ["plain,ready"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run"], "Missing argument 'COMMAND...'"),
        (["run", "--until", "soon", "--", "true"], "neither ready, exit nor a number"),
        (["run", "--until", "-3", "--", "true"], "neither ready, exit nor a number"),
        (["run", "--until", "nan", "--", "true"], "neither ready, exit nor a number"),
        (["run", "--hz", "0", "--", "true"], "0 is not in the range"),
        (["run", "--sampler", "magic", "--", "true"], "'magic' is not one of"),
        (["attach"], "Missing option '--pid'"),
        (["attach", "--pid", "0"], "0 is not in the range"),
        (["trace"], "No such command 'trace'"),
    ],
)
def test_usage_errors_are_clicks(arguments: list[str], said: str) -> None:
    done = coldtrace(*arguments)
    assert done.returncode == 2
    assert said in done.stderr and not done.stdout


def test_options_after_the_command_are_the_commands(tmp_path: Path) -> None:
    done = coldtrace("run", "no-such-command", "--hz", "0", "--user", "x", cwd=tmp_path)
    assert "Invalid value" not in done.stderr
    assert done.returncode in (1, 127)


def one_line(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode != 0 and not done.stdout
    assert re.fullmatch(r"coldtrace: [^\n]+\n", done.stderr), done.stderr
    return done.stderr


@needs_root
@pytest.mark.parametrize("arguments", [["run", "--", "true"], ["attach", "--pid", "1"]])
def test_who_is_not_root_is_told_to_use_sudo(arguments: list[str], tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    done = coldtrace(*arguments, cwd="/tmp", user=65534, group=65534, extra_groups=[])
    assert done.returncode == 1
    program = Path(sys.executable).with_name("coldtrace")
    assert f"tracing needs root: sudo {program} {arguments[0]} ..." in one_line(done)


def test_a_trace_that_is_not_there(tmp_path: Path) -> None:
    done = coldtrace("analyze", "none.coldtrace", cwd=tmp_path)
    assert "none.coldtrace" in one_line(done)


def test_terminal_escapes_in_an_error_are_made_visible(tmp_path: Path) -> None:
    done = coldtrace("analyze", "a\x1b[31m.coldtrace", cwd=tmp_path)
    assert "\\x1b[31m" in one_line(done) and "\x1b" not in done.stderr


@pytest.mark.parametrize("to", [">/dev/full", ">&-"])
@pytest.mark.parametrize("arguments", ["--version", "--help"])
def test_output_that_cannot_be_written_is_an_error(arguments: str, to: str) -> None:
    program = Path(sys.executable).with_name("coldtrace")
    shell = ["sh", "-c", f"{program} {arguments} {to}"]
    done = subprocess.run(shell, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "can't write to standard output: " in one_line(done)


def test_a_reader_that_has_seen_enough_is_told_nothing() -> None:
    program = Path(sys.executable).with_name("coldtrace")
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run([program, "--help"], stdout=write, stderr=subprocess.PIPE, timeout=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (1, b"")
