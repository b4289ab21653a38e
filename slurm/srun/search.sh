#!/bin/bash
@directives@

# A meshtune search. Slurm sends USR1 before the time limit; the driver then starts nothing more,
# lets its trials end and exits with 3 if the search is not done. The job is requeued then, and if
# the driver was killed: that keeps its id, its log and this script. Where a site forbids it, the
# next job is submitted. The run folder's journal carries the search from one job to the next.
@modules@
set -u
ended() { cat @journal@ 2>/dev/null | grep -cE @ended@; }
before=$(ended)

driver='' interrupted='' cancelled=''
trap 'interrupted=USR1; [ -z "$driver" ] || kill -USR1 "$driver"' USR1
trap 'interrupted=TERM; cancelled=1; [ -z "$driver" ] || kill -TERM "$driver"' TERM
@environment@
@search@ &
driver=$!
[ -z "$interrupted" ] || kill -"$interrupted" "$driver"  # it came before there was a driver
while
    interrupted=''
    wait "$driver"
    code=$?
    [ -n "$interrupted" ]
do :; done

# 3: there is work left. Above 128, the driver was killed, for its memory perhaps; the journal is
# whole, and the next one settles what this one left. 130 is somebody's wish.
case "$cancelled:$code" in
    :3|:129|:13[1-9]|:1[4-9]?) ;;
    *) exit "$code" ;;
esac
if [ "$(ended)" = "$before" ]; then
    echo "not requeued: no trial ended in this allocation; does one fit into its time?" >&2
    exit 1
fi

# A controller that is being restarted answers again within minutes.
for pause in 1 2 4 8 15 30 60 60 60 60 60 60; do
    said=$(scontrol requeue "$SLURM_JOB_ID" 2>&1) && exit 0
    case "$said" in
        *"contact slurm"* | *"timed out"* | *"Unexpected message"*) sleep "$pause" ;;
        *) break ;;
    esac
done
echo "$said" >&2
sbatch @script@
