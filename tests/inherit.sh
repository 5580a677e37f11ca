#!/bin/bash
# What the program `octet` inherits from the one that starts it: streams, limits, signals, folder; and that
# a signal ends it within two seconds, with its code, and nothing left. The argument is the program
# `inherit`.
set -u
octet=$OCT_TEST_OCTET
inherit=$1
model=$OCT_TEST_MODELS/tiny-grok.gguf
tiny=$OCT_TEST_TINY
work=$(mktemp -d)
trap 'cd /; rm -rf "$work"' EXIT
cd "$work" || exit 1
checks=0
fails=0
export ASAN_OPTIONS=detect_leaks=0 # nothing is freed when a signal ends the process

# check WHAT COMMAND ...
check()
{
    local what=$1
    shift
    checks=$((checks + 1))
    "$@" && return
    echo "inherit: FAILED: $what"
    [ ! -s err ] || tail -n 3 err | sed 's/^/    /'
    fails=$((fails + 1))
}
is() { [ "$1" = "$2" ] || { echo "    $1, expected: $2"; false; }; }
run="$octet run -m $model --temp 0 -n 6"
text=$($run -p "In the" 2>err)

# ---- closed streams ------------------------------------------------------------------------------------
# Whatever is closed, a file that is written holds what it should.
seq 1 40 >ids
for command in "convert $tiny" "export --q8_0 $model" "slice -m $model --shard slice --rank 0/2" \
    "logits -m $model --ids ids" "quantize $OCT_TEST_MODELS/odd.gguf"; do
    $octet $command -o expected >/dev/null 2>err || check "$command" false
    for closed in '<&-' '>&-' '2>&-' '<&- >&-' '<&- 2>&-' '>&- 2>&-' '<&- >&- 2>&-'; do
        rm -f out
        (eval "$octet $command -o out $closed") >/dev/null 2>err
        check "$command $closed: the same file" cmp out expected
    done
    rm -f expected
done
$run -p "In the" >&- 2>err
check "run >&-: exit code" is $? 1
check "run >&-: message" grep -q '^octet: cannot write to standard output: Bad file descriptor$' err
$run -f - <&- >out 2>err
check "run -f - <&-: exit code" is $? 1
check "run -f - <&-: message" grep -q '^octet: standard input: cannot read: Bad file descriptor$' err
$run -i <&- >out 2>err
check "run -i <&-: exit code" is $? 1
check "run -i <&-: message" grep -q '^octet: standard input: cannot read: Bad file descriptor$' err
$run -i <. >out 2>err
check "run -i <.: exit code" is $? 1
check "run -i <.: message" grep -q '^octet: standard input: cannot read: Is a directory$' err
$octet tokenize -m "$model" <. >out 2>err
check "tokenize <.: exit code" is $? 1
check "tokenize <.: message" grep -q '^octet: standard input: .*directory' err
check "run 2>&-" is "$($run -p "In the" 2>&-)" "$text"

# ---- streams that do not block ---------------------------------------------------------------------------
yes | head -c 4090 >page # of a pipe that holds no more
help=$($octet run --help)
wrong=$($octet nonsense 2>&1)
check "output that has to wait" is "$($inherit small=1 nonblock=1 -- bash -c \
    "cat page; $octet run --help" | (sleep 0.5; tail -c +4091))" "$help"
check "messages that have to wait" is "$($inherit small=2 nonblock=2 -- bash -c \
    "cat page >&2; $octet nonsense" 2>&1 >/dev/null | (sleep 0.5; tail -c +4091))" "$wrong"
check "input that has to wait" is \
    "$( (sleep 0.5; printf In; sleep 0.3; printf ' the') | $inherit nonblock=0 -- $run -f - 2>err)" "$text"
(sleep 0.5; echo "In the"; sleep 0.3; echo "/quit") | $inherit nonblock=0 -- $run -i >out 2>err
check "a conversation that has to wait" is "In the$(head -n 1 out)" "$text"

# ---- limits --------------------------------------------------------------------------------------------
for command in "convert $tiny" "export --q8_0 $model" "slice -m $model --shard slice --rank 0/2"; do
    (ulimit -f 1000 && exec $octet $command -o limited) >out 2>err
    check "$command, files of 1000 KiB: exit code" is $? 1
    check "$command, files of 1000 KiB: message" grep -q '^octet: limited.*: File too large$' err
    check "$command, files of 1000 KiB: nothing left" is "$(echo limited*)" 'limited*'
