#!/bin/bash
# Tests of the tests: each line of mutants.list makes the code wrong in one place; a test of the program that
# it names must fail or crash, and is named here. A program that runs into the limit of time, or fails
# without the name of a test, has not caught anything; nor has one that fails on right code. The argument,
# if there is one, chooses lines by a regular expression. Works on a copy of the tree in build/mutants.
set -u
source_dir=$OCT_TEST_SOURCE
chosen=${1:-.}
limit=900 # seconds of a program
top=$OCT_TEST_BUILD/../mutants
mkdir -p "$top/src" && top=$(cd "$top" && pwd) || exit 1
cd "$source_dir" || exit 1
# What differs gets the time of now; with that of the tree, an object of the last mutant would be newer.
rsync -rlp --checksum --delete --exclude=/build --exclude=/.git ./ "$top/src/" 2>/dev/null ||
    { rm -rf "$top/src" && mkdir "$top/src" && tar -c --exclude=./build --exclude=./.git . | tar -x -m -C "$top/src"; } ||
    exit 1
[ -f "$top/build/build.ninja" ] || cmake -S "$top/src" -B "$top/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOCTET_WERROR=OFF >/dev/null || exit 1
mkdir -p "$top/build/tests/models"
cp -u "$OCT_TEST_MODELS"/*.gguf "$top/build/tests/models/"

# outcome_of PROGRAM [TEST]: builds and runs it; sets $outcome. Of a program that ends by a signal (exit
# codes from 128 on) the test is the one that ran.
outcome_of()
{
    local code failed running
    if ! ninja -C "$top/build" "$1" >"$top/log" 2>&1; then
        outcome="NOT BUILT: $(grep -m1 error "$top/log")"
        return
    fi
    (cd "$top/build/tests" && CMOCKA_TEST_FILTER= timeout -k 5 $limit "./$1") >"$top/log" 2>&1
    code=$?
    failed=$(sed -n 's/^\[  FAILED  \] \([a-z][a-z0-9_]*\).*/\1/p' "$top/log" | sort -u)
    running=$(sed -n 's/^\[ RUN      \] \([a-z][a-z0-9_]*\).*/\1/p' "$top/log" | tail -n 1)
    if [ $code = 0 ]; then
        outcome="passed"
    elif [ -n "$failed" ] && { [ "${2:--}" = - ] || grep -qx "$2" <<<"$failed"; }; then
        outcome="caught: $(head -n 1 <<<"$failed")"
        [ "${2:--}" = - ] || outcome="caught: $2"
    elif [ $code = 124 ] || [ $code = 137 ]; then
        outcome="TIME: $limit s in $running"
    elif [ $code -ge 128 ] && [ -n "$running" ] && { [ "${2:--}" = - ] || [ "$2" = "$running" ]; }; then
        outcome="caught: $running (signal $((code - 128)))"
    else
        outcome="NOT THE TEST: exit code $code, $(tr '\n' ' ' <<<"$failed$running") failed, not ${2:--}"
    fi
}

declare -A right # outcomes of programs on right code
lived=0
n=0
printf '%-28s %-18s %s\n' mutant program outcome
while IFS='|' read -r name file change program test; do
    [[ $name =~ $chosen ]] || continue
    n=$((n + 1))
    if [ -z "${right[$program]:-}" ]; then
        outcome_of "$program"
        right[$program]=$outcome
    fi
    cp -p "$top/src/$file" "$top/kept"
    perl -0pi -e "$change" "$top/src/$file"
    if [ "${right[$program]}" != passed ]; then
        outcome="ON RIGHT CODE: ${right[$program]}"
    elif cmp -s "$top/src/$file" "$top/kept"; then
        outcome="NOT APPLIED: $file has changed; mend mutants.list"
    else
        outcome_of "$program" "$test"
        [ "$outcome" != passed ] || outcome="LIVES"
    fi
    [[ $outcome == caught* ]] || lived=$((lived + 1))
    printf '%-28s %-18s %s\n' "$name" "$program" "$outcome"
    cp "$top/kept" "$top/src/$file" # with a new time, so that it is built anew
done < <(grep -v '^#' "$source_dir/tests/mutants.list")
echo "mutants: $n, $lived of them not caught"
exit $((lived > 0))
