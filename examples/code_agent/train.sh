#!/bin/sh
# GRPO steps of the code agent on the tiny model, on a CPU: sh examples/code_agent/train.sh [FOLDER] [flag of train ...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-code-agent}
[ $# -eq 0 ] || shift
[ -f "$out/base/config.json" ] || python "$here/../tiny_base.py" "$out/base"
python "$here/tasks.py" "$out"
exec slime-events train --config "$here/../agents.toml" --run code-agent --runs-dir "$out/runs" \
  --hf-checkpoint "$out/base" --prompt-data "$out/train.jsonl" --gateway 127.0.0.1:8512 --lr 2e-4 \
  --agent-command "python $here/agent.py" "$@"
