"""librdkafka's own tests, fetched and built.

librdkafka's source with its tests ships in the npm package of Confluent's JavaScript client. It is fetched by name and pinned
version and built in the cache (about four minutes of one core): the library, the test program against it, and the two small Java
programs that some tests run beside librdkafka. What the library and the tests find at configure time decides which sub-tests they
hold, so the headers of zstd and RapidJSON must be there: from the system, or from Debian's packages, unpacked into the cache.

That is too long to wait for in ``make test``: its few tests are built alone and linked with the librdkafka that the Python client
brings along (``quick_program``).

Of the tests nothing is changed.
"""

import hashlib
import importlib.util
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.compatibility.apache_kafka import KAFKA_VERSION, cache_directory, kafka_classpath
from tests.compatibility.foreign.cache import SuiteUnavailable, cached, run_to_fetch, unpack_archive

PACKAGE = "@confluentinc/kafka-javascript"
PACKAGE_VERSION = "1.10.1"
# What that package holds.
LIBRDKAFKA_VERSION = "2.15.1"

SOURCE = "deps/librdkafka"
BUILD_SECONDS_MAX = 1_800.0
SYSTEM_HEADERS = Path("/usr/include")
# Header that the build looks for, and the Debian package that has it: zstd is one of the codecs that the tests go through, and
# the tests of statistics, batches and transactional consumers read JSON.
HEADERS = (("zstd.h", "libzstd-dev"), ("rapidjson/document.h", "rapidjson-dev"))
# SASL by Kerberos and tokens over HTTP are not tried.
CONFIGURE_OPTIONS = ("--disable-gssapi", "--disable-curl", "--disable-debug-symbols")


class Program(NamedTuple):
    """A test program, and what it takes to run it."""

    folder: Path
    """Of the suite's tests: they are run from there."""
    executable: Path
    libraries: tuple[Path, ...]


def whole_program() -> Program:
    """All tests, with the library of their own version; SuiteUnavailable when they cannot be fetched or built."""
    source = cached(f"librdkafka-suite-{LIBRDKAFKA_VERSION}", _fetch_and_build) / SOURCE
    return Program(source / "tests", source / "tests" / "test-runner", (source / "src", source / "src-cpp"))


def quick_program(files: Sequence[str]) -> Program:
    """Only the tests in these files, with the library that the Python client brings along: built in seconds.

    The table of tests names all; those that are not built are put at address 0, which the program takes for no test.
    """
    (library,) = _wheel_libraries()
    digest = hashlib.sha256(" ".join((library.name, *files)).encode()).hexdigest()[:12]
    folder = cached(f"librdkafka-quick-{LIBRDKAFKA_VERSION}-{digest}", lambda folder: _build_quick(folder, library, files))
    tests = folder / SOURCE / "tests"
    return Program(tests, tests / "test-quick", (library.parent,))


def one_replica_library() -> Path:
    """What ``one_replica.c`` becomes."""
    source = Path(__file__).with_name("one_replica.c")
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]

    def build(folder: Path) -> None:
        _run_to_build(["gcc", "-shared", "-fPIC", "-O1", str(source), "-o", "one_replica.so", "-ldl"], folder)

    return cached(f"librdkafka-one-replica-{digest}", build) / "one_replica.so"


def kafka_home(folder: Path) -> None:
    """Write what the tests take for a Kafka distribution (``KAFKA_PATH``): its scripts, and its jars under ``libs``."""
    scripts = {
        "kafka-topics.sh": 'exec "$(dirname "$0")/kafka-run-class.sh" org.apache.kafka.tools.TopicCommand "$@"',
        "kafka-acls.sh": 'exec "$(dirname "$0")/kafka-run-class.sh" org.apache.kafka.tools.AclCommand "$@"',
        "kafka-run-class.sh": (
            f'exec java -Xmx128m -XX:TieredStopAtLevel=1 -XX:-UsePerfData -cp "$CLASSPATH:{kafka_classpath()}" "$@"'
        ),
    }
    (folder / "bin").mkdir(parents=True)
    for name, command in scripts.items():
        script = folder / "bin" / name
        script.write_text(f"#!/bin/sh\n{command}\n")
        script.chmod(0o755)
    (folder / "libs").symlink_to(cache_directory() / f"jars-{KAFKA_VERSION}")


