#!/bin/bash
# The conversation of `octet run -i`, text as other systems write it, and terminals: history, what is
# pasted, /save and /load, CR LF, byte order marks, decimal numbers, progress in narrow terminals.
set -u
octet="$OCT_TEST_OCTET" tiny="$OCT_TEST_MODELS/tiny-grok.gguf"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
export HOME="$tmp/home"
unset XDG_STATE_HOME
failures=0

fail()
{
    echo "talk: FAILED: $*"
    failures=$((failures + 1))
}
check()
{
    local what="$1"
    shift
    "$@" || fail "$what"
}
not() { ! "$@"; }
# talk ARGUMENTS ...: a conversation without a terminal, of standard input.
talk() { timeout -k 5 60 "$octet" run -m "$tiny" -i --temp 0 "$@" >out 2>err || fail "$*: $(head -3 err)"; }

# ---- text of other systems ---------------------------------------------------------------------------
printf 'In the beginning\n/reset\nIn the beginning\n/quit\nIn the beginning\n' | talk -n 9
cp out unix
check "two answers" [ "$(wc -l <out)" = 2 ]
printf '\357\273\277In the beginning\r\n/reset\r\nIn the beginning\r\n/quit\r\nIn the beginning\r\n' | talk -n 9
check "CR LF and a byte order mark" cmp -s out unix
printf 'And the king said' >plain
printf '\357\273\277And the king said\r\n' >marked
"$octet" run -m "$tiny" -f plain -n 9 --temp 0 >out1 2>err
"$octet" run -m "$tiny" -f marked -n 9 --temp 0 >out2 2>err
check "-f with a byte order mark" cmp -s out1 out2
"$octet" run -m "$tiny" -n 9 --temp 0 <marked >out2 2>err
check "stdin with a byte order mark" cmp -s out1 out2
head -c 3000 "$OCT_TEST_DATA/golden/tiny-grok/heldout.txt" >plain
{ printf '\357\273\277'; cat plain; } >marked
"$octet" ppl -m "$tiny" -f plain --json >out1 2>err
"$octet" ppl -m "$tiny" -f marked --json >out2 2>err
check "ppl with a byte order mark" cmp -s out1 out2
check "ppl says something" grep -q '"ppl": [0-9]' out1
printf '5 6 7\n' >plain
printf '\357\273\2775 6 7\n' >marked
"$octet" logits -m "$tiny" --ids plain -o plain.npy 2>err || fail "logits: $(cat err)"
"$octet" logits -m "$tiny" --ids marked -o marked.npy 2>err || fail "marked ids: $(cat err)"
check "ids with a byte order mark" cmp -s plain.npy marked.npy
mkdir ckpt && ln -s "$OCT_TEST_TINY"/ckpt-0 "$OCT_TEST_TINY"/tokenizer.model ckpt/
{ printf '\357\273\277'; cat "$OCT_TEST_TINY/config.json"; } >ckpt/config.json
"$octet" convert ckpt -o ckpt.gguf 2>err || fail "config.json with a byte order mark: $(tail -1 err)"
check "and converts to the same" cmp -s ckpt.gguf "$tiny"
"$octet" run -m "$tiny" -p And -n 20 --seed 10 >out1 2>err
"$octet" run -m "$tiny" -p And -n 20 --seed 010 >out2 2>err
check "--seed 010 is ten" cmp -s out1 out2
"$octet" run -m "$tiny" -p And -n 20 --seed 0x10 >out 2>err
check "--seed 0x10 is no number" [ $? = 2 ]

