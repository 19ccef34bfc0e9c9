"""Work done beside a command of a page, or before it: its reader's harnesses, clients, producers and servers."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from slime_events.app.demo.settings import BASE
from storage.nats.server import find_binary
from tests.docs.pages import DOCS
from tests.harness.docs_run.blocks import EXAMPLES, starts_of
from tests.harness.docs_run.stage import Stage

START_S, LOOK_S = 240.0, 0.1


def agent_program(stage: Stage) -> None:
    """A program for each rollout, of the form that the page describes."""
    shutil.copy(EXAMPLES / "frameworks" / "openai_client.py", stage.home / "agent.py")


def base_for(folder: str) -> Callable[[Stage], None]:
    """The demo's model where a script looks for the one that it would take minutes to make."""

    def make(stage: Stage) -> None:
        base = stage.home / folder / "base"
        base.parent.mkdir(exist_ok=True)
        if not base.exists():
            base.symlink_to(BASE)

    return make


def harness(stage: Stage) -> None:
    """The example that the page names, with a token from the command that it names. It ends with the run."""
    _until(stage, r"the gateway is at")
    token, url = _issued(stage, "agents"), f"http://127.0.0.1:{stage.port('agents')}"
    with _program([sys.executable, str(EXAMPLES / "harness.py"), token, "agents", url], stage):
        stage.ended.wait()


def producer_in_python(stage: Stage) -> None:
    """The snippet, beside a run on outside prompts alone."""
    _produce(stage, sys.executable, DOCS / "snippets" / "produce.py")


def gateway_answers(stage: Stage) -> None:
    """It is healthy, and takes a prompt with the token that the page's other command prints."""
    _until(stage, r"http://127\.0\.0\.1:")
    with urllib.request.urlopen(f"http://127.0.0.1:{stage.port('gateway')}/healthz", timeout=10) as answer:
        assert answer.status == 200
    with stage.output.open("a") as out:
        out.write("\nit is healthy\n")


def source_of_the_run(stage: Stage) -> None:
    """A token, by the page's command before."""
    command(stage, "slime-events", "gateway", "demo", "--issue", "quiz")


def tinker_script(stage: Stage) -> None:
    """The page's script, for two steps; then Ctrl-C."""
    address = _until(stage, r"TINKER_BASE_URL=(\S+) TINKER_API_KEY=(\S+)")
    page = next(start for start in starts_of(DOCS / "tinker.md") if start.text == "import tinker")
    assert "range(20)" in page.body
    (stage.home / "script.py").write_text(page.body.replace("range(20)", "range(2)"))
    variables = {"TINKER_BASE_URL": address[1], "TINKER_API_KEY": address[2]}
    with _program([sys.executable, "script.py"], stage, **variables) as script:
        until = time.monotonic() + START_S
        while script.poll() is None and not stage.ended.is_set() and time.monotonic() < until:
            time.sleep(LOOK_S)
    with stage.output.open("a") as out:
        out.write(f"\nthe script ended with {script.returncode}\n{(stage.home / 'beside').read_text()}\n")
    assert script.returncode == 0, (stage.home / "beside").read_text()[-2000:]


def nats_with_a_password(stage: Stage) -> None:
    """A server of the reader's own, until the stage is left."""
    if "nats" not in stage.servers:
        words = ["-js", "-sd", str(stage.home / "own-nats"), "-a", "127.0.0.1", "-p", str(stage.port("nats"))]
        stage.servers["nats"] = subprocess.Popen(
            [str(find_binary()), *words, "--user", "slime", "--pass", "s3cret"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        _listens(stage.port("nats"))


def teacher(stage: Stage) -> None:
    """Serve SGLang's `/generate` for the tokens of a sample, without a model."""

    class Answer(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["content-length"])))
            ids = request["input_ids"]
            logprobs = [[None, ids[0], None], *([-1.0, token, None] for token in ids[1:])]
            body = json.dumps({"text": "", "meta_info": {"input_token_logprobs": logprobs}}).encode()
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", stage.port("teacher")), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stage.ended.wait()
    server.shutdown()


