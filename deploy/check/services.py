"""`Services`: the services of compose.yaml as processes on loopback, with their commands, variables and files.

Each service gets its own address in 127.0.0.0/8, so its ports do not change. In its command, variables and files, names
of services are replaced by their addresses, `0.0.0.0` by the service's address, and paths in containers by local
folders. Programs are searched beside this Python and on the PATH.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import yaml

from deploy.check.report import BIN, find

ROOT = Path(__file__).parents[2]
COMPOSE = ROOT / "deploy" / "compose"
IN_IMAGE = "/opt/slime-events/"
"""Path of the repository in an image."""
REPLACEMENTS = {"otelcol-contrib": ("-m", "deploy.check.collector")}
"""Programs that no package registry has, and our replacements."""
READY_S = 60.0


def read_compose(path: Path = COMPOSE / "compose.yaml") -> dict[str, Any]:
    """Read the file with default values for its variables, and `$$` as `$`."""
    text = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", path.read_text())
    return dict(yaml.safe_load(text.replace("$$", "$")))


class Services:
    """Starts services. As a context manager it kills them at the end. folder: for their data and logs."""

    def __init__(self, folder: Path, compose: dict[str, Any]) -> None:
        self._folder, self._services = folder, compose["services"]
        number = os.getpid() % 200 + 20
        self.addresses = {name: f"127.{number}.0.{n}" for n, name in enumerate(self._services, 11)}
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self.replaced: set[str] = set()
        """Programs for which a replacement is running."""

    def __enter__(self) -> Services:
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self._processes):
            self.kill(name)
        for process in psutil.process_iter():  # Ray's processes are not children of the service
            with contextlib.suppress(psutil.Error, OSError):
                if process.environ().get("TMPDIR") == str(self.volume("tmp")):
                    process.kill()

    def volume(self, name: str, inside: str = "") -> Path:
        """Return the local folder of a volume."""
        path = self._folder / "volumes" / name / inside
        path.mkdir(parents=True, exist_ok=True)
        return path

    def log(self, name: str) -> str:
        """Return the output of a service."""
        return (self._folder / f"{name}.log").read_text(errors="replace")

    def command(self, name: str, *arguments: str) -> tuple[list[str], dict[str, str], Path]:
        """Return a service's command line, environment and working folder.

        arguments: replace its command, as in `docker compose run`.
        """
        service = self._services[name]
        own = [str(word) for word in (arguments or service.get("command", ()))]
        words = [self.here(name, word) for word in (*service.get("entrypoint", ()), *own)]
        program = Path(words[0]).name
        if program in REPLACEMENTS and find(program) is None:
            self.replaced.add(program)
            words[:1] = [sys.executable, *REPLACEMENTS[program]]
        elif not Path(words[0]).is_file():
            words[0] = find(program) or program
        variables = {key: self.here(name, str(value)) for key, value in service.get("environment", {}).items()}
        kept = {key: os.environ[key] for key in ("HOME", "LANG", "OMP_NUM_THREADS") if key in os.environ}
        ours = {
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "NODE_IP": self.addresses[name],
            "RAY_TMPDIR": str(self.volume("ray")),
            "TMPDIR": str(self.volume("tmp")),
        }
        place = self.here(name, service["working_dir"]) if "working_dir" in service else str(self._folder)
        return words, kept | ours | variables, Path(place)

    def here(self, name: str, text: str) -> str:
        """Replace container paths and addresses in a service's text by local ones."""
        places = {IN_IMAGE: f"{self._file(name, 'image')}/"}
        for mount in self._services[name].get("volumes", ()):
            if mount["type"] == "volume":
                inside = mount.get("volume", {}).get("subpath", "")
                places[mount["target"]] = str(self.volume(mount["source"], inside))
            else:
                places[mount["target"]] = str(self._file(name, mount["target"]))
        for target in sorted(places, key=len, reverse=True):
            text = re.sub(
                rf"(?<![\w.]){re.escape(target)}(?![\w.-])" if target != IN_IMAGE else target, places[target], text
            )
        text = re.sub(r"(?<![\d.])(0\.0\.0\.0|127\.0\.0\.1)(?=:|\b)", self.addresses[name], text)
        names = "|".join(map(re.escape, self.addresses))
        by_name = rf"(?<![\w./-])({names})(?=:\d)|(?<=//)({names})(?=:\d)|(?<==)({names})$"
        return re.sub(by_name, lambda match: self.addresses[next(filter(None, match.groups()))], text)

    def prepare(self, name: str) -> None:
        """Write a service's files with local paths and addresses."""
        for mount in self._services[name].get("volumes", ()):
            if mount["type"] == "bind":
                self._write(name, COMPOSE / mount["source"], self._file(name, mount["target"]))
            elif mount["target"].startswith("/etc/"):  # another file includes files of this folder
                link = self._file(name, mount["target"])
                link.parent.mkdir(parents=True, exist_ok=True)
                with contextlib.suppress(FileExistsError):
                    link.symlink_to(self.volume(mount["source"], mount.get("volume", {}).get("subpath", "")))
        for script in (ROOT / "deploy").rglob("*.sh"):
            self._write(name, script, self._file(name, "image") / script.relative_to(ROOT))

    def _write(self, name: str, source: Path, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(self.here(name, source.read_text()))
        target.chmod(source.stat().st_mode)

    def _file(self, name: str, target: str) -> Path:
        return self._folder / "files" / name / target.lstrip("/")

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Start a service in its own session, and return its process."""
        self.prepare(name)
        words, variables, folder = self.command(name, *arguments)
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                words,
                env=variables,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._processes[name] = process
        return process

    def run(self, name: str, *arguments: str, timeout_s: float = READY_S) -> str:
        """Run a service to its end, and return its output. Raises RuntimeError if it fails."""
        code = self.start(name, *arguments).wait(timeout_s)
        if code:
            raise RuntimeError(f"{name} ended with exit code {code}: {self.log(name)[-2000:]}")
        return self.log(name)

    def until_listening(self, name: str, port: int) -> None:
        """Wait until a service listens on a port. Raises RuntimeError after a timeout or if it has ended."""
        end = time.monotonic() + READY_S
        while True:
            with contextlib.suppress(OSError), socket.create_connection((self.addresses[name], port), timeout=1):
                return
            if time.monotonic() > end or self._processes[name].poll() is not None:
                raise RuntimeError(f"{name} does not listen on port {port}: {self.log(name)[-2000:]}")
            time.sleep(0.1)

    def kill(self, name: str) -> None:
        """Kill a service and all of its children by SIGKILL."""
        process = self._processes[name]
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    child.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
