"""Cases of the README and of pages up to the letter L."""

from __future__ import annotations

from functools import partial

from tests.harness.docs_run import beside
from tests.harness.docs_run.case import Case, Parts

REAL, NONE = Parts.REAL, Parts.NONE
FEW = "--num-rollout 2 --rollout-batch-size 2 --n-samples-per-prompt 4"
DEMO_FEW = "--steps 2 --rollout-batch-size 2 --n-samples-per-prompt 4"
A_RUN = "train --config settings.toml"
THE_FILE = "the file"
ONE_STEP = " --num-rollout 1 --rollout-batch-size 2 --n-samples-per-prompt 2"

README = partial(Case, page="README.md")
AGENTS_EXAMPLES = partial(Case, page="docs/agents.md")
BRANCHING = partial(Case, page="docs/branching.md")
SLIME = partial(Case, page="docs/coming-from-slime.md")
EVALUATING = partial(Case, page="docs/evaluating.md")
EXPORTING = partial(Case, page="docs/exporting.md", parts=REAL)
FIRST = partial(Case, page="docs/first-run.md")

DEMO = README(
    text="make demo",
    parts=REAL,
    changes=(("make demo", "slime-events demo"),),
    more="--steps 6",
    says=(r"6 weight versions", r"The run's files are in"),
    covers=(("docs/first-run.md", "slime-events demo"), ("docs/gpu.md", "make demo")),
)
"""The model learns in 60 steps, which the demo's own tests look at; here it is to run."""

