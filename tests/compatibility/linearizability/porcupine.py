"""Porcupine, a checker of linearizability that is not ours, as a judge of histories.

``judge.go`` says what a history must look like for each kind of key. It is built once, into the cache that other foreign programs
are in, with Porcupine's module fetched by name and pinned version.
"""

import hashlib
import json
import subprocess
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from tests.compatibility.foreign.cache import cached, run_to_fetch

MODULE = "github.com/anishathalye/porcupine"
VERSION = "v1.3.1"
SOURCE = Path(__file__).with_name("judge.go")
JUDGE_SECONDS_MAX = 300.0


def judge(history: Iterable[dict[str, object]]) -> dict[str, str]:
    """The verdict on each key: "ok", "illegal", or "unknown" where it could not be decided in time."""
    lines = "".join(json.dumps(operation) + "\n" for operation in history)
    finished = subprocess.run(
        [str(_program())], input=lines, capture_output=True, text=True, timeout=JUDGE_SECONDS_MAX, check=False
    )
    assert finished.returncode == 0, finished.stderr
    verdicts: dict[str, str] = json.loads(finished.stdout)
    return verdicts


def _program() -> Path:
    text = SOURCE.read_bytes()
    name = f"porcupine-{VERSION}-{hashlib.sha256(text).hexdigest()[:12]}"
    return cached(name, partial(_build, text)) / "judge"


def _build(text: bytes, folder: Path) -> None:
    (folder / "main.go").write_bytes(text)
    for arguments in (("mod", "init", "judge"), ("get", f"{MODULE}@{VERSION}"), ("build", "-o", "judge", ".")):
        run_to_fetch(["go", *arguments], f"go {arguments[0]} for Porcupine", directory=folder)
