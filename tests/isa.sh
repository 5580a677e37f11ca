#!/bin/bash
# The same work under every instruction set: isa.sh TEST_PROGRAM[:PATTERN] ...
#   1. the given test programs under OCTET_ISA=ref, avx2, avx512 and what else there is
#   2. `octet logits` under each; all but ref must give the same bytes
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

# The rows that the program says this processor has; the kernel's list of features must agree for two.
rows=$(env -u OCTET_ISA "$octet" info | sed -n 's/.*kernels.*, of //p')
echo "isa: rows here: $rows"
for flag in avx2:avx2 avx512_vnni:avx512; do
    if grep -qw "${flag%:*}" /proc/cpuinfo; then
        case " $rows " in
        *" ${flag#*:} "*) ;;
        *) fail "the processor has ${flag%:*}, the program has no row ${flag#*:}" ;;
        esac
    fi
done

has()
{
    case " $rows " in
    *" $1 "*) return 0 ;;
    *) return 1 ;;
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

for isa in ref avx2 avx512 $(echo "$rows" | sed -E 's/\<(ref|avx2|avx512)\>//g'); do
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
    if [ "$isa" != ref ] && ! cmp "$tmp/avx2.npy" "$tmp/$isa.npy"; then
        fail "avx2 and $isa give other bytes"
    fi
done

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
