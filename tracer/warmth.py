"""How warm the caches are that a start will use, and how to begin with cold ones.

Only the page cache is ever changed, and only for the files of the model. Compile
caches belong to the user's environment: he is told what to set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import islice

from probes.cache import OpenFile, cached_bytes, drop, look, open_files
from probes.events import FileCached
from tracer.errors import UsageError
from tracer.owner import Owner

Environment = Mapping[bytes, bytes]

MAX_FILES = 512
"""Of all models together: each is held open, and a process may hold a thousand."""
MAX_ENTRIES = 4096
"""Of one folder."""

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".tensors")
_OTHERS = (".json", ".model", ".txt", ".tiktoken", ".jinja", ".py")
_CONFIGS = ("config.json", "params.json")
_HUB_NAME = re.compile(r"[\w.-]+(?:/[\w.-]+)?")


# The page cache ---------------------------------------------------------------------


@contextmanager
def model_files(
    command: Sequence[str], user: Owner, environment: Environment
) -> Iterator[list[OpenFile]]:
    """The files of the models that the command's arguments name, open inside the block.

    They are found and opened with the rights of `user`, as the command itself will.
    """
    with user.acting():
        files = open_files(islice(_paths(command[1:], _hub(environment, user.home)), MAX_FILES))
    try:
        yield files
    finally:
        for file in files:
            os.close(file.fd)


def warmth(command: Sequence[str], user: Owner, environment: Environment) -> list[FileCached]:
    """How much of each file of the model is cached at this moment."""
    with model_files(command, user, environment) as files:
        return look(files)


def cool(
    command: Sequence[str], user: Owner, environment: Environment, say: Callable[[str], None]
) -> None:
    """Have the page cache let go of the model's files, and of nothing else.

    Raises UsageError where the command names no model that is here.
    """
    with model_files(command, user, environment) as files:
        if not files:
            raise UsageError(
                "--cold finds no model to drop from the page cache: no argument of the command is"
                f" a model's folder or file, or one in the hub's cache, that {user.name} can read"
            )
        for file in files:
            drop(file)
        say(_left(files))


def _left(files: Sequence[OpenFile]) -> str:
    total = sum(file.size_bytes for file in files)
    counts = [cached_bytes(file.fd, file.size_bytes, found.file_system)
              for file, found in zip(files, look(files), strict=True)]  # fmt: skip
    told = f"dropped the model's {len(files)} files ({_mb(total)}) from the page cache"
    if None in counts:
        return f"{told}; how much is left can't be told here"
    left = sum(count or 0 for count in counts)
    if not left:
        return f"{told}: nothing of them is left in it"
    most = max(zip(counts, files, strict=True), key=lambda pair: pair[0] or 0)[1]
    return (
        f"{told}, but {_mb(left)} are still in it, most of {most.path}: another process has"
        " mapped it, or it lies in memory (tmpfs)"
    )


def _mb(count: int) -> str:
    return f"{count / 1e6:.1f} MB"


# Which files ---------------------------------------------------------------------------


def _paths(arguments: Iterable[str], hub: str) -> Iterator[str]:
    """The files of every model that the arguments name, each also as --option=value."""
    for argument in dict.fromkeys(_values(arguments)):
        if os.path.isfile(argument) and argument.endswith(_WEIGHTS):
            yield argument
        elif os.path.isdir(argument):
            yield from _of_folder(argument)
        elif _HUB_NAME.fullmatch(argument) and not argument.startswith("-"):
            yield from _of_folder(_snapshot(hub, argument))


def _values(arguments: Iterable[str]) -> Iterator[str]:
    for argument in arguments:
        if argument.startswith("--"):
            argument = argument.partition("=")[2]
        if argument and "\0" not in argument:
            yield argument


def _of_folder(folder: str) -> Iterator[str]:
    """The model's files in a folder; nothing where it holds none."""
    try:
        with os.scandir(folder) as entries:
            names = sorted(entry.name for entry in islice(entries, MAX_ENTRIES))
    except OSError:
        return
    if any(name in _CONFIGS or name.endswith(_WEIGHTS) for name in names):
        yield from (
            os.path.join(folder, name)
            for name in names
            if name.endswith((*_WEIGHTS, *_OTHERS)) and not name.startswith(".")
        )


