#!/bin/sh
# pyxis and enroot for the tests of containers, from their sources (github.com/NVIDIA/pyxis and
# github.com/NVIDIA/enroot): build_pyxis.sh PYXIS_SOURCE ENROOT_SOURCE PREFIX; then MESHTUNE_PYXIS=PREFIX.
# Debian: apt-get install libslurm-dev libbsd-dev jq parallel squashfs-tools zstd gcc make
set -eu
pyxis=$(realpath "$1") enroot=$(realpath "$2")
mkdir -p "$3"
prefix=$(realpath "$3")
etc=$prefix/etc/enroot
mkdir -p "$prefix/bin" "$prefix/lib/enroot" "$prefix/pyxis" "$prefix/data" \
    "$etc/hooks.d" "$etc/mounts.d" "$etc/environ.d"
chmod 1777 "$prefix/data"
for program in aufs2ovlfs mksquashovlfs mount switchroot nsenter; do # its Makefile wants musl
    gcc -std=gnu99 -O2 -D_GNU_SOURCE -include bsd/stdlib.h -w \
        -o "$prefix/bin/enroot-$program" "$enroot/bin/enroot-$program.c" -lbsd
done
for file in enroot.in:bin/enroot conf/enroot.conf.in:etc/enroot/enroot.conf; do
    sed -e "s;@sysconfdir@;$etc;" -e "s;@libdir@;$prefix/lib/enroot;" -e 's;@version@;4.1.2;' \
        "$enroot/${file%:*}" > "$prefix/${file#*:}"
done
chmod +x "$prefix/bin/enroot"
cp "$enroot"/src/*.sh "$prefix/lib/enroot/"
cp "$enroot"/conf/hooks/*.sh "$etc/hooks.d/"
cp "$enroot"/conf/mounts/*.fstab "$etc/mounts.d/"
cp "$enroot"/conf/environ/*.env "$etc/environ.d/"
for name in RUNTIME CACHE DATA CONFIG; do # all nodes are one machine, and each needs its own
    echo "ENROOT_${name}_PATH $prefix/data/\${SLURMD_NODENAME:-x}-$name-\$(id -u)"
done >> "$etc/enroot.conf"
make -C "$pyxis" > /dev/null
cp "$pyxis/spank_pyxis.so" "$prefix/"
echo "required $prefix/spank_pyxis.so runtime_path=$prefix/pyxis container_scope=global" \
    > "$prefix/plugstack.conf"
