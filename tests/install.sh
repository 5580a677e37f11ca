#!/bin/bash
# What is installed works from anywhere: staged with DESTDIR, moved, then the program, ranks, and programs
# in C and C++ through pkg-config and find_package. As root also `./dev install` into /usr/local, in a
# mount namespace.
set -eu
. "$(dirname "$0")/consumer_rig.sh"

# ---- staged and moved --------------------------------------------------------------------------------
prefix=$tmp/moved
DESTDIR=$tmp/stage quiet cmake --install "$OCT_TEST_BUILD" --prefix /opt/octet
[ "$(sed "s:^/opt/octet/::" "$manifest" | sort)" = \
    "$(cd "$tmp/stage/opt/octet" && find . ! -type d -printf '%P\n' | sort)" ] ||
    fail "the manifest does not list what is installed"
mv "$tmp/stage/opt/octet" "$prefix"
[ -z "$(find "$tmp/stage" -mindepth 1 ! -path "$tmp/stage/opt")" ] || fail "installed outside /opt/octet"
headers=$(find "$prefix" -name '*.h' -printf '%P\n' | sort)
[ "$headers" = "$(printf 'include/octet/%s\n' $(basename -a $OCT_TEST_HEADERS) | sort)" ] ||
    fail "headers installed: $headers"
! grep -rlF -e "$OCT_TEST_BUILD" -e "$source" "$prefix" || fail "a path of the build is in these files"

# ---- the program and ranks -----------------------------------------------------------------------------
run="run -m $model -n 12 --temp 0 -p"
cd "$tmp"
[ "$("$prefix/bin/octet" $run "$prompt" 2>err)" = "$expected" ] || fail "octet run: $(cat err)"
if [ -e "$OCT_TEST_BUILD/mpi/liboctet_mpi.so" ] && command -v mpirun >/dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
    text=$(env -u LD_LIBRARY_PATH mpirun --oversubscribe --bind-to none -n 2 \
        "$prefix/bin/octet" $run "$prompt" 2>err) || fail "2 ranks: $(cat err)"
    [ "$text" = "$expected" ] || fail "2 ranks print: $text"
    grep -q '^ranks by' err || fail "2 ranks: no line about the layout: $(cat err)"
else
    echo "install: SKIPPED ranks: no mpirun, or built without MPI"
fi

# ---- programs of others ----------------------------------------------------------------------------------
by_pkg_config "$tmp/pkg-config" "$prefix"
by_cmake "$tmp/find" "find_package(octet ${version%.*} REQUIRED)" -DCMAKE_PREFIX_PATH="$prefix"
# finds OPTION ... VERSION
finds()
{
    echo "cmake_minimum_required(VERSION 3.16)
        project(finds C)
        find_package(octet ${*: -1} REQUIRED)" >"$tmp/CMakeLists.txt"
    rm -rf "$tmp/build"
    cmake -S "$tmp" -B "$tmp/build" "${@:1:$#-1}" >"$tmp/log" 2>&1
}
finds -DCMAKE_INSTALL_PREFIX="$prefix" "$version" || fail "not found in the prefix of the other project"
finds -Doctet_ROOT="$prefix" "$version" || fail "not found by octet_ROOT"
(PATH=$prefix/bin:$PATH && finds "$version") || fail "not found beside a folder of PATH"
! finds -DCMAKE_PREFIX_PATH="$prefix" 99.0 || fail "find_package(octet 99.0) was satisfied"

# ---- ./dev install ---------------------------------------------------------------------------------------
# Nothing is left to know: neither where the library is, nor that a cache of such places exists. The
# system's own /usr/local and /etc are not touched.
private()
{
    for d in bin include lib share; do mount -t tmpfs none /usr/local/$d || exit 77; done
    cp -a /etc "$tmp/etc" && mount --bind "$tmp/etc" /etc || exit 77
    cd "$tmp"
    "$source/dev" install >out 2>&1 || fail "./dev install: $(cat out)"
    grep -q ' /usr/local' out || fail "./dev install does not say where: $(cat out)"
    octet --version || fail "octet is not found"
    consumer local
    quiet gcc local/embed.c -o local/embed -loctet # the least that anyone writes
    # shellcheck disable=SC2046
    quiet g++ local/outside.cpp -o local/outside $(pkg-config --cflags --libs octet)
    works local/embed local/outside
    xargs rm <"$manifest"
    [ -z "$(find /usr/local/{bin,include,lib,share} ! -type d)" ] || fail "left after removal: $(find /usr/local/{bin,include,lib,share} ! -type d)"
}
if [ "$(id -u)" = 0 ] && [ "$OCT_TEST_BUILD" = "$source/build/release" ]; then
    export -f private fail quiet consumer works
    export tmp source manifest model prompt expected embedded
    unshare -m bash -euc private install.sh || [ $? = 77 ] || exit 1
else
    echo "install: SKIPPED ./dev install: not root, or not build/release"
fi
echo "install: $expected"
