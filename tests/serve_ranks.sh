#!/bin/bash
# `octet serve` over ranks: one that is killed ends every stream with an error and the job with a code
# other than 0; what is shipped to run it under systemd and Slurm is well-formed.
set -u
bash -n "$OCT_TEST_SOURCE/examples/octet.sbatch" || exit 1
if command -v systemd-analyze >/dev/null; then
    unit=$(mktemp -d)
    sed 's:/usr/local/bin/octet:/bin/true:' "$OCT_TEST_SOURCE/examples/octet.service" >"$unit/octet.service"
    said=$(systemd-analyze verify "$unit/octet.service" 2>&1 | grep 'octet\.service')
    rm -r "$unit"
    [ -z "$said" ] || { echo "serve_ranks: FAILED: octet.service: $said"; exit 1; }
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_rig.sh"
. "$(dirname "$0")/serve_wait.sh"
command -v curl >/dev/null || skip "no curl"

# Starts two ranks with more options; url and job are set when they answer.
serve_two()
{
    : >"$work/err"
    mpirun -n 2 --oversubscribe "$octet" serve -m "$models/tiny-grok.gguf" --port 0 -t 1 --chunk 1 "$@" \
        >/dev/null 2>"$work/err" &
    job=$!
    wait_for_server "$work/err" 600
}

serve_two
ask='{"prompt":"x","max_tokens":900,"ignore_eos":true,"stream":true}'
for i in 1 2 3; do
    curl -sN "$url/v1/completions" -d "$ask" >"$work/stream$i" &
    streams[i]=$!
done
for _ in $(seq 300); do
    [ "$(cat "$work"/stream? | grep -c '"text"')" -gt 10 ] && break
    sleep 0.02
done
find_ranks 2 || bad "no two ranks"
kill -KILL "${pid[1]}"
start=$(date +%s%N)
wait $job
code=$?
[ $code -ne 0 ] || bad "a lost rank ends the job with 0"
[ $((($(date +%s%N) - start) / 1000000000)) -lt 60 ] || bad "a lost rank ends the job after a minute"
for i in 1 2 3; do
    wait "${streams[i]}"
    grep -q '^data: {"error":' "$work/stream$i" || bad "stream $i ends without an error: $(tail -c 200 "$work/stream$i")"
    ! grep -q 'DONE' "$work/stream$i" || bad "stream $i was complete: the test proves nothing"
done

# --kv-save: each rank keeps its part, and after a restart the prompt is there; a rank whose part is damaged
# makes all go on without.
prompt=$(seq -s, 10 309)
keep()
{
    serve_two --kv-save "$work/kv" --chunk 512
    said=$(curl -s "$url/v1/completions" -d "{\"prompt\":[$prompt],\"max_tokens\":20,\"seed\":1}")
    [[ $said == *"\"cached_tokens\":$1"* ]] || bad "cached tokens, expected $1: $said"
    text=$(sed 's/.*"text":\("[^"]*"\).*/\1/' <<<"$said")
    [ "${first:=$text}" = "$text" ] || bad "text $text, expected $first"
    find_ranks 2 || bad "no two ranks"
    kill -TERM "${pid[@]}"
    wait $job
    grep -q "^$2" "$work/err" || bad "it does not say \"$2\": $(cat "$work/err")"
}
keep 0 'saved 2 of 2 pages'
keep 256 'restored 2 pages'
printf x | dd of="$(echo "$work"/kv/*-1-of-2.kv)" bs=1 seek=9000 conv=notrunc status=none
keep 0 'saved keys and values are not used: rank 1: '
keep 256 'saved 2 of 2 pages'
[ $fails = 0 ] && say "serve_ranks: pages of keys and values are kept by two ranks"
[ $fails = 0 ] && say "serve_ranks: a lost rank is told to every stream; exit code $code"
[ $fails = 0 ]
