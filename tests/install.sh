#!/bin/bash
# Installs into a temporary prefix and builds examples/embed.c from outside with pkg-config and with
# find_package; both programs must run and print the same text.
set -eu
if [ "$OCT_TEST_SANITIZE" = 1 ]; then
    echo "install: SKIPPED: programs outside are built without sanitizers"
    exit 77
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
prefix="$tmp/prefix"
model="$OCT_TEST_MODELS/tiny-grok.gguf"

fail() { echo "install: $*"; exit 1; }

cmake --install "$OCT_TEST_BUILD" --prefix "$prefix" >/dev/null
find "$prefix" -type f -printf '%P\n' | sort
headers=$(find "$prefix" -name '*.h' -printf '%P\n' | sort | tr '\n' ' ')
[ "$headers" = "include/octet/octet.h include/octet/scheduler.h include/octet/status.h include/octet/types.h " ] || fail "headers installed: $headers"
version=$(sed -n 's/^project(octet VERSION \([0-9.]*\).*/\1/p' "$OCT_TEST_SOURCE/CMakeLists.txt")

# The installed program does not need the build folder or the library path.
"$prefix/bin/octet" info >/dev/null || fail "the installed octet does not start"

# pkg-config
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name octet.pc)")
export PKG_CONFIG_PATH
[ "$(pkg-config --modversion octet)" = "$version" ] || fail "octet.pc has another version"
libdir=$(pkg-config --variable=libdir octet)
# shellcheck disable=SC2046
gcc -std=c11 -Wall -Wextra -Werror "$OCT_TEST_SOURCE/examples/embed.c" -o "$tmp/by-pkg-config" \
    $(pkg-config --cflags --libs octet) -Wl,-rpath,"$libdir"

# find_package
mkdir "$tmp/project"
cp "$OCT_TEST_SOURCE/examples/embed.c" "$tmp/project"
cat >"$tmp/project/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.16)
project(outside C)
find_package(octet ${WANT} REQUIRED)
add_executable(embed embed.c)
target_link_libraries(embed PRIVATE octet::octet)
END
cmake -S "$tmp/project" -B "$tmp/project/build" -DCMAKE_PREFIX_PATH="$prefix" \
    -DWANT="${version%.*}" >/dev/null
cmake --build "$tmp/project/build" >/dev/null
if cmake -S "$tmp/project" -B "$tmp/project/other" -DCMAKE_PREFIX_PATH="$prefix" -DWANT=99.0 \
    >/dev/null 2>&1; then
    fail "find_package(octet 99.0) was satisfied"
fi

one=$("$tmp/by-pkg-config" "$model" "In the beginning" 20) || fail "embed (pkg-config) failed"
two=$("$tmp/project/build/embed" "$model" "In the beginning" 20) || fail "embed (find_package) failed"
[ ${#one} -gt 20 ] || fail "embed printed: $one"
[ "$one" = "$two" ] || fail "the two programs print different texts"
if "$tmp/by-pkg-config" "$tmp/absent.gguf" x 1 >"$tmp/out" 2>&1; then
    fail "embed succeeded without a model"
fi
echo "install: $one"
