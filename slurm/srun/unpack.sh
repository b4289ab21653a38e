#!/bin/sh
# Runs once on each node: unpacks FOLDER.tar, which sbcast left there, into FOLDER.
folder=$1
fail() { echo "meshtune: $SLURMD_NODENAME: $1" >&2; exit 1; }

# Only what an earlier job unpacked is replaced.
[ ! -e "$folder" ] || [ -e "$folder/.meshtune" ] || fail "$folder is there already: name another"
rm -rf "$folder"
mkdir -p "$folder" && : > "$folder/.meshtune" || fail "$folder cannot be made"
tar -xf "$folder.tar" -C "$folder" || fail "$folder.tar cannot be unpacked"
rm -f "$folder.tar"
[ -x "$folder/bin/python" ] || fail "the archive has no bin/python"
# What conda-pack leaves to be done where an environment is to stay.
[ ! -x "$folder/bin/conda-unpack" ] || "$folder/bin/python" "$folder/bin/conda-unpack" ||
    fail "conda-unpack failed"
