#!/bin/bash
# The project on a bare Debian 12: a root made by debootstrap, this tree copied in, `./dev demo` and
# `./dev test`, each run again to see that it is quick. Needs root, debootstrap and a package mirror
# (the one of this machine's apt, or $OCTET_MIRROR). Takes about 20 minutes and 3 GB in $TMPDIR.
#
#     tests/bare_debian.sh [demo|test]     both if none is named
set -eu
source="${OCT_TEST_SOURCE:-$(cd "$(dirname "$0")/.." && pwd)}"

skip() { echo "bare_debian: SKIPPED: $*"; exit 77; }
fail() { echo "bare_debian: $*"; exit 1; }

[ "$(id -u)" = 0 ] || skip "not root"
command -v debootstrap >/dev/null || skip "no debootstrap (package debootstrap)"
mirror="${OCTET_MIRROR:-$(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' \
    'Release: bookworm' 2>/dev/null | head -1)}"
[ -n "$mirror" ] || skip "no mirror of bookworm is configured; set OCTET_MIRROR"

root=$(mktemp -d "${TMPDIR:-/tmp}/bare-debian-XXXXXX")
chmod 755 "$root"
clean_up()
{
    umount -l "$root/proc" "$root/sys" "$root/dev/pts" "$root/dev" 2>/dev/null || true
    # Nothing may be mounted below what is removed.
    grep -q " $root/" /proc/mounts || rm -rf --one-file-system "$root"
}
trap clean_up EXIT

debootstrap --variant=minbase bookworm "$root" "$mirror" >"$root.log" 2>&1 ||
    { tail -5 "$root.log"; fail "debootstrap failed, see $root.log"; }
rm -f "$root.log"
mount -t proc proc "$root/proc" 2>/dev/null || echo "bare_debian: no /proc in the root"
mount -t sysfs -o ro sysfs "$root/sys" 2>/dev/null || echo "bare_debian: no /sys in the root"
mount --bind /dev "$root/dev" 2>/dev/null || echo "bare_debian: no /dev in the root"
mount --bind /dev/pts "$root/dev/pts" 2>/dev/null || echo "bare_debian: no terminals in the root"
cp -L /etc/resolv.conf /etc/hosts "$root/etc/" 2>/dev/null || true
for setting in /etc/apt/apt.conf.d/*proxy* /etc/apt/apt.conf; do
    [ ! -f "$setting" ] || cp "$setting" "$root/etc/apt/apt.conf.d/"
done

# A clone where there is a repository (with what is not committed yet left out), else a copy.
if [ -d "$source/.git" ]; then
    git clone -q --no-hardlinks "$source" "$root/octet"
else
    mkdir "$root/octet"
    tar -C "$source" --exclude=./build -cf - . | tar -C "$root/octet" -xf -
fi

in_root()
{
    chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/ LANG=C.UTF-8 \
        ${http_proxy:+http_proxy="$http_proxy"} ${https_proxy:+https_proxy="$https_proxy"} \
        sh -c "cd /octet && $1"
}

# twice COMMAND: the second time within 20 seconds.
twice()
{
    local start
    in_root "$1" || fail "$1 failed"
    start=$SECONDS
    in_root "$1" || fail "$1 failed the second time"
    [ $((SECONDS - start)) -le 20 ] || fail "$1 takes $((SECONDS - start)) s with nothing changed"
    echo "bare_debian: $1 passed; $((SECONDS - start)) s the second time"
}

case "${1:-all}" in
demo|all) twice "./dev demo" ;;
esac
case "${1:-all}" in
test|all) twice "./dev test" ;;
esac