FIRST_CASES = [
    DEMO,
    AGENTS_EXAMPLES(
        text='slime-events train --config settings.toml --agents --gateway --agent-command "python agent.py"',
        changes=(("--gateway", "--gateway 127.0.0.1:{port:command}"),),
        more=f"--run command{ONE_STEP}",
        before=beside.agent_program,
        steps=1,
        covers=(("examples/frameworks/openai_client.py", THE_FILE),),
    ),
    Case(
        page="examples/frameworks/anthropic_client.py",
        text=THE_FILE,
        command=f"slime-events {A_RUN} --run anthropic --agents --gateway 127.0.0.1:{{port:anthropic}} "
        '--agent-command "python examples/frameworks/anthropic_client.py"' + ONE_STEP,
        steps=1,
    ),
    AGENTS_EXAMPLES(
        text="sh examples/search_agent/train.sh",
        parts=REAL,
        more=f"search-agent{ONE_STEP} --global-batch-size 4 --gateway 127.0.0.1:{{port:search}}",
        before=beside.base_for("search-agent"),
        steps=1,
        covers=(
            ("examples/search_agent/train.sh", THE_FILE),
            ("examples/search_agent/agent.py", THE_FILE),
            ("examples/search_agent/pages.py", THE_FILE),
            ("examples/agents.toml", THE_FILE),
        ),
    ),
    AGENTS_EXAMPLES(
        text="sh examples/code_agent/train.sh",
        more=f"code-agent{ONE_STEP} --global-batch-size 4 --gateway 127.0.0.1:{{port:code}}",
        before=beside.base_for("code-agent"),
        steps=1,
        covers=(
            ("examples/code_agent/train.sh", THE_FILE),
            ("examples/code_agent/agent.py", THE_FILE),
            ("examples/code_agent/sandbox.py", THE_FILE),
            ("examples/code_agent/tasks.py", THE_FILE),
        ),
    ),
    Case(
        page="examples/tiny_base.py",
        text=THE_FILE,
        command="python examples/tiny_base.py tiny-base --steps 1 && ls tiny-base",
        says=("config.json", r"model\.safetensors", r"tokenizer\.json"),
    ),
    Case(
        page="docs/agents.md",
        text="slime-events train --config settings.toml --agents --gateway",
        changes=(("--gateway", "--gateway 127.0.0.1:{port:agents}"),),
        more="--run agents --num-rollout 1",
        beside=beside.harness,
        says=(r"the gateway is at http://127\.0\.0\.1:\d+; for a token of a source: `slime-events gateway agents --",),
        steps=1,
        covers=(("examples/harness.py", THE_FILE),),
    ),
    Case(
        page="docs/algorithms.md",
        text="slime-events demo --lambd 0.9 --tis-clip 3",
        more=f"--run clipped {DEMO_FEW}",
        says=("2 weight versions",),
    ),
    Case(
        page="docs/algorithms.md",
        text="slime-events train ... --advantage-estimator ppo --normalize-advantages --critic-lr 1e-5 "
        "--num-critic-only-steps 10",
        changes=(("--num-critic-only-steps 10", "--num-critic-only-steps 1"),),
        more="--run critic",
        steps=2,
    ),
    Case(
        page="docs/algorithms.md",
        text="slime-events demo --steps 60 --advantage-estimator ppo --normalize-advantages --critic-lr 5e-4 "
        "--num-critic-only-steps 5 --save-interval 20",
        parts=REAL,
        changes=(
            ("--steps 60", "--run ppo --steps 2 --rollout-batch-size 2"),
            ("--num-critic-only-steps 5 --save-interval 20", "--num-critic-only-steps 1 --save-interval 2"),
        ),
        says=("2 weight versions",),
    ),
    Case(
        page="docs/algorithms.md",
        text="slime-events demo --run distilled --use-opd --opd-teacher-load "
        "slime-runs/teacher/weights/v000060-eba1d162c201 --custom-reward-post-process-path "
        "slime.rollout.on_policy_distillation.post_process_rewards",
        parts=REAL,
        changes=(("slime-runs/teacher/weights/v000060-eba1d162c201", "slime-runs/demo/weights/v000006-*"),),
        more=DEMO_FEW,
        says=("2 weight versions",),
    ),
    Case(
        page="docs/algorithms.md",
        text="slime-events train ... --use-opd --opd-type sglang --rm-url http://127.0.0.1:13141/generate "
        "--custom-rm-path slime.rollout.on_policy_distillation.reward_func --custom-reward-post-process-path "
        "slime.rollout.on_policy_distillation.post_process_rewards",
        changes=(("13141", "{port:teacher}"),),
        more="--run taught",
        beside=beside.teacher,
        steps=2,
    ),
    Case(
        page="docs/algorithms.md",
        text="slime-events train --config sft.toml",
        parts=REAL,
        more="--run supervised",
        says=(r"num_epoch 3 over 32 rows is num_rollout 3",),
        steps=3,
        covers=(("docs/algorithms.md", "# sft.toml"),),
    ),
    BRANCHING(
        text="slime-events branch demo --from 5 --run faster --lr 3e-4 --num-rollout 12",
        parts=REAL,
        changes=(("--num-rollout 12", "--num-rollout 6"), ("--run faster", "--run faster-branch")),
        says=(r"making version 5 of run demo", r"version 5 is ready"),
        steps=6,
        more="--rm-type math",
        covers=(
            ("docs/branching.md", "slime-events branch RUN --from 5 --run NAME"),
            ("docs/branching.md", "slime-events branch RUN --from 5 --run NAME --lr 3e-4"),
            ("docs/branching.md", "slime-events branch RUN --from 5 --run NAME --rm-type math --num-rollout 80"),
        ),
    ),
    BRANCHING(
        text="slime-events branch live --from 99 --run off",
        parts=NONE,
        changes=(("branch live", "branch slime-runs/demo"),),
        says=(r"error: run demo has no weight version 99: there are 0 to 6",),
        code=2,
        shown=False,
    ),
    BRANCHING(text="slime-events branch demo --from 5 --run other --optimizer sgd --num-rollout 4", parts=NONE),
    BRANCHING(text="slime-events branch demo --from 5 --run other --optimizer sgd", parts=NONE),
    BRANCHING(text="slime-events branch demo --from 77 --run other", parts=NONE),
    BRANCHING(
        text="slime-events branch archive/demo --from 5 --run left --num-rollout 8",
        parts=REAL,
        killed=r"step 6/8",
        covers=(("docs/branching.md", "slime-events branch s3://bucket/archive/demo --from 5 --run NAME"),),
    ),
    BRANCHING(
        text="slime-events resume left",
        parts=REAL,
        before=beside.no_checkpoints,
        says=(r"run left continues after [67] of 8 steps \(resumption 1\)", r"making version 5 of run demo"),
        steps=8,
    ),
    BRANCHING(
        text="slime-events resume left --runs-dir elsewhere --num-rollout 9",
        parts=REAL,
        before=beside.restored,
        says=(r"run left continues after 8 of 9 steps",),
        steps=9,
    ),
    SLIME(
        text="slime-events train ... --finetune --num-gpus-per-node 4 --seq-length 4096 --tis-clip 3 --wandb-project p",
        changes=(
            (
                " ...",
                " --hf-checkpoint model --prompt-data questions.jsonl --input-key question --label-key answer "
                "--rm-type exact --num-rollout 1 --run finetune",
            ),
        ),
        steps=1,
    ),
    SLIME(text="slime-events train ... --rollout-sample-hook-path hook.py:note", parts=NONE, before=beside.slime_s_own),
    SLIME(
        text="slime-events train ... --custom-rollout-log-function-path log.py:log",
        parts=NONE,
        before=beside.slime_s_own,
    ),
    SLIME(
        text="# convert.py",
        command=f"slime-events {A_RUN} --run converted --custom-convert-samples-to-train-data-path convert.py:convert",
        steps=2,
    ),
    EVALUATING(
        text="slime-events train ... --eval-prompt-data digits4 eval.jsonl --eval-interval 20 --eval-temperature 0",
        more="--run evaluated-sets",
        says=(r"eval digits4 of version 0:", r"eval digits4 of version 2:"),
        steps=2,
    ),
    EVALUATING(
        text="eval:",
        command="slime-events train --config settings.toml --eval-config sets.yaml --eval-interval 2 --run sets",
        before=beside.evaluation_sets,
        says=(r"eval aime of version 2", r"eval gpqa of version 2", r"eval search of version 2"),
        steps=2,
    ),
    EVALUATING(
        text="slime-events train ... --eval-config sets.yaml",
        parts=NONE,
        more="--eval-interval 2",
        before=beside.mistaken_sets,
    ),
    EXPORTING(
        text="slime-events train --prompt-data exported/prompts.jsonl --input-key input --label-key label "
        "--apply-chat-template ...",
        parts=Parts.SCRIPTED,
        changes=((" ...", f" --hf-checkpoint model --rm-type exact --run again {FEW}"),),
        before=beside.exported,
        steps=2,
    ),
    EXPORTING(
        text="slime-events train --config slime-runs/demo/settings.toml --run rollouts --num-rollout 2 --plain "
        "--debug-rollout-only --dump-details dumps",
        steps=2,
    ),
    EXPORTING(
        text="slime-events train --config slime-runs/demo/settings.toml --run trained --num-rollout 2 --plain "
        "--debug-train-only --load-debug-rollout-data 'dumps/rollout_data/{rollout_id}.pt' "
        "--save-debug-train-data 'dumps/train/{rollout_id}.pt'",
        steps=2,
    ),
    EXPORTING(
        text="slime-events train --config slime-runs/demo/settings.toml --run part --num-rollout 2 --plain "
        "--rollout-batch-size 8 --global-batch-size 64 --load-debug-rollout-data "
        "'dumps/rollout_data/{rollout_id}.pt' --load-debug-rollout-data-subsample 0.5",
        steps=2,
    ),
    EXPORTING(
        text="slime-events train --config slime-runs/demo/settings.toml --run loaded --num-rollout 4 --plain "
        "--load-debug-rollout-data 'exported/dumps/{rollout_id}.pt'",
        before=beside.exported,
        steps=4,
    ),
    FIRST(
        text="slime-events demo --run wide --n-samples-per-prompt 16 --steps 30",
        changes=(("--steps 30", "--steps 2 --rollout-batch-size 2"),),
        says=("2 weight versions",),
    ),
    FIRST(
        text="slime-events demo --run async --max-staleness 1",
        more=DEMO_FEW,
        says=("2 weight versions",),
    ),
    FIRST(
        text="slime-events train --run first --hf-checkpoint models/Qwen3-0.6B --prompt-data data/train.jsonl "
        "--input-key question --label-key answer --apply-chat-template --rm-type math --num-rollout 100 "
        "--rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 1024 --lr 1e-6",
        changes=(
            ("data/train.jsonl", "questions.jsonl"),
            ("--num-rollout 100", "--num-rollout 1"),
            ("--rollout-max-response-len 1024", "--rollout-max-response-len 64"),
        ),
        steps=1,
    ),
    Case(
        page="docs/generate-functions.md",
        text="slime-events demo --run calc --steps 6 --custom-generate-function-path calculator.py:generate "
        "--max-turns 2 --custom-rm-path calculator.py:reward_func",
        parts=REAL,
        changes=(("--steps 6", DEMO_FEW),),
        says=("2 weight versions",),
        covers=(("examples/calculator.py", THE_FILE),),
    ),
    Case(
        page="docs/generate-functions.md",
        text="# own_client.py",
        parts=REAL,
        command=f"slime-events {A_RUN} --run own-client --custom-generate-function-path own_client.py:generate",
        steps=2,
    ),
    Case(
        page="docs/generate-functions.md",
        text="# mine.yaml",
        command=f"slime-events {A_RUN} --run named --custom-config-path mine.yaml "
        "--custom-rm-path rewards.py:reward_func",
        steps=2,
    ),
    Case(
        page="docs/generate-functions.md",
        text="# own_rollout.py",
        parts=REAL,
        command=f"slime-events {A_RUN} --run own-steps --rollout-function-path own_rollout.py:rollout",
        steps=2,
    ),
    Case(
        page="docs/gateway.md",
        text="slime-events train ... --run demo --gateway",
        changes=(("--run demo --gateway", "--run door --gateway 127.0.0.1:{port:door}"),),
        says=(r"the gateway is at http://127\.0\.0\.1:\d+; for a token of a source: `slime-events gateway door --",),
        steps=2,
    ),
    Case(
        page="docs/gateway.md",
        text="slime-events gateway demo",
        parts=REAL,
        more="--listen 127.0.0.1:{port:gateway}",
        says=(r"http://127\.0\.0\.1:\d+",),
        stopped=r"healthy",
        before=beside.source_of_the_run,
        beside=beside.gateway_answers,
        code=130,
    ),
    Case(
        page="docs/inspecting.md",
        text="slime-events demo --run minus --steps 40 --custom-rm-path paid.py:minus",
        changes=(("--steps 40", DEMO_FEW),),
        says=("2 weight versions",),
        shown=False,
        covers=(("docs/inspecting.md", "# paid.py"),),
    ),
]
