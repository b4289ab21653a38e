#!/bin/sh
# Runs in every task of a step: Slurm's names for a rank become torch's, then the trainer starts.
export RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"
exec "$@"
