#!/bin/sh
# Runs in every task of a step: Slurm's names for a rank become torch's, then the trainer starts.
export RANK="$SLURM_PROCID" ROLE_RANK="$SLURM_PROCID" LOCAL_RANK="$SLURM_LOCALID"
export NODE_RANK="$SLURM_NODEID" GROUP_RANK="$SLURM_NODEID"
command -v "$1" >/dev/null || { echo "meshtune: $SLURMD_NODENAME: no program $1" >&2; exit 127; }
exec "$@"
