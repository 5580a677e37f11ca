#!/usr/bin/env bash
# A rank that is stopped (SIGSTOP) while the ranks start or leave: wherever it is, the job ends within a
# bound, not with 0, and the first line says what is the matter. Arguments: stop_shim.so, and "all" for
# the places where only a deadline helps, too. The jobs wait side by side.
set -u
shim=$1 most=${2:-}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_rig.sh"
[ "$OCT_TEST_SANITIZE" = 0 ] || skip "the sanitizer must be loaded before the shim"
model=$models/tiny-grok.gguf

# stopped RANK PLACE SECONDS PATTERN: in a job of two
stopped()
{
    local rank=$1 place=$2 limit=$3 pattern=$4 code start=$SECONDS
    local log="$work/$rank ${place}"
    timeout -k 5 100 mpirun --oversubscribe --bind-to none -n 2 -x LD_PRELOAD="$shim" \
        -x OCT_STOP="$rank $place" "$octet" run -m "$model" -p And -n 2 --temp 0 -t 1 \
        </dev/null >/dev/null 2>"$log"
    code=$?
    local seconds=$((SECONDS - start)) first
    first=$(grep -m 1 '^octet: ' "$log")
    say "rank $rank, $place: exit code $code after $seconds s: $first"
    [ $code -ne 0 ] && [ $code -lt 124 ] || { echo "$place, rank $rank: exit code $code" >>"$work/bad"; }
    [ $seconds -le "$limit" ] || echo "$place, rank $rank: took $seconds s" >>"$work/bad"
    grep -qE "^octet: $pattern" <<<"$first" ||
        echo "$place, rank $rank: not '$pattern' first: $(cat "$log")" >>"$work/bad"
    # Nobody else says it again. The stopped one, which the launcher continues to end it, may be interrupted.
    [ "$(grep '^octet: ' "$log" | grep -cv ' interrupted$')" = 1 ] ||
        echo "$place, rank $rank: not one line: $(grep '^octet: ' "$log")" >>"$work/bad"
}
for rank in 0 1; do
    has_stopped="rank $rank on [^ ]+ has stopped: not a sign of it"
    other=$((1 - rank))
    stopped $rank "after MPI_Comm_dup 1" 20 "$has_stopped since the start" & # never heard
    stopped $rank "MPI_Comm_split_type 1" 20 "$has_stopped (for 6 s|since the start)" &
    stopped $rank "after MPI_Comm_free 1" 20 "$has_stopped for 6 s" &
    stopped $rank "MPI_Comm_free 2" 20 "$has_stopped for 6 s" & # it is leaving
    stopped $rank "MPI_Finalize 1" 20 "$has_stopped for 6 s" &
    [ -n "$most" ] || continue
    sleep 5
    stopped $rank "MPI_Init_thread 1" 75 "MPI: rank $other on .* waits for the others in MPI_Init, " &
    stopped $rank "after MPI_Init_thread 1" 45 "MPI: start-up: .* has no answer from rank $rank for 30 s" &
    stopped $rank "MPI_Comm_dup 1" 75 "MPI: rank $other on .* waits for the others in MPI_Comm_dup, " &
done
wait
[ ! -s "$work/bad" ] || { rm -f "$work/err"; bad "$(cat "$work/bad")"; }
exit $((fails > 0))