done
(ulimit -f 1 && exec $run -p "In the") >out 2>err
check "run, files of 1 KiB" is "$(cat out)" "$text"
yes "In the beginning the king said that all the people of the land" | head -c 3000000 >3mb
if [ "$OCT_TEST_SANITIZE" != 1 ]; then
    (ulimit -t 2 && exec $octet ppl -m $model -f 3mb) >out 2>err
    check "processor time: exit code" is $? $((128 + 24))
    check "processor time: message" grep -q '^octet: the limit of processor time is reached' err
    (ulimit -S -s 64 && exec $run -p "In the") >out 2>err
    check "a small stack that may grow" is "$(cat out)" "$text"
    (ulimit -s 64 && exec $run -p "In the") >out 2>err
    case $? in
    0) check "a small stack, as root" is "$(cat out)" "$text" ;;
    *) check "a small stack" grep -q '^octet: the stack may have 64 KiB, but' err ;;
    esac
fi
mkdir gone
check "a folder that is gone" is "$(cd gone && rmdir ../gone && $run -p "In the" 2>"$work/err")" "$text"

# ---- signals -------------------------------------------------------------------------------------------
# ended CODE SECONDS SIGNAL COMMAND ...: sends the signal some time after the start. The code must be that,
# "interrupted" all that is said, and the end come within two seconds. Standard input never has anything.
mkfifo never nothing
exec 4<>nothing
ended()
{
    local code=$1 wait=$2 signal=$3 pid start
    shift 3
    "$@" >out 2>err <&4 &
    pid=$!
    sleep "$wait"
    kill -"$signal" $pid
    start=$EPOCHREALTIME
    timeout 10 tail -s 0.1 --pid=$pid -f /dev/null || kill -KILL $pid
    wait $pid 2>/dev/null
    is $? "$code" && awk -v a="$start" -v b="$EPOCHREALTIME" 'BEGIN { exit b - a > 2 }' &&
        is "$(grep '^octet: ' err)" "octet: interrupted"
}
set -m # or the shell starts them with SIGINT ignored
for signal in INT TERM HUP USR1; do
    code=$((128 + $(kill -l $signal)))
    check "$signal while a FIFO is opened" ended $code 0.3 $signal $run -f never
    check "$signal while text becomes tokens" ended $code 0.6 $signal $octet ppl -m $model -f 3mb
    check "$signal while input is read" ended $code 0.3 $signal $run -f -
    check "$signal while a line is read" ended $code 0.5 $signal $run -i
done
check "TERM while it is blocked" ended 143 0.3 TERM $inherit blocked -- $run -f never
check "TERM while output waits" ended 143 0.5 TERM bash -c "
    exec > >(sleep 3); exec $inherit small=1 -- bash -c 'cat page; exec $octet run --help'"
set +m
# A signal that comes while the model is loaded is one that has come before.
timeout -s KILL 10 $inherit pending=2 -- $run -i >out 2>err <&4
check "INT while a conversation loads" is $? 130
for command in "convert $tiny" "export --q8_0 $model" "slice -m $model --shard slice --rank 0/2" \
    "logits -m $model --ids ids"; do
    $inherit pending=15 -- $octet $command -o ended >out 2>err
    check "TERM at the start of $command" is $? 143
    check "TERM at the start of $command: nothing left" is "$(echo ended*)" 'ended*'
done
# Ctrl-\ ends at once, in the way of the system, and leaves nothing either.
yes 7 | head -n 1000 | tr '\n' ' ' >many
set -m
(ulimit -c 0 && exec env OCTET_ISA=ref $octet logits -m $model --ids many -o ended) >out 2>err &
pid=$!
for _ in $(seq 100); do
    ls ended.tmp* >/dev/null 2>&1 && break
    sleep 0.05
done
check "QUIT: there is something to leave" test -e "$(echo ended.tmp*)"
kill -QUIT $pid
set +m
wait $pid 2>/dev/null
check "QUIT: exit code" is $? 131
check "QUIT: nothing left" is "$(echo ended*)" 'ended*'
$inherit ignored=1 pending=1 -- $run -p "In the" >out 2>err
check "HUP that is ignored (nohup)" is "$(cat out)" "$text"

# In a conversation Ctrl-C stops the text, and nothing else, even if that takes longer than other ends may.
mkfifo lines
OCTET_ISA=ref $octet run -m $model -i -n 900 --temp 0 --ignore-eos -t 1 <lines >out 2>err &
pid=$!
exec 3>lines
echo "In the" >&3
for _ in $(seq 100); do
    [ ! -s out ] || break
    sleep 0.1
done
kill -INT $pid
sleep 1.5
echo "/help" >&3
exec 3>&-
wait $pid
check "Ctrl-C in a conversation: exit code" is $? 0
check "Ctrl-C in a conversation: it goes on" grep -q '/reset  *start a new text' err

echo "inherit: $checks checks, $fails failures"
[ $fails = 0 ]
