"""`python -m tests.harness.docs_run.scripted WORDS`: the command with a scripted engine and a trainer that only counts.

Command line, checks before a start, launcher, conductor, graders, archivist, gateway and NATS server are the real ones.
"""

from __future__ import annotations

import sys

from slime_events.app.cli.main import main
from slime_events.app.demo.settings import BASE
from slime_events.plugins.tokenizer import load_tokenizer
from tests.run.cheap import Parts, cheap_parts
from tests.scripted_engine import Script

PARTS = Parts(script=Script(chunk=8, seconds_per_chunk=0.002))

if __name__ == "__main__":
    # Roles that are processes of their own are threads here, and two that import transformers at once see halves of it.
    load_tokenizer(str(BASE))
    with cheap_parts(PARTS):
        code = main(sys.argv[1:])
    sys.stdout.flush()
    sys.exit(code)
