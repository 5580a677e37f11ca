#!/usr/bin/env bash
# Tools that press servers, those that are installed: slowhttptest, hey, wrk (Debian packages of these names).
# Whatever they do, /health answers, half of the time within 50 ms on any machine (the longest is printed),
# memory stays bounded, and nothing is left of it.
set -u
. "$(dirname "$0")/serve_wait.sh"
work=$(mktemp -d)
trap 'kill $server 2>/dev/null; wait; rm -rf "$work"' EXIT
command -v curl >/dev/null || { echo "SKIPPED: no curl"; exit 77; }
fails=0
ran=""
bad() { echo "FAILED: $*"; fails=$((fails + 1)); }
"$OCT_TEST_OCTET" serve -m "$OCT_TEST_MODELS/tiny-grok.gguf" --port 0 -t 1 -c 512 --parallel 8 --connections 200 \
    --timeout 10 2>"$work/log" &
server=$!
wait_for_server "$work/log" 200
[ -n "$url" ] || { echo "FAILED: the server does not listen"; cat "$work/log"; exit 1; }
metric() { curl -s "$url/metrics" | sed -n "s/^octet_$1 //p"; }
kib() { awk '/^VmRSS/ { print $2 }' "/proc/$server/status"; }

# press NAME COMMAND ...: while the command runs, /health is asked ten times a second.
press() {
    local name=$1 tool=$2 before after n slow code
    shift
    command -v "$tool" >/dev/null || { echo "$name: SKIPPED: $tool is not installed"; return; }
    ran="$ran $name"
    before=$(kib)
    "$@" >"$work/$name" 2>&1 &
    tool=$!
    n=0
    slow=0
    while kill -0 $tool 2>/dev/null; do
        read -r code seconds < <(curl -s -m 5 -o /dev/null -w '%{http_code} %{time_total}\n' "$url/health")
        [ "$code" = 200 ] || bad "$name: /health: $code"
        n=$((n + 1))
        awk "BEGIN { exit !($seconds > 0.05) }" && slow=$((slow + 1))
        echo "$seconds" >>"$work/$name.times"
        sleep 0.1
    done
    wait $tool
    after=$(kib)
    echo "$name: RSS $before -> $after KiB (peak $(awk '/^VmHWM/ { print $2 }' "/proc/$server/status")), /health $n" \
        "times: median $(sort -n "$work/$name.times" | awk '{ t[NR] = $1 } END { print t[int((NR + 1) / 2)] }') s," \
        "longest $(sort -n "$work/$name.times" | tail -1) s"
    [ "$n" -gt 0 ] && [ $((slow * 2)) -le "$n" ] || bad "$name: /health took longer than 50 ms $slow times of $n"
    [ $((after - before)) -lt 65536 ] || bad "$name: $before KiB before, $after KiB after it"
    kill -0 $server || { bad "$name ended the server"; exit 1; }
}

ask='{"prompt":"In the beginning","max_tokens":8}'
printf '%s' "$ask" >"$work/ask.json"
cat >"$work/ask.lua" <<'END'
wrk.method = "POST"
wrk.body = '{"prompt":"In the beginning","max_tokens":20,"stream":true}'
END
# Headers that never end, bodies that never end, readers that do not read, ranges: more connections than there are.
press slow-headers slowhttptest -c 400 -H -i 1 -r 200 -l 8 -u "$url/"
press slow-body slowhttptest -c 400 -B -i 1 -r 200 -l 8 -s 8192 -t POST -u "$url/v1/completions"
press slow-read slowhttptest -c 400 -X -r 200 -w 10 -y 20 -n 2 -z 32 -k 3 -l 8 -u "$url/"
press range slowhttptest -c 200 -R -r 200 -l 5 -u "$url/"
press hey-health hey -z 4s -c 150 "$url/health"
press hey-ask hey -z 5s -c 64 -m POST -D "$work/ask.json" "$url/v1/completions"
press wrk-page wrk -t 1 -c 150 -d 4s "$url/"
press wrk-stream wrk -t 1 -c 64 -d 5s -s "$work/ask.lua" "$url/v1/completions"
[ -n "$ran" ] || { echo "SKIPPED: none of slowhttptest, hey, wrk is installed"; exit 77; }
for what in requests_active texts_running requests_waiting 'kv_pages{state="used"}'; do
    for _ in $(seq 100); do
        [ "$(metric "$what")" = 0 ] && break
        sleep 0.1
    done
    [ "$(metric "$what")" = 0 ] || bad "$what: $(metric "$what") is left"
done
text=$(curl -s "$url/v1/completions" -d '{"prompt":"In the beginning","max_tokens":3,"temperature":0}')
[[ $text == *'" of the reign"'* ]] || bad "an answer after all this: $text"
kill -TERM $server
wait $server
code=$?
[ $code = 143 ] || bad "exit code $code"
echo "serve_tools:$ran; $fails failed"
[ $fails = 0 ]
