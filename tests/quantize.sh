#!/usr/bin/env bash
# octet quantize: files of 4 bits have the logits, to the byte, of the same integers in 8 bits, on
# every row of kernels, thread count, chunk and number of ranks, also where types are mixed; they are
# verified, cut into parts and exported like any other; moments do not depend on threads; what cannot
# be done is refused, and nothing is left of what was interrupted.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
octet=$OCT_TEST_OCTET
models=$OCT_TEST_MODELS
fails=0
say() { printf '%s\n' "$*"; }
bad() {
    say "FAILED: $*"
    [ ! -f "$work/err" ] || sed 's/^/    /' "$work/err" | tail -n 6
    fails=$((fails + 1))
}

quantize() { "$octet" quantize "$@" >"$work/out" 2>"$work/err"; }
logits() { # logits MODEL NPY OPTION...
    local model=$1 out=$2
    shift 2
    "${launch[@]}" "$octet" logits -m "$model" --ids "$work/ids" -o "$out" "$@" 2>"$work/err"
}
same() { # same WHAT OPTION...
    local what=$1
    shift
    rm -f "$work/a.npy" "$work/b.npy"
    logits "$work/q4.gguf" "$work/a.npy" "$@" && logits "$work/q8.gguf" "$work/b.npy" "$@" ||
        { bad "$what"; return; }
    cmp -s "$work/a.npy" "$work/b.npy" || bad "$what: 4 bits and the same integers in 8 differ"
}

rows=
for row in ref avx2 avx512 amx; do
    printf '7\n' >"$work/ids"
    OCTET_ISA=$row "$octet" logits -m "$models/dense.gguf" --ids "$work/ids" -o "$work/a.npy" \
        >/dev/null 2>&1 && rows="$rows $row"
done

for model in tiny-grok odd dense; do
    top=$("$octet" info "$models/$model.gguf" | awk '$1 == "vocabulary" { print $2 }')
    awk -v top="$top" 'BEGIN { x = 7; split("40 1 9", n); for (s = 1; s <= 3; s++) {
        for (i = 0; i < n[s]; i++) { x = (x * 16807) % 2147483647; printf "%d ", 3 + x % (top - 3) }
        print "" } }' >"$work/ids"
    for types in "--experts q4" "--experts q4g16 --attention q4g32" \
        "--experts q4 --attention q4g16 --layers 0=q8,1=q4g16"; do
        # shellcheck disable=SC2086
        quantize "$models/$model.gguf" -o "$work/q4.gguf" $types || bad "$model $types"
        grep -q 'ffn_gate_up .* weight error [4-9]\.' "$work/out" || bad "$model $types: $(cat "$work/out")"
        quantize "$work/q4.gguf" -o "$work/q8.gguf" --experts q8 --attention q8 || bad "$model: expanding"
        grep -q 'error 0.000 %' "$work/out" || bad "$model: expanding has an error"
        "$octet" info --verify "$work/q4.gguf" >/dev/null 2>"$work/err" || bad "$model: info --verify"
        launch=(env)
        for row in $rows; do
            launch=(env "OCTET_ISA=$row")
            same "$model $types, $row"
        done
        launch=(env)
        same "$model $types, 3 threads, chunks of 5" -t 3 --chunk 5
        same "$model $types, 8-bit activations" --act i8
    done
    # The model's own bits come back where nothing was changed.
    "$octet" export --q8_0 "$work/q4.gguf" -o "$work/a.export" --lossy 2>"$work/err" &&
        "$octet" export --q8_0 "$work/q8.gguf" -o "$work/b.export" --lossy 2>"$work/err"
    if [ $model = tiny-grok ]; then
        cmp -s "$work/a.export" "$work/b.export" || bad "$model: exports differ"
    fi
done

# Ranks, whole files and parts.
model=tiny-grok
printf '677 263 2224\n272\n263 1252 272 485 832 396 4020 292 263 761 272 339\n' >"$work/ids"
quantize "$models/$model.gguf" -o "$work/q4.gguf" --attention q4g16 --layers 2-3=q4g16,4=q8 || bad ranks
quantize "$work/q4.gguf" -o "$work/q8.gguf" --experts q8 --attention q8 || bad ranks
launch=(env)
logits "$work/q8.gguf" "$work/want.npy" || bad "ranks: the logits wanted"
if command -v mpirun >/dev/null && [ -e "$OCT_TEST_BUILD/mpi/liboctet_mpi.so" ]; then
    . "$(dirname "$0")/mpi_rig.sh"
    for n in 1 2 4 8; do
        for layout in slice expert; do
            [ $n != 1 ] || [ $layout = slice ] || continue
            rm -f "$work/a.npy"
            launch=(timeout 120 mpirun -n $n --oversubscribe --bind-to none)
            logits "$work/q4.gguf" "$work/a.npy" --shard $layout -t 1 --chunk 7 || bad "$n ranks by $layout"
            cmp -s "$work/a.npy" "$work/want.npy" || bad "$n ranks by $layout: other logits"
        done
    done
    for r in 0 1; do
        "$octet" slice -m "$work/q4.gguf" --rank $r/2 -o "$work/part-$r.gguf" 2>"$work/err" || bad "part $r"
    done
    rm -f "$work/a.npy"
    launch=(timeout 120 mpirun -n 2 --oversubscribe --bind-to none)
    logits "$work/part-%r.gguf" "$work/a.npy" --shard slice -t 1 || bad "parts"
    cmp -s "$work/a.npy" "$work/want.npy" || bad "parts: other logits"
