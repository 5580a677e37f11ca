#!/usr/bin/env bash
# octet serve --gpu, on a driver that is none: the texts of the CPU; keys and values that one saved are
# taken up by the other.
set -u
. "$(dirname "$0")/serve_wait.sh"
work=$(mktemp -d)
trap 'kill $server 2>/dev/null; wait; rm -rf "$work"' EXIT
. "$(dirname "$0")/gpu_rig.sh"
command -v curl >/dev/null || { say "SKIPPED: no curl"; exit 77; }
prompt=$(seq -s, 100 234)

# answers LABEL CACHED OPTION ...: a server with a GPU (settings: $gpu) and these options gives the text
# $want, of which so many tokens were there, and tells of GPUs or not: $work/err.
answers() {
    local url said text
    on "$gpu" "$octet" serve -m "$models/tiny-grok.gguf" --port 0 -t 1 -c 256 --parallel 2 "${@:3}" &
    server=$!
    wait_for_server "$work/err" 300
    said=$(curl -s "$url/v1/completions" -d "{\"prompt\":[$prompt],\"max_tokens\":4,\"seed\":1}")
    text=$(sed 's/.*"text":\("[^"]*"\).*/\1/' <<<"$said")
    [ "${want:=$text}" = "$text" ] || bad "$1: text $text, expected $want"
    [[ $said == *"\"cached_tokens\":$2"* ]] || bad "$1: cached tokens, expected $2: $said"
    limit=$(curl -s "$url/metrics" | grep -c '^octet_read_limit')
    pkill -TERM -P $server -x octet || kill -TERM $server
    wait $server
}
gpu=memory=1G
answers "no GPU" 0 --gpu off
[ "$limit" = 1 ] || bad "no limit of reading"
! grep -q 'GPU 0' "$work/err" || bad "--gpu off uses a GPU"
answers "a GPU" 0 --gpu 2M --gpu-stream off --chunk 50 --kv-save "$work/kv"
grep -q 'GPU 0.*attention of [1-5] of 6 layers' "$work/err" || bad "--gpu places nothing"
grep -q '^saved 1 of 1 pages' "$work/err" || bad "nothing is saved"
[ "$limit" = 0 ] || bad "a limit of reading that is not the GPU's"
grep -qx 'left nothing' "$work/report" || bad "$(grep left "$work/report")"
cp -r "$work/kv" "$work/kv1"
answers "what a GPU saved" 128 --gpu off --kv-save "$work/kv"
cmp "$work"/kv/*.kv "$work"/kv1/*.kv || bad "GPU and CPU hold other keys and values"
answers "what the CPU saved" 128 --gpu 2M --gpu-stream off --chunk 50 --kv-save "$work/kv"
grep -q '^restored 1 pages' "$work/err" || bad "nothing is taken up"
[ $fails = 0 ] && say "gpu_serve: the same text with and without"
[ $fails = 0 ]
