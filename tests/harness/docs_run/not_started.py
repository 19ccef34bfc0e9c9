"""`NOT_STARTED`: what the pages and examples start a run with that is not started here, each with its reason."""

from __future__ import annotations

from tests.harness.docs_run.case import NotStarted

THE_FILE = "the file"
OTHERS = "needs a third-party package that this project's tests do not install: `make agent-kills` installs and runs it"
HARBOR = "needs Harbor and Docker for its tasks"
CHECKED = (
    "needs a daemon, a cluster or root: `make deploy-check` starts the same services as processes and drives a run"
)
OURS = "a harness of this project that starts runs of its own, and says whether they end as they should"
MEASURES = "measures; what it starts are this project's own settings, not the reader's"
ELSEWHERE = (
    "needs servers of that kind: "
    "tests/storage/log/test_cluster.py and tests/harness/strangers/test_own_server.py start them"
)
NOT_STARTED = [
    *(NotStarted("CONTRIBUTING.md", f"make {target}", OURS)
      for target in ("quick", "test", "soak", "deploy-check", "users", "agent-kills", "attacks", "cases")),
    NotStarted("CONTRIBUTING.md", "make resolve", "asks a package index which versions go together; starts no run"),
    NotStarted("README.md", "make test", OURS),
    NotStarted("docs/agents.md", "slime-events train --config settings.toml --agents --gateway "
               '--agent-command "harbor/bin/python', HARBOR),
    NotStarted("docs/algorithms.md", "python -m benchmarks.algorithms", MEASURES),
    NotStarted("docs/algorithms.md", "python -m sglang.launch_server", "a server of SGLang's own: a stand-in answers "
               "the run of the next line, and tests/harness/users has the teacher's log-probs"),
    NotStarted("docs/benchmarks.md", "python -m benchmarks", MEASURES),
    NotStarted("docs/scale.md", "python -m tests.simulation", MEASURES),
    NotStarted("docs/branching.md", "slime-events branch live --from 3", "its parent has to be on: "
               "tests/simulation branches off from one; the other commands of the page are started"),
    NotStarted("docs/branching.md", "slime-events branch tp --from 3", "needs a parent of two tensor parallel ranks: "
               "tests/run/test_parallel.py starts those, tests/cli/test_branch.py has the refusal"),
    NotStarted("docs/deploying.md", "slime-events train ... --nats-url", ELSEWHERE),
    NotStarted("docs/deploying.md", "slime-events train --ray-address", ELSEWHERE),
    NotStarted("docs/gateway.md", "slime-events train ... --nats-url", ELSEWHERE),
    *(NotStarted("docs/deploying.md", begin, CHECKED) for begin in ("docker ", "kubectl ", "systemctl ", "sbatch ")),
    NotStarted("docs/deploying.md", "make deploy-check", OURS),
    NotStarted("docs/deploying.md", "python -m tests.cluster", OURS),
    *(NotStarted("docs/external-engines.md", begin, "needs servers with GPUs on other machines: "
                 "tests/run/test_external_engine.py starts a server and a run on the CPU")
      for begin in ("python -m sglang.launch_server", "slime-events train")),
    *(NotStarted("docs/engine-groups.md", begin, "needs GPUs and two large models: "
                 "tests/run/test_engine_groups_run.py starts two groups and a second model on the CPU")
      for begin in ("sglang:", "slime-events train")),
    NotStarted("docs/first-run.md", "slime-events demo --model smollm2-135m", "takes minutes and 1 GB: "
               " `make demo-smollm2` is that start, tests/demo/test_smollm2.py makes the model"),
    NotStarted("docs/gpu.md", "make SET=gpu install", "installs, on a machine with a GPU; starts no run"),
    NotStarted("docs/producing-prompts.md", "node produce.js", "needs npm's package `nats`; the Python one is started"),
    NotStarted("docs/prompt-files.md", "slime-events resume demo", "needs a run whose prompt file was replaced: "
               "`make cases` and tests/run/test_changed_data.py resume one"),
    NotStarted("docs/retraining.md", "slime-events retrain flipped/demo", "needs a log that somebody changed: "
               "tests/retrain/changed.py makes one"),
    NotStarted("docs/run-folder.md", "slime-events resume ref", "needs an archive that somebody else made: "
               "tests/cli/test_hostile_archive.py makes one"),
    NotStarted("docs/security.md", "python -m tests.harness.secrets", OURS),
    NotStarted("docs/testing.md", "make chaos", OURS),
    NotStarted("docs/testing.md", "python -m tests.harness.chaos", OURS),
    NotStarted("docs/testing.md", "make mutate", OURS),
    NotStarted("docs/testing.md", "python -m tests.harness.mutation", OURS),
    NotStarted("docs/testing.md", "python -m tests.seeds", "parses and plans launches; tests/seeds runs it"),
    *(NotStarted(f"examples/frameworks/{name}", THE_FILE, OTHERS)
      for name in ("mini_swe_agent.py", "openai_agents.py", "pydantic_ai_agent.py", "smolagents_agent.py",
                   "openai_agents.mjs", "vercel_ai.mjs")),
    NotStarted("examples/frameworks/harbor_trial.py", THE_FILE, HARBOR),
    *(NotStarted(f"examples/harbor_agent/{name}", THE_FILE, HARBOR)
      for name in ("train.sh", "task/task.toml", "task/tests/test.sh")),
]  # fmt: skip
