#!/bin/sh
# Runs on the services of compose.yaml: `train.sh demo --steps 12`, `train.sh train --config FILE`, `train.sh resume RUN`.
set -eu
/opt/slime-events/deploy/compose/ray.sh join > /dev/null
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=/access/ray-token

command=$1
shift
if [ "$command" = resume ]; then
    exec slime-events resume "$@" --runs-dir /runs --ray-address ray-head:6379
fi
exec slime-events "$command" \
    --runs-dir /runs --ray-address ray-head:6379 \
    --nats-url tls://nats-1:4222,tls://nats-2:4222,tls://nats-3:4222 --nats-replicas 3 \
    --nats-creds /access/roles.json --nats-tls-ca /access/ca.pem \
    --archive-url s3://slime/archive --otlp-endpoint http://collector:4318 --use-otlp "$@"
