#!/bin/bash
# Rules of the tree that a compiler does not check. Prints every breach; exits with 1 if there is one.
set -u
cd "$OCT_TEST_SOURCE" || exit 1
folders="quant ggml-like model convert mpi examples tests"
breaches=0

breach()
{
    echo "lint: $*"
    breaches=$((breaches + 1))
}

# Each line of standard input is a breach.
each()
{
    local line
    while IFS= read -r line; do
        breach "$1 $line"
    done
}

sources() { find $folders -path tests/data -prune -o -type f \
    \( -name '*.c' -o -name '*.h' -o -name '*.cpp' -o -name '*.inc' -o -name '*.cu' \) -print; }

# ---- files: folders, sizes, names, paths -----------------------------------------------------------
each "unexpected folder at the top:" < <(find . -mindepth 1 -maxdepth 1 -type d -printf '%f\n' |
    grep -vxE "build|\.git|\.ci|\.cache|$(echo $folders | tr ' ' '|')")
each "longer than 800 lines:" < <(sources | xargs wc -l | awk '$1 > 800 && $2 != "total"')
each "longer than 100 columns:" < <(sources | xargs awk 'length > 100 { print FILENAME ":" FNR }')
each "tabs or blanks at the end of a line:" < <(sources | xargs grep -nE '[[:space:]]$|	' | cut -c1-90)
each "two files of this name:" < <(sources | sed 's:.*/::' | sort | uniq -d)
each "a path of some machine:" < <(grep -rnIE '/(home|roo[t]|Users|wor[k])/[a-z]' $folders ./*.md .ci dev \
    CMakeLists.txt CMakePresets.json --exclude-dir=data | cut -c1-120)
each "includes across folders by path:" < <(sources | xargs grep -n '#include "\.\./')
each "x86 alone, without #if defined(__x86_64__):" < <(sources | grep -vE '/(k_[^/]*|vec\.h|tile_unit\.h)$' |
    xargs grep -lE '<[a-z]*intrin\.h>|<cpuid\.h>|__builtin_ia32_|__builtin_cpu_|_mm[0-9]*_[a-z]+' |
    xargs -r grep -LE 'if defined\(__x86_64__\)|ifdef __SSE2__')
each "mpi.h outside mpi/:" < <(sources | grep -vE '^mpi/|^tests/(test_comm_mpi|stop_shim).c' | xargs grep -nE '#include [<"]mpi\.h')

# ---- functions: at most 80 lines, kernels 120 ------------------------------------------------------
if ctags --version 2>/dev/null | grep -q 'Universal Ctags'; then
    each "function too long:" < <(sources | grep -E '\.(c|cpp|h)$' |
        xargs ctags --kinds-C=f --kinds-C++=f --fields=+ne -o - 2>/dev/null |
        awk -F'\t' '{
            start = end = 0
            for (i = 4; i <= NF; i++) {
                if ($i ~ /^line:/) start = substr($i, 6)
                if ($i ~ /^end:/) end = substr($i, 5)
            }
            most = $2 ~ /\/k_[a-z0-9_]*\.[ch]$/ ? 120 : 80
            if (end - start + 1 > most)
                print $2 ":" start " " $1 ", " end - start + 1 " lines"
        }')
else
    echo "lint: SKIPPED length of functions: no universal-ctags"
fi

# ---- headers: the public ones compile alone --------------------------------------------------------
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
for header in $OCT_TEST_HEADERS; do
    header=${header##*/}
    echo "#include <octet/$header>" >"$tmp/alone.c"
    cp "$tmp/alone.c" "$tmp/alone.cpp"
    gcc -std=c11 -Wall -Wextra -Wpedantic -Werror -I"$OCT_TEST_BUILD/include" \
        -c "$tmp/alone.c" -o "$tmp/alone.o" || breach "$header does not compile alone as C11"
    g++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -I"$OCT_TEST_BUILD/include" \
        -c "$tmp/alone.cpp" -o "$tmp/alone.o" || breach "$header does not compile alone as C++17"
done

# ---- what was built: names, calls, instructions ----------------------------------------------------
if [ "$OCT_TEST_SANITIZE" = 1 ]; then
    echo "lint: SKIPPED symbols and instructions: sanitizers add their own"
else
    shared=$(find "$OCT_TEST_BUILD" -maxdepth 3 -name liboctet.so)
    [ -f "$shared" ] || breach "no liboctet.so"
    each "exported by liboctet.so:" < <(nm -D --defined-only "$shared" | awk '$3 !~ /^oct_/ { print $3 }')
    declared=$(sed -n 's/.*[ *]\(oct_[a-z_0-9]*\)(.*/\1/p' $OCT_TEST_HEADERS |
        sort -u | grep -vxE 'oct_try_')
    each "exported but not declared in a public header:" < <(nm -D --defined-only "$shared" |
        awk '{ print $3 }' | grep -vxF "$declared")
    for lib in quant ggml-like model convert mpi; do
        objects=$(find "$OCT_TEST_BUILD/$lib" -name '*.o' 2>/dev/null)
        [ -n "$objects" ] || continue
        # Templates of the C++ library arrive as weak symbols; those do not count.
        each "global symbol of $lib/:" < <(nm -g --defined-only $objects 2>/dev/null |
            awk 'NF == 3 && $2 !~ /[VWu]/ && $3 !~ /^oct_/ { print $3 }')
        [ $lib = mpi ] || each "$lib/ prints or ends the process:" < <(nm -u -A $objects |
            grep -wE 'printf|__printf_chk|puts|putchar|perror|stdout|stderr|exit|_exit|abort' |
            sed "s:^$OCT_TEST_BUILD/::")
    done
    # shellcheck disable=SC2044
    for object in $(find "$OCT_TEST_BUILD" -name '*.o' -path '*octet*' \
        \( ! -name 'k_*' -o -name 'k_ref*' \)); do
        # Any VEX or EVEX instruction, not only the wide registers, ends a process on an older CPU.
        count=$(objdump -d --no-show-raw-insn "$object" |
            grep -cE '%[yz]mm|%k[0-7]|[[:space:]]v[a-z0-9]+ +.*%xmm')
        [ "$count" = 0 ] || breach "$count AVX instructions in ${object#"$OCT_TEST_BUILD"/}"
    done
fi

[ $breaches = 0 ] && echo "lint: clean"
[ $breaches = 0 ]
