"""Which files are the model's, dropping them and only them, and compile caches that hold code."""

from __future__ import annotations

import os
import pwd
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from probes.cache import cached_bytes, open_files
from tracer import warmth
from tracer.errors import UsageError
from tracer.owner import Owner

USER = Owner.of_caller({})


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as name:
        path = Path(name)
        path.chmod(0o755)
        yield path


def make_model(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "notes.md", ".hidden.json"):
        (folder / name).write_bytes(name.encode() * 1000)
    return folder


def names_of(*command: str, environment: dict[bytes, bytes] | None = None) -> list[str]:
    with warmth.model_files(["serve", *command], USER, environment or {}) as files:
        return [os.path.relpath(file.path, "/var/tmp").partition("/")[2] for file in files]


MODEL = ["config.json", "model.safetensors", "tokenizer.json"]


@pytest.mark.parametrize("form", ["{}", "--model={}", "{}/"])
def test_a_folder_that_an_argument_names(folder: Path, form: str) -> None:
    model = make_model(folder / "model")
    found = names_of("serve", form.format(model), "--port", "80", "-v", "--x=", "", "a\0b")
    assert found[-3:] == [f"model/{name}" for name in MODEL]


def test_a_single_file_and_a_tokenizer_elsewhere(folder: Path) -> None:
    (folder / "one.gguf").write_bytes(b"x")
    (folder / "text.txt").write_bytes(b"x")
    make_model(folder / "tokens")
    found = names_of(f"{folder}/one.gguf", f"{folder}/text.txt", "--tokenizer", f"{folder}/tokens")
    assert found == ["one.gguf", *(f"tokens/{name}" for name in MODEL)]


def test_a_folder_without_a_model_is_left_alone(folder: Path) -> None:
    (folder / "settings.json").write_bytes(b"{}")
    assert names_of(str(folder), "/etc", ".", "/none") == []


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "HOME"])
def test_a_name_in_the_hubs_cache(folder: Path, variable: str) -> None:
    hub = {
        "HF_HOME": folder / "hub",
        "HF_HUB_CACHE": folder,
        "XDG_CACHE_HOME": folder / "huggingface/hub",
        "HOME": folder / ".cache/huggingface/hub",
    }[variable]
    revision = "0123456789" * 4
    blobs = make_model(hub / "models--org--name/blobs")
    snapshot = hub / "models--org--name/snapshots" / revision
    snapshot.mkdir(parents=True)
    for name in MODEL:
        (snapshot / name).symlink_to(blobs / name)
    environment = {variable.encode(): str(folder).encode()}
    at = os.path.relpath(snapshot, folder)
    expected = [f"{at}/{name}" for name in MODEL]
    assert names_of("org/name", environment=environment) == expected  # the newest
    (snapshot.parent / ("f" * 40)).mkdir()
    refs = hub / "models--org--name/refs"
    refs.mkdir()
    (refs / "main").write_text(revision)
    assert names_of("org/name", environment=environment) == expected
    (refs / "main").write_text("../../../..")
    assert names_of("other/name", "--org/name", environment=environment) == []


def test_only_the_model_is_dropped(folder: Path) -> None:
    model = make_model(folder / "model")
    said: list[str] = []
    warmth.cool(["serve", str(model)], USER, {}, said.append)
    paths = [str(model / name) for name in (*MODEL, "notes.md")]
    files = open_files(paths)
    cached = [cached_bytes(file.fd, file.size_bytes) for file in files]
    for file in files:
        os.close(file.fd)
    if cached[:3] != [0, 0, 0]:
        pytest.skip("the file system under /var/tmp keeps all in memory")
    assert cached[3] == 8000
    assert said == [
        "dropped the model's 3 files (0.0 MB) from the page cache: nothing of them is left in it"
    ]
    told = warmth.warmth(["serve", str(model)], USER, {})
    assert [(each.path, each.cached_bytes) for each in told] == [(path, 0) for path in paths[:3]]


