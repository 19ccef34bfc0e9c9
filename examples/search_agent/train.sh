#!/bin/sh
# GRPO steps of the search agent on the tiny model, on a CPU: sh examples/search_agent/train.sh [FOLDER] [flag of train ...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-search-agent}
[ $# -eq 0 ] || shift
[ -f "$out/base/config.json" ] || python "$here/../tiny_base.py" "$out/base"
python "$here/pages.py" "$out"
exec slime-events train --config "$here/../agents.toml" --run search-agent --runs-dir "$out/runs" \
  --hf-checkpoint "$out/base" --prompt-data "$out/train.jsonl" --gateway 127.0.0.1:8511 --lr 1e-4 \
  --agent-command "python $here/agent.py $(cd "$out" && pwd)/pages.sqlite" "$@"
