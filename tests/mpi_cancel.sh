#!/usr/bin/env bash
# Ctrl-C in the middle of a chunk, on 8 ranks. Ranks agree in every fold whether they have been
# cancelled, so what is left to do is half a layer, not the rest of the chunk. That is within two
# seconds where the ranks have the machine; where they share it with other work, it must be less than
# half of what the whole chunk takes there, which is what a job that does not agree would need.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_rig.sh"
model=$models/tiny-grok.gguf

awk 'BEGIN { for (s = 0; s < 16; s++) { for (i = 0; i < 1000; i++) printf "%d ", 3 + (s * 7919 + i * 31) % 4000
                                        print "" } }' >"$work/ids"
start() { # one chunk of 16000 tokens; job: its process
    timeout --foreground 300 mpirun -n 8 --oversubscribe --bind-to none "$octet" logits -m "$model" \
        --ids "$work/ids" -o "$work/out.npy" --chunk 16384 -t 1 >/dev/null 2>"$work/err" </dev/null &
    job=$!
}
since() { echo $((($(date +%s%N) - $1) / 1000000)); }

start
find_ranks 8 || bad "the job does not begin"
from=$(date +%s%N)
wait $job || bad "the whole chunk: exit code $?"
chunk=$(since "$from")
[ -s "$work/out.npy" ] || bad "the whole chunk: no file"
rm -f "$work/out.npy"

start
find_ranks 8 || bad "the job does not begin"
sleep 0.3
from=$(date +%s%N)
kill -INT "${pid[0]}"
wait $job
code=$?
took=$(since "$from")
say "Ctrl-C on 8 ranks: exit code $code after $took ms; the whole chunk takes $chunk ms"
[ $code -eq 130 ] || bad "exit code $code, expected 130"
[ $took -lt 2000 ] || [ $((2 * took)) -lt "$chunk" ] || bad "$took ms, expected less than 2000 or half a chunk"
[ ! -e "$work/out.npy" ] || bad "a file is there"
exit $((fails > 0))
