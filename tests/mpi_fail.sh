#!/usr/bin/env bash
# Jobs that go wrong: a rank that is killed or stopped, in a long prompt, while text is made, and
# while nothing happens; ranks that do not fit together. Each ends within a time, not with 0, and
# says which rank it was.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_rig.sh"
model=$models/tiny-grok.gguf
limit=10 # seconds from the failure to the end of the job

launch() { timeout -k 5 120 mpirun --oversubscribe --bind-to none "$@"; }

# ---- ranks that end -----------------------------------------------------------------------------
for i in $(seq 100); do
    printf 'hacker %d: what can we do about the weather in the north in winter?\n' "$i"
done >"$work/short"
for i in $(seq 100); do
    printf 'hacker %d:' "$i"
    printf ' what can we do about the weather in the north in winter?%.0s' $(seq 50)
    printf '\n'
done >"$work/long"
mkfifo "$work/fifo"

ticks() { awk '{ print $14 + $15 }' "/proc/$1/stat"; }

for phase in prefill decode idle; do
    for signal in KILL STOP; do
        for rank in 1 0; do
            what="$phase, $signal of rank $rank"
            : >"$work/err"
            exec 3<>"$work/fifo"
            case $phase in
            prefill) args="--prompts $work/long -n 1 --chunk 4" ;;
            decode) args="--prompts $work/short -n 900 -c 1000 --ignore-eos --chunk 4" ;;
            idle) args="-i" ;;
            esac
            # shellcheck disable=SC2086
            launch -n 2 "$octet" run -m "$model" $args -t 1 --shard auto <&3 >/dev/null 2>"$work/err" &
            job=$!
            if ! find_ranks 2; then
                bad "$what: the ranks did not start"
                kill $job
                wait $job
                continue
            fi
            sleep 1
            if [ $phase = idle ]; then
                sleep 1
                for r in 0 1; do
                    before=$(ticks "${pid[r]}")
                    sleep 1
                    used=$(($(ticks "${pid[r]}") - before))
                    [ "$used" -le 20 ] || bad "idle: rank $r used $used of 100 ticks of a second"
                done
            fi
            kill -0 "${pid[rank]}" || bad "$what: it had ended before"
            start=$(date +%s%N)
            kill -$signal "${pid[rank]}"
            wait $job
            code=$?
            ms=$((($(date +%s%N) - start) / 1000000))
            exec 3>&-
            line=$(grep -m 1 -E "octet: rank $rank on [^ ]+ has (died|stopped)" "$work/err")
            say "$what: exit code $code after $ms ms: $line"
            [ $code -ne 0 ] && [ $code -ne 124 ] || bad "$what: exit code $code"
            [ $ms -le $((limit * 1000)) ] || bad "$what: took $ms ms"
            [ -n "$line" ] || bad "$what: it was not named"
            [ "$(grep -cE "octet: rank [0-9]+ on [^ ]+ has (died|stopped)" "$work/err")" = 1 ] ||
                bad "$what: more than one was named"
            for p in "${pid[@]}"; do
                for tries in $(seq 30); do
                    runs "$p" && sleep 0.1
                done
                runs "$p" && bad "$what: a rank was left running"
            done
        done
    done
done

# ---- ranks that do not fit ----------------------------------------------------------------------
# refused WHAT PATTERN MPIRUN-ARGUMENT...
refused() {
    local what=$1 pattern=$2 code start=$SECONDS
    shift 2
    launch "$@" >/dev/null 2>"$work/err" </dev/null
    code=$?
    say "$what: exit code $code: $(grep -m 1 -E "$pattern" "$work/err")"
    [ $code -ne 0 ] && [ $code -lt 124 ] || bad "$what: exit code $code"
    [ $((SECONDS - start)) -le 20 ] || bad "$what: took $((SECONDS - start)) s"
    grep -qE "$pattern" "$work/err" || bad "$what: no line with '$pattern'"
}
run=("$octet" run -p hacker: -n 4 --temp 0 -t 1)

cp "$model" "$work/model-0.gguf"
cp "$OCT_TEST_MODELS/odd.gguf" "$work/model-1.gguf"
cp "$model" "$work/model-2.gguf"
refused "another file" 'rank 1 on .*: another model file' -n 2 "${run[@]}" -m "$work/model-%r.gguf"
rm "$work/model-2.gguf"
refused "two differences" 'rank 1 on .*: another model file' -n 4 "${run[@]}" -m "$work/model-%r.gguf"
grep -q 'rank 2 on .*: .*model-2.gguf' "$work/err" && grep -q 'rank 3 on .*: .*model-3.gguf' "$work/err" ||
    bad "two differences: not all of them are told"
for n in 3 9 16; do
    refused "$n ranks" 'number of ranks must divide' -n $n "${run[@]}" -m "$model"
done

