#!/bin/sh
# A run that goes on where it was, however often its machine is taken away:
#   train-or-resume.sh RUN RUNS_DIR [flags of train and resume] -- [flags of train alone]
# For whoever starts a command again: systemd, SLURM's queue, a RayJob.
set -eu
run=$1
runs=$2
shift 2
both=""
while [ $# -gt 0 ] && [ "$1" != -- ]; do
    both="$both $1"
    shift
done
if [ -e "$runs/$run" ]; then
    # shellcheck disable=SC2086  # words without spaces
    exec slime-events resume "$run" --runs-dir "$runs" $both
fi
shift
# shellcheck disable=SC2086
exec slime-events train --run "$run" --runs-dir "$runs" $both "$@"
