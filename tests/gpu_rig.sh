# gpu_rig.sh: what the scripts share that run octet on the fake driver (fake_cuda.c); sourced, with
# $work set: a folder of the test's own. The folder of the driver is the script's first argument.
octet=$OCT_TEST_OCTET
models=$OCT_TEST_MODELS
driver=$1
fails=0

say() { printf '%s\n' "$*"; }
bad() {
    say "FAILED: $*"
    [ ! -f "$work/err" ] || sed 's/^/    /' "$work/err" | head -n 12
    fails=$((fails + 1))
}

# on SETTINGS COMMAND ...: with such GPUs; messages go to $work/err.
on() {
    LD_LIBRARY_PATH=$driver${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
        OCTET_FAKE_CUDA="$1,report=$work/report" "${@:2}" 2>"$work/err"
}

# Sequences of which one crosses a border of pages.
ids() { # ids MODEL LENGTH ...
    local top
    top=$("$octet" info "$models/$1.gguf" | awk '$1 == "vocabulary" { print $2 }')
    awk -v top="$top" -v lengths="${*:2}" 'BEGIN {
        x = 1
        n = split(lengths, length_of)
        for (s = 1; s <= n; s++) {
            for (i = 0; i < length_of[s]; i++) {
                x = (x * 16807) % 2147483647
                printf "%d ", 3 + x % (top - 3)
            }
            print ""
        }
    }'
}

# logits MODEL OPTION ...: of $work/MODEL.ids into $work/out.npy
logits() { "$octet" logits -m "$models/$1.gguf" --ids "$work/$1.ids" -o "$work/out.npy" "${@:2}"; }
