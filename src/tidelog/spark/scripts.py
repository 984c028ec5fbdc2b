"""Small scripts that stand before a program that Spark starts, kept in the user's cache."""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


def cache_directory(environment: Mapping[str, str]) -> Path:
    caches = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME") or tempfile.gettempdir()) / ".cache"
    return Path(caches) / "tidelog"


def write_script(script: Path, text: str) -> None:
    """Written once, and moved into place whole: several may start at a time."""
    if script.is_file() and script.read_text() == text:
        return
    script.parent.mkdir(parents=True, exist_ok=True)
    handle, draft = tempfile.mkstemp(dir=script.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.chmod(draft, stat.S_IRWXU)
    os.replace(draft, script)
