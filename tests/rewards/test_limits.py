"""Which variables a grader's process sees, and that limits are lowered only."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest

from slime_events.plugins.user_environment import grader_environment

SECRETS = (
    *("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "NATS_CREDS", "NATS_URL", "NATS_NKEY"),
    *("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "GITHUB_PAT", "OPENAI_API_KEY", "OPENAI_APIKEY", "openai_api_key"),
    *("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "DB_PASSWORD", "PGPASSWORD", "MYSQL_PWD"),
    *("CLIENT_SECRET", "SECRETS_FILE", "GOOGLE_APPLICATION_CREDENTIALS", "SSH_AUTH_SOCK", "TOKEN", "SSH_KEY_PATH"),
)
NEEDED = (
    *("PATH", "PYTHONPATH", "HOME", "PWD", "OLDPWD", "TMPDIR", "LANG", "HF_HOME", "HF_HUB_OFFLINE", "VIRTUAL_ENV"),
    *("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "TOKENIZERS_PARALLELISM", "OMP_NUM_THREADS", "KEYBOARD", "MONKEY"),
    *("RAY_ADDRESS", "PATHEXT", "AUTHOR", "SSL_CERT_FILE", "COMPASS"),
)


@pytest.mark.parametrize("name", SECRETS)
def test_a_secret_is_left_out_unless_it_is_named(name: str) -> None:
    assert name not in grader_environment({name: "x"}, [])
    assert name not in grader_environment({name: "x"}, ["OTHER"])
    assert grader_environment({name: "x"}, [name])[name] == "x"


@pytest.mark.parametrize("name", NEEDED)
def test_what_graders_need_stays(name: str) -> None:
    assert grader_environment({name: "/x:https://host/a"}, [])[name] == "/x:https://host/a"


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("PIP_INDEX_URL", "https://me:word@host/simple", False),
        ("DATABASE_URL", "postgres://word@host", False),
        ("DATABASE_URL", "postgres://host/a@b", True),
        ("JUDGE_URL", "http://host:8000", True),
        ("HTTPS_PROXY", "http://me:word@proxy:3128", True),
        ("http_proxy", "http://me:word@proxy:3128", True),
        ("EMAIL", "me@host", True),
    ],
)
def test_a_login_in_a_value_is_a_secret_but_for_a_proxy_s(name: str, value: str, kept: bool) -> None:
    assert (name in grader_environment({name: value}, [])) is kept


def test_one_thread_unless_the_user_says_otherwise() -> None:
    assert grader_environment({}, []) == {"OMP_NUM_THREADS": "1"}
    assert grader_environment({"OMP_NUM_THREADS": "4"}, []) == {"OMP_NUM_THREADS": "4"}


LIMITED = """
import resource, sys
from slime_events.core.child import limits
resource.setrlimit(resource.RLIMIT_NOFILE, (100, 200))
limits.limit(float(sys.argv[1]))
print(*(resource.getrlimit(each)[0] for each in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE, resource.RLIMIT_DATA)))
"""


def test_a_limit_that_is_lower_already_stays_and_none_is_none() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)[0]
    for memory_gb, most in (("3", 3_000_000_000), ("0", before)):
        done = subprocess.run([sys.executable, "-c", LIMITED, memory_gb], capture_output=True, text=True, check=True)
        assert [int(each) for each in done.stdout.split()] == [100, 0, most]
