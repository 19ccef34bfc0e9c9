#!/bin/sh
# Starts a run, or resumes it if it exists, so that a scheduler can repeat the command (systemd, SLURM, a RayJob):
#   train-or-resume.sh RUN RUNS_DIR [flags of train and resume] -- [flags of train alone]
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
