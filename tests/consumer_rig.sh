# consumer_rig.sh: what the scripts that use liboctet from outside share; sourced. Programs are built in empty
# folders below $tmp.
if [ "$OCT_TEST_SANITIZE" = 1 ]; then
    echo "SKIPPED: programs outside are built without sanitizers"
    exit 77
fi
. "$(dirname "$0")/install_rig.sh"
model="$OCT_TEST_MODELS/tiny-grok.gguf"
prompt="In the beginning"
source=$OCT_TEST_SOURCE

fail()
{
    echo "${0##*/}: $*"
    exit 1
}

# quiet COMMAND ...: its output is shown only if it fails.
quiet()
{
    "$@" >"$tmp/log" 2>&1 || { tail -n 20 "$tmp/log"; fail "failed: $*"; }
}

# consumer FOLDER: makes it, with embed.c, outside.cpp and what includes all public headers.
consumer()
{
    local header
    mkdir "$1"
    cp "$source/examples/embed.c" "$source/tests/outside.cpp" "$1"
    for header in $OCT_TEST_HEADERS; do
        echo "#include <octet/${header##*/}>"
    done >"$1/all_headers.h"
}

# works EMBED OUTSIDE: the C program runs and prints the same text as every other; the C++ program
# prints what `octet run` prints.
expected=$("$OCT_TEST_OCTET" run -m "$model" -p "$prompt" -n 12 --temp 0 2>"$tmp/err")
embedded=
works()
{
    local text
    text=$("$1" "$model" "$prompt" 12) || fail "$1 failed"
    [ ${#text} -gt 12 ] || fail "$1 printed: $text"
    [ "${embedded:=$text}" = "$text" ] || fail "$1 printed: $text; another: $embedded"
    text=$("$2" "$model" "$prompt" 12) || fail "$2 failed"
    [ "$text" = "$expected" ] || fail "$2 printed: $text; expected: $expected"
    ! "$1" "$tmp/absent.gguf" x 1 >"$tmp/log" 2>&1 || fail "$1 succeeded without a model"
}

# by_pkg_config FOLDER PREFIX: the two commands of the README.
by_pkg_config()
{
    local pkg="env PKG_CONFIG_PATH=$2/lib/pkgconfig pkg-config"
    consumer "$1"
    [ "$($pkg --modversion octet)" = "$version" ] || fail "octet.pc has another version"
    # shellcheck disable=SC2046
    quiet gcc -std=c11 -Wall -Wextra -Werror "$1/embed.c" -o "$1/embed" $($pkg --cflags --libs octet)
    # shellcheck disable=SC2046
    quiet g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror "$1/outside.cpp" -o "$1/outside" \
        $($pkg --cflags --libs octet)
    works "$1/embed" "$1/outside"
}

# by_cmake FOLDER LINES [OPTION ...]: a project that has these lines, configured with these options.
by_cmake()
{
    local folder=$1 lines=$2
    shift 2
    consumer "$folder"
    cat >"$folder/CMakeLists.txt" <<END
cmake_minimum_required(VERSION 3.25)
project(outer C CXX)
$lines
add_executable(embed embed.c)
add_executable(outside outside.cpp)
target_link_libraries(embed PRIVATE octet::octet)
target_link_libraries(outside PRIVATE octet::octet)
END
    quiet cmake -S "$folder" -B "$folder/build" -G Ninja "$@"
    quiet cmake --build "$folder/build" --target embed outside
    works "$folder/build/embed" "$folder/build/outside"
}
version=$(sed -n 's/^project(octet VERSION \([0-9.]*\).*/\1/p' "$source/CMakeLists.txt")
