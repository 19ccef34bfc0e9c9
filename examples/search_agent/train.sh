#!/bin/sh
# GRPO steps of the search agent on the tiny model, on a CPU: sh examples/search_agent/train.sh [FOLDER] [flag of train ...]
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=${1:-search-agent}
[ $# -eq 0 ] || shift
[ -f "$out/base/config.json" ] || python "$here/../tiny_base.py" "$out/base"
python "$here/pages.py" "$out"
exec slime-events train --run search-agent --runs-dir "$out/runs" \
  --hf-checkpoint "$out/base" --prompt-data "$out/train.jsonl" --input-key messages --label-key label \
  --apply-chat-template --agents --gateway 127.0.0.1:8511 \
  --agent-command "python $here/agent.py $(cd "$out" && pwd)/pages.sqlite" --agent-concurrency 8 --agent-timeout 120 \
  --num-rollout 20 --rollout-batch-size 4 --n-samples-per-prompt 8 --global-batch-size 32 \
  --rollout-max-response-len 32 --rollout-temperature 1 --eps-clip 0.2 --eps-clip-high 0.28 \
  --lr 1e-4 --adam-beta2 0.99 --clip-grad 1 --use-dynamic-batch-size --max-tokens-per-gpu 8192 --colocate "$@"
