"""Records a first look at Tidelog in a terminal, as an SVG that plays by itself: ``make picture``.

The commands are really run, one after the other, against a broker of their own, and the picture has their output line by line at
the moment when it came (not the log, which goes to standard error); waits are cut to ``WAIT_SECONDS_MAX``. Three things are
replaced, so that the picture shows what a user would type: the broker's port by 9092, its temporary directory by ``data``, and
the address in hints by nothing.

The SVG has no script: each line becomes visible by a CSS animation with a delay, so it plays where scripts are forbidden, as in a
README. Where motion is not wanted all lines are there at once.
"""

import os
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import NamedTuple
from xml.sax.saxutils import escape

PICTURE = Path(__file__).parents[1] / "docs" / "pictures" / "first-look.svg"
PORT = 9092
HANDLER = """\
from tidelog import Worker

worker = Worker("127.0.0.1:9092", group="email", topics=["greetings"], retries=2)

@worker.handler
def send_email(message):
    print(f"attempt {message.attempt} to send {message.text()!r}")
    raise LookupError("this customer has no address")
"""

COLUMNS = 104
LINE_PIXELS = 19
CHARACTER_PIXELS = 8.0
MARGIN_PIXELS = 16
BAR_PIXELS = 28
WAIT_SECONDS_MAX = 1.2
PAUSE_SECONDS = 1.3
SILENCE_SECONDS = 1.0
STEP_SECONDS_MAX = 60.0


class Step(NamedTuple):
    command: str
    until: str | None = None
    """A command in the background: the words after which the next step begins. It runs until the recording ends."""


STEPS = [
    Step("tidelog start", until="Ctrl-C"),
    Step("echo hello | tidelog produce greetings"),
    Step("tidelog consume greetings --from-beginning"),
    Step("tidelog topics describe greetings"),
    Step("cat shop.py"),
    Step("tidelog worker run shop:worker", until="attempt 3"),
    Step("tidelog dlq list"),
    Step("tidelog groups describe email"),
]


class Line(NamedTuple):
    second: float
    text: str
    is_command: bool = False


class Recorder:
    def __init__(self, directory: Path, port: int) -> None:
        self._directory = directory
        self._port = port
        self._background: list[subprocess.Popen[str]] = []
        self._second = 0.3
        self.lines: list[Line] = []
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self._environment = {
            **os.environ,
            "PATH": path,
            "COLUMNS": str(COLUMNS),
            "TIDELOG_BOOTSTRAP": f"127.0.0.1:{port}",
            "PYTHONUNBUFFERED": "1",
        }
        (directory / "shop.py").write_text(HANDLER.replace(str(PORT), str(port)))

    def run(self, step: Step) -> None:
        shown = step.command + (" &" if step.until else "")
        self.lines.append(Line(self._second, f"$ {shown}", is_command=True))
        command = step.command
        if command == "tidelog start":
            command += f" --data {self._directory / 'data'} --listener 127.0.0.1:{self._port}"
        process = subprocess.Popen(  # noqa: S603 - the commands are those of STEPS
            ["bash", "-c", command if "|" in command else f"exec {command}"],  # noqa: S607 - the shell of the user
            cwd=self._directory,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        said: SimpleQueue[str | None] = SimpleQueue()
        threading.Thread(target=_read, args=(process, said), daemon=True).start()
        if step.until:
            self._background.append(process)
        self._listen(said, step.until)
        if not step.until and process.wait(STEP_SECONDS_MAX):
            raise SystemExit(f"{step.command} failed with {process.returncode}: {self.lines[-1].text}")
        self._second += PAUSE_SECONDS

    def close(self) -> None:
        for process in reversed(self._background):
            process.terminate()
            process.wait(STEP_SECONDS_MAX)

    def _listen(self, said: "SimpleQueue[str | None]", until: str | None) -> None:
        begun = heard = time.monotonic()
        has_come = False
        while time.monotonic() - begun < STEP_SECONDS_MAX:
            try:
                text = said.get(timeout=SILENCE_SECONDS)
            except Empty:
                if has_come:
                    return
                continue
            if text is None:
                return
            now = time.monotonic()
            self._second += min(now - heard, WAIT_SECONDS_MAX)
            heard = now
            has_come = has_come or (until is not None and until in text)
            # A terminal would wrap here too.
            shown = self._as_typed(text)
            parts = textwrap.wrap(shown, COLUMNS) if len(shown) > COLUMNS else [shown]
            self.lines += [Line(self._second, part) for part in parts]
        raise SystemExit(f"nothing with {until!r} came within {STEP_SECONDS_MAX:.0f} s")

    def _as_typed(self, text: str) -> str:
        text = text.rstrip("\n").replace(f" --bootstrap 127.0.0.1:{self._port}", "")
        return text.replace(str(self._directory / "data"), "./data").replace(str(self._port), str(PORT))


def _read(process: "subprocess.Popen[str]", said: "SimpleQueue[str | None]") -> None:
    assert process.stdout is not None
    for line in process.stdout:
        said.put(line)
    said.put(None)


def render(lines: list[Line]) -> str:
    """The SVG: a window with the lines, each of which appears at its second."""
    width = round(COLUMNS * CHARACTER_PIXELS + 2 * MARGIN_PIXELS)
    height = BAR_PIXELS + len(lines) * LINE_PIXELS + 2 * MARGIN_PIXELS
    rows = []
    for number, line in enumerate(lines):
        y = BAR_PIXELS + MARGIN_PIXELS + (number + 1) * LINE_PIXELS - 5
        kind = "c" if line.is_command else "o"
        text = escape(line.text[:COLUMNS])
        rows.append(f'<text class="{kind}" x="{MARGIN_PIXELS}" y="{y}" style="animation-delay:{line.second:.2f}s">{text}</text>')
    dots = "".join(
        f'<circle cx="{18 + 18 * number}" cy="14" r="5.5" fill="{colour}"/>'
        for number, colour in enumerate(("#ff5f57", "#febc2e", "#28c840"))
    )
    return f"""\
<svg xmlns="http://www.w3.org/2000/svg" xml:space="preserve" role="img"
  viewBox="0 0 {width} {height}" width="{width}" height="{height}">
<title>A first look at Tidelog in a terminal</title>
<style>
text {{ font: 13px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre;
  animation: appear 0.01s backwards; }}
.c {{ fill: #7ee787; font-weight: 600; }}
.o {{ fill: #d6deeb; }}
@keyframes appear {{ from {{ opacity: 0; }} }}
@media (prefers-reduced-motion: reduce) {{ text {{ animation: none; }} }}
</style>
<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>
{dots}
{chr(10).join(rows)}
</svg>
"""


def main() -> None:
    from tidelog.testing.environment import reserve_port

    with tempfile.TemporaryDirectory(prefix="tidelog-") as directory, reserve_port() as reservation:
        recorder = Recorder(Path(directory), reservation.getsockname()[1])
        try:
            for step in STEPS:
                recorder.run(step)
        finally:
            recorder.close()
    PICTURE.write_text(render(recorder.lines))
    print(f"{PICTURE}: {len(recorder.lines)} lines, {PICTURE.stat().st_size:,} bytes, {recorder.lines[-1].second:.0f} s")


if __name__ == "__main__":
    main()