# ---- /save, /load --------------------------------------------------------------------------------------
printf 'In the beginning\n/save kept text.json  \n\n' | talk -n 9
cp out whole
check "/save" [ -s "kept text.json" ]
printf '/load kept text.json\n\n' | talk -n 9
check "/load goes on where it was" cmp -s <(tail -c "$(stat -c %s out)" whole) out
printf 'In the beginning' >plain
printf '/load plain\n\n' | talk -n 9
check "/load of a text" [ "$(head -n 1 unix)" = "$(cat out)" ]
sed 's/"octet_text":"[0-9a-f]*"/"octet_text":"0"/' "kept text.json" >other.json
printf '/load other.json\n\n' | talk -n 2
check "/load of another model's text" grep -q 'anew from the text' err
printf 'And\n/load nowhere\n/load\n/save /nowhere/x\n\n' | talk -n 2
check "/load and /save: the text stays" [ "$(wc -l <out)" = 2 ]
check "/load: no such file" grep -q '^octet: nowhere: cannot open' err
check "/load without a name" grep -q '^octet: /load: the name of a file is missing' err
check "/save: no such folder" grep -q '^octet: /nowhere' err
printf '{"octet_text":"x","text":"In the","ids":[1,99999999,"a"]}' >bad.json
printf '/load bad.json\n\n' | talk -n 2
check "/load of made-up ids" grep -q 'anew from the text' err

# ---- on a terminal -----------------------------------------------------------------------------------------
check "no history without a terminal" [ ! -e home ]
if ! command -v script >/dev/null; then
    echo "talk: SKIPPED terminals: no script"
    [ $failures = 0 ]
    exit
fi
# on_terminal OPTIONS: what is typed is on standard input; waits for the prompt before each line of it.
on_terminal()
{
    (
        sleep 0.7
        while IFS= read -r line; do
            # shellcheck disable=SC2059
            printf "$line\r"
            sleep 0.4
        done
        sleep 0.3
    ) | TERM=xterm timeout 60 script -qec "'$octet' run -m '$tiny' -i --temp 0 $*" /dev/null >out 2>&1
}
on_terminal -n 3 <<'END'
\033[200~In the\rbeginning\nof\r\033[201~
/save pasted.json
\033[200~\303\274ber [201~ x\tx\033[201~
/save typed.json
/quit
END
check "what is pasted is one message" grep -qF '"text":"In the\nbeginning\nof' pasted.json
check "and is answered once" [ "$(grep -c 'tokens saved' out)" = 2 ]
check "with one prompt a message" [ "$(grep -o 'text> ' out | wc -l)" = 5 ]
check "letters beyond ASCII" grep -qF '\nüber [201~ x\tx' typed.json
check "pasting is asked for" grep -q "$(printf '\033\\[?2004h')" out
check "and given up" [ "$(grep -o "$(printf '\033\\[?2004[hl]')" out | tail -n 1)" = "$(printf '\033[?2004l')" ]
history=home/.local/state/octet/history
check "history is kept by default" grep -q 'pasted.json' "$history"
check "history is private" [ "$(stat -c %a "$history" home/.local/state/octet home/.local | tr '\n' ' ')" = \
    "600 700 700 " ]
on_terminal -n 1 <<'END'
\033[A\033[A
/quit
END
check "and comes back" grep -q "saved" out
rm -rf home
on_terminal -n 1 --no-history <<'END'
And
/quit
END
check "--no-history" [ ! -e home ]
: >home # no folder can be made in it
on_terminal -n 1 <<'END'
And
/quit
END
check "no history is no failure" not grep -q 'octet: ' out
check "and the conversation goes on" grep -q 'prompt  *1 token' out

# ---- progress in narrow terminals ----------------------------------------------------------------------------
for columns in 20 40 80 200; do
    script -qec "stty cols $columns; '$octet' convert '$OCT_TEST_TINY' -o narrow.gguf" /dev/null >out 2>&1
    check "what stays at $columns columns fits" awk -v n="$columns" \
        '/^(writing|verifying): / { sub("\r", ""); k++; if (length > n) { print; bad = 1 } } END { exit bad || k != 2 }' \
        <(sed "s/.*$(printf '\033')\[K//" out)
    check "progress at $columns columns" grep -q 'writing' out
    tr '\r' '\n' <out | sed "s/$(printf '\033')\[K//" | grep -aE '^(writing|verifying) .*[%[]' >lines
    check "progress at $columns columns is drawn" [ -s lines ]
    check "progress at $columns columns fits" awk -v n="$columns" 'length >= n { print; bad = 1 } END { exit bad }' lines
done
check "the bar is there where there is room" grep -q '\[#*\.*\]' lines

[ $failures = 0 ] && echo "talk: passed"
[ $failures = 0 ]
