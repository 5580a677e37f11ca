#!/bin/bash
# Each command with a call that fails: see fault_run.c. Arguments: fault_run, fault_shim.so, and how many
# numbers of each call are tried (or "all").
set -u
fault_run=$1 shim=$2 most=$3
octet=$OCT_TEST_OCTET
model=$OCT_TEST_MODELS/tiny-grok.gguf
odd=$OCT_TEST_MODELS/odd.gguf
work=$(mktemp -d -p /dev/shm 2>/dev/null || mktemp -d) # syncing a disk would take most of the time
trap 'cd /; rm -rf "$work"' EXIT
cd "$work" || exit 1
if [ "$OCT_TEST_SANITIZE" = 1 ]; then
    echo "SKIPPED: the sanitizer has an allocator of its own; test_refused is for it"
    exit 77
fi
seq 5 12 >ids
head -c 300 "$OCT_TEST_SOURCE/README.md" >text
fails=0 names=()
# inject NAME COMMAND ...: three at a time, since most of the time of each is waiting.
inject()
{
    while [ "$(jobs -rp | wc -l)" -ge 3 ]; do wait -n; done
    names+=("$1")
    { "$fault_run" "$shim" "$most" "$@" || touch "$1.bad"; } >"$1.log" 2>&1 &
}
# try NAME ARG ...: of octet.
try()
{
    local name=$1
    shift
    inject "$name" "$octet" "$@"
}
# serve: two requests, one after the other, then SIGTERM; what is answered. A server that says that it listens
# may refuse or end a request, and goes on.
cat >serve <<'END'
"$0" serve -m "$1" --port 0 -c 64 --parallel 2 -t 2 2>../serve-err &
pid=$!
while ! grep -q 'listening at' ../serve-err; do
    kill -0 $pid 2>/dev/null || { cat ../serve-err >&2; wait $pid; exit; }
    if [ $((++looks)) = 500 ]; then # its line could not be written
        kill -TERM $pid
        wait $pid
        echo "octet: does not say that it listens" >&2
        exit 1
    fi
    sleep 0.02