def _hub(environment: Environment, home: str) -> str:
    """The Hugging Face hub's cache, as its library finds it."""
    for name in (b"HF_HUB_CACHE", b"HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return os.fsdecode(environment[name])
    if environment.get(b"HF_HOME"):
        return os.path.join(os.fsdecode(environment[b"HF_HOME"]), "hub")
    return os.path.join(_cache_home(environment, home), "huggingface", "hub")


def _cache_home(environment: Environment, home: str) -> str:
    given = os.fsdecode(environment.get(b"XDG_CACHE_HOME", b""))
    return given or os.path.join(_home(environment, home), ".cache")


def _home(environment: Environment, home: str) -> str:
    return os.fsdecode(environment.get(b"HOME", b"")) or home


def _without_waiting(path: str, flags: int) -> int:
    """Open a file; a FIFO in its place would never answer otherwise."""
    return os.open(path, flags | os.O_NONBLOCK)


def _snapshot(hub: str, name: str) -> str:
    """The folder of a model in the hub's cache: what `main` stands for, else the newest."""
    folder = os.path.join(hub, "models--" + name.replace("/", "--"))
    with (
        suppress(OSError, ValueError),
        open(os.path.join(folder, "refs/main"), opener=_without_waiting) as file,
    ):
        revision = file.read(64).strip()
        if re.fullmatch(r"[0-9a-f]{40}", revision):
            return os.path.join(folder, "snapshots", revision)
    with suppress(OSError), os.scandir(os.path.join(folder, "snapshots")) as entries:
        found = sorted(islice(entries, MAX_ENTRIES), key=lambda entry: entry.stat().st_mtime)
        if found:
            return found[-1].path
    return os.path.join(folder, "snapshots")


# The compile caches ----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class CompileCache:
    """A folder of compiled code, and the variable that puts it elsewhere."""

    variable: str
    folder: str


def compile_caches(environment: Environment, user: Owner) -> list[CompileCache]:
    """Where vLLM, torch inductor and Triton will look for what they compiled before."""

    def of(variable: str, default: str, below: str = "") -> CompileCache:
        folder = os.fsdecode(environment.get(os.fsencode(variable), b"")) or default
        return CompileCache(variable, os.path.join(folder, below).rstrip("/"))

    home, cache_home = _home(environment, user.home), _cache_home(environment, user.home)
    temporary = os.fsdecode(environment.get(b"TMPDIR", b"")) or "/tmp"
    return [
        of("VLLM_CACHE_ROOT", os.path.join(cache_home, "vllm"), "torch_compile_cache"),
        of("TORCHINDUCTOR_CACHE_DIR", os.path.join(temporary, f"torchinductor_{user.name}")),
        of("TRITON_CACHE_DIR", os.path.join(home, ".triton/cache")),
    ]


def require_cold_compile(environment: Environment, user: Owner) -> None:
    """Raise UsageError, with what to set, where a compile cache holds anything.

    Nothing is set or removed for the user: a start in an environment that isn't his
    own would tell him nothing.
    """
    with user.acting():
        warm = [cache for cache in compile_caches(environment, user) if _holds_any(cache.folder)]
    if warm:
        folders = " and ".join(cache.folder for cache in warm)
        setting = " ".join(f"{cache.variable}=$(mktemp -d)" for cache in warm)
        raise UsageError(
            f"--cold-compile changes no environment, and {folders} {_verb(warm)} compiled code:"
            f" set fresh folders in yours first, export {setting}"
        )


def _verb(caches: Sequence[CompileCache]) -> str:
    return "hold" if len(caches) > 1 else "holds"


def _holds_any(folder: str) -> bool:
    try:
        with os.scandir(folder) as entries:
            return next(entries, None) is not None
    except OSError:
        return False