# The same library with another build id.
printf '\4\0\0\0\24\0\0\0\3\0\0\0GNU\0another build, yes..' >"$work/note"
library=$(ldd "$octet" | awk '/liboctet/ { print $3 }')
if objcopy --update-section .note.gnu.build-id="$work/note" "$library" \
    "$work/$(basename "$library")" 2>/dev/null; then
    refused "another build" 'rank 1 on .*: another build of octet' -n 1 "${run[@]}" -m "$model" : \
        -n 1 env LD_LIBRARY_PATH="$work:$LD_LIBRARY_PATH" "${run[@]}" -m "$model"
else
    say "another build: SKIPPED, no objcopy"
fi

# Arguments of its own: each way to differ is told, and no text is made with rank 0's alone.
# other_words PATTERN OPTION ...: what rank 1 is given besides
other_words() {
    local pattern=$1
    shift
    refused "rank 1 with $*" "^octet: rank 1 on .*: other arguments than rank 0: $pattern" \
        -n 1 "${run[@]}" -m "$model" : -n 1 "${run[@]}" "$@"
    [ "$(grep -c '^octet: ' "$work/err")" = 2 ] || bad "rank 1 with $*: not two lines"
}
other_words "-m $work/model-1.gguf; rank 0 on .* has -m $model\$" -m "$work/model-1.gguf"
other_words '--kv f32; rank 0 on .* has no more$' -m "$model" --kv f32
other_words 'no more; rank 0 on .* has -m ' # it has none
other_words "-n 5; rank 0 on .* has -m " -n 5 -m "$model"
refused "another command" '^octet: rank 1 on .*: other arguments than rank 0: ppl; rank 0 on .* has run' \
    -n 1 "${run[@]}" -m "$model" : -n 1 "$octet" ppl -m "$model" -f "$work/short"
refused "two of four with other arguments" '^octet: rank 3 on .*: other arguments' \
    -n 1 "${run[@]}" -m "$model" : -n 1 "${run[@]}" -m "$model" -t 2 : \
    -n 1 "${run[@]}" -m "$model" : -n 1 "${run[@]}" -m "$model" -c 9
grep -q '^octet: rank 1 on .*: other arguments' "$work/err" || bad "rank 1 of four was not told of"
grep -q '^octet: rank 2' "$work/err" && bad "rank 2 of four was told of"

# 500 caches of 4 bytes are 3 GB on one rank, 1.5 on each of two.
if [ "$OCT_TEST_SANITIZE" = 1 ]; then
    say "too little memory: SKIPPED, AddressSanitizer maps more than any limit"
else
    for i in $(seq 5); do cat "$work/short"; done >"$work/many"
    big=(run -m "$model" --prompts "$work/many" -n 4 -c 1024 --kv f32 -t 1 --batch 500)
    refused "too little memory" 'rank 1 on .*: its part needs .*, but only .* is available' \
        -n 1 "$octet" "${big[@]}" : \
        -n 1 bash -c 'ulimit -v 1500000; exec "$0" "$@"' "$octet" "${big[@]}"
    # Rank 1 has room for half of the caches: auto must not replicate them. That its model is another
    # file (of the same shape) ends the job then.
    cp "$model" "$work/tiny-0.gguf"
    "$octet" convert "$OCT_TEST_TINY" --no-tokenizer -o "$work/tiny-1.gguf" 2>"$work/err" ||
        bad "no model without a tokenizer"
    big=(run -m "$work/tiny-%r.gguf" --prompts "$work/many" -n 4 -c 1024 --kv f32 -t 1 --batch 500)
    refused "memory for divided attention only" \
        'ranks by (slice|expert): .* ms by slice; .*attention replicated \(not enough memory\)' \
        -n 1 "$octet" "${big[@]}" : \
        -n 1 bash -c 'ulimit -v 2900000; exec "$0" "$@"' "$octet" "${big[@]}"
fi

# ---- ranks that differ and fit ------------------------------------------------------------------
want=$("$octet" run -m "$model" -p hacker: -n 4 --temp 0 -t 1 2>/dev/null)
got=$(launch -n 1 "${run[@]}" -m "$model" : -n 1 env OCTET_ISA=ref "${run[@]}" -m "$model" 2>"$work/err")
[ -n "$want" ] && [ "$got" = "$want" ] || bad "different OCTET_ISA: '$got', expected '$want'"
grep -qE 'all ranks use the ref kernels: rank 1 on ' "$work/err" ||
    bad "different OCTET_ISA: nothing was said"
grep -q '^threads .*, ref kernels$' "$work/err" || bad "different OCTET_ISA: $(grep '^threads' "$work/err")"
say "different OCTET_ISA: $(grep -m 1 'all ranks use' "$work/err")"

timeout 60 mpirun -n 2 --bind-to core:overload-allowed "$octet" run -m "$model" -p hacker: -n 4 -t 2 \
    >/dev/null 2>"$work/err" </dev/null || bad "bound to a core: it does not run"
if grep -q 'bind-to none' "$work/err"; then
    say "bound to a core: $(grep -m 1 'bind-to none' "$work/err")"
else
    bad "bound to a core: nothing was said"
fi

[ $fails -eq 0 ] && say "all ended as they should"
exit $((fails > 0))
