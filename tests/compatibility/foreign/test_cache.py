import sys
import tarfile
from pathlib import Path

import pytest

from tests.compatibility.foreign.cache import SuiteUnavailable, cached, run_to_fetch, unpack_archive


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TIDELOG_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_it_is_fetched_once(cache: Path) -> None:
    calls: list[Path] = []

    def fill(folder: Path) -> None:
        calls.append(folder)
        (folder / "file").write_text("whole")

    for _ in range(2):
        folder = cached("suite-1", fill)
        assert folder == cache / "suite-1"
        assert (folder / "file").read_text() == "whole"
    assert len(calls) == 1
    assert calls[0] != folder


def test_what_was_cut_short_does_not_look_finished() -> None:
    def fail(folder: Path) -> None:
        (folder / "half").write_text("")
        raise SuiteUnavailable("cut")

    with pytest.raises(SuiteUnavailable):
        cached("suite-1", fail)
    folder = cached("suite-1", lambda folder: (folder / "whole").touch())
    assert [path.name for path in folder.iterdir()] == ["whole"]


def test_a_fetch_that_fails_says_why() -> None:
    with pytest.raises(SuiteUnavailable, match="the suite: out of reach"):
        run_to_fetch([sys.executable, "-c", "import sys; print('out of reach'); sys.exit(1)"], "the suite")
    with pytest.raises(SuiteUnavailable, match="no-such-program is not installed"):
        run_to_fetch(["no-such-program"], "the suite")
    with pytest.raises(SuiteUnavailable, match="not within"):
        run_to_fetch([sys.executable, "-c", "import threading; threading.Event().wait()"], "the suite", seconds_max=0.2)


def test_an_archive_loses_its_top_folder(tmp_path: Path) -> None:
    source, download, folder = tmp_path / "suite-1", tmp_path / "folder" / "download", tmp_path / "folder"
    (source / "test").mkdir(parents=True)
    (source / "test" / "file").write_text("text")
    download.mkdir(parents=True)
    with tarfile.open(download / "suite-1.tar.gz", "w:gz") as archive:
        archive.add(source, "suite-1")
    unpack_archive(download, folder)
    assert [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))] == ["test", "test/file"]


def test_one_archive_is_expected(tmp_path: Path) -> None:
    with pytest.raises(SuiteUnavailable):
        unpack_archive(tmp_path, tmp_path)
