#!/usr/bin/env bash
# GPUs, on a driver that is none: whatever is placed there, logits have the bits of the CPU's. A
# driver that is missing, broken or old is no reason not to start.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/gpu_rig.sh"

# ---- drivers ---------------------------------------------------------------------------------------
# No library of CUDA's is needed to start.
for file in "$octet" "$(dirname "$octet")/../lib/liboctet.so"; do
    [ ! -e "$file" ] || ! ldd "$file" | awk '{ print $1 }' | grep -iE 'cuda|nvidia|cublas' || bad "$file needs CUDA"
done
text=$("$octet" run -m "$models/tiny-grok.gguf" -p "In the beginning" -n 8 --temp 0 --gpu off 2>/dev/null)

# starts FOLDER SETTINGS WARNING: octet run with that driver prints its text and, of GPUs, this line.
starts() {
    local out
    out=$(driver=$1 on "$2" "$octet" run -m "$models/tiny-grok.gguf" -p "In the beginning" -n 8 --temp 0)
    [ "$out" = "$text" ] || bad "driver $1 $2: prints '$out'"
    if [ -n "$3" ]; then
        [ "$(grep -c 'GPU' "$work/err")" = 1 ] && grep -q "^octet: warning: no GPU is used: .*$3" "$work/err" ||
            bad "driver $1 $2: expected a line with '$3'"
    else
        ! grep -q GPU "$work/err" || bad "driver $1 $2: a line about GPUs"
    fi
}
mkdir "$work/text" "$work/lacks"
echo "no library" >"$work/text/libcuda.so.1"
starts "$work/text" "" "libcuda.so.1"
echo 'int cuInit(unsigned f); int cuInit(unsigned f) { return (int)f; }' >"$work/lacks.c"
gcc -shared -fPIC "$work/lacks.c" -o "$work/lacks/libcuda.so.1" || exit 1
starts "$work/lacks" "" "lacks cuDriverGetVersion"
starts "$driver" version=11080 "CUDA 11.8, expected"
starts "$driver" init=803 "does not start"
starts "$driver" capability=61 "compute capability 6.1"
starts "$driver" devices=0 ""
starts "$driver" init=100 ""
if ldconfig -p | grep -q libcuda.so.1; then
    say "SKIPPED without a driver: this machine has one"
else
    starts /nonexistent "" ""
    "$octet" run -m "$models/tiny-grok.gguf" -p x -n 1 --gpu 1G >/dev/null 2>"$work/err"
    [ $? = 2 ] && grep -q 'no driver of NVIDIA' "$work/err" || bad "--gpu 1G without a driver"
fi
for wrong in on 12X 5G, ,5G -1G 1G,x; do
    on "" "$octet" run -m "$models/tiny-grok.gguf" -p x --gpu "$wrong" >/dev/null
    [ $? = 2 ] && grep -q "expected off, auto or sizes" "$work/err" || bad "--gpu $wrong"
done

# ---- bits ------------------------------------------------------------------------------------------
# What is to be placed, as a pattern of the lines about GPUs; settings; options.
attention='attention of 6 layers, head; '
some='attention of 6 layers, head, experts of [1-5] of 6'
everything='attention of 6 layers, head, experts of 6 layers'
# same MODEL PATTERN SETTINGS OPTION ...
same() {
    on "$3" logits "$1" "${@:4}" || bad "$1, $3: fails"
    grep -qE "$2" "$work/err" || bad "$1, $3 ${*:4}: expected '$2'"
    cmp -s "$work/out.npy" "$work/$1.npy" || bad "$1, $3 ${*:4}: other logits"
    grep -qx 'left nothing' "$work/report" || bad "$1, $3: $(grep left "$work/report")"
    n=$((n + 1))
}
# cpu MODEL OPTION ...: what logits are to be
cpu() {
    logits "$@" --gpu off && mv "$work/out.npy" "$work/$1.npy" || bad "$1: no logits"
}
n=0
# An emulated token of the small model takes a quarter of a second: few of them, but for borders of
# pages, which one layer of attention sees as well as all.
ids tiny-grok 133 2 >"$work/tiny-grok.ids"
cpu tiny-grok
same tiny-grok 'attention of 1 of 6 layers; ' memory=1G --gpu 1300k --chunk 50
for model in tiny-grok odd; do
    ids $model 5 1 >"$work/$model.ids"
    cpu $model
