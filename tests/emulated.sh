#!/bin/bash
# Another processor against this one: emulated.sh NATIVE_OCTET. The cross-compiled program, run by an
# emulator, converts the checkpoints to the same bytes and computes the same logits as NATIVE_OCTET's
# reference row, on one thread and on two.
set -u
native="$1" octet="$OCT_TEST_OCTET" models="$OCT_TEST_MODELS"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

fail()
{
    echo "emulated: FAILED: $*"
    failures=$((failures + 1))
}

if [ ! -x "$native" ]; then
    echo "emulated: SKIPPED: no $native to compare with"
    exit 77
fi
rows=$("$octet" info | sed -n 's/.*kernels.*, of //p')
[ "$rows" = ref ] || fail "rows '$rows', expected ref alone"
OCTET_ISA=avx2 "$octet" info >"$tmp/out" 2>&1 && fail "OCTET_ISA=avx2 is accepted"
grep -q "'avx2', expected one of ref" "$tmp/out" || fail "OCTET_ISA=avx2: $(cat "$tmp/out")"

awk 'BEGIN { for (s = 0; s < 2; s++) { for (i = 0; i < 40; i++)
    printf "%d ", 3 + (i * 37 + s * 101 + i * i * 11) % 250; print "" } }' >"$tmp/ids"
for name in tiny-grok odd dense; do
    from="$OCT_TEST_DATA/models/$name" options=--no-tokenizer
    [ $name != tiny-grok ] || from="$OCT_TEST_TINY" options=
    "$native" convert "$from" -o "$tmp/$name.gguf" $options 2>"$tmp/err" ||
        fail "convert $name: $(tail -1 "$tmp/err")"
    cmp "$tmp/$name.gguf" "$models/$name.gguf" || fail "$name is converted to other bytes"

    OCTET_ISA=ref "$native" logits -m "$tmp/$name.gguf" --ids "$tmp/ids" -o "$tmp/want.npy" -t 1 \
        2>"$tmp/err" || fail "logits of $name: $(tail -1 "$tmp/err")"
    for threads in 1 2; do
        "$octet" logits -m "$models/$name.gguf" --ids "$tmp/ids" -o "$tmp/got.npy" -t $threads \
            2>"$tmp/err" || fail "logits of $name, emulated: $(tail -1 "$tmp/err")"
        cmp "$tmp/want.npy" "$tmp/got.npy" || fail "$name, $threads threads: other logits"
    done
    echo "emulated: $name: the same file, the same logits ($(stat -c %s "$tmp/want.npy") bytes)"
done
[ $failures = 0 ]
