#!/bin/sh
# Runs as every rank: mpiexec's names for a rank become torch's, then the trainer starts.
# rank.sh RANK_VARIABLE LOCAL_RANK_VARIABLE exit|abort PROGRAM [ARGUMENT...]
RANK=$(printenv "$1") && LOCAL_RANK=$(printenv "$2") || {
  echo "meshtune: $(hostname): mpiexec set no $1 or $2: is it another MPI's?" >&2
  exit 125
}
NODE_RANK=$((RANK / LOCAL_WORLD_SIZE))
export RANK LOCAL_RANK NODE_RANK ROLE_RANK="$RANK" GROUP_RANK="$NODE_RANK"
failure=$3
shift 3
for argument do # as they are: see _escaped
  shift
  set -- "$@" "${argument#=}"
done
node=$(echo "$MESHTUNE_NODES" | cut -d, -f$((NODE_RANK + 1)))
command -v "$1" >/dev/null || { echo "meshtune: $node: no program $1" >&2; exit 127; }
[ -z "$MESHTUNE_MEMORY_KIB" ] || ulimit -d "$MESHTUNE_MEMORY_KIB"
if [ -z "$OMP_NUM_THREADS" ]; then # unbound, each rank would start a thread for every core
  threads=$(($(nproc) / LOCAL_WORLD_SIZE))
  export OMP_NUM_THREADS=$((threads > 0 ? threads : 1))
fi
oom_kills() { sed -n 's/^oom_kill //p' /proc/vmstat 2>/dev/null; }
kills=$(oom_kills)

"$@" &
program=$!
asked=
trap 'asked=1; kill -TERM $program 2>/dev/null' USR1
trap 'asked=1' TERM # goes to the whole process group, so the program has it already
wait $program
code=$?
while kill -0 $program 2>/dev/null; do # a signal ended the wait, not the program
  wait $program
  code=$?
done
# Whom the program left behind would keep mpiexec waiting for the end of its output. This shell
# itself was started without a RANK.
for environ in $(grep -slzxF "MESHTUNE_TRIAL=$MESHTUNE_TRIAL" /proc/[0-9]*/environ); do
  if grep -sqzxF "RANK=$RANK" "$environ"; then
    environ=${environ#/proc/}
    kill -KILL "${environ%/environ}" 2>/dev/null
  fi
done
# Who ends because it was asked to has not failed, and the others keep their time to end.
[ -z "$asked" ] && [ $code -ne 0 ] || exit 0
if [ $code -le 128 ]; then
  how="ended with exit code $code"
else
  how="was ended by signal $((code - 128))"
  if [ $code -eq 137 ] && [ "$(oom_kills)" != "$kills" ]; then
    how="$how: its host ran out of memory"
  fi
fi
echo "meshtune: rank $RANK on $node $how" >&2
[ "$failure" = exit ] || kill -KILL $$
exit $code
