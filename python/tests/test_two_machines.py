"""Client and server in two network namespaces: the link breaks, and either side dies."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from serving import READY, STORIES, binary, djinn_json, eventually

KEY = "ada-0123456789abcdef"
HERE, THERE = "10.77.31.1", "10.77.31.2"
PROMPT = "Once upon a time"


def sh(*command: object) -> str:
    ran = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if ran.returncode:
        raise RuntimeError(ran.stderr)
    return ran.stdout


class Link:
    """Two network namespaces with a virtual cable between them."""

    def __init__(self) -> None:
        self.server, self.client = (f"djinn-{end}-{os.getpid()}" for end in "sc")
        sh("ip", "netns", "add", self.server)
        sh("ip", "netns", "add", self.client)
        ends = ("vs", self.server, HERE), ("vc", self.client, THERE)
        sh(
            "ip",
            "-n",
            self.server,
            "link",
            "add",
            "vs",
            "type",
            "veth",
            "peer",
            "name",
            "vc",
            "netns",
            self.client,
        )
        for device, namespace, address in ends:
            sh("ip", "-n", namespace, "addr", "add", f"{address}/24", "dev", device)
            sh("ip", "-n", namespace, "link", "set", device, "up")
            sh("ip", "-n", namespace, "link", "set", "lo", "up")

    def set(self, state: str) -> None:
        """Sets the state of the cable; `down` disconnects it."""
        sh("ip", "-n", self.client, "link", "set", "vc", state)

    def close(self) -> None:
        for namespace in (self.server, self.client):
            subprocess.run(["ip", "netns", "del", namespace], check=False, capture_output=True)


@pytest.fixture(scope="module")
def link():
    try:
        made = Link()
    except (OSError, RuntimeError) as error:
        pytest.skip(f"no network namespaces here: {error}")
    yield made
    made.close()


class Machine:
    """Server in its namespace."""

    def __init__(self, link: Link, folder, port: int = 0) -> None:
        self.link, self.folder = link, folder
        keys = folder / "keys.toml"
        keys.write_text(f"[[key]]\nowner = 'ada'\nkey = '{KEY}'\nadmin = true\n")
        serve = [
            binary(),
            "serve",
            "--host",
            HERE,
            "--port",
            port,
            "--keys",
            keys,
            "--state",
            folder / "state",
        ]
        command = ["ip", "netns", "exec", link.server, *serve, "--model", f"stories-7m={STORIES}"]
        self.process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = next(line for line in self.process.stdout if line.startswith(READY))
        self.port = int(line.rsplit(":", 1)[1])

    def metric(self, line: str) -> float:
        """Returns a value of /metrics, read in the server's namespace."""
        url = f"http://{HERE}:{self.port}/metrics"
        text = sh(
            "ip", "netns", "exec", self.link.server, "curl", "-sf", "-H", f"authorization: Bearer {KEY}", url
        )
        return float(next(found for found in text.splitlines() if found.startswith(line)).rsplit(" ", 1)[1])

    def is_empty(self) -> bool:
        """Whether no session is open and no page of KV is held."""
        states = ("ready", "running", "waiting", "paused", "done")
        sessions = [f'djinn_sessions{{model="stories-7m",state="{state}"}}' for state in states]
        pages = [f'djinn_kv_pages{{model="stories-7m",tier="{tier}"}}' for tier in ("device", "host", "disk")]
        return all(self.metric(line) == 0 for line in sessions + pages)

    def client(self, script: str) -> subprocess.Popen[str]:
        """Starts a program in the client's namespace."""
        begin = f"import djinn, sys, time\nclient = djinn.connect('{HERE}:{self.port}', key='{KEY}')\n"
        begin += f"model = client.model()\nPROMPT = {PROMPT!r}\n"
        command = [
            "ip",
            "netns",
            "exec",
            self.link.client,
            sys.executable,
            "-uc",
            begin + textwrap.dedent(script),
        ]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def say(self, script: str) -> str:
        """Runs a program in the client's namespace and returns its output."""
        program = self.client(script)
        out, _ = program.communicate(timeout=60)
        assert program.returncode == 0
        return out.strip()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)


@pytest.fixture
def machine(link, tmp_path):
    link.set("up")
    machine = Machine(link, tmp_path)
    yield machine
    machine.kill()


def first_line(program: subprocess.Popen[str]) -> str:
    """Returns the first line that a program prints."""
    line = program.stdout.readline().strip()
    assert line, "it ended before it said anything"
    return line


def alone(tokens: int) -> list[int]:
    """Returns the tokens of an uninterrupted run in process."""
    return djinn_json("run", "--prompt", PROMPT, "--max-tokens", tokens, "--temperature", 0)["output_ids"]


def test_a_client_on_another_machine(machine):
    result = machine.say("print(list(model.generate(PROMPT, max_tokens=30, temperature=0).tokens))")
    assert result == str(alone(30))


BEGIN = """
    session = model.session(keep=True, temperature=0, lease_s={lease}, max_tokens=200)
    for token in session.generate(PROMPT, stream=True):
        print(session.id, flush=True)
"""


def test_a_client_reconnects_after_a_broken_link(machine, link):
    program = machine.client(BEGIN.format(lease=60))
    name = first_line(program)
    link.set("down")
    time.sleep(0.5)
    program.kill()
    link.set("up")
    followed = machine.say(f"""
        session = client.session({name!r})
        print(list(session.follow(0).tokens))
    """)
    assert followed == str(alone(200))
    machine.say(f"client.session({name!r}).delete()")
    assert machine.is_empty()


def test_a_lease_expires_while_the_link_is_down(machine, link):
    program = machine.client("""
        session = model.session(keep=True, lease_s=5)
        session.breakpoint("blocks.3.hook_resid_post", step=0)
        print(session.run(PROMPT).hook, flush=True)
        time.sleep(60)
    """)
    assert first_line(program) == "blocks.3.hook_resid_post"
    assert not machine.is_empty()
    link.set("down")
    eventually(machine.is_empty)
    program.kill()


def test_a_client_that_dies_leaves_no_session(machine):
    kept = machine.client(BEGIN.format(lease=5))
    first_line(kept)
    kept.send_signal(signal.SIGKILL)
    loose = machine.client(
        "for token in model.generate(PROMPT, max_tokens=400, stream=True): print(token, flush=True)"
    )
    first_line(loose)
    loose.send_signal(signal.SIGKILL)
    eventually(machine.is_empty)


def test_sessions_survive_a_server_that_dies(machine, link, tmp_path):
    program = machine.client(BEGIN.format(lease=60))
    name = first_line(program)
    machine.kill()
    program.kill()
    again = Machine(link, tmp_path, machine.port)
    followed = again.say(f"print(list(client.session({name!r}).follow(0).tokens))")
    again.kill()
    assert followed == str(alone(200))
