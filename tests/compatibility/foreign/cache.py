"""Where the sources of foreign suites lie: a cache outside the repository, filled by package name, never by an address.

``cached(name, fill)`` gives the folder ``name`` in the cache that Apache Kafka's jars are in too (``apache_kafka.cache_root``).
On first use ``fill`` writes it under another name, and it is renamed when it is whole, under a lock: a cut download never looks
finished, and test processes that start together fetch once. A name holds the version, so a new version is a new folder.

``SuiteUnavailable`` says why a suite is not there; tests turn it into a skip with that reason.
"""

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.compatibility.apache_kafka import cache_root, locked

FETCH_SECONDS_MAX = 240.0
# Of what a failed command said, as much as helps in a reason to skip.
LAST_WORDS_CHARACTERS = 1_000


class SuiteUnavailable(Exception):
    """The suite could not be fetched or built; the message says why."""


def cached(name: str, fill: Callable[[Path], None]) -> Path:
    """The folder ``name`` of the cache; ``fill`` is called with an empty folder to write it."""
    folder = cache_root() / name
    if folder.is_dir():
        return folder
    with locked(cache_root() / f"{name}.fetch"):
        if not folder.is_dir():
            partial = cache_root() / f"{name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            fill(partial)
            partial.rename(folder)
    return folder


def run_to_fetch(
    command: Sequence[str], what: str, *, directory: Path | None = None, seconds_max: float = FETCH_SECONDS_MAX
) -> None:
    """Run an installer; SuiteUnavailable with its last words when it fails, is missing or takes too long."""
    try:
        result = subprocess.run(
            command,
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise SuiteUnavailable(f"{what}: not within {seconds_max:.0f} s") from None
    except FileNotFoundError:
        raise SuiteUnavailable(f"{what}: {command[0]} is not installed") from None
    if result.returncode != 0:
        raise SuiteUnavailable(f"{what}: {result.stdout.strip()[-LAST_WORDS_CHARACTERS:]}")


def fetch_sdist(package: str, version: str, folder: Path) -> None:
    """Unpack the source distribution of a Python package into ``folder``, without its dependencies.

    pip asks a source distribution for its name, which takes its build backend; the one that the environment has serves."""
    download = folder / "download"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--no-binary", package, "--dest", str(download), f"{package}=={version}"]
    run_to_fetch(command, f"pip could not fetch {package} {version}")
    unpack_archive(download, folder)


def unpack_archive(download: Path, folder: Path) -> None:
    """The one archive in ``download`` into ``folder``, without the folder that it has on top; ``download`` goes."""
    archives = list(download.iterdir())
    if len(archives) != 1:
        raise SuiteUnavailable(f"one archive was expected, not {sorted(archive.name for archive in archives)}")
    unpacked = folder / "unpacked"
    with tarfile.open(archives[0]) as archive:
        # Python 3.11 has the filter from 3.11.4 on.
        if hasattr(tarfile, "data_filter"):
            archive.extractall(unpacked, filter="data")
        else:
            archive.extractall(unpacked)
    (top,) = unpacked.iterdir()
    for path in sorted(top.iterdir()):
        path.rename(folder / path.name)
    shutil.rmtree(unpacked)
    shutil.rmtree(download)