def exported(stage: Stage) -> None:
    """Prompts and dumps of the demo, as the page's commands write them."""
    shutil.rmtree(stage.home / "exported", ignore_errors=True)
    command(stage, *["slime-events", "export", "demo", "--to", "jsonl", "--prompts", "--out", "exported/prompts.jsonl"])
    dumps = "slime-events export demo --to debug-rollout --steps 0-3 --out exported/dumps/{rollout_id}.pt"
    command(stage, *dumps.split())


def rescored(stage: Stage) -> None:
    """The changes of another filter, as the page's command writes them."""
    keeps = "slime_events.plugins.filters.dynamic_sampling:check_reward_nonzero_std"
    (stage.home / "changes.jsonl").unlink(missing_ok=True)
    command(stage, "slime-events", "rescore", "demo", "--dynamic-sampling-filter-path", keeps, "--out", "changes.jsonl")


def restored(stage: Stage) -> None:
    """A branch whose checkpoints are gone, as the page makes it."""
    command(stage, "slime-events", "restore", "left", "slime-runs/left/archive", "--runs-dir", "elsewhere")


def no_checkpoints(stage: Stage) -> None:
    """Remove the checkpoints, as the page does before it resumes."""
    command(stage, "rm", "-r", "slime-runs/left/checkpoints")


def command(stage: Stage, *words: str) -> str:
    """Another command of the page. Raises CalledProcessError."""
    done = subprocess.run(
        words, cwd=stage.home, env=stage.environment("real"), capture_output=True, text=True, check=False, timeout=120
    )
    if done.returncode:
        raise AssertionError(f"{' '.join(words)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout


def evaluation_sets(stage: Stage) -> None:
    """Write the sets that the page's YAML names, with the user's functions in it."""
    row = {"messages": [{"role": "user", "content": "1+1"}], "label": "2"}
    stage.write("aime-2024.jsonl", row)
    stage.write("search.jsonl", {"messages": row["messages"]})
    stage.write("gpqa.jsonl", {**row, "label": "A"})
    (stage.home / "my_rewards.py").write_text("async def found(args, sample, **kwargs):\n    return 0.5\n")
    (stage.home / "my_search.py").write_text("async def generate(args, sample, sampling_params):\n    return sample\n")
    page = next(start for start in starts_of(DOCS / "evaluating.md") if start.text == "eval:")
    body = page.body.replace("s3://bucket/gpqa.parquet", "gpqa.jsonl").replace("16384", "40")
    (stage.home / "sets.yaml").write_text(body)


def mistaken_sets(stage: Stage) -> None:
    """Write the evaluation sets with the mistake that the page shows."""
    evaluation_sets(stage)
    path = stage.home / "sets.yaml"
    path.write_text(path.read_text().replace("      path: aime", "      temprature: 0\n      path: aime", 1))


def slime_s_own(stage: Stage) -> None:
    """The two files with a mistake that the page shows."""
    (stage.home / "hook.py").write_text(
        "import json\nfrom slime.utils.wandb_utils import init\n\n\ndef note(args, sample):\n    return sample\n"
    )
    (stage.home / "log.py").write_text("def log(rollout_id, args, samples):\n    return True\n")


def _produce(stage: Stage, program: str, snippet: Path) -> None:
    credentials = stage.home / "slime-runs" / "outside-run" / "nats" / "producer.json"
    while not credentials.exists() and not stage.ended.wait(LOOK_S):
        pass
    with _program([program, str(snippet), str(credentials)], stage) as producing:
        assert producing.wait(START_S) == 0, (stage.home / "beside").read_text()


def _issued(stage: Stage, run: str) -> str:
    return command(stage, "slime-events", "gateway", run, "--issue", "harness").strip().splitlines()[-1].split()[-1]


def _listens(port: int) -> None:
    until = time.monotonic() + START_S
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(LOOK_S)
    raise AssertionError(f"nobody listens at port {port}")


def _until(stage: Stage, pattern: str) -> re.Match[str]:
    until = time.monotonic() + START_S
    while time.monotonic() < until and not stage.ended.is_set():
        if match := re.search(pattern, stage.printed()):
            return match
        time.sleep(LOOK_S)
    raise AssertionError(f"it never said {pattern!r}")


@contextlib.contextmanager
def _program(words: list[str], stage: Stage, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
    with (
        (stage.home / "beside").open("wb") as out,
        subprocess.Popen(
            words, cwd=stage.home, env=stage.environment("real") | variables, stdout=out, stderr=out
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
