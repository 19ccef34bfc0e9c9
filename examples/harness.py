"""A harness for a run with `--agents --gateway`: python harness.py TOKEN [RUN] [URL]. It ends with the run.

`slime-events gateway RUN --issue NAME` prints a token. Each thread has one session at a time.
"""

import contextlib
import sys
from concurrent.futures import ThreadPoolExecutor

from openai import OpenAI, OpenAIError

from slime_events import Harness

THREADS = 16


def work(harness: Harness) -> None:
    for session in harness.sessions():
        with contextlib.suppress(OpenAIError), session:  # if an agent gives up, the run requests its rollout again
            agent = OpenAI(base_url=session.base_url, api_key="none", max_retries=8)
            answer = agent.chat.completions.create(model="default", messages=session.prompt)
            session.seal(reward=float(answer.choices[0].message.content == session.label))


def main(token: str, run: str = "agents", url: str = "http://127.0.0.1:8500") -> None:
    with Harness(url, run, token) as harness, ThreadPoolExecutor(THREADS) as threads:
        for done in [threads.submit(work, harness) for _ in range(THREADS)]:
            done.result()


if __name__ == "__main__":
    main(*sys.argv[1:])