done
ids dense 20 1 >"$work/dense.ids"
cpu dense
same tiny-grok "$attention" memory=7M --gpu-stream off
same tiny-grok 'attention of 6 layers, head, room to stream' memory=7M
same tiny-grok "$some" memory=13M,order=random
same tiny-grok "$everything" memory=1G
same tiny-grok "$everything" memory=1G,order=eager --chunk 2
same tiny-grok 'attention of [1-5] of 6 layers; ' memory=1G --gpu 1M
same tiny-grok 'GPU 1.*experts of 3 layers' memory=1G,devices=2,order=random,seed=3
same tiny-grok 'GPU 1.*attention of 3 layers, head; ' memory=6M,devices=2 --gpu-stream off
same tiny-grok 'GPU 2.*head' memory=1G/20M,devices=3,nopin --gpu 20M,20M,20M --chunk 4
# A link so fast that experts of all rows are brought; of two GPUs, each of its layers.
same tiny-grok '^experts are streamed to GPUs for [1-8] tokens' elapsed=0.001 --gpu 7M
[ "$(awk '$1 == "cuEventRecord" { print $2 }' "$work/report")" -gt 100 ] || bad "nothing was streamed"
same odd 'GPU 1.*room to stream' devices=2,order=random,elapsed=0.001 --gpu 5M,5M
same odd 'experts of 12 layers' memory=1G,order=random
same odd 'GPU 1.*attention of 6 layers, head' memory=8M,devices=2
same dense 'attention of 2 layers, head, experts of 2 layers' memory=1G --chunk 16
# Weights of 4 bits, of both kinds.
"$octet" quantize "$models/tiny-grok.gguf" -o "$work/q4.gguf" --experts q4g32 --attention q4g16 --layers 1-2=q4g16 >/dev/null 2>"$work/err" ||
    bad "no model of 4 bits"
cp "$work/tiny-grok.ids" "$work/q4.ids"
models=$work cpu q4
models=$work same q4 "$everything" memory=1G,order=random
models=$work same q4 'room to stream' memory=7M
for options in '--kv bf16' '--kv f32' '--act i8'; do
    # shellcheck disable=SC2086
    cpu dense $options
    # shellcheck disable=SC2086
    same dense 'experts of 2 layers' memory=1G,order=random $options
done

# ---- cuBLAS ----------------------------------------------------------------------------------------
# Asked for, it does the head of many rows: nearly the same logits, and other last bits. What is not
# there or refuses is told of.
if ldconfig -p | grep -q libopenblas.so.0; then
    cpu dense
    on memory=1G logits dense --blas || bad "--blas fails"
    ! cmp -s "$work/out.npy" "$work/dense.npy" || bad "--blas: the bits of our own head"
    paste <(od -An -v -tf4 -w4 -j128 "$work/out.npy") <(od -An -v -tf4 -w4 -j128 "$work/dense.npy") |
        awk '{ d = $1 - $2; d = d < 0 ? -d : d; most = d > most ? d : most; n++ } END { exit !(n > 1000 && most < 1e-4) }' ||
        bad "--blas: other logits"
    grep -qx 'left nothing' "$work/report" || bad "--blas: $(grep left "$work/report")"
    on memory=1G,blas=14 logits dense --blas && grep -q 'warning: GPU 0: cuBLAS: it does not start: fake error (14); no GPU' "$work/err" ||
        bad "cuBLAS that refuses"
    mkdir "$work/alone" && ln -s "$driver/libcuda.so.1" "$work/alone"
    echo "no library" >"$work/alone/$(cd "$driver" && echo libcublas.so.[0-9]*)"
    ! driver=$work/alone on memory=1G logits dense --blas && [ "$(grep -c '^octet: GPU 0: cuBLAS: ' "$work/err")" = 1 ] ||
        bad "no cuBLAS"
    driver=$work/alone on memory=1G logits dense && cmp -s "$work/out.npy" "$work/dense.npy" || bad "no cuBLAS, not asked for"
else
    say "SKIPPED cuBLAS: --blas needs OpenBLAS too"
fi

