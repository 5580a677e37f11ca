#!/bin/bash
# Large conversions, for ./dev test --full: one layer of Grok-1's true shape (7.6 GiB of checkpoint) is
# generated, converted with a bound on memory, loaded and decoded; a plain f32 checkpoint of 3 GiB is
# quantised within the same bound; kill -9 and SIGTERM in the middle leave nothing under the name.
# The same layer in bf16 safetensors gives the same file. Needs 20 GiB of disk in the build folder (or
# OCT_BIG_DIR); skipped where there is less.
#   big_convert.sh MKCKPT MKSAFETENSORS      (programs of this folder)
set -eu
mkckpt="$1" mksafetensors="$2"
octet="$OCT_TEST_OCTET"
limit_kib=$((512 * 1024))
base="${OCT_BIG_DIR:-$OCT_TEST_BUILD}"
free_kib=$(df -Pk "$base" | awk 'NR == 2 { print $4 }')
if [ "$free_kib" -lt $((20 * 1024 * 1024)) ]; then
    echo "skipped: 20 GiB of free disk are needed in $base, there are $((free_kib / 1048576))"
    exit 77
fi
dir=$(mktemp -d "$base/big-XXXXXX")
trap 'rm -rf "$dir"' EXIT

fail() { echo "FAILED: $*"; exit 1; }

# convert CHECKPOINT OUT [OPTIONS]: with the most memory it has ever had, mapped files included.
convert()
{
    local peak=0 now pid
    "$octet" convert "$1" -o "$2" --no-tokenizer "${@:3}" &
    pid=$!
    while kill -0 $pid 2>/dev/null; do
        now=$(awk '/^VmHWM/ { print $2 }' /proc/$pid/status 2>/dev/null || true)
        if [ -n "$now" ] && [ "$now" -gt $peak ]; then
            peak=$now
        fi
        sleep 0.05
    done
    wait $pid || fail "conversion of $1"
    echo "peak memory: $peak KiB of $limit_kib"
    [ $peak -gt 0 ] || fail "memory was not measured"
    [ "$OCT_TEST_SANITIZE" = 1 ] || [ $peak -le $limit_kib ] || fail "more than 512 MiB"
}

# interrupt SIGNAL: once the temporary file is there.
interrupt()
{
    local pid
    "$octet" convert "$dir/grok1" -o "$dir/cut.gguf" --no-tokenizer 2>/dev/null &
    pid=$!
    while ! ls "$dir"/cut.gguf.tmp-* >/dev/null 2>&1; do
        kill -0 $pid 2>/dev/null || fail "the conversion ended before SIG$1"
        sleep 0.02
    done
    sleep 1
    kill -"$1" $pid 2>/dev/null || fail "the conversion ended before SIG$1"
    if wait $pid 2>/dev/null; then
        fail "SIG$1 was ignored"
    fi
    [ ! -e "$dir/cut.gguf" ] || fail "SIG$1 left a file under the final name"
}

echo "== Grok-1's shapes, one layer"
"$mkckpt" "$dir/grok1"
bytes=$(du -sb "$dir/grok1" | cut -f1)
[ "$bytes" -ge $((4 << 30)) ] || fail "a checkpoint of $bytes bytes is too small for this test"
interrupt TERM
ls "$dir"/cut.gguf* 2>/dev/null && fail "SIGTERM left a file"
interrupt KILL
convert "$dir/grok1" "$dir/cut.gguf"
! ls "$dir"/cut.gguf.tmp-* 2>/dev/null || fail "what SIGKILL left was not gone on with"
convert "$dir/grok1" "$dir/grok1.gguf"
cmp "$dir/cut.gguf" "$dir/grok1.gguf" || fail "resumed and made at once: two files"
rm -f "$dir/cut.gguf"
rm -rf "$dir/grok1"

echo "== loaded and decoded"
"$octet" info "$dir/grok1.gguf" | grep -qw 6144 || fail "info"
# The last four tokens alone (decode) and together (prefill) give the same bits.
echo "5 6 7 8" >"$dir/ids"
"$octet" logits -m "$dir/grok1.gguf" --ids "$dir/ids" --chunk 1 -o "$dir/decode.npy"
"$octet" logits -m "$dir/grok1.gguf" --ids "$dir/ids" --chunk 4 -o "$dir/prefill.npy"
[ "$(stat -c %s "$dir/decode.npy")" -ge $((4 * 4 * 131072)) ] || fail "size of the logits"
cmp "$dir/decode.npy" "$dir/prefill.npy" || fail "decode and prefill differ"
rm -f "$dir/grok1.gguf"

echo "== the layer from xAI's format and from safetensors"
"$mkckpt" "$dir/layer" vocab=1024
"$mksafetensors" "$dir/layer" "$dir/hub" scheme=1 shards=3 f32=1
convert "$dir/layer" "$dir/layer.gguf"
rm -rf "$dir/layer"
convert "$dir/hub" "$dir/hub.gguf" 2>&1 | tee "$dir/hub.log"
cmp "$dir/layer.gguf" "$dir/hub.gguf" || fail "the files differ"
grep -q "int8 found again in bf16: 974848 of 974848 scales" "$dir/hub.log" || fail "scales"
rm -rf "$dir/hub" "$dir/layer.gguf" "$dir/hub.gguf"

echo "== plain f32, quantised on the way"
"$mkckpt" "$dir/plain" layers=2 d=2048 ffn=8192 q_heads=16 vocab=32768 kind=f32
convert "$dir/plain" "$dir/plain.gguf"
rm -rf "$dir/plain"*

echo "== a vocabulary of 256 Ki, many threads, little address space"
"$mkckpt" "$dir/words" layers=1 d=1024 ffn=256 q_heads=8 vocab=262144
for threads in 2 8 64; do
    convert "$dir/words" "$dir/words.gguf" -t $threads
done
if [ "$OCT_TEST_SANITIZE" != 1 ]; then
    (ulimit -v 2000000 && convert "$dir/words" "$dir/words.gguf" -t 2)
fi
echo "big_convert: passed"
