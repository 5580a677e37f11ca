#!/usr/bin/env bash
# The bits of logits do not change from version to version: their checksums, of all shipped models,
# kernel rows, KV types and activations, stand in data/logits.sha256, and every way to compute them
# must lead there: chunks, threads, NUMA domains, ranks in all layouts. The file was written by
# version 0.1.0; a change of an order of sums is a decision that writes it anew:
#   same_bits.sh --write   prints the file as this program has it
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
octet=$OCT_TEST_OCTET
models=$OCT_TEST_MODELS
sums=$OCT_TEST_DATA/logits.sha256
fails=0

# Sequences of which one crosses two borders of blocks of 128 positions, where the model has so many.
ids() { # ids MODEL
    local ctx top
    ctx=$("$octet" info "$models/$1.gguf" | awk '$1 == "context" { print $2 }')
    top=$("$octet" info "$models/$1.gguf" | awk '$1 == "vocabulary" { print $2 }')
    awk -v ctx="$ctx" -v top="$top" 'BEGIN {
        x = 1
        split("290 17 1 64", n)
        for (s = 1; s <= 4; s++) {
            len = n[s] < ctx ? n[s] : ctx
            for (i = 0; i < len; i++) {
                x = (x * 16807) % 2147483647
                printf "%d ", 3 + x % (top - 3)
            }
            print ""
        }
    }'
}

sum() { # sum OPTION... : of the logits, or nothing
    rm -f "$work/out.npy"
    "${launch[@]}" "$octet" logits -m "$models/$model.gguf" --ids "$work/$model.ids" -o "$work/out.npy" "$@" \
        >"$work/err" 2>&1 && sha256sum <"$work/out.npy" | cut -d' ' -f1
}

check() { # check KEY OPTION...
    local key=$1 want got
    shift
    want=$(awk -v key="$key" '$2 == key { print $1 }' "$sums")
    got=$(sum "$@")
    if [ -z "$got" ]; then
        echo "FAILED: $key ${launch[*]} $*: $(tail -n 1 "$work/err")"
    elif [ "$got" != "$want" ]; then
        echo "FAILED: $key ${launch[*]} $*: other bits than version 0.1.0"
    else
        n=$((n + 1))
        return
    fi
    fails=$((fails + 1))
}

launch=(env)
rows="ref avx2 avx512 amx"
has() { # has ROW: this CPU can run it
    OCTET_ISA=$1 "$octet" logits -m "$models/dense.gguf" --ids "$work/dense.ids" -o "$work/out.npy" >/dev/null 2>&1
}
for model in tiny-grok odd dense; do ids $model >"$work/$model.ids"; done

if [ "${1:-}" = --write ]; then
    for model in tiny-grok odd dense; do
        for row in ref avx2; do
            class=fast
            [ $row = ref ] && class=ref
            for kv in f16 bf16 f32; do
                for act in i16 i8; do
                    echo "$(OCTET_ISA=$row sum --kv $kv --act $act)  $model/$class/$kv/$act"
                done
            done
        done
    done
    exit
fi

n=0
for model in tiny-grok odd dense; do
    for row in $rows; do
        class=fast
        [ $row = ref ] && class=ref
        has $row || { echo "SKIPPED: this CPU has no $row"; continue; }
        export OCTET_ISA=$row
        for kv in f16 bf16 f32; do
            for act in i16 i8; do
                check $model/$class/$kv/$act --kv $kv --act $act -t 1
            done
        done
        check $model/$class/f16/i16 --chunk 7 -t 2
        check $model/$class/f16/i16 --weights owned -t 2
    done
done

unset OCTET_ISA
if command -v mpirun >/dev/null && [ -e "$OCT_TEST_BUILD/mpi/liboctet_mpi.so" ]; then
    # shellcheck source=/dev/null
    . "$(dirname "$0")/mpi_rig.sh"
    for model in tiny-grok odd dense; do
        for ranks in 1 2 4 8; do
            for layout in slice expert "slice --replicate-attention" "expert --replicate-attention"; do
                launch=(timeout 120 mpirun -n $ranks --oversubscribe --bind-to none)
                # shellcheck disable=SC2086
                check $model/fast/f16/i16 --shard $layout -t 1
            done
        done
    done
else
    echo "SKIPPED: ranks: no mpirun, or built without MPI"
fi
echo "$n ways to compute logits, $fails with other bits"
[ $n -gt 0 ] && [ $fails = 0 ]
