#!/bin/bash
# The server of examples/own_server.c: many at once get what embed.c prints alone; who leaves takes nothing
# with them.
#   own_server.sh OWN_SERVER EMBED
set -u
command -v curl >/dev/null || { echo "SKIPPED: no curl"; exit 77; }
work=$(mktemp -d)
server=
trap 'kill $server 2>/dev/null; wait; rm -rf "$work"' EXIT
bad() { echo "FAILED: $*"; exit 1; }
model=$OCT_TEST_MODELS/tiny-grok.gguf
for ((port = 20000 + $$ % 20000; ; port++)); do
    "$1" "$model" $port 2>"$work/err" &
    server=$!
    for _ in $(seq 300); do
        curl -s -o "$work/none" "http://127.0.0.1:$port/" && break 2 # GET: the method is refused
        kill -0 $server 2>/dev/null || break
        sleep 0.05
    done
    [ $port -lt 40100 ] || bad "it does not start: $(cat "$work/err")"
done
url=http://127.0.0.1:$port/
prompts=("In the beginning" "The king said" "And it came to pass" "A man" "The" "Behold, I")
for round in 1 2; do
    for i in "${!prompts[@]}"; do
        curl -sN "$url" -d "${prompts[i]}" -o "$work/text$i" &
        asked[i]=$!
    done
    curl -sN --max-time 0.02 "$url" -d "In the end" -o "$work/gone" & # leaves early, or is too late
    gone=$!
    for i in "${!prompts[@]}"; do
        wait "${asked[i]}" || bad "no answer to ${prompts[i]}"
        [ $round = 1 ] || continue
        "$2" "$model" "${prompts[i]}" 40 >"$work/want"
        echo >>"$work/text$i"
        cmp "$work/want" "$work/text$i" || bad "${prompts[i]}: $(cat "$work/text$i")"
        [ "$(wc -c <"$work/want")" -gt 40 ] || bad "the text is short: the test proves little"
    done
    wait $gone
done
curl -sN "$url" -d "" | grep -q 'expected at least 1' || bad "an empty prompt"
printf '\xff\xfe' | curl -sN "$url" --data-binary @- | grep -qi 'utf-8' || bad "bytes that are no text"
head -c 70000 /dev/zero | curl -s -o "$work/none" -w '%{http_code}' "$url" --data-binary @- | grep -q 413 ||
    bad "a body of 70000 bytes"
kill -TERM $server
wait $server || bad "it ends with $?"
echo "own_server: ${#prompts[@]} texts at once, as embed has them"