def test_what_stays_is_said(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        model = make_model(Path(memory) / "model")
        said: list[str] = []
        warmth.cool(["serve", str(model)], USER, {}, said.append)
        assert "but 0.0 MB are still in it, most of " in said[0] and "tmpfs" in said[0]


def test_cold_without_a_model_is_refused() -> None:
    with pytest.raises(UsageError, match="--cold finds no model to drop"):
        warmth.cool(["serve", "--port", "80"], USER, {}, lambda line: None)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")
def test_files_that_the_user_cannot_read_are_not_touched(folder: Path) -> None:
    model = make_model(folder / "model")
    model.chmod(0o700)
    nobody = Owner.named(pwd.getpwnam("nobody").pw_name)
    with pytest.raises(UsageError, match="that nobody can read"):
        warmth.cool(["serve", str(model)], nobody, {}, lambda line: None)
    model.chmod(0o755)
    (model / "model.safetensors").chmod(0o600)
    with warmth.model_files(["serve", str(model)], nobody, {}) as files:
        assert [Path(file.path).name for file in files] == ["config.json", "tokenizer.json"]
    # root's file, which the user may read: the kernel tells it to root alone
    told = warmth.warmth(["serve", str(model)], nobody, {})
    assert [each.cached_bytes for each in told] == [each.size_bytes for each in told]


def test_no_descriptor_stays_open(folder: Path) -> None:
    model = make_model(folder / "model")
    before = os.listdir("/proc/self/fd")
    warmth.warmth(["serve", str(model), str(model)], USER, {})
    assert os.listdir("/proc/self/fd") == before


# Compile caches


def environment(folder: Path) -> dict[bytes, bytes]:
    return {b"HOME": str(folder).encode(), b"TMPDIR": str(folder / "tmp").encode()}


def test_where_compiled_code_is_looked_for(folder: Path) -> None:
    found = {each.variable: each.folder for each in warmth.compile_caches({}, USER)}
    assert found == {
        "VLLM_CACHE_ROOT": f"{USER.home}/.cache/vllm/torch_compile_cache",
        "TORCHINDUCTOR_CACHE_DIR": f"/tmp/torchinductor_{USER.name}",
        "TRITON_CACHE_DIR": f"{USER.home}/.triton/cache",
    }
    given = {
        b"VLLM_CACHE_ROOT": b"/v",
        b"TORCHINDUCTOR_CACHE_DIR": b"/i",
        b"TRITON_CACHE_DIR": b"/t",
    }
    folders = [each.folder for each in warmth.compile_caches(given, USER)]
    assert folders == ["/v/torch_compile_cache", "/i", "/t"]


def test_a_warm_compile_cache_is_refused_with_what_to_set(folder: Path) -> None:
    (folder / ".cache/vllm/torch_compile_cache/hash").mkdir(parents=True)
    (folder / ".triton/cache/kernel").mkdir(parents=True)
    with pytest.raises(UsageError) as refused:
        warmth.require_cold_compile(environment(folder), USER)
    assert refused.value.message == (
        f"--cold-compile changes no environment, and {folder}/.cache/vllm/torch_compile_cache and"
        f" {folder}/.triton/cache hold compiled code: set fresh folders in yours first, export"
        " VLLM_CACHE_ROOT=$(mktemp -d) TRITON_CACHE_DIR=$(mktemp -d)"
    )


def test_fresh_compile_caches_are_accepted(folder: Path) -> None:
    (folder / ".cache/vllm/torch_compile_cache/hash").mkdir(parents=True)
    fresh = folder / "fresh"
    fresh.mkdir()
    warmth.require_cold_compile(
        environment(folder) | {b"VLLM_CACHE_ROOT": str(fresh).encode()}, USER
    )


def test_the_door_starts_nothing_where_it_refuses(folder: Path, coldtrace_bin: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root traces")
    (folder / ".triton/cache/kernel").mkdir(parents=True)
    variables = {name: str(folder) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
    for option, said in (
        ("--cold", "--cold finds no model"),
        ("--cold-compile", "TRITON_CACHE_DIR="),
    ):
        command = [coldtrace_bin, "run", option, "--", "touch", str(folder / "ran")]
        done = subprocess.run(
            command, cwd=folder, env=os.environ | variables, capture_output=True, text=True
        )
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1
        assert sorted(os.listdir(folder)) == [".triton"]