def _fetch(folder: Path, programs: Sequence[str]) -> Path:
    """The package unpacked into ``folder``; where librdkafka's source is in it."""
    for program in ("npm", *programs):
        if shutil.which(program) is None:
            raise SuiteUnavailable(f"{program} is not installed, so librdkafka's tests cannot be built")
    download = folder / "download"
    download.mkdir()
    package = f"{PACKAGE}@{PACKAGE_VERSION}"
    run_to_fetch(["npm", "pack", "--silent", package], f"npm could not fetch {package}", directory=download)
    unpack_archive(download, folder)
    return folder / SOURCE


def _fetch_and_build(folder: Path) -> None:
    source = _fetch(folder, ("gcc", "g++", "make", "javac"))
    _build(source, _headers(folder / "headers"))
    kafka = folder / "kafka"
    kafka_home(kafka)
    _run_to_build(["make", "-C", "tests/java", f"KAFKA_PATH={kafka}"], source)
    shutil.rmtree(kafka)


def _wheel_libraries() -> list[Path]:
    package = importlib.util.find_spec("confluent_kafka")
    if package is None or package.origin is None:
        raise SuiteUnavailable("confluent-kafka, whose librdkafka the quick tests use, is not installed")
    libraries = sorted((Path(package.origin).parents[1] / "confluent_kafka.libs").glob("librdkafka-*.so*"))
    if len(libraries) != 1:
        raise SuiteUnavailable(f"confluent-kafka here has {len(libraries)} libraries of librdkafka, one was expected")
    return libraries


def _build_quick(folder: Path, library: Path, files: Sequence[str]) -> None:
    source = _fetch(folder, ("gcc", "make"))
    # Only for its config.h.
    _run_to_build(["./configure", *CONFIGURE_OPTIONS, "--disable-ssl", "--disable-zstd"], source)
    tests = source / "tests"
    declared = re.findall(r"^_TEST_DECL\((\w+)\)", (tests / "test.c").read_text(), re.MULTILINE)
    defined = re.findall(r"^int main_(\w+)\(", "".join((tests / file).read_text() for file in files), re.MULTILINE)
    absent = [f"-Wl,--defsym=main_{name}=0" for name in declared if name not in defined]
    inner = [f"../src/{name}.c" for name in ("tinycthread", "tinycthread_extra", "rdlist")]
    outer = ["test.c", "rusage.c", "sockem.c", "sockem_ctrl.c", *files]
    command = ["gcc", "-w", "-O0", "-I../src", *inner, *outer, *absent, "-rdynamic", str(library)]
    _run_to_build([*command, "-lm", "-lpthread", "-ldl", "-o", "test-quick"], tests)


def _headers(folder: Path) -> Path | None:
    """Where the headers are that the system lacks; None when it has them all."""
    packages = [package for header, package in HEADERS if not (SYSTEM_HEADERS / header).exists()]
    if not packages:
        return None
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise SuiteUnavailable(f"librdkafka's tests want the headers of {' and '.join(packages)}, which are not installed")
    folder.mkdir()
    run_to_fetch(["apt-get", "download", *packages], f"apt-get could not fetch {' and '.join(packages)}", directory=folder)
    for package in sorted(folder.glob("*.deb")):
        run_to_fetch(["dpkg-deb", "--extract", str(package), str(folder)], f"{package.name} could not be unpacked")
    return folder


def _build(source: Path, headers: Path | None) -> None:
    options = list(CONFIGURE_OPTIONS)
    if headers is not None:
        # RapidJSON is looked for without these flags, so what it is called is said here.
        options.append(f"--CPPFLAGS=-I{headers / 'usr/include'} -DWITH_RAPIDJSON=1")
        options += [f"--LDFLAGS=-L{library.parent}" for library in sorted(headers.glob("usr/lib/*/libzstd.a"))]
        # The package's shared library is a link to what is not in it; the static one serves.
        for link in headers.glob("usr/lib/*/libzstd.so"):
            link.unlink()
    _run_to_build(["./configure", *options], source)
    _run_to_build(["make", "-j2", "libs"], source)
    _run_to_build(["make", "-j2", "-C", "tests", "build"], source)
    if not (source / "tests" / "test-runner").exists():
        raise SuiteUnavailable("librdkafka's tests were built without a test program")


def _run_to_build(command: list[str], source: Path) -> None:
    run_to_fetch(command, "librdkafka's tests could not be built", directory=source, seconds_max=BUILD_SECONDS_MAX)
