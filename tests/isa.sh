#!/bin/bash
# The same work under every instruction set: isa.sh TEST_PROGRAM[:PATTERN] ...
#   1. the given test programs under OCTET_ISA=ref, avx2, avx512
#   2. `octet logits` under each; avx2 and avx512 must give the same bytes
#   3. the program on CPUs without AVX-512 and without AVX2, emulated by qemu: starts, and gives the
#      bytes of the real one
# What this machine cannot do is said in a line with SKIPPED.
set -u
octet="$OCT_TEST_OCTET" models="$OCT_TEST_MODELS"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
failures=0

fail()
{
    echo "isa: FAILED: $*"
    failures=$((failures + 1))
}

has()
{
    case "$1" in
    ref) return 0 ;;
    avx2) grep -qw avx2 /proc/cpuinfo && grep -qw fma /proc/cpuinfo && grep -qw f16c /proc/cpuinfo ;;
    avx512) grep -qw avx512_vnni /proc/cpuinfo && grep -qw avx512vl /proc/cpuinfo ;;
    esac
}

# logits OUT COMMAND ...: runs COMMAND logits over two sequences of the dense model.
logits()
{
    local out="$1"
    shift
    "$@" logits -m "$models/dense.gguf" --ids "$tmp/ids" -o "$out" -t 1 2>"$tmp/err" ||
        { fail "$* logits: $(tail -1 "$tmp/err")"; return 1; }
}
awk 'BEGIN { for (s = 0; s < 2; s++) { for (i = 0; i < 40; i++)
    printf "%d ", 3 + (i * 37 + s * 101 + i * i * 11) % 250; print "" } }' >"$tmp/ids"

for isa in ref avx2 avx512; do
    if ! has $isa; then
        echo "isa: SKIPPED $isa: this processor has not got it"
        continue
    fi
    for test in "$@"; do
        # What follows a colon chooses among a program's tests.
        name=${test##*/}
        pattern=${name#*:}
        [ "$pattern" != "$name" ] || pattern=
        OCTET_ISA=$isa "${test%%:*}" $pattern >"$tmp/log" 2>&1 ||
            { cat "$tmp/log"; fail "$name under OCTET_ISA=$isa"; }
        passed=$(grep -c '\[       OK' "$tmp/log")
        [ "$passed" -gt 0 ] || fail "$name under OCTET_ISA=$isa: no test ran"
        echo "isa: $name under $isa: $passed passed"
    done
    OCTET_ISA=$isa logits "$tmp/$isa.npy" "$octet"
done
if has avx512; then
    cmp "$tmp/avx2.npy" "$tmp/avx512.npy" || fail "avx2 and avx512 give other bytes"
fi

OCTET_ISA=sse9 "$octet" logits -m "$models/dense.gguf" --ids "$tmp/ids" -o "$tmp/no.npy" 2>"$tmp/err"
code=$?
if [ $code -lt 1 ] || [ $code -gt 125 ] || ! grep -q sse9 "$tmp/err"; then
    fail "OCTET_ISA=sse9: exit code $code, $(cat "$tmp/err")"
fi

# emulated CPU ROW: the row it must choose by itself, and the bytes this row gives.
emulated()
{
    qemu-x86_64 -cpu "$1" "$octet" info >"$tmp/info" 2>&1 ||
        { cat "$tmp/info"; fail "octet info on an emulated $1"; return; }
    grep -qE "kernels +$2," "$tmp/info" || fail "an emulated $1 does not choose $2: $(cat "$tmp/info")"
    if logits "$tmp/emulated.npy" qemu-x86_64 -cpu "$1" "$octet"; then
        if has "$2"; then
            cmp "$tmp/$2.npy" "$tmp/emulated.npy" || fail "an emulated $1 gives other bytes than $2"
        fi
        echo "isa: emulated $1 gives the bytes of $2"
    fi
}

if [ "$OCT_TEST_SANITIZE" = 1 ]; then
    echo "isa: SKIPPED emulation: not with sanitizers"
elif ! command -v qemu-x86_64 >/dev/null; then
    echo "isa: SKIPPED emulation: no qemu-x86_64 (package qemu-user)"
else
    emulated Haswell avx2
    emulated Nehalem ref
fi
[ $failures = 0 ]
