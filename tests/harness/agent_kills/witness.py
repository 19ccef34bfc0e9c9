"""`python witness.py NOTES COMMAND ...`: runs an agent's program and writes down its answers.

It is a proxy between the program and the gateway: requests and answers pass through unchanged,
and a connection that breaks there breaks here. The session's reward is made of the answers, so that
rewards differ and steps move the weights whatever the agent makes of its task. It imports the standard library alone,
since it starts with every session.
"""

import http.client
import json
import os
import subprocess
import sys
import threading
import urllib.parse
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

NOT_PASSED_ON = ("host", "connection", "accept-encoding", "content-length", "transfer-encoding", "keep-alive", "date")
BROKEN = (http.client.HTTPException, OSError)


class Witness(BaseHTTPRequestHandler):
    """gateway: host and port. notes: a line of JSON for each exchange."""

    protocol_version = "HTTP/1.1"
    gateway: str
    notes: Path
    _writes = threading.Lock()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        connection = http.client.HTTPConnection(self.gateway, timeout=600)
        try:
            connection.request("POST", self.path, body, self._passed(self.headers))
            self._pass_on(connection.getresponse())
        except BROKEN:
            self.close_connection = True  # without an end of the answer: its client sees what it would have seen
        finally:
            connection.close()

    def _pass_on(self, answer: http.client.HTTPResponse) -> None:
        body = b""
        self.send_response_only(answer.status)
        for name, value in self._passed(answer.headers).items():
            self.send_header(name, value)
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        while piece := answer.read1(65536):
            body += piece
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        if answer.length:
            raise http.client.IncompleteRead(body)
        self._note({"path": self.path, "status": answer.status, "body": body.decode()})  # before it can be acted on
        self.wfile.write(b"0\r\n\r\n")

    @staticmethod
    def _passed(headers: http.client.HTTPMessage) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name.lower() not in NOT_PASSED_ON}

    def _note(self, exchange: dict[str, object]) -> None:
        with self._writes, self.notes.open("a", encoding="utf-8") as file:
            file.write(json.dumps(exchange) + "\n")

    def log_message(self, format: str, *args: object) -> None:
        """Print nothing: the output belongs to the program."""


class Server(ThreadingHTTPServer):
    """An HTTP server that ignores a program that hangs up."""

    def handle_error(self, request: object, client_address: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


def main(notes: str, *command: str) -> int:
    gateway = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
    Witness.gateway = gateway.netloc
    Witness.notes = Path(notes) / f"{os.environ['SLIME_EVENTS_SESSION']}-{os.getpid()}.jsonl"
    server = Server(("127.0.0.1", 0), Witness)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    here = f"127.0.0.1:{server.server_port}"
    urls = {
        name: os.environ[name].replace(gateway.netloc, here, 1) for name in ("OPENAI_BASE_URL", "ANTHROPIC_BASE_URL")
    }
    code = subprocess.run(command, env=os.environ | urls, check=False).returncode
    answers = Witness.notes.read_bytes() if Witness.notes.exists() else b""
    print(json.dumps({"reward": zlib.crc32(answers) % 5 / 4}), flush=True)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
