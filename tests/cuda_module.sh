#!/bin/bash
# The CUDA module as nvcc makes it: no warnings, no spills, and for every kernel the registers and shared
# memory that its design needs. Usage: cuda_module.sh all|ARCH..., e.g. 86; skipped where there is no nvcc
# (NVCC, PATH, /usr/local/cuda).
set -u
src=$OCT_TEST_SOURCE/ggml-like
nvcc=${NVCC:-$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)}
[ -x "$nvcc" ] || { echo "SKIPPED: no nvcc"; exit 77; }
flags=(--std=c++17 -O3 -fmad=false -prec-div=true -prec-sqrt=true -ftz=false
    -I"$src" -I"$src/cpu" -I"$src/cuda" -I"$OCT_TEST_SOURCE/quant")
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
bad=0

# Threads of a block and blocks of a multiprocessor, for each entry, as the header has them.
sed -n 's/^ *ENTRY(\([a-z_0-9]*\), [a-z_]*, \([0-9]*\), \([0-9]*\)).*/\1 \2 \3/p' \
    "$src/cuda/kernels_cuda.h" >"$tmp/entries"
[ "$(wc -l <"$tmp/entries")" -ge 20 ] || { echo "FAILED: cannot read the entries"; exit 1; }

check_arch()
{
    local arch=$1
    "$nvcc" "${flags[@]}" -arch=sm_"$arch" -Xptxas -v -cubin -o "$tmp/$arch.cubin" \
        "$src/cuda/octet_cuda.cu" >"$tmp/$arch.log" 2>&1 ||
        { cat "$tmp/$arch.log"; echo "FAILED: sm_$arch does not compile"; bad=1; return; }
    grep -i warning "$tmp/$arch.log" && { echo "FAILED: sm_$arch: warnings"; bad=1; }
    awk -v arch="$arch" '
        NR == FNR { threads[$1] = $2; blocks[$1] = $3; n++; next }
        /Compiling entry function/ { split($0, q, "\047"); name = q[2]; sub(/^oct_cuda_/, "", name) }
        /spill stores/ {
            stack[name] = $1; spills[name] = $5 + $9
        }
        /Used [0-9]+ registers/ {
            for (i = 1; i <= NF; i++) if ($i == "Used") regs[name] = $(i + 1)
            shared[name] = 0
            for (i = 1; i <= NF; i++) if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared[name] = $i
        }
        END {
            printf "%-16s %5s %7s %6s %9s %7s\n", "sm_" arch, "regs", "spills", "stack", "threads", "blocks"
            for (name in threads) {
                if (!(name in regs)) { print "FAILED: no entry " name; bad = 1; continue }
                per_warp = int((regs[name] * 32 + 255) / 256) * 256
                fit = int(int(65536 / per_warp) / (threads[name] / 32))
                printf "%-16s %5d %7d %6d %9d %4d/%d\n", name, regs[name], spills[name], stack[name],
                    threads[name], fit, blocks[name]
                if (spills[name] > 0 || stack[name] > 0) { print "FAILED: " name " spills"; bad = 1 }
                if (fit < blocks[name]) { print "FAILED: " name " needs too many registers"; bad = 1 }
                if (shared[name] > 0) { print "FAILED: " name " has static shared memory"; bad = 1 }
            }
            exit bad
        }' "$tmp/entries" "$tmp/$arch.log" >"$tmp/$arch.table" || bad=1
    { head -1 "$tmp/$arch.table"; tail -n +2 "$tmp/$arch.table" | sort; } | cat
}

# No product may be fused with a sum: the PTX has fma only where it is written.
check_fma()
{
    "$nvcc" "${flags[@]}" -arch=compute_"$1" -ptx -o "$tmp/$1.ptx" "$src/cuda/octet_cuda.cu" || bad=1
    for word in 'fma\.ftz' 'mad\.[a-z.]*f32' 'approx' '\.ftz'; do
        grep -m 3 -nE "^[^/]*$word" "$tmp/$1.ptx" && { echo "FAILED: $word in the PTX"; bad=1; }
    done
    grep -q 'fma\.rn\.f32' "$tmp/$1.ptx" || { echo "FAILED: no fma in the PTX"; bad=1; }
}

arches=("$@")
[ "${1:-}" = all ] && arches=(75 80 86 89 90 100 120)
for arch in "${arches[@]}"; do
    check_arch "$arch"
done
check_fma "${arches[-1]}"
[ $bad = 0 ] && echo "cuda_module: ${#arches[@]} targets, no warnings, no spills"
exit $bad