# ---- ranks -----------------------------------------------------------------------------------------
# Each may have a GPU or none: two share one; each has its own; only the second has one.
if command -v mpirun >/dev/null && [ -e "$OCT_TEST_BUILD/mpi/liboctet_mpi.so" ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1
    ranks() { # ranks PATTERN SETTINGS OPTION ...
        rm -f "$work"/ranks.*
        LD_LIBRARY_PATH=$driver:$OCT_TEST_BUILD/mpi ASAN_OPTIONS=detect_leaks=0 \
            OCTET_FAKE_CUDA=$2,reports=$work/ranks \
            mpirun --oversubscribe --bind-to none -n 2 "$octet" logits -m "$models/tiny-grok.gguf" \
            --ids "$work/tiny-grok.ids" -o "$work/out.npy" "${@:3}" 2>"$work/err" || bad "2 ranks, $2: fails"
        grep -qE "$1" "$work/err" || bad "2 ranks, $2 ${*:3}: expected '$1'"
        cmp -s "$work/out.npy" "$work/tiny-grok.npy" || bad "2 ranks, $2 ${*:3}: other logits"
        [ "$(cat "$work"/ranks.* | grep -cx 'left nothing')" = 2 ] || bad "2 ranks, $2 ${*:3}: memory is left"
        n=$((n + 1))
    }
    # streamed WHAT: each rank has been brought experts
    streamed() {
        [ "$(cat "$work"/ranks.* | awk '$1 == "cuEventRecord" && $2 > 50' | wc -l)" = 2 ] || bad "2 ranks stream no $1"
    }
    ranks '^rank 1: GPU 0 .*attention of 6 layers' memory=16M --shard slice
    ranks '^rank 1: GPU 0 .*room to stream' elapsed=0.001 --shard slice --gpu 8M
    streamed slices
    ranks '^rank 1: GPU 0 .*room to stream' elapsed=0.001 --shard expert --gpu 8M
    streamed experts
    ranks '^rank 1: .*GPU 3 .*experts of 3 layers' memory=1G,devices=4 --shard slice
    ranks '^rank 0: .*GPU 2 .*experts of 3 layers' memory=1G,devices=4 --shard expert
    ranks '^rank 1: GPU 1 .*experts of 6 layers' memory=1G,devices=2 --shard expert
    ranks '^rank 0: GPU 0 .*attention' memory=14M,devices=2 --shard slice --replicate-attention
    ranks '^rank 1: GPU 1 .*attention' memory=1G,devices=2 --shard expert --replicate-attention --gpu 0k,9M
    ! grep -q '^rank 0: GPU' "$work/err" || bad "rank 0 has a GPU that was not to be used"
else
    say "SKIPPED ranks: no mpirun, or built without MPI"
fi

# The reference kernels have other bits: they go without.
OCTET_ISA=ref logits tiny-grok --gpu off && mv "$work/out.npy" "$work/ref.npy"
OCTET_ISA=ref on memory=1G logits tiny-grok && ! grep -q 'GPU 0' "$work/err" &&
    cmp -s "$work/out.npy" "$work/ref.npy" || bad "the reference kernels with a GPU"

# ---- memory that is not there --------------------------------------------------------------------------
# The driver says there is memory, and then there is none: less is placed, with a line.
on memory=1G,failing=cuMemAlloc_v2,fail=3,code=2 logits tiny-grok || bad "an allocation that fails: no logits"
grep -q 'warning: GPU 0: .*out of memory (2); less is placed on GPUs' "$work/err" ||
    bad "an allocation that fails: no line"
cmp -s "$work/out.npy" "$work/tiny-grok.npy" || bad "an allocation that fails: other logits"
on memory=1G,failing=cuMemAlloc_v2,fail=3,code=2,lasting logits tiny-grok || bad "no memory at all: no logits"
grep -q 'warning: GPU 0: .*; no GPU is used' "$work/err" || bad "no memory at all: no line"
cmp -s "$work/out.npy" "$work/tiny-grok.npy" || bad "no memory at all: other logits"

# ---- what is printed -----------------------------------------------------------------------------------
on memory=13M "$octet" run -m "$models/tiny-grok.gguf" -c 64 --dry-run >"$work/out" || bad "--dry-run"
grep -qE "^GPU 0 .Fake GPU 0.: $some" "$work/out" || bad "--dry-run says: $(cat "$work/out")"
on memory=1G,devices=2 "$octet" info >"$work/out" || bad "info"
grep -qE '^  1 +Fake GPU 1, compute capability 8.9' "$work/out" || bad "info says: $(cat "$work/out")"
on memory=20M,devices=2 "$octet" bench -m "$models/dense.gguf" -t 1 -p 0 -n 1 -r 1 --format json >"$work/out" || bad "bench"
[ "$(grep -cE '"(read_gb_per_second|int8_tops|link_gb_per_second|(gemv|gemm)_.*|cublas_int8_tops)": [0-9.e-]*[1-9]' "$work/out")" = 12 ] ||
    bad "bench says of GPUs: $(grep -A 18 '"gpus"' "$work/out")"
[ $fails = 0 ] && say "$n times the same bits"
exit $fails
