#!/bin/bash
# Apptainer as far as the srun launcher uses it, by bubblewrap: exec [OPTIONS] FOLDER COMMAND.
set -eu
[ "$1" = exec ]
shift
mounts=() options=()
while :; do
    case $1 in
        --bind)
            IFS=: read -r source target flag <<< "$2"
            [ -e "$source" ] || { echo "FATAL:   container creation failed: mount $source->$target error: while mounting: no such file or directory" >&2; exit 255; }
            kind=--bind; [ "$flag" != ro ] || kind=--ro-bind
            mounts+=("$kind" "$source" "$target"); shift 2 ;;
        --pwd) options+=(--chdir "$2"); shift 2 ;;
        --nv | --rocm) shift ;;
        -*) echo "unknown flag: $1" >&2; exit 1 ;;
        *) break ;;
    esac
done
image=$1
shift
[ -d "$image/bin" ] || { echo "FATAL:   could not open image $image: image format not recognized" >&2; exit 255; }
# HOME, PATH and LD_LIBRARY_PATH are the image's, which also wins over the host's other variables.
unset LD_LIBRARY_PATH
while IFS='=' read -r name value; do export "$name=$value"; done < "$image/etc/environment"
for name in ${!APPTAINERENV_*}; do export "${name#APPTAINERENV_}=${!name}"; done
exec /usr/bin/bwrap --bind "$image" / --proc /proc --dev /dev --die-with-parent \
    "${mounts[@]}" "${options[@]}" "$@"
