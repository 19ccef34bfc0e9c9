"""The witness passes on what a gateway says, breaks where it breaks, and notes what came whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.harness.agent_kills.settings import WITNESS

PROGRAM = """
import http.client, os, sys, urllib.parse
url = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
for path in ("/whole", "/chunked", "/cut", "/torn", "/gone"):
    asking = http.client.HTTPConnection(url.netloc)
    try:
        asking.request("POST", path, b"asked", {"authorization": "Bearer key"})
        answer = asking.getresponse()
        print(path, answer.status, answer.read().decode())
    except (http.client.HTTPException, OSError) as error:
        print(path, "broken")
sys.exit(3)
"""


class Gateway(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        echo = self.rfile.read(int(self.headers["content-length"])) + self.headers["authorization"].encode()
        if self.path == "/gone":
            self.close_connection = True
            return
        self.send_response(200)
        chunked = self.path in ("/chunked", "/torn")
        extra = 100 if self.path == "/cut" else 0
        self.send_header(*(("transfer-encoding", "chunked") if chunked else ("content-length", str(len(echo) + extra))))
        self.end_headers()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(echo), echo) if chunked else echo)
        if self.path == "/chunked":
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = self.path != "/chunked"

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Gateway)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def test_it_passes_on_what_is_whole_and_what_breaks(gateway: str, tmp_path: Path) -> None:
    urls = {"OPENAI_BASE_URL": f"{gateway}/v1", "ANTHROPIC_BASE_URL": gateway, "SLIME_EVENTS_SESSION": "s.0"}
    command = [sys.executable, "-I", "-S", str(WITNESS), str(tmp_path), sys.executable, "-c", PROGRAM]
    done = subprocess.run(command, env=os.environ | urls, capture_output=True, text=True, timeout=60, check=False)
    *heard, reward = done.stdout.splitlines()
    body = "askedBearer key"
    assert heard == [f"/whole 200 {body}", f"/chunked 200 {body}", "/cut broken", "/torn broken", "/gone broken"]
    assert 0 <= json.loads(reward)["reward"] <= 1
    assert done.returncode == 3, "the program's own"
    notes = [json.loads(line) for path in tmp_path.glob("s.0-*.jsonl") for line in path.read_text().splitlines()]
    assert [(note["path"], note["status"], note["body"]) for note in notes] == [
        ("/whole", 200, body),
        ("/chunked", 200, body),
    ]
