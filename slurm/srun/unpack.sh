#!/bin/sh
# Runs once on each node: unpacks what sbcast left beside FOLDER into it; it is SIZE bytes long.
# A node that is ready says so, and nothing else; a site's TaskProlog may print its name, too.
folder=$1 size=$2 sent=$1.meshtune.tar mark=$1.meshtune
fail() { echo "meshtune: $SLURMD_NODENAME: $1" >&2; exit 1; }
trap 'rm -f "$sent"' EXIT

[ "$(wc -c < "$sent")" -eq "$size" ] ||
    fail "$sent did not arrive whole: the folder above must be there, writable, and have room"
# In a folder that others share, a link could lead to somebody's files.
for path in "$folder" "$mark"; do
    [ ! -L "$path" ] || fail "$path is a link: remove it, or name a folder in one of your own"
done
# Only what an earlier job unpacked is replaced. The mark is beside it, so that it outlives a
# replacement that was interrupted.
[ ! -e "$folder" ] || [ -e "$mark" ] ||
    fail "$folder is there already: name another one in the site's environment, or remove it"
{ [ -e "$mark" ] || (set -C; : > "$mark"); } && rm -rf "$folder" && mkdir "$folder" ||
    fail "$folder cannot be made: the folder above must be there and writable"
tar -xf "$sent" -C "$folder" ||
    fail "the archive cannot be unpacked: see the lines above; is there room for it?"
[ -x "$folder/bin/python" ] || fail "the archive has no bin/python: pack it with bin/ at its top"
# What conda-pack leaves to be done where an environment is to stay.
[ ! -x "$folder/bin/conda-unpack" ] || "$folder/bin/python" "$folder/bin/conda-unpack" >&2 ||
    fail "conda-unpack failed: see the lines above"
echo "meshtune-ready:$SLURMD_NODENAME"
