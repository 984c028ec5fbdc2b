import subprocess
import sys

CHECK = """
import gc
from tidelog.server.garbage import YOUNG_THRESHOLD, tune_garbage_collection
tune_garbage_collection()
assert gc.isenabled()
assert gc.get_threshold()[0] == YOUNG_THRESHOLD
assert gc.get_freeze_count() > 1000
assert len(gc.get_objects()) < 1000
"""


def test_what_exists_at_the_start_is_not_walked_again() -> None:
    """In a process of its own: freezing this one would hide leaks from other tests."""
    subprocess.run([sys.executable, "-c", CHECK], check=True)
