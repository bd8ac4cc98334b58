"""How well real starts are predicted: generated models, cold and warm, leave one model out.

    sudo .venv/bin/python tests/bench/predict.py [FOLDER]

Each model is started once with empty compile and model-info caches and its weights out of the page
cache, then REPEATS times with all of them warm. What was made stays in FOLDER, and a second run
goes on where the first ended. Needs root and what `make demo` installs; takes about 20 minutes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

from run import COLDTRACE, ROOT, VLLM, free_port, running, wait_until_ready

REPEATS = 2
SIZES = (  # layers, hidden size, vocabulary
    (2, 256, 8_000),
    (4, 512, 32_000),
    (6, 1024, 16_000),
    (8, 512, 8_000),
    (12, 768, 32_000),
    (16, 512, 16_000),
)


def make_model(folder: Path, layers: int, hidden: int, vocabulary: int) -> Path:
    """The model of these sizes, made where it isn't there yet."""
    model = folder / f"llama-{layers}x{hidden}-{vocabulary // 1000}k"
    if not (model / "tokenizer.json").exists():
        options = {"layers": layers, "hidden": hidden, "vocabulary": vocabulary}
        words = [f"--{name}={value}" for name, value in options.items()]
        python = VLLM.with_name("python")
        command = [python, ROOT / "scripts/make_model.py", model, *words]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
    return model


def traced_start(model: Path, caches: Path, trace: Path) -> None:
    """One start under `coldtrace run`, whose caches lie in `caches`."""
    port = free_port()
    command = [str(COLDTRACE), "run", "--no-learn", "-o", str(trace), "--", str(VLLM), "serve"]
    command += [str(model), "--host", "127.0.0.1", "--port", str(port), "--max-model-len", "1024"]
    os.environ["VLLM_CACHE_ROOT"] = str(caches)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(caches / "inductor")
    with running(command, trace.with_suffix(".log")) as child:
        wait_until_ready(child, port)


def forget(model: Path) -> None:
    """Take the weights out of the page cache."""
    for path in model.glob("*.safetensors"):
        with open(path, "rb") as file:
            os.fdatasync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def start(model: Path, folder: Path, number: int) -> None:
    """The start `number` of a model, 0 being the cold one; learned as it was."""
    trace = folder / f"{model.name}-{number}.coldtrace"
    profile = folder / "profile.json"
    if trace.exists():
        return
    partial = trace.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    if number == 0:
        forget(model)
    traced_start(model, folder / "caches" / model.name, partial)
    partial.rename(trace)
    state = "cold" if number == 0 else "warm"
    command = [COLDTRACE, "fit", trace, "--page-cache", state, "-o", profile]
    subprocess.run(command, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / ".demo" / "predict")
    folder = parser.parse_args().folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    for sizes in SIZES:
        model = make_model(folder, *sizes)
        for number in range(1 + REPEATS):
            start(model, folder, number)
    sys.exit(
        subprocess.run([COLDTRACE, "evaluate", "--profile", folder / "profile.json"]).returncode
    )


if __name__ == "__main__":
    main()
