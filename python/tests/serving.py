"""Server processes for tests."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
GOLDEN = REPO / "testdata" / "golden"
STORIES = REPO / "models" / "stories-7m"
READY = "Server ready, listening on "


def binary() -> Path:
    """Returns the program under test: DJINN_BIN, or the release build."""
    path = Path(os.environ.get("DJINN_BIN", REPO / "target" / "release" / "djinn"))
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: run `cargo build --release`, or set DJINN_BIN")
    return path


def djinn(*args: object) -> str:
    """Runs a command and returns its output."""
    ran = subprocess.run([binary(), *map(str, args)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def djinn_json(*args: object) -> dict:
    """Runs a command with --json and returns its parsed output."""
    return json.loads(djinn(*args, "--json"))


class Server:
    """Server process on its own port, until `stop`."""

    def __init__(self, *args: object, port: int | str = 0) -> None:
        command = [binary(), "serve", "--port", str(port), *map(str, args)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith(READY):
                self.address = line.removeprefix(READY).strip()
                return
        raise AssertionError(f"the server ended with {self.process.wait()} before it was ready")

    @property
    def url(self) -> str:
        return f"http://{self.address}"

    def stop(self) -> int:
        """Stops the server gracefully and returns its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def kill(self) -> None:
        """Kills the server at once."""
        self.process.kill()
        self.process.wait(60)

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.kill()


def eventually(holds, seconds: float = 60.0):
    """Waits until a function returns a true value, and returns it."""
    until = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < until, "timed out"
        time.sleep(0.02)
    return found
