
# The environment is read from storage of each node's own: a shared file system is slow to import
# from where many ranks do it at once.
sbcast --force @archive@ @sent@ || echo "sbcast failed: see the line above" >&2
ready=$(env -u SLURM_NTASKS_PER_GPU -u SLURM_NTASKS_PER_TRES \
    srun -N"$SLURM_JOB_NUM_NODES" -n"$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 -c1 --mem=0 \
    --overlap --kill-on-bad-exit=0 \
    /bin/sh -c @unpack@ unpack @folder@ "$(wc -c < @archive@)")
@left_out@=''
for node in $(scontrol show hostnames "$SLURM_JOB_NODELIST"); do
    case " $(echo $ready) " in *" meshtune-ready:$node "*) ;; *) @left_out@="$@left_out@ $node" ;; esac
done
export @left_out@
case "$@left_out@ " in *" $SLURMD_NODENAME "*)
    echo "not searched: $SLURMD_NODENAME, which runs the search, has no environment;" \
        "the lines above say why" >&2
    exit 1 ;;
esac
[ -z "$@left_out@" ] || echo "searched without$@left_out@, as the lines above say" >&2
export PATH=@folder@/bin:"$PATH"
