#!/bin/bash
# Tests of the tests: each line of mutants.list makes the code wrong in one place; the test that it names
# must fail, or end by a signal or a minute's limit. The argument, if there is one, chooses lines by a
# regular expression. Works on a copy of the tree in build/mutants.
set -u
source_dir=$OCT_TEST_SOURCE
chosen=${1:-.}
top=$OCT_TEST_BUILD/../mutants
mkdir -p "$top/src" && top=$(cd "$top" && pwd) || exit 1
cd "$source_dir" || exit 1
rsync -a --delete --exclude=/build --exclude=/.git ./ "$top/src/" 2>/dev/null ||
    { rm -rf "$top/src" && mkdir "$top/src" && tar -c --exclude=./build --exclude=./.git . | tar -x -C "$top/src"; } ||
    exit 1
[ -f "$top/build/build.ninja" ] || cmake -S "$top/src" -B "$top/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOCTET_WERROR=OFF >/dev/null || exit 1
mkdir -p "$top/build/tests/models"
cp -u "$OCT_TEST_MODELS"/*.gguf "$top/build/tests/models/"
lived=0
n=0
printf '%-28s %-18s %s\n' mutant test outcome
while IFS='|' read -r name file change program test; do
    [[ $name =~ $chosen ]] || continue
    n=$((n + 1))
    cp -p "$top/src/$file" "$top/kept"
    perl -0pi -e "$change" "$top/src/$file"
    if cmp -s "$top/src/$file" "$top/kept"; then
        outcome="NOT APPLIED: $file has changed; mend mutants.list"
    elif ! ninja -C "$top/build" "$program" >"$top/log" 2>&1; then
        outcome="NOT BUILT: $(grep -m1 error "$top/log")"
    elif (cd "$top/build/tests" && CMOCKA_TEST_FILTER= timeout 300 "./$program") >"$top/log" 2>&1; then
        outcome="LIVES"
    else
        outcome="caught: $(sed -n 's/^\[  FAILED  \] \(test_[a-z0-9_]*\).*/\1/p' "$top/log" | head -1)"
    fi
    [[ $outcome == caught* ]] || lived=$((lived + 1))
    printf '%-28s %-18s %s\n' "$name" "$program" "$outcome"
    cp "$top/kept" "$top/src/$file" # with a new time, so that it is built anew
done < <(grep -v '^#' "$source_dir/tests/mutants.list")
echo "mutants: $n, $lived of them lived"
exit $((lived > 0))
