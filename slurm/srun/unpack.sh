#!/bin/sh
# Runs once on each node: unpacks what sbcast left beside FOLDER into it.
folder=$1 sent=$1.meshtune.tar mark=$1.meshtune
fail() { echo "meshtune: $SLURMD_NODENAME: $1" >&2; exit 1; }
trap 'rm -f "$sent"' EXIT

# Only what an earlier job unpacked is replaced. The mark is beside it, so that it outlives a
# replacement that was interrupted.
[ ! -e "$folder" ] || [ -e "$mark" ] || fail "$folder is there already: name another"
: > "$mark" && rm -rf "$folder" && mkdir -p "$folder" || fail "$folder cannot be made"
tar -xf "$sent" -C "$folder" || fail "the archive cannot be unpacked"
[ -x "$folder/bin/python" ] || fail "the archive has no bin/python"
# What conda-pack leaves to be done where an environment is to stay.
[ ! -x "$folder/bin/conda-unpack" ] || "$folder/bin/python" "$folder/bin/conda-unpack" ||
    fail "conda-unpack failed"
