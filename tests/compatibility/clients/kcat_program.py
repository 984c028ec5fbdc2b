"""Gets kcat: it comes from the distribution, not from pip.

Where this runs as root on Debian or Ubuntu, it is installed; the reason why it is not there is what a skipped test says.
"""

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

INSTALL_SECONDS_MAX = 240
# dpkg has one lock for the machine; somebody else may be installing.
_APT = ("apt-get", "-qq", "-o", "DPkg::Lock::Timeout=120")


def reason_without_kcat() -> str | None:
    """None when kcat is there, or could be installed. Two test processes do not install it twice."""
    with (Path(tempfile.gettempdir()) / "tidelog-tests-kcat.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if shutil.which("kcat") is not None:
            return None
        if shutil.which("apt-get") is None:
            return "kcat is not installed, and there is no apt-get to install it with"
        if os.geteuid() != 0:
            return "kcat is not installed, and installing it takes root: apt-get install kcat"
        return _install()


def _install() -> str | None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    said = ""
    # The lists of packages may be missing or old: then fetch them and try again.
    for command in (("install", "--yes", "kcat"), ("update",), ("install", "--yes", "kcat")):
        try:
            done = subprocess.run(
                (*_APT, *command), env=environment, capture_output=True, text=True, timeout=INSTALL_SECONDS_MAX, check=False
            )
        except subprocess.TimeoutExpired:
            return f"kcat could not be installed: apt-get {command[0]} took more than {INSTALL_SECONDS_MAX} s"
        if shutil.which("kcat") is not None:
            return None
        said = done.stderr.strip()
    return f"kcat could not be installed: {said}"
