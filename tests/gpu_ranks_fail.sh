#!/usr/bin/env bash
# Two ranks, each with a GPU, on a driver that is none; of one of them every call fails, by number: once, for
# good, or as if memory were out. The job ends at once with a line that says what failed, or goes on with
# less on GPUs, says so, and gives the right logits; nothing is left. Arguments: the driver's folder, and how
# many numbers of each rank and way (all: every number; of a device that is gone every third).
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/gpu_rig.sh"
. "$(dirname "$0")/mpi_rig.sh"
most=$2
model=dense
echo "5 9" >"$work/$model.ids"
logits $model --gpu off 2>"$work/err" || bad "no logits"
mv "$work/out.npy" "$work/want.npy"
run=("$octet" logits -m "$models/$model.gguf" --ids "$work/$model.ids" -o "$work/out.npy" -t 1 --shard slice
    --gpu 300k,300k)
export LD_LIBRARY_PATH=$driver:$LD_LIBRARY_PATH

# job RANK FAULT: with the fault on that rank
job() {
    local of=("" "")
    of[$1]=$2
    rm -f "$work"/report[01] "$work/out.npy"
    timeout -k 5 150 mpirun --oversubscribe --bind-to none \
        -n 1 env OCTET_FAKE_CUDA="devices=2,report=$work/report0${of[0]}" "${run[@]}" : \
        -n 1 env OCTET_FAKE_CUDA="devices=2,report=$work/report1${of[1]}" "${run[@]}" \
        </dev/null >"$work/out" 2>"$work/err"
}

# Whether a process of a job is still there two seconds after it.
ranks_left() {
    local p
    for _ in $(seq 20); do
        for p in $(pgrep -x octet) 0; do
            [ "$p" != 0 ] || return 1
            ! grep -qzx "OCT_TEST_JOB=$work" "/proc/$p/environ" 2>/dev/null || break
        done
        sleep 0.1
    done
    return 0
}

# fails RANK N WAY: and sees that it is well
fails_at() {
    local what="rank $1, call $2$3" start=$SECONDS code left
    job "$1" ",fail=$2$3"
    code=$?
    # Others may be stopping this machine for a while.
    [ $((SECONDS - start)) -le 120 ] || bad "$what: exit code $code after $((SECONDS - start)) s"
    left=$(cat "$work"/report[01] 2>/dev/null | grep '^left' | grep -vx 'left nothing')
    [ -z "$left" ] || bad "$what: $left"
    if [ $code = 0 ]; then
        went_on=$((went_on + 1))
        [ -e "$work/report0" ] && [ -e "$work/report1" ] || bad "$what: a rank was killed"
        cmp -s "$work/out.npy" "$work/want.npy" || bad "$what: other logits"
    else
        ended=$((ended + 1))
        [ $code -lt 124 ] || bad "$what: exit code $code"
        [ "$(grep -c '^octet: .*GPU' "$work/err")" = 1 ] || bad "$what: no line that says what failed, or several"
        [ -z "$(find "$work" -name 'out.npy*')" ] || bad "$what: a file of logits"
        ! ranks_left || bad "$what: a process is left"
    fi
    [ $fails -lt 5 ] || exit 1
}

job 0 "" || bad "a run without failures"
for rank in 0 1; do
    grep -q "^rank $rank: GPU $rank .*attention of 2 layers, head;" "$work/err" || bad "rank $rank: not on its GPU"
    calls[rank]=$(awk '$1 == "counted" { print $2 }' "$work/report$rank")
    held=$(awk '$1 ~ /^cuStreamWaitValue32/ { print $2 }' "$work/report$rank")
    [ "${calls[rank]}" -gt 200 ] && [ "${held:-0}" -gt 2 ] ||
        bad "rank $rank: ${calls[rank]} calls, held ${held:-0} times"
done
[ $fails = 0 ] || exit 1
n=0 ended=0 went_on=0
for rank in 0 1; do
    for way in "" ,lasting ,code=2; do
        if [ "$most" = all ]; then
            step=1 first=1
            [ "$way" != ,lasting ] || step=3
        else # other numbers each time; OCTET_TEST_SEED repeats them
            step=$((calls[rank] / most))
            first=$((1 + (${OCTET_TEST_SEED:-$RANDOM} + 7 * n) % step))
        fi
        for ((i = first; i <= calls[rank]; i += step)); do
            fails_at $rank "$i" "$way"
            n=$((n + 1))
        done
    done
done
say "${calls[*]} calls, $n times one failed: $went_on times the job went on, $ended times it ended"
[ "$most" != all ] || { [ $ended -gt 0 ] && [ $went_on -gt 0 ]; } || bad "always the same"
exit $((fails > 0))
