#!/bin/bash
# Wrong input to every command of `octet`: one line on standard error that begins with "octet: ", an
# exit code from 1 to 125, nothing on standard output, nothing left behind, and no waiting.
#   bad_input.sh HEADER_ONLY     (the program tests/header_only.c)
set -u
octet="$OCT_TEST_OCTET" model="$OCT_TEST_MODELS/tiny-grok.gguf" header_only="$1"
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
mkdir "$tmp/in" "$tmp/cwd"
cd "$tmp/cwd" || exit 1
in="$tmp/in"
n_checks=0 failures=0

fail()
{
    echo "bad_input: FAILED: $*"
    failures=$((failures + 1))
}

# bad CODE PATTERN COMMAND ...: CODE is 1 (it cannot be done) or 2 (wrong usage). Standard input is
# $stdin.
stdin=/dev/null
bad()
{
    local want="$1" pattern="$2" code lines
    shift 2
    n_checks=$((n_checks + 1))
    find "$tmp/cwd" "$in" | sort >"$tmp/before"
    timeout -k 5 60 "$octet" "$@" <"$stdin" >"$tmp/out" 2>"$tmp/err"
    code=$?
    find "$tmp/cwd" "$in" | sort >"$tmp/after"
    lines=$(wc -l <"$tmp/err")
    [ $code -eq "$want" ] || fail "$*: exit code $code, expected $want: $(head -c 300 "$tmp/err")"
    [ "$lines" -eq 1 ] || fail "$*: $lines lines on standard error: $(head -c 300 "$tmp/err")"
    grep -q '^octet: ' "$tmp/err" || fail "$*: no 'octet: ': $(head -c 300 "$tmp/err")"
    grep -qiE -- "$pattern" "$tmp/err" || fail "$*: no '$pattern' in: $(head -c 300 "$tmp/err")"
    [ -s "$tmp/out" ] && fail "$*: wrote to standard output: $(head -c 100 "$tmp/out")"
    cmp -s "$tmp/before" "$tmp/after" || fail "$*: left $(comm -13 "$tmp/before" "$tmp/after")"
}

# ---- commands and options --------------------------------------------------------------------------
bad 2 "unknown command 'rnu'; did you mean 'run'" rnu
bad 2 "unknown command '-m'" -m "$model"
bad 2 "unknown command" help nonsense
bad 2 "unknown command" $'with\nnewline\e[31m'
for c in run info ppl logits bench convert export; do
    bad 2 "unknown option --nonsense" $c --nonsense
    bad 2 "unknown option -Z" $c -Z
done
bad 2 "did you mean --temp" run --tmep 0.5
bad 2 "-m: a value is missing" run -m
bad 2 "--temp: a value is missing" run -m "$model" --temp
bad 2 "takes no value" run --ignore-eos=yes
bad 2 "unexpected argument 'hello'" run -m "$model" hello
bad 2 "-m MODEL is missing" run -p x
bad 2 "-m MODEL is missing" ppl -f x
bad 2 "-f FILE is missing" ppl -m "$model"
bad 2 "--ids FILE is missing" logits -m "$model" -o x.npy
bad 2 "-o OUT.npy is missing" logits -m "$model" --ids x
bad 2 "only one of" run -m "$model" -p x -f y
bad 2 "-i goes with" run -m "$model" -i --prompts y
bad 2 "need a model" info --verify

# ---- absurd numbers --------------------------------------------------------------------------------
while read -r option value; do
    bad 2 "$option: expected" run -m "$model" -p x "$option" "$value"
done <<'END'
-n -5
-n 1.5
-n abc
-n 99999999999999999999
-n 0x10
-t 0
-t -1
-t 100000
-c 0
-c -1
-c 1000000000000
-c 1e3
--temp nan
--temp -1
--temp inf
--temp 0.5x
--top-p abc
--top-p 1.5
--top-p -0.1
--top-p nan
--top-k -1
--top-k 3000000000
--seed -1
--seed 99999999999999999999
--seed x
--chunk 0
--chunk 100000000
--kv q4
--kv f
END
bad 2 "-n: expected" run -m "$model" -p x -n ""
bad 2 "-n: expected" run -m "$model" -p x -n " 5"
bad 2 "--kv: expected one of f16.bf16.f32" run -m "$model" -p x --kv ""
bad 2 "--window: expected" ppl -m "$model" -f /dev/null --window 1
bad 2 "-t: expected" ppl -m "$model" -f /dev/null -t 0
bad 2 "--chunk: expected" logits -m "$model" --ids - -o x.npy --chunk -7
OCTET_ISA=sse9 bad 1 "OCTET_ISA" run -m "$model" -p x
OCTET_ISA=sse9 bad 1 "OCTET_ISA" info

