#!/usr/bin/env bash
# One rank is refused memory, by number, while the others are not: all end at once with a line that says so,
# or the job is done as if nothing had been. Arguments: fault_shim.so, and how many numbers of each rank.
set -u
shim=$1 most=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_rig.sh"
[ "$OCT_TEST_SANITIZE" = 0 ] || skip "the sanitizer has an allocator of its own"
run=("$octet" run -m "$models/tiny-grok.gguf" -p And -n 2 --temp 0 -t 1)
want=$("${run[@]}" 2>/dev/null)

# fails RANK N: the N-th allocation of Octet's own code on that rank
fails_at()
{
    local refused=(env LD_PRELOAD="$shim" OCT_FAULT="own $2 12" OCT_FAULT_COUNT="$work/count" "${run[@]}")
    if [ "$1" = 0 ]; then
        set -- "${refused[@]}" : -n 1 "${run[@]}"
    else
        set -- "${run[@]}" : -n 1 "${refused[@]}"
    fi
    timeout -k 5 60 mpirun --oversubscribe --bind-to none -n 1 "$@" </dev/null >"$work/out" 2>"$work/err"
}
for rank in 0 1; do
    fails_at $rank 0 || bad "rank $rank: fails without a fault"
    count=$(cat "$work/count")
    [ "$count" -ge 50 ] || bad "rank $rank: only $count allocations"
    tries=$((count < most ? count : most)) done=0
    for i in $(seq 0 $((tries - 1))); do
        n=$((1 + i * (count - 1) / (tries > 1 ? tries - 1 : 1)))
        start=$SECONDS
        fails_at $rank $n
        code=$?
        what="rank $rank, allocation $n of $count: exit code $code after $((SECONDS - start)) s"
        [ $((SECONDS - start)) -le 20 ] || bad "$what"
        if [ $code = 0 ]; then
            done=$((done + 1))
            [ "$(cat "$work/out")" = "$want" ] || bad "$what, another text: $(cat "$work/out")"
        else
            [ $code -lt 124 ] && grep -q '^octet: .*memory' "$work/err" || bad "$what"
        fi
    done
    say "rank $rank: $tries of $count allocations, the job was done in spite of $done"
done
exit $((fails > 0))
