#!/bin/bash
# The program `octet` in use: what its commands print, with which exit codes, and that results do not
# depend on how the work is cut.
#   cli.sh HEADER_ONLY     (the program tests/header_only.c)
set -u
octet="$OCT_TEST_OCTET" models="$OCT_TEST_MODELS" tiny="$OCT_TEST_MODELS/tiny-grok.gguf"
golden="$OCT_TEST_DATA/golden/tiny-grok"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
cd "$tmp" || exit 1
n_checks=0 failures=0

fail()
{
    echo "cli: FAILED: $*"
    failures=$((failures + 1))
}

# check WHAT COMMAND ...: the command succeeds.
check()
{
    local what="$1"
    shift
    n_checks=$((n_checks + 1))
    "$@" || fail "$what"
}
equal() { [ "$1" = "$2" ] || { printf '  found    %q\n  expected %q\n' "$1" "$2"; return 1; }; }

# octet_ok ARGUMENTS ...: runs octet with stdin from $stdin; output in out and err, exit code 0.
stdin=/dev/null
octet_ok()
{
    n_checks=$((n_checks + 1))
    timeout -k 5 120 "$octet" "$@" <"$stdin" >out 2>err
    local code=$?
    [ $code -eq 0 ] || fail "$*: exit code $code: $(head -3 err)"
}
out() { cat out; echo x; } # the x keeps newlines at the end
is() { equal "$(out)" "$1
x"; }

# ---- help ------------------------------------------------------------------------------------------
"$octet" >out 2>err
check "octet alone: exit code 2" [ $? -eq 2 ]
check "octet alone: usage" grep -q '^usage: octet COMMAND' out
cp out usage
octet_ok --help
check "--help as alone" cmp -s out usage
octet_ok help
octet_ok --version
check "--version" grep -qxE 'octet [0-9]+\.[0-9]+\.[0-9]+' out
# shellcheck disable=SC2013
for c in $(awk '/^commands:/ { on = 1; next } /^$/ { on = 0 } on { print $1 }' usage); do
    octet_ok "$c" --help
    check "$c --help: usage" grep -q "^usage: octet $c " out
    check "$c --help: examples" grep -qE "^  .*octet $c " out
    check "$c --help: at most 100 columns" awk 'length > 100 { exit 1 }' out
    cp out "$c.help"
    octet_ok help "$c"
    check "help $c" cmp -s out "$c.help"
done
for c in run info ppl logits bench convert export; do
    check "command $c is there" [ -s "$c.help" ]
done

# ---- run: greedy text of the original's code -------------------------------------------------------
text=' of the reign of Darius, in the days of his reign reign.
And the reign of Darius the son of Joash king of Judah began to reign over Israel in Samaria'
octet_ok run -m "$tiny" -p "In the beginning" -n 40 --temp 0
check "greedy" is "In the beginning$text"
for line in '^load ' '^prompt +3 tokens.* tokens/s' '^text +39 tokens.*read per token.* GB/s' \
    '^threads +[0-9]+ \(.*kernels'; do
    check "timings: $line" grep -qE "$line" err
done
check "no seed at temperature 0" bash -c '! grep -q ^seed err'
octet_ok run -m "$tiny" -p "In the beginning" -n 40 --temp 0 --no-echo
check "--no-echo" is "$text"
octet_ok run -m "$tiny" -p "In the beginning" -n 40 --temp 0 --top-p 0.3 --top-k 7 --seed 9
check "greedy whatever top-p, top-k and seed" is "In the beginning$text"
octet_ok run -m "$tiny" -p "In the beginning" -n 40 --temp 1.5 --top-k 1
check "top-k 1 is greedy" is "In the beginning$text"
octet_ok run -m "$tiny" -p "In the beginning" -n 40 --temp 1.5 --top-p 0
check "top-p 0 is greedy" is "In the beginning$text"
printf 'In the beginning\n' >prompt
octet_ok run -m "$tiny" -f prompt -n 40 --temp 0
check "-f" is "In the beginning$text"
stdin=prompt
octet_ok run -m "$tiny" -f - -n 40 --temp 0
check "-f -" is "In the beginning$text"
octet_ok run -m "$tiny" -n 40 --temp 0
check "prompt from stdin" is "In the beginning$text"
stdin=/dev/null
for t in 1 2 3; do
    octet_ok run -m "$tiny" -p "In the beginning" -n 40 --temp 0 -t $t --chunk $t --kv f32 -c 100
    check "-t $t" is "In the beginning$text"
done
octet_ok run -m "$tiny" -p "In the beginning" -n 0
check "-n 0" is "In the beginning"
octet_ok run -m "$tiny" -p "In the beginning" -n -1 -c 10 --temp 0
check "context full" grep -q '^octet: warning: .*context of 10 tokens' err
check "context full: 8 tokens" is "In the beginning of the reign of Darius,"

# ---- run: sampling ---------------------------------------------------------------------------------
octet_ok run -m "$tiny" -p "And" -n 30 --seed 7
check "a given seed is not repeated" bash -c '! grep -q ^seed err'
cp out seed7
octet_ok run -m "$tiny" -p "And" -n 30 --seed 7 -t 1
check "the same seed, the same text" cmp -s out seed7
octet_ok run -m "$tiny" -p "And" -n 30 --seed 8
check "another seed, another text" bash -c '! cmp -s out seed7'
octet_ok run -m "$tiny" -p "And" -n 30
seed=$(awk '/^seed/ { print $2 }' err)
check "a random seed is printed" [ -n "$seed" ]
cp out random
octet_ok run -m "$tiny" -p "And" -n 30 --seed "$seed"
check "and gives the text again" cmp -s out random
# So hot that every token is likely: bytes of all kinds come.
octet_ok run -m "$tiny" -p "$(printf 'caf\303\251')" -n 900 --temp 1000 --top-p 1 --seed 3 --ignore-eos
check "valid UTF-8" iconv -f UTF-8 -t UTF-8 -o /dev/null out
check "with replacements" grep -q "$(printf '\357\277\275')" out
check "900 tokens without eos" grep -qE '^text +899 tokens' err

# ---- run: several prompts --------------------------------------------------------------------------
printf 'In the beginning\n\nAnd\r\nhacker:' >prompts
octet_ok run -m "$tiny" --prompts prompts -n 30 --seed 6 --temp 0.9
cp out batch
{
    k=0
    for p in "In the beginning" And hacker:; do
        k=$((k + 1))
        [ $k -eq 1 ] || echo
        echo "--- $k of 3"
        "$octet" run -m "$tiny" -p "$p" -n 30 --seed $((5 + k)) --temp 0.9 2>/dev/null
    done
} >singles
check "a batch gives what each prompt gives alone" cmp batch singles
octet_ok run -m "$tiny" --prompts prompts -n 30 --seed 6 --temp 0.9 --batch 1
check "--batch 1" cmp out singles
octet_ok run -m "$tiny" --prompts prompts -n 30 --seed 6 --temp 0.9 --batch 2 --unordered
check "--unordered: every text" equal "$(grep -v '^---' out | sort)" "$(grep -v '^---' singles | sort)"
check "--unordered: all numbers" equal "$(grep '^---' out | sort)" "$(grep '^---' singles | sort)"
# The first ends last: in order, the others wait for it; unordered, it is the last.
{ for i in $(seq 60); do printf 'In the beginning '; done; printf '\nAnd\nhacker:\n'; } >lengths
octet_ok run -m "$tiny" --prompts lengths -n 2 --temp 0 --chunk 32
check "in order of the file" equal "$(grep '^---' out | cut -c5 | tr -d '\n')" 123
octet_ok run -m "$tiny" --prompts lengths -n 2 --temp 0 --chunk 32 --unordered
check "as they end" equal "$(grep '^---' out | cut -c5 | tr -d '\n')" 231
# A text is printed when it ends: the reader has the second while the third is generated.
mkfifo texts
(OCTET_ISA=ref "$octet" run -m "$tiny" --prompts lengths -n 400 --batch 1 --ignore-eos >texts 2>err
    echo >over) &
grep -m 1 -q '^--- 2 of 3' <texts
check "as soon as it ends" [ ! -e over ]
wait

# ---- run: conversation -----------------------------------------------------------------------------
printf 'In the beginning\n' >talk.txt
stdin=talk.txt
octet_ok run -m "$tiny" -i -n 40 --temp 0
check "first turn as one prompt" is "$text"
printf 'In the beginning\n/reset\nIn the beginning\n/quit\nnever read\n' >talk.txt
octet_ok run -m "$tiny" -i -n 40 --temp 0
check "/reset, /quit" is "$text
$text"
printf '\n' >talk.txt
octet_ok run -m "$tiny" -i -n 20 --temp 0 -p "In the beginning"
check "an empty line goes on" is "In the beginning of the reign of Darius, in the days of his reign reign.
And the
 reign of Darius the son of Joash king of Judah began to reign over Israel in Samaria"
stdin=/dev/null
if command -v script >/dev/null; then
    mkdir state
    (sleep 1; printf 'In the beginning\n'; sleep 1; printf '/quit\n'; sleep 0.5) |
        XDG_STATE_HOME="$tmp/state" timeout 60 script -qec \
            "'$octet' run -m '$tiny' -i -n 5 --temp 0" /dev/null >out 2>&1
    check "on a terminal" grep -q ' of the reign of D' out
    check "history" grep -q 'In.*the.*beginning' state/octet/history
    check "history is private" [ "$(stat -c %a state/octet/history)" = 600 ]
else
    echo "cli: SKIPPED the conversation on a terminal: no script"
fi

# ---- signals and pipes -----------------------------------------------------------------------------
yes "In the beginning God created the heaven and the earth." | head -200 >many
# interrupted SIGNAL CODE ARGUMENTS ...: the signal comes in the middle of the work.
interrupted()
{
    local signal="$1" want="$2" code
    shift 2
    n_checks=$((n_checks + 1))
    OCTET_ISA=ref timeout --foreground --preserve-status -k 20 -s "$signal" 1 "$octet" "$@" >out 2>err
    code=$?
    [ $code -eq "$want" ] || fail "$signal: $*: exit code $code: $(head -3 err)"
    grep -q '^octet: interrupted' err || fail "$signal: $*: $(head -3 err)"
}
interrupted INT 130 run -m "$tiny" --prompts many -n 900 --ignore-eos -c 1000
check "what was made is printed" grep -q '^--- 200 of 200' out
check "timings after an interruption" grep -q '^load ' err
interrupted TERM 143 run -m "$tiny" --prompts many -n 900 --ignore-eos -c 1000
yes "$(seq -s' ' 3 900)" | head -200 >ids
interrupted INT 130 logits -m "$tiny" --ids ids -o cut.npy
check "no unfinished file" bash -c '! ls cut.npy* 2>/dev/null'
for i in 1 2 3 4 5 6 7 8 9 10 11 12; do cat "$golden/heldout.txt"; done >text
interrupted INT 130 ppl -m "$tiny" -f text
mkfifo pipe
(sleep 2 >pipe) &
interrupted INT 130 run -m "$tiny" -f pipe
wait
"$octet" run -m "$tiny" -p And -n 900 --ignore-eos 2>err | head -c 10 >/dev/null
check "a closed pipe ends quietly" [ "${PIPESTATUS[0]}" -eq 0 ]
check "and without a message" bash -c '! grep -q ^octet: err'

# ---- dry run, info ---------------------------------------------------------------------------------
octet_ok run -m "$tiny" -p And --dry-run
check "--dry-run" grep -qE '^  total .* fits$' out
check "--dry-run: nothing else" [ ! -s err ]
OCTET_ISA=ref octet_ok run -m "$tiny" -p And -c 1000 --dry-run
check "--dry-run: the chunk that the machine chooses" grep -q "chunks of 512" out
octet_ok ppl -m "$tiny" -f many --dry-run
octet_ok logits -m "$tiny" --ids ids --dry-run
check "the header of a whole Grok-1" "$1" grok-1.gguf
octet_ok info -m grok-1.gguf
check "info of a whole Grok-1: layers" grep -qE '^  layers +64$' out
check "info of a whole Grok-1: size" grep -qE '^  size +[23][0-9]{2}\.[0-9] GiB$' out
"$octet" logits -m grok-1.gguf --ids ids --dry-run >out 2>err
check "dry run of a whole Grok-1" grep -qE '^  weights .* available memory' out
octet_ok info
check "info: machine" grep -qE '^  kernels +(ref|avx2|avx512|amx), of ref' out
check "info without a model: no file" bash -c '! grep -q ^file out'
octet_ok info "$tiny" --verify --tensors --keys
for line in '^  format +2$' '^  checksums +all tensors agree$' '^  experts per token +2$' \
    '^  fingerprint +[0-9a-f]{16}$' '^  tokenizer +inside$' '^  octet.block_count .* "?6"?$' \
    '^  tokenizer.sentencepiece +i8 '; do
    check "info: $line" grep -qE "$line" out
done
octet_ok info -m "$tiny" --json
check "info --json" grep -q '"bytes_per_token": [0-9]' out
OCTET_ISA=ref octet_ok info
check "info: OCTET_ISA" grep -qE '^  kernels +ref, of' out

# ---- ppl -------------------------------------------------------------------------------------------
octet_ok ppl -m "$tiny" -f "$golden/heldout.txt" --json
check "ppl --json: keys" grep -qxE '\{"ppl": [0-9.]+, "nll": [0-9.]+, "tokens": 9709\}' out
check "ppl: 30.99929 in the original's f32, to 0.05 %" awk -F'[:,]' \
    '{ d = $2 / 30.99929443 - 1; exit !(d < 0.0005 && d > -0.0005) }' out
cp out ppl
for options in "-t 1" "--chunk 7" "--chunk 511 -t 3"; do
    # shellcheck disable=SC2086
    octet_ok ppl -m "$tiny" -f "$golden/heldout.txt" --json $options
    check "ppl $options: the same digits" cmp out ppl
done
# A window of w tokens scores w - 1; so does the short one at the end, if it has two or more.
echo "In the beginning God created the heaven and the earth." >short
octet_ok ppl -m "$tiny" -f short --json
n=$(($(sed 's/.*"tokens": //; s/}//' out) + 1))
for w in 2 3 4 5 6 7; do
    octet_ok ppl -m "$tiny" -f short --json --window $w
    r=$((n % w))
    check "ppl --window $w of $n tokens" grep -q \
        "\"tokens\": $((n / w * (w - 1) + (r > 1 ? r - 1 : 0)))}" out
done
octet_ok ppl -m "$tiny" -f "$golden/heldout.txt" --window 128
check "ppl for people" grep -qxE 'ppl [0-9.]+ +nll [0-9.]+ +tokens [0-9]+' out

# ---- logits ----------------------------------------------------------------------------------------
printf '11 12 13 14 15 16 17\n\n400,401, 402\n5\n' >ids
stdin=ids
octet_ok logits -m "$tiny" --ids - -o all.npy
stdin=/dev/null
check "npy: magic, version" [ "$(head -c 8 all.npy | od -An -tx1 | tr -d ' ')" = 934e554d50590100 ]
check "npy: type, shape" grep -qa "'descr': '<f4', 'fortran_order': False, 'shape': (11, 4096)" all.npy
check "npy: size" [ "$(stat -c %s all.npy)" = $((128 + 11 * 4096 * 4)) ]
check "npy: mode as umask says" [ "$(stat -c %a all.npy)" = "$(printf '%o' $((0666 & ~0$(umask))))" ]
for options in "-t 1" "-t 2" "-t 3" "-t 7" "--chunk 1" "--chunk 3" "--chunk 16"; do
    # shellcheck disable=SC2086
    octet_ok logits -m "$tiny" --ids ids -o cut.npy $options
    check "logits $options: the same bytes" cmp all.npy cut.npy
done
octet_ok logits -m "$tiny" --ids ids -o i8.npy --act i8
check "logits --act i8: other bytes" bash -c '! cmp -s all.npy i8.npy'
octet_ok logits -m "$tiny" --ids ids -o cut.npy --act i8 -t 3 --chunk 3
check "logits --act i8 -t 3 --chunk 3: the same bytes" cmp i8.npy cut.npy
grep . ids | while IFS= read -r line; do
    echo "$line" >one
    "$octet" logits -m "$tiny" --ids one -o one.npy && tail -c +129 one.npy
done >alone
tail -c +129 all.npy >together
check "alone or in a batch: the same bytes" cmp alone together
octet_ok logits -m "$models/odd.gguf" --ids one -o odd.npy
check "no temporary file is left" bash -c '! ls *.tmp-* 2>/dev/null'

echo "cli: $n_checks checks, $failures failures"
[ $failures -eq 0 ]