fi

# Calibration: the same file from any number of threads, from a text and from its moments.
head -c 6000 "$OCT_TEST_DATA/golden/tiny-grok/heldout.txt" >"$work/text"
for t in 1 3; do
    quantize "$models/$model.gguf" -o "$work/c$t.gguf" --calibrate "$work/text" --moments "$work/m$t" -t $t ||
        bad "calibrating with $t threads"
done
grep -q 'calibrated with [1-9][0-9]* tokens: [1-9]' "$work/out" || bad "calibrated: $(cat "$work/out")"
grep -q 'warning: layer [0-9]*, expert [0-9]*: saw [0-9]* tokens of the text: not calibrated' "$work/err" ||
    bad "no expert is named that saw little"
cmp -s "$work/m1" "$work/m3" || bad "moments depend on threads"
cmp -s "$work/c1.gguf" "$work/c3.gguf" || bad "the calibrated file depends on threads"
quantize "$models/$model.gguf" -o "$work/c.gguf" --moments "$work/m1" --compare "$work/text" || bad "moments from a file"
cmp -s "$work/c1.gguf" "$work/c.gguf" || bad "moments from a file give another model"
grep -q 'KL 0.0[01][0-9]* .*perplexity .*same likeliest token [89]' "$work/out" || bad "compare: $(cat "$work/out")"
quantize "$models/$model.gguf" -o "$work/q4.gguf" || bad plain
cmp -s "$work/c.gguf" "$work/q4.gguf" && bad "calibration changes nothing"

# Refusals.
refused() { # refused PATTERN ARGUMENT...
    local pattern=$1
    shift
    rm -f "$work/no.gguf"
    quantize "$@" -o "$work/no.gguf" && bad "taken: $*"
    grep -q "$pattern" "$work/err" || bad "$*: expected '$pattern'"
    [ -z "$(ls "$work"/no.gguf* 2>/dev/null)" ] || bad "$*: left a file"
}
refused 'moments of another model' "$models/odd.gguf" --moments "$work/m1"
refused 'is no file of moments' "$models/$model.gguf" --moments "$work/text"
cp "$work/m1" "$work/m"
printf x | dd of="$work/m" bs=1 seek=100000 conv=notrunc status=none
refused 'damaged' "$models/$model.gguf" --moments "$work/m"
head -c 100000 "$work/m1" >"$work/m"
refused 'another size' "$models/$model.gguf" --moments "$work/m"
refused 'is q4g32 already' "$work/q4.gguf" --experts q4g16
refused "expected q8, q4" "$models/$model.gguf" --experts q5
refused "expected q8, q4" "$models/$model.gguf" --attention q4g8
for layers in x 1 1=q5 3-1=q8 0-99=q8 =q8 0-=q8; do
    refused "layers" "$models/$model.gguf" --layers $layers
done
quantize "$work/q4.gguf" -o "$work/q4.gguf" && bad "a file was replaced by itself"
grep -q 'one of the inputs' "$work/err" || bad "the file itself as output"
quantize "$models/$model.gguf" && bad "no output"

# Ended in the middle, by a signal that can be caught and by one that cannot.
for signal in INT TERM KILL; do
    rm -f "$work"/no.gguf*
    "$octet" quantize "$models/$model.gguf" -o "$work/no.gguf" -t 1 >/dev/null 2>&1 &
    pid=$!
    for _ in $(seq 200); do
        [ -z "$(ls "$work"/no.gguf* 2>/dev/null)" ] || break
        sleep 0.01
    done
    kill -$signal $pid 2>/dev/null
    wait $pid 2>/dev/null
    code=$?
    [ $code -ne 0 ] || continue # it was done already
    [ ! -e "$work/no.gguf" ] || bad "SIG$signal: a file under the name"
    [ $signal = KILL ] || [ -z "$(ls "$work"/no.gguf* 2>/dev/null)" ] || bad "SIG$signal: left $(ls "$work"/no.gguf*)"
done
[ $fails -eq 0 ] && say "all well:$rows"
exit $((fails > 0))