done
port=$(sed -n 's/.*listening at .*:\([0-9]*\)$/\1/p' ../serve-err)
ask='{"prompt": "In the", "max_tokens": 3, "temperature": 0}'
for ((i = 1; i <= 500; i++)); do
    exec 3<>"/dev/tcp/127.0.0.1/$port" || break
    printf 'POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
        ${#ask} "$ask" >&3
    timeout 20 grep -o '"text": *"[^"]*"\|"message": *"[^"]*"' <&3 >../answer || echo "no answer to request $i" >../answer
    exec 3>&-
    grep -q "model is being loaded" ../answer && { sleep 0.02; continue; }
    [ $((++asked)) = 2 ] && break
done
kill -TERM $pid
wait $pid
code=$?
cat ../serve-err >&2
[ $code = 143 ] || exit $code
cat ../answer
END
try info info -m "$odd"
try verify info --verify -m "$odd"
try run run -m "$model" -p "In the" -n 3 --temp 0 -t 2
try owned run -m "$model" -p "In the" -n 2 --temp 0 --weights owned -t 2
try ppl ppl -m "$model" -f "$work/text" -t 1
try logits logits -m "$odd" --ids "$work/ids" -o out -t 2
try convert convert "$OCT_TEST_DATA/models/odd" -o out --no-tokenizer -t 2
try slice slice -m "$odd" --rank 0/2 -o out
try export export --q8_0 "$model" -o out
try lossy export --q8_0 --lossy "$model" -o out
try quantize quantize "$odd" -o out -t 2
try tokenize tokenize -m "$model" -f "$work/text"
try text tokenize -m "$model" --ids "$work/ids"
try plan plan "$OCT_TEST_TINY/config.json" --memory 1G --read 10 --ops 1
try man man run
try completion completion bash
try help help serve
try checkpoint plan "$OCT_TEST_DATA/models/odd" --memory 1G --read 10 --ops 1 --json
[ "$most" = all ] || most=1
try calibrate quantize "$model" -o out --layers 0-4=q8 --calibrate "$work/text" --least 1 --window 16 -t 2
try prompts run -m "$model" --prompts "$work/text" --batch 2 -n 2 --temp 0 -t 2
# try_in NAME SCRIPT [ARG ...]: of bash; its $0 is octet.
try_in()
{
    local name=$1 script=$2
    shift 2
    inject "$name" /bin/bash -c "$script" "$octet" "$@"
}
try_in bench '"$0" bench -m "$1" -t 1 -p 4 -n 1 -r 1 >/dev/null' "$odd"
try_in talk 'printf "In\n/reset\nAnd\n\n" | "$0" run -m "$1" -i -n 2 --temp 0 -t 2' "$model"
try_in save 'printf "/save out\n/load out\n/quit\n" | "$0" run -m "$1" -i -p In -n 2 --temp 0 -t 2 && [ -e out ]' "$model"
try_in serve "$(cat serve)" "$model"
wait
for name in "${names[@]}"; do
    cat "$name.log"
    [ ! -e "$name.bad" ] || fails=1
done

# Files that fail while they are mapped: a line with their name, nothing left.
cut()
{
    local what=$1 call=$2
    shift 2
    cp "$model" cut.gguf
    rm -f out*
    OCT_FAULT="$call cut:$work/cut.gguf" LD_PRELOAD=$shim "$octet" "$@" >stdout 2>err
    local code=$?
    if [ $code != 1 ] || ! grep -q '^octet: .*cut.gguf: .*shorter' err || ls out* >/dev/null 2>&1; then
        echo "a model that becomes shorter, $what: exit code $code, $(cat err), left: $(ls out* 2>/dev/null)"
        fails=1
    fi
}
cut logits "fallocate 1" logits -m cut.gguf --ids ids -o out.npy
cut slice "fallocate 1" slice -m cut.gguf --rank 0/2 -o out.gguf
cut slice "pwrite 3" slice -m cut.gguf --rank 0/2 -o out.gguf
cut export "pwrite 9" export --q8_0 cut.gguf -o out.gguf
cut quantize "pwrite 2" quantize cut.gguf -o out.gguf
cut quantize "thread 1" quantize cut.gguf -o out.gguf --calibrate text --least 1 --window 16
cut run "thread 1" run -m cut.gguf -p And -n 3 -t 2

# File systems that cannot map shared (ENODEV), and those that cannot map files at all.
want=$("$octet" run -m "$model" -p And -n 3 --temp 0 2>/dev/null)
got=$(OCT_FAULT="map-shared 1 19" LD_PRELOAD=$shim "$octet" run -m "$model" -p And -n 3 --temp 0 2>err)
[ "$got" = "$want" ] || { echo "no shared mappings: '$got', $(cat err)"; fails=1; }
got=$(OCT_FAULT="map-file 1 19" LD_PRELOAD=$shim "$octet" run -m "$model" -p And -n 3 --temp 0 2>err)
[ "$got" = "$want" ] || { echo "no mappings of files: '$got', $(cat err)"; fails=1; }
OCT_FAULT="map-file 1 19" LD_PRELOAD=$shim "$octet" convert "$OCT_TEST_TINY" -o out.gguf 2>err &&
    cmp out.gguf "$model" || { echo "convert without mappings: $(cat err)"; fails=1; }
# What was read instead of mapped is still there when its pages were given back.
"$octet" quantize "$model" -o a.gguf --compare text >want 2>err
OCT_FAULT="map-file 1 19" LD_PRELOAD=$shim "$octet" quantize "$model" -o b.gguf --compare text >got 2>err
{ cmp -s want got && cmp -s a.gguf b.gguf; } || { echo "quantize without mappings: $(cat got err)"; fails=1; }
exit $fails
