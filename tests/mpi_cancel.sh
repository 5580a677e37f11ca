#!/usr/bin/env bash
# Ctrl-C in the middle of a chunk of 16384 tokens, on 8 ranks: agreed upon in every layer, so that the
# job ends within two seconds. Runs alone: what is timed is octet, not the test beside it.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_rig.sh"
model=$models/tiny-grok.gguf

awk 'BEGIN { for (s = 0; s < 64; s++) { for (i = 0; i < 1000; i++) printf "%d ", 3 + (s * 7919 + i * 31) % 4000
                                        print "" } }' >"$work/ids"
timeout --foreground 120 mpirun -n 8 --oversubscribe --bind-to none "$octet" logits -m "$model" \
    --ids "$work/ids" -o "$work/out.npy" --chunk 16384 -t 1 >/dev/null 2>"$work/err" </dev/null &
job=$!
if find_ranks 8; then
    sleep 2
    since=$(date +%s%N)
    kill -INT "${pid[0]}"
    wait $job
    code=$?
    took=$((($(date +%s%N) - since) / 1000000))
    say "Ctrl-C on 8 ranks: exit code $code after $took ms"
    [ $code -ne 0 ] && [ $took -lt 2000 ] || bad "Ctrl-C on 8 ranks: exit code $code after $took ms"
    [ ! -e "$work/out.npy" ] || bad "Ctrl-C on 8 ranks: a file is there"
else
    bad "Ctrl-C on 8 ranks: the job does not begin"
fi

exit $((fails > 0))
