"""Cases of pages from the letter M on."""

from __future__ import annotations

from functools import partial

from tests.harness.docs_run import beside
from tests.harness.docs_run.case import Case, Parts

REAL, NONE = Parts.REAL, Parts.NONE
FEW = "--num-rollout 2 --rollout-batch-size 2 --n-samples-per-prompt 4"
DEMO_FEW = "--steps 2 --rollout-batch-size 2 --n-samples-per-prompt 4"
A_RUN = "train --config settings.toml"
THE_FILE = "the file"

LEARNERS = partial(Case, page="docs/several-learners.md", parts=REAL)
METRICS = partial(Case, page="docs/metrics.md")
OUTSIDE = partial(Case, page="docs/producing-prompts.md")
RESUMING = partial(Case, page="docs/resuming.md")
RETRAINING = partial(Case, page="docs/retraining.md", parts=REAL)
SAMPLING = partial(Case, page="docs/prompt-files.md", parts=REAL)
SECURITY = partial(Case, page="docs/security.md")


SECOND_CASES = [
    METRICS(
        text="slime-events train ... --use-tensorboard --tb-project-name math --tb-experiment-name first",
        more="--run boards",
        steps=2,
    ),
    METRICS(
        text="slime-events train ... --use-wandb --wandb-project math --wandb-group first --wandb-key $WANDB_KEY",
        more="--wandb-mode offline --run weighed",
        steps=2,
    ),
    METRICS(
        text="slime-events train ... --otlp-endpoint http://collector:4318 --use-otlp",
        changes=(("http://collector:4318", "http://127.0.0.1:{port:nobody}"),),
        more="--run gauges",
        steps=2,
    ),
    Case(
        page="docs/prompt-files.md",
        text="slime-events train ... --prompt-data data/train.jsonl@[:10000] --input-key question --label-key answer "
        "--apply-chat-template",
        changes=(("data/train.jsonl", "questions.jsonl"),),
        more="--run questions",
        steps=2,
    ),
    Case(
        page="docs/own-losses.md",
        text="slime-events train --config run.toml --custom-advantage-function-path own_loss.py:advantage",
        parts=NONE,
    ),
    Case(
        page="docs/own-losses.md",
        text="# own_loss.py",
        parts=REAL,
        command=f"slime-events {A_RUN} --run own-loss --custom-advantage-function-path own_loss.py:advantages "
        "--custom-pg-loss-reducer-function-path own_loss.py:by_constant "
        "--custom-reward-post-process-path own_loss.py:post_process "
        "--rollout-data-postprocess-path step_data.py:mask_surprises "
        "--custom-model-provider-path own_model.py:provider",
        steps=2,
        covers=(("docs/own-losses.md", "# step_data.py"), ("docs/own-losses.md", "# own_model.py")),
    ),
    OUTSIDE(
        text="slime-events train ... --source-share quiz=0.3,file=0.5 --source-quota quiz=1000",
        more="--run shares",
        steps=2,
    ),
    OUTSIDE(
        text="slime-events train ... --prompt-data outside --gateway --num-rollout 100",
        changes=(
            ("--gateway", "--gateway 127.0.0.1:{port:outside}"),
            ("--num-rollout 100", "--num-rollout 1 --rollout-batch-size 2 --run outside-run"),
        ),
        beside=beside.producer_in_python,
        steps=1,
        covers=(("docs/producing-prompts.md", "python produce.py slime-runs/demo/nats/producer.json"),),
    ),
    Case(
        page="docs/python-api.md",
        text="python examples/the_loop.py",
        parts=REAL,
        steps=3,
        says=("run loop is finished",),
        covers=(
            ("examples/the_loop.py", THE_FILE),
            ("examples/rewards.py", THE_FILE),
            ("examples/filters.py", THE_FILE),
        ),
    ),
    Case(
        page="docs/python-api.md",
        text="python examples/settings_in_python.py",
        parts=REAL,
        says=(r"step 1: (\w+) from Python, \1 from sums.toml",),
        covers=(("examples/settings_in_python.py", THE_FILE),),
    ),
    Case(
        page="docs/python-api.md",
        text="import slime_events",
        parts=REAL,
        changes=(('"20"', '"2"'),),
        says=(r"\d+ 1\n\d+ 2\n",),
    ),
    Case(
        page="docs/replaying.md",
        text="# spread.py",
        parts=REAL,
        command="slime-events replay demo --dynamic-sampling-filter-path spread.py:keep",
        says=(r"now group\.rejected",),
        code=1,
    ),
    RESUMING(
        text="slime-events train --config slime-runs/demo/settings.toml --run y --num-rollout 2 "
        "--custom-rm-path rewards.py:nofunc",
        parts=NONE,
    ),
    RESUMING(
        text="slime-events demo --steps 12",
        changes=(("--steps 12", "--run interrupted --steps 6 --rollout-batch-size 4 --n-samples-per-prompt 4"),),
        killed=r"step 2/6",
    ),
    RESUMING(
        text="slime-events resume demo",
        shown=False,
        changes=(("resume demo", "resume interrupted"),),
        says=(r"run interrupted continues after \d of 6 steps \(resumption 1\)",),
        steps=6,
    ),
    RESUMING(
        text="slime-events resume demo --num-rollout 80",
        changes=(("resume demo --num-rollout 80", "resume interrupted --num-rollout 8"),),
        says=(r"run interrupted continues after 6 of 8 steps",),
        steps=8,
    ),
    RETRAINING(text="slime-events retrain demo", says=(r"6 steps re-trained, every digest equal",)),
    RETRAINING(
        text="slime-events retrain demo --steps :3 --tensor-model-parallel-size 2",
        says=(r"began with the base checkpoint, on 2 ranks, tensor parallel 2", r"4 steps re-trained"),
    ),
    RETRAINING(
        text="slime-events retrain demo --save-version 5 --out kept --checkpoint",
        says=(r"written: kept/v000005-", r"written: kept/checkpoints/v000005", r"5 steps re-trained, every digest eq"),
    ),
    RETRAINING(
        text="slime-events retrain poisoned --branch clean --drop \"SELECT group_id FROM prompts WHERE "
        "metadata->>'$.file' = 'contractor.jsonl'\"",
        changes=(("retrain poisoned", "retrain demo"),
                 ("metadata->>'$.file' = 'contractor.jsonl'", "group_id = 'train-0-000040'")),
        says=(r"1 of 6 batches of demo differ: 8 samples removed", r"run clean has weight version 6"),
        covers=(("docs/retraining.md", "slime-events retrain RUN --branch NAME --drop SQL"),),
    ),
    RETRAINING(
        text="slime-events retrain poisoned --branch filtered --changes changes.jsonl",
        changes=(("retrain poisoned", "retrain demo"),),
        before=beside.rescored,
        says=(r"batches of demo differ", r"run filtered has weight version 6"),
        covers=(("docs/retraining.md", "slime-events retrain RUN --branch NAME --changes FILE"),),
    ),
    Case(
        page="docs/rewards-and-filters.md",
        text="# rewards.py",
        command=f"slime-events {A_RUN} --run rewarded --custom-rm-path rewards.py:reward_func "
        "--dynamic-sampling-filter-path filters.py:not_too_easy --over-sampling-batch-size 48",
        steps=2,
        covers=(("docs/rewards-and-filters.md", "# filters.py"),),
    ),
    Case(
        page="docs/rewards-and-filters.md",
        text="# mixed.py",
        command=f"slime-events {A_RUN} --run mixed --custom-rm-path mixed.py:reward_func",
        steps=2,
    ),
    Case(
        page="docs/run-folder.md",
        text="slime-events demo --save-interval 1 --save-hf 's3://slime/step-{rollout_id}'",
        code=2,
    ),
    Case(
        page="docs/run-folder.md",
        text="slime-events train ... --weights-url s3://slime/weights --save s3://slime/checkpoints/math "
        "--cache-dir /nvme/slime-cache --cache-gb 500",
        changes=(("s3://", "memory://"), ("/nvme/slime-cache", "cache")),
        more="--run remote",
        steps=2,
    ),
    Case(
        page="docs/run-folder.md",
        text="slime-events train ... --archive-url s3://slime/archive --log-keep-steps 100",
        changes=(("s3://slime/archive", "kept-archive"),),
        more="--run kept",
        steps=2,
    ),
    SAMPLING(
        text="# mine.py",
        parts=Parts.SCRIPTED,
        command=f"slime-events {A_RUN} --run hardest --archive-prompts archive/demo "
        "--buffer-filter-path mine.py:choose",
        steps=2,
    ),
    SAMPLING(
        text="# my_source.py",
        parts=Parts.SCRIPTED,
        command=f"slime-events {A_RUN} --run sourced --data-source-path my_source.py:MySource",
        steps=2,
    ),
    SAMPLING(
        text="slime-events demo --run recalled --steps 8 --archive-prompts archive/demo --archive-reuse rollouts "
        "--archive-share 0.5 --archive-max-staleness 16 --archive-min-pass-rate 0.2 --archive-max-pass-rate 0.8 "
        "--use-tis",
        changes=(("--steps 8", "--steps 2 --rollout-batch-size 4"),),
        says=("2 weight versions",),
    ),
    SAMPLING(text="slime-events retrain recalled", says=(r"2 steps re-trained, every digest equal",)),
    SAMPLING(
        text="slime-events branch demo --from 5 --run fork --num-rollout 11 --archive-prompts archive/demo "
        "--archive-reuse rollouts --archive-share 0.5 --archive-max-staleness 8 --use-tis",
        changes=(("--num-rollout 11", "--num-rollout 6"),),
        steps=6,
    ),
    SECURITY(
        text="slime-events demo --nats-url nats://slime:s3cret@127.0.0.1:4222 --sglang-api-key k3y",
        changes=(("4222", "{port:nats}"), ("slime-events demo", f"slime-events demo --run secret {DEMO_FEW}")),
        before=beside.nats_with_a_password,
        says=("2 weight versions",),
        covers=(("docs/security.md",
                 "slime-events train ... --nats-url 'nats://me:${NATS_PASSWORD}@10.0.0.5:4222'"),),
    ),
    SECURITY(
        text="slime-events resume demo --nats-url nats://slime:s3cret@127.0.0.1:4222",
        changes=(("4222", "{port:nats} --num-rollout 3"), ("resume demo", "resume secret")),
        before=beside.nats_with_a_password,
        steps=3,
    ),
    Case(
        page="docs/settings.md",
        text="[rollout]",
        command="slime-events train --config page.toml --hf-checkpoint model --prompt-data questions.jsonl "
        "--input-key question --label-key answer --rm-type exact --run from-page --num-rollout 1 "
        "--rollout-batch-size 2 --n-samples-per-prompt 4 --rollout-max-response-len 40",
        steps=1,
    ),
    LEARNERS(
        text="slime-events learn live --run faster --follow --lr 2e-4",
        changes=(("learn live", "learn demo"),),
        says=(r"begins with weight version 0 of demo",),
        steps=6,
        covers=(
            ("docs/several-learners.md",
             "slime-events learn RUN --run NAME [--from VERSION] [--follow] [--drop SQL] [--changes FILE] [flags]"),
        ),
    ),
    LEARNERS(text="slime-events learn demo --run evaluated --eval-interval 5", parts=NONE),
    LEARNERS(
        text="slime-events learn demo --run same --num-rollout 12",
        changes=(("--num-rollout 12", "--num-rollout 4"),),
        says=(r"every batch is the same as in demo", r"run same has weight version 4 after 4 steps on"),
    ),
    LEARNERS(
        text="slime-events branch same --from 8 --run same-at-8 --num-rollout 9 --plain",
        changes=(("--from 8", "--from 4"), ("--num-rollout 9", "--num-rollout 5")),
        says=(r"version 4 is ready",),
        steps=5,
    ),
    Case(
        page="docs/tinker.md",
        text="slime-events train --run mine --tinker 127.0.0.1:8600 --hf-checkpoint ~/models/Qwen3-0.6B",
        parts=REAL,
        changes=(("8600", "{port:tinker}"),),
        says=(r"the script ended with 0",),
        beside=beside.tinker_script,
        stopped=r"the script ended with",
        code=130,
        covers=(("docs/tinker.md", "import tinker"),),
    ),
]  # fmt: skip