# ---- files that are no models ----------------------------------------------------------------------
: >"$in/empty.gguf"
echo "<!DOCTYPE html><html><body>Not found</body></html>" >"$in/page.gguf"
printf 'GGUF' >"$in/four.gguf"
head -c 1000 "$model" >"$in/short-header.gguf"
head -c 5000000 "$model" >"$in/short-data.gguf"
head -c -5000 "$model" >"$in/short-last.gguf"
{ cat "$model"; echo more; } >"$in/longer.gguf"
head -c 100000 /dev/urandom >"$in/noise.gguf"
mkfifo "$in/pipe.gguf"
ln -s loop.gguf "$in/loop.gguf"
printf 'x' >"$in/new
line.gguf"

# copy_with NAME OFFSET BYTES (as of printf): a copy of the model with some bytes changed.
copy_with()
{
    cp "$model" "$in/$1"
    printf "$3" | dd of="$in/$1" bs=1 seek="$2" conv=notrunc status=none
}
# value_of KEY: offset of the first byte after a key's name in the model (its type).
value_of() { echo $(($(grep -abo -m1 "$1" "$model" | head -1 | cut -d: -f1) + ${#1})); }

copy_with version.gguf 4 '\x63'
copy_with swapped.gguf 4 '\x00\x00\x00\x03'
copy_with many.gguf 8 '\xff\xff\xff\xff\xff\xff\xff\x7f'
copy_with arch.gguf $(($(value_of general.architecture) + 12)) 'llama'
copy_with format.gguf $(($(value_of octet.format) + 4)) '\x63'
copy_with shape.gguf $(($(value_of octet.embedding_length) + 4)) '\x80'
copy_with heads.gguf $(($(value_of octet.attention.head_count_kv) + 4)) '\x00'

# model_bad PATTERN FILE: every command that opens a model says the same.
echo "3 4" >"$in/ids"
echo "some text" >"$in/text"
model_bad()
{
    bad 1 "$1" run -m "$2" -p x -n 2
    bad 1 "$1" run -m "$2" --dry-run
    bad 1 "$1" info -m "$2"
    bad 1 "$1" ppl -m "$2" -f "$in/text"
    bad 1 "$1" logits -m "$2" --ids "$in/ids" -o out.npy
    bad 1 "$1" export --q8_0 "$2" -o out.gguf
}
model_bad "No such file" "$in/nowhere.gguf"
model_bad "No such file|Not a directory" "$in/ids/x.gguf"
model_bad "directory" "$in"
model_bad "empty|GGUF" "$in/empty.gguf"
model_bad "GGUF" "$in/page.gguf"
model_bad "GGUF" "$in/four.gguf"
model_bad "." "$in/short-header.gguf"
model_bad "." "$in/short-data.gguf"
model_bad "." "$in/short-last.gguf"
model_bad "." "$in/longer.gguf"
model_bad "GGUF" "$in/noise.gguf"
model_bad "GGUF" "$in/new
line.gguf"
model_bad "pipe" "$in/pipe.gguf"
model_bad "symbolic links" "$in/loop.gguf"
model_bad "version" "$in/version.gguf"
model_bad "version|endian" "$in/swapped.gguf"
model_bad "." "$in/many.gguf"
model_bad "llama" "$in/arch.gguf"
model_bad "format" "$in/format.gguf"
model_bad "." "$in/shape.gguf"
model_bad "." "$in/heads.gguf"
model_bad "." ""

# A damaged weight is found when asked for.
copy_with weight.gguf 9000000 '\x00\xff\x00\xff\x00\xff\x00\xff'
bad 1 "damaged" info -m "$in/weight.gguf" --verify

# ---- prompts, texts, ids ---------------------------------------------------------------------------
printf 'ok\n\xff\xfe\n' >"$in/not-utf8"
head -c 100000 /dev/zero >"$in/zeros"
yes "In the beginning God created the heaven and the earth." | head -2000 >"$in/long"
printf '\n\n\r\n' >"$in/blank"
bad 1 "UTF-8" run -m "$model" -p $'a\xff'
bad 1 "UTF-8" run -m "$model" -p $'\xed\xa0\x80'
bad 1 "UTF-8" run -m "$model" -f "$in/not-utf8"
bad 1 "prompt 2.*UTF-8" run -m "$model" --prompts "$in/not-utf8"
bad 1 "empty" run -m "$model" -p ""
bad 1 "empty" run -m "$model" -f "$in/empty.gguf"
bad 1 "empty" run -m "$model"
bad 1 "no prompt" run -m "$model" --prompts "$in/blank"
bad 1 "No such file" run -m "$model" -f "$in/nowhere"
bad 1 "directory" run -m "$model" -f "$in"
bad 1 "[0-9]+ tokens, but the context holds 1024" run -m "$model" -f "$in/long"
bad 1 "[0-9]+ tokens, but the context holds 3 " run -m "$model" -c 3 -p "In the beginning of the end"
bad 1 "longest prompt has [0-9]+ tokens" run -m "$model" --prompts "$in/long" -c 2
bad 1 "-c 2000.*1024" run -m "$model" -c 2000 -p x
bad 1 "tokens" run -m "$model" -f "$in/zeros"
bad 1 "UTF-8" ppl -m "$model" -f "$in/not-utf8"
bad 1 "0 tokens" ppl -m "$model" -f "$in/empty.gguf"
bad 1 "No such file" ppl -m "$model" -f "$in/nowhere"
bad 1 "directory" ppl -m "$model" -f "$in"
bad 1 "2000.*1024" ppl -m "$model" -f "$in/text" --window 2000
bad 1 "no tokenizer" run -m "$OCT_TEST_MODELS/dense.gguf" -p x
bad 1 "no tokenizer" ppl -m "$OCT_TEST_MODELS/dense.gguf" -f "$in/text"

# ids_bad PATTERN LINES
ids_bad()
{
    printf "$2" >"$tmp/ids-bad"
    stdin="$tmp/ids-bad"
    bad 1 "$1" logits -m "$model" --ids - -o out.npy
    stdin=/dev/null
}
ids_bad "no token ids" ""
ids_bad "no token ids" "\n \n"
ids_bad "line 2: .*'x'" "1 2\n3 x\n"
ids_bad "'-'" "5 -1"
ids_bad "4095, found 4096" "4096"
ids_bad "at least" "999999999999999999999999999999"
ids_bad "pad" "0"
ids_bad "line 1" "1 \x00 2"
ids_bad "1024" "$(seq -s' ' 3 1100)"
bad 1 "No such file" logits -m "$model" --ids "$in/ids" -o "$in/nowhere/out.npy"
bad 1 "is a folder" logits -m "$model" --ids "$in/ids" -o "$in"
mkfifo "$in/fifo"
bad 1 "not a regular file" logits -m "$model" --ids "$in/ids" -o "$in/fifo"
bad 1 "too long|File name" logits -m "$model" --ids "$in/ids" -o "$(printf '%0300d' 0)"

# ---- outputs that are inputs --------------------------------------------------------------------------
cp "$model" "$in/own.gguf"
ln "$in/own.gguf" "$in/hard.gguf"
ln -s own.gguf "$in/link.gguf"
for name in own hard link; do
    bad 1 "$name.gguf: is one of the inputs" logits -m "$in/own.gguf" --ids "$in/ids" -o "$in/$name.gguf"
    bad 1 "$name.gguf: is one of the inputs" quantize "$in/own.gguf" -o "$in/$name.gguf"
    bad 1 "$name.gguf: is one of the inputs" slice -m "$in/own.gguf" --rank 0/2 -o "$in/$name.gguf"
    bad 1 "$name.gguf: is one of the inputs" export --q8_0 "$in/own.gguf" -o "$in/$name.gguf"
    bad 1 "$name.gguf: is one of the inputs" quantize "$model" -o out --calibrate "$in/text" --moments "$in/$name.gguf" \
        --compare "$in/own.gguf"
done
bad 1 "ids: is one of the inputs" logits -m "$model" --ids "$in/ids" -o "$in/ids"
bad 1 "text: is one of the inputs" quantize "$model" -o "$in/text" --calibrate "$in/text"
bad 1 "text: is one of the inputs" quantize "$model" -o "$in/text" --compare "$in/text"
bad 1 "text: is one of the inputs" quantize "$model" -o out --calibrate "$in/text" --moments "$in/text"
bad 1 "text: is one of the inputs" quantize "$model" -o "$in/text" --moments "$in/text"
bad 1 "both to -o and to --moments" quantize "$model" -o out --calibrate "$in/text" --moments out
bad 1 "not a regular file" quantize "$model" -o out --calibrate "$in/text" --moments "$in/fifo"
bad 1 "is a folder" quantize "$model" -o out --calibrate "$in/text" --moments "$in"
echo "/save $in/link.gguf" >"$in/lines"
n_checks=$((n_checks + 1))
"$octet" run -m "$in/own.gguf" -i -p x -n 1 <"$in/lines" >"$tmp/out" 2>"$tmp/err"
grep -q "link.gguf: is one of the inputs" "$tmp/err" || fail "/save over the model: $(cat "$tmp/err")"
cmp -s "$in/own.gguf" "$model" || fail "the model was overwritten"

# ---- conversion ------------------------------------------------------------------------------------
bad 2 "." convert
bad 2 "." convert "$OCT_TEST_TINY"
bad 1 "No such file" convert "$in/nowhere" -o out.gguf
bad 2 "." export
bad 1 "No such file" export --q8_0 "$model" -o "$in/nowhere/out.gguf"

# ---- more than this machine has --------------------------------------------------------------------
whole="$OCT_TEST_BUILD/whole-grok-1.gguf" # a file in tmpfs would count as in memory already
have=$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)
if [ "$have" -lt 280 ] && [ "$(stat -f -c %T "$OCT_TEST_BUILD")" != tmpfs ]; then
    "$header_only" "$whole" || fail "header_only"
    bad 1 "needs 29[0-9.]+ GiB .*only [0-9.]+ [KMG]iB" logits -m "$whole" --ids "$in/ids" -o out.npy
    rm -f "$whole"
else
    echo "bad_input: SKIPPED refusal of a whole Grok-1: this machine may hold it"
fi

# ---- texts that would take gigabytes ---------------------------------------------------------------
head -c 16777217 /dev/zero | tr '\0' a >"$tmp/long"
bad 1 "long: longer than 16777216 bytes" tokenize -m "$model" -f "$tmp/long"
bad 1 "long: longer than 16777216 bytes" ppl -m "$model" -f "$tmp/long"
bad 1 "long: longer than 16777216 bytes" quantize "$model" -o out.gguf --calibrate "$tmp/long"
bad 1 "long: longer than 16777216 bytes" quantize "$model" -o out.gguf --compare "$tmp/long"
rm -f "$tmp/long"

# ---- output that cannot be written -----------------------------------------------------------------
for command in --help "help run" --version "info -m $model"; do
    # shellcheck disable=SC2086
    "$octet" $command >/dev/full 2>"$tmp/err"
    code=$?
    n_checks=$((n_checks + 1))
    { [ $code -eq 1 ] && [ "$(wc -l <"$tmp/err")" -eq 1 ] && grep -q 'No space left' "$tmp/err"; } ||
        fail "$command >/dev/full: exit code $code, $(cat "$tmp/err")"
done
"$octet" run -m "$model" -p x -n 5 >/dev/full 2>"$tmp/err"
code=$?
{ [ $code -eq 1 ] && grep -q '^octet: .*No space left' "$tmp/err"; } ||
    fail "run >/dev/full: exit code $code, $(cat "$tmp/err")"

echo "bad_input: $n_checks commands, $failures failures"
[ $failures -eq 0 ]
