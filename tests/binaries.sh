#!/bin/bash
# Reads every program and shared library in the build folder: what the loader is told, and hardening.
#   - no RUNPATH has an empty or relative element, which would mean the current folder, and none is an RPATH
#   - programs are position independent; symbols are bound before the start, their table is read-only then;
#     the stack is not executable; nothing is relocated in code
#   - release builds have stack protectors and checked forms of library functions
set -u
. "$(dirname "$0")/install_rig.sh"
fails=0

bad()
{
    echo "FAILED: $*"
    fails=$((fails + 1))
}

# faults FILE: prints what is wrong with it, a line each.
faults()
{
    local dynamic headers path element
    dynamic=$(readelf -dW "$1")
    headers=$(readelf -hlW "$1")
    grep -q '(RPATH)' <<<"$dynamic" && echo "an RPATH"
    path=$(sed -n 's/.*R\(UN\)\?PATH) *Library r[a-z]*: \[\(.*\)\]$/\2:/p' <<<"$dynamic")
    while [ -n "$path" ]; do
        element=${path%%:*}
        path=${path#*:}
        [[ $element == /* || $element == '$ORIGIN' || $element == '$ORIGIN/'* ]] ||
            echo "the element '$element' in its RUNPATH"
    done
    grep -q 'Type: *DYN' <<<"$headers" || echo "not position independent"
    grep -q 'GNU_RELRO' <<<"$headers" || echo "no RELRO"
    grep -q 'BIND_NOW\|Flags:.* NOW' <<<"$dynamic" || echo "not bound at the start"
    grep -q 'GNU_STACK.* RW ' <<<"$headers" || echo "an executable stack"
    grep -q 'TEXTREL' <<<"$dynamic" && echo "relocations in code"
    return 0
}

# ---- the reading itself finds each of them -----------------------------------------------------------
cd "$tmp" || exit 1
echo 'int main(void) { return 0; }' >main.c
# finds WHAT OPTION ...
finds()
{
    gcc main.c -o main "${@:2}" || exit 1
    faults main | grep -qF "$1" || bad "$1 is not seen: $(faults main)"
}
good="-fPIE -pie -Wl,-z,relro,-z,now,-z,noexecstack"
gcc main.c -o main $good && [ -z "$(faults main)" ] || bad "found in a good one: $(faults main)"
for path in '/x:' ':/x' '/x::/y' 'x' '$ORIGINAL'; do
    finds "in its RUNPATH" $good -Wl,--enable-new-dtags,-rpath,"$path"
done
finds "an RPATH" $good -Wl,--disable-new-dtags,-rpath,/x
finds "not position independent" -no-pie
finds "no RELRO" $good -Wl,-z,norelro
finds "not bound at the start" -fPIE -pie -Wl,-z,lazy
finds "an executable stack" $good -Wl,-z,execstack

# ---- all that was built, and all that is installed ----------------------------------------------------
# look_at FOLDER LEAST: every program and library in it; not what CMake made to try the compiler
look_at()
{
    local file found n=0
    while IFS= read -r file; do
        readelf -h "$file" 2>/dev/null | grep -q 'Type: *\(DYN\|EXEC\)' || continue
        n=$((n + 1))
        found=$(faults "$file")
        [ -z "$found" ] || bad "${file#"$1"/}: $found"
    done < <(find "$1" -name CMakeFiles -prune -o -type f \( -perm -u+x -o -name '*.so*' \) -print)
    [ $n -ge "$2" ] || bad "only $n programs and libraries found in $1"
    echo "$n programs and libraries in $1"
}
look_at "$OCT_TEST_BUILD" 20
cmake --install "$OCT_TEST_BUILD" --prefix "$tmp/prefix" >log 2>&1 || bad "install: $(cat log)"
look_at "$tmp/prefix" 2
for file in $(find "$tmp/prefix" -type f); do # no folder that somebody else could make one day
    if readelf -d "$file" 2>/dev/null | grep -q "PATH.*\[.*$OCT_TEST_BUILD"; then
        bad "installed ${file#"$tmp/prefix"/} looks into the build folder"
    fi
done

octet=$OCT_TEST_OCTET
# Everything that is loaded, at the start or later, lies here too, and is no library.
for name in $(readelf -d "$octet" "$OCT_TEST_BUILD"/lib/liboctet.so "$OCT_TEST_BUILD"/mpi/*.so 2>/dev/null |
    sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p') liboctet_mpi.so libcuda.so.1 libopenblas.so.0 liboctet.so; do
    echo no library >"$name"
done
for program in "$octet" "$tmp/prefix/bin/octet"; do
    "$program" info >log 2>&1 || bad "$program loads a library of the current folder: $(cat log)"
    # A leak cannot be looked for in a program that is traced.
    ASAN_OPTIONS=detect_leaks=0 strace -f -e trace=open,openat -o calls "$program" run -m "$OCT_TEST_MODELS/tiny-grok.gguf" -p And -n 1 --blas \
        >log 2>&1 || [ ! -e calls ] || bad "$program run: $(cat log)"
    ! grep -E '(AT_FDCWD, |open\()"[^/]*\.so' calls 2>/dev/null || bad "$program opens libraries here"
done
if [ "$OCT_TEST_SANITIZE" = 1 ] || [ "$OCT_TEST_BUILD_TYPE" = Debug ]; then
    echo "SKIPPED stack protectors and checked functions: not a release build"
else
    for file in "$octet" "$OCT_TEST_BUILD"/lib/liboctet.so "$OCT_TEST_BUILD"/mpi/liboctet_mpi.so; do
        [ -e "$file" ] || { echo "SKIPPED: no ${file##*/}" && continue; }
        for symbol in __stack_chk_fail __snprintf_chk; do
            nm -D "$file" | grep -q " U $symbol@" || bad "${file##*/} does not use $symbol"
        done
    done
fi
exit $((fails > 0))
