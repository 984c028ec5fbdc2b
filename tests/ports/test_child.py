"""The child's main: what it refuses to run, and that the end of its standard input ends it."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import child_functions
from tests.ports.test_real_executor import process_is_running, wait_for
from tidelog.ports import child
from tidelog.ports.real_executor import CHILD_COMMAND


@pytest.mark.parametrize(
    ("module", "function"),
    [
        ("os", "getcwd"),
        ("tidelogger.evil", "run"),
        ("tidelog", "run"),
        ("tidelog.ports.child", "json.dumps"),
        ("tidelog.ports.child", "RealDisk"),
        ("tidelog.ports.child", "json"),
    ],
)
def test_only_functions_defined_in_the_package_run(module: str, function: str) -> None:
    with pytest.raises(ValueError, match="is not"):
        child.run({"module": module, "function": function, "arguments": {}})


def test_the_command_that_is_used_in_earnest() -> None:
    request = {"module": "shutil", "function": "rmtree", "arguments": {}}
    process = subprocess.Popen(CHILD_COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        process.stdin.write(json.dumps(request).encode() + b"\n")
        process.stdin.flush()
        outcome = json.loads(process.stdout.read())
        assert "shutil.rmtree is not a module-level function of tidelog" in outcome["error"]
        assert process.wait(30) == 0


def test_the_end_of_standard_input_ends_the_child(tmp_path: Path) -> None:
    request = {"module": child_functions.MODULE, "function": "hang", "arguments": {"path": str(tmp_path / "pid")}}
    process = subprocess.Popen((sys.executable, child_functions.__file__), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    process.communicate(json.dumps(request).encode() + b"\n", timeout=30)
    assert process.returncode == 1


PARENT = """
import subprocess, sys
subprocess.Popen(sys.argv[1:], stdin=0).wait()
"""


def test_the_kernel_ends_the_child_with_its_parent_even_while_standard_input_is_open(tmp_path: Path) -> None:
    path = tmp_path / "pid"
    request = {"module": child_functions.MODULE, "function": "hang", "arguments": {"path": str(path)}}
    parent = subprocess.Popen((sys.executable, "-c", PARENT, *child_functions.COMMAND), stdin=subprocess.PIPE)
    assert parent.stdin is not None
    try:
        parent.stdin.write(json.dumps(request).encode() + b"\n")
        parent.stdin.flush()
        wait_for(lambda: path.exists() and bool(path.read_text()))
        process_id = int(path.read_text())
        assert process_is_running(process_id)
        parent.kill()
        wait_for(lambda: not process_is_running(process_id))
    finally:
        parent.kill()
        parent.wait()
        parent.stdin.close()
