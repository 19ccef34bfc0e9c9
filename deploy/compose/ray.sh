#!/bin/sh
# Starts a Ray node: `ray.sh head`, `ray.sh worker`, or `ray.sh join` for a launcher, which joins Ray through its own node.
# Any client that can connect to Ray can run code, so each needs the token. NODE_IP: address of this node, found by default.
set -eu
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=/access/ray-token
case $1 in
    head) set -- --head --port=6379 --include-dashboard=false --block ;;
    worker) set -- --address=ray-head:6379 --block ;;
    join) set -- --address=ray-head:6379 --num-cpus=0 ;;
esac
exec ray start --disable-usage-stats ${NODE_IP:+--node-ip-address="$NODE_IP"} "$@"
