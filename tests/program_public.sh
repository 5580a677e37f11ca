#!/bin/bash
# The program is one that anybody could have written: its sources, copied out of the tree, compile with what
# is installed and nothing else, and do the same.
set -eu
. "$(dirname "$0")/consumer_rig.sh"
quiet cmake --install "$OCT_TEST_BUILD" --prefix "$tmp/prefix"
cp -r "$source/examples/octet" "$tmp/program"
cd "$tmp/program"
libdir=$(dirname "$(find "$tmp/prefix" -name 'liboctet.*' ! -type d | head -n 1)")
# shellcheck disable=SC2046
quiet cmake -DIN=serve/page.html -DOUT=serve_page.h -P serve/embed_page.cmake
# shellcheck disable=SC2046
quiet gcc -std=c11 -D_GNU_SOURCE -DOCT_COMMIT='""' -Wall -Wextra -Werror -I. -Ibench -Iserve -I"$tmp/prefix/include" \
    ./*.c bench/*.c serve/*.c -o octet $(PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config --cflags --libs octet) \
    $(pkg-config --cflags --libs jansson libedit libevent_core libevent_extra) -lm -Wl,-rpath,"$libdir"

# shellcheck disable=SC2046
quiet gcc -std=c11 -Wall -Wextra -Werror "$source/examples/own_server.c" -o own_server \
    $(PKG_CONFIG_PATH=$libdir/pkgconfig pkg-config --cflags --libs octet) \
    $(pkg-config --cflags --libs libevent_core libevent_extra)

same()
{
    local here there
    there=$("$OCT_TEST_OCTET" "$@") || fail "octet $1 failed"
    here=$(./octet "$@") || fail "octet $1, compiled outside, failed"
    [ -n "$here" ] && [ "$here" = "$there" ] || fail "octet $1 prints: $here; the one built inside: $there"
}
same --help
same run -m "$model" -p "$prompt" -n 12 --temp 0
same info -m "$model" --keys --tensors --verify
same bench --simulate 8,10,11.5,400
same convert --help
./octet convert "$OCT_TEST_TINY" -o model.gguf 2>/dev/null && cmp -s model.gguf "$model" ||
    fail "octet convert, compiled outside, makes another file"
echo "program_public: $(ls ./*.c ./*/*.c | wc -l) files compile outside the tree"
