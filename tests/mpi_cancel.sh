#!/usr/bin/env bash
# Ctrl-C in the middle of a chunk of 16000 tokens ends 8 ranks: exit code 130, no file under its name,
# nothing left running. Whether it is the ranks' agreement that ends them, or the program's watch on
# signals, which waits for two seconds and no longer, cannot be told from here: test_ranks counts the
# folds. So the limit is one for a job that hangs.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_rig.sh"
model=$models/tiny-grok.gguf

awk 'BEGIN { for (s = 0; s < 16; s++) { for (i = 0; i < 1000; i++) printf "%d ", 3 + (s * 7919 + i * 31) % 4000
                                        print "" } }' >"$work/ids"
timeout --foreground 120 mpirun -n 8 --oversubscribe --bind-to none "$octet" logits -m "$model" \
    --ids "$work/ids" -o "$work/out.npy" --chunk 16384 -t 1 >/dev/null 2>"$work/err" </dev/null &
job=$!
find_ranks 8 || bad "the job does not begin"
sleep 0.3
from=$(date +%s%N)
kill -INT "${pid[0]}"
wait $job
code=$?
took=$((($(date +%s%N) - from) / 1000000))
say "Ctrl-C on 8 ranks: exit code $code after $took ms"
[ $code -eq 130 ] || bad "exit code $code, expected 130"
[ $took -lt 20000 ] || bad "$took ms"
[ ! -e "$work/out.npy" ] || bad "a file is there"
for p in "${pid[@]}"; do
    ! runs "$p" || bad "process $p is left"
done
exit $((fails > 0))
