#!/bin/sh
# A node of Ray: `ray.sh head`, `ray.sh worker`, or for a launcher, which joins Ray through a node of its own: `ray.sh join`.
# Whoever reaches Ray can run code, so each has to have its token. NODE_IP: of this node; by default Ray finds it.
set -eu
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=/access/ray-token
case $1 in
    head) set -- --head --port=6379 --include-dashboard=false --block ;;
    worker) set -- --address=ray-head:6379 --block ;;
    join) set -- --address=ray-head:6379 --num-cpus=0 ;;
esac
exec ray start --disable-usage-stats ${NODE_IP:+--node-ip-address="$NODE_IP"} "$@"
