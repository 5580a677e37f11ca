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
n=0
for model in tiny-grok odd dense; do
    ids $model $([ $model = tiny-grok ] && echo 150 1 20 || echo 40 1) >"$work/$model.ids"
    logits $model --gpu off || bad "$model: no logits"
    mv "$work/out.npy" "$work/$model.npy"
done
same tiny-grok "$attention" memory=10M --chunk 64
same tiny-grok "$some" memory=13M,order=random --chunk 64
same tiny-grok "$everything" memory=1G
same tiny-grok "$everything" memory=1G,order=random,seed=3 --chunk 33
same tiny-grok "$everything" memory=1G,order=eager --chunk 7
same tiny-grok "attention of [1-5] of 6 layers; " memory=3M --chunk 16
same tiny-grok "GPU 1.*experts of 3 layers" memory=1G,devices=2,order=random
same tiny-grok "GPU 1.*attention of 3 layers, head; " memory=8M,devices=2 --chunk 16
same tiny-grok "GPU 2.*head" memory=1G/20M,devices=3,nopin --gpu 20M,20M,20M
same tiny-grok "attention of [1-5] of 6 layers; " memory=1G --gpu 3M --chunk 16
same odd "experts of 12 layers" memory=1G,order=random
same odd "GPU 1.*attention of 6 layers, head" memory=9M,devices=2 --chunk 20
same dense "attention of 2 layers, head, experts of 2 layers" memory=1G --chunk 16
for options in "--kv bf16" "--kv f32" "--act i8"; do
    # shellcheck disable=SC2086
    logits tiny-grok $options --gpu off
    cp "$work/tiny-grok.npy" "$work/f16.npy"
    mv "$work/out.npy" "$work/tiny-grok.npy"
    # shellcheck disable=SC2086
    same tiny-grok "$everything" memory=1G $options
    mv "$work/f16.npy" "$work/tiny-grok.npy"
done
# The reference kernels have other bits: they go without.
logits tiny-grok --gpu off
OCTET_ISA=ref logits tiny-grok --gpu off && mv "$work/out.npy" "$work/ref.npy"
OCTET_ISA=ref on memory=1G logits tiny-grok && ! grep -q 'GPU 0' "$work/err" &&
    cmp -s "$work/out.npy" "$work/ref.npy" || bad "the reference kernels with a GPU"

# ---- memory that is not there --------------------------------------------------------------------------
# The driver says there is memory, and then there is none: less is placed, with a line.
on memory=1G,failing=cuMemAlloc_v2,fail=2,code=2 logits tiny-grok || bad "an allocation that fails: no logits"
grep -q 'warning: GPU 0: .*out of memory (2); less is placed on GPUs' "$work/err" ||
    bad "an allocation that fails: no line"
logits tiny-grok --gpu off && mv "$work/out.npy" "$work/want.npy"
on memory=1G,failing=cuMemAlloc_v2,fail=2,code=2,lasting logits tiny-grok || bad "no memory at all: no logits"
grep -q 'warning: GPU 0: .*; no GPU is used' "$work/err" || bad "no memory at all: no line"
cmp -s "$work/out.npy" "$work/want.npy" || bad "no memory at all: other logits"

# ---- what is printed -----------------------------------------------------------------------------------
on memory=13M "$octet" run -m "$models/tiny-grok.gguf" -c 64 --dry-run >"$work/out" || bad "--dry-run"
grep -qE "^GPU 0 .Fake GPU 0.: $some" "$work/out" || bad "--dry-run says: $(cat "$work/out")"
[ $fails = 0 ] && say "$n times the same bits"
exit $fails
