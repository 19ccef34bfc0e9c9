#!/bin/sh
# GRPO steps of Harbor's terminus-2 on the tiny model, its tasks in Docker: sh examples/harbor_agent/train.sh [FOLDER] [flag of train ...]
# HARBOR is the python of the environment that Harbor is installed in: harbor/bin/python.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-harbor-agent}
[ $# -eq 0 ] || shift
[ -f "$out/base/config.json" ] || python "$here/../tiny_base.py" "$out/base" --chats terminal
echo "{\"messages\": [{\"role\": \"user\", \"content\": \"a digit\"}], \"label\": \"\", \"metadata\": {\"task\": \"$here/task\"}}" > "$out/train.jsonl"
exec slime-events train --config "$here/../agents.toml" --run harbor-agent --runs-dir "$out/runs" \
  --hf-checkpoint "$out/base" --prompt-data "$out/train.jsonl" --gateway 127.0.0.1:8513 --lr 2e-4 --agent-timeout 300 \
  --rollout-max-response-len 160 --rollout-batch-size 2 --global-batch-size 16 --num-rollout 4 \
  --agent-command "${HARBOR:-harbor/bin/python} $here/../frameworks/harbor_trial.py --agent-kwarg max_turns=4 --agent-kwarg record_terminal_session=false" "$@"
