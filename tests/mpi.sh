#!/usr/bin/env bash
# octet under mpirun: the same logits, perplexity and text for any number of ranks, in both layouts;
# what cannot be divided is refused by all ranks together.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_rig.sh"

ranks() { # ranks N COMMAND...
    local n=$1
    shift
    timeout 120 mpirun -n "$n" --oversubscribe --bind-to none "$octet" "$@" -t 1
}

printf '677 263 2224\n272\n263 1252 272 485 832 396 4020 292 263 761 272 339\n' >"$work/ids"
for model in tiny-grok odd dense; do
    top=4000
    [ $model = odd ] && top=500
    [ $model = dense ] && top=250
    awk -v top=$top '{ for (i = 1; i <= NF; i++) printf "%d ", $i % top + 3; print "" }' "$work/ids" >"$work/$model.ids"
    "$octet" logits -m "$models/$model.gguf" --ids "$work/$model.ids" -o "$work/want.npy" 2>"$work/err" ||
        bad "$model alone: $(cat "$work/err")"
    for n in 1 2 4 8; do
        for layout in slice expert "slice --replicate-attention" "expert --replicate-attention"; do
            [ $n = 4 ] || [ "${layout#* }" = "$layout" ] || continue
            rm -f "$work/got.npy"
            # shellcheck disable=SC2086
            ranks $n logits -m "$models/$model.gguf" --ids "$work/$model.ids" -o "$work/got.npy" \
                --shard $layout --chunk 5 2>"$work/err" || bad "$model, $n ranks: $(tail -n 2 "$work/err")"
            if cmp -s "$work/want.npy" "$work/got.npy"; then
                say "$model, $n ranks by $layout: same bytes"
            else
                bad "$model, $n ranks by $layout: the logits differ"
            fi
        done
    done
done

model=$models/tiny-grok.gguf
head -c 1500 "$OCT_TEST_DATA/golden/tiny-grok/heldout.txt" >"$work/text"
want=$("$octet" ppl -m "$model" -f "$work/text" --window 64 --json 2>/dev/null)
got=$(ranks 4 ppl -m "$model" -f "$work/text" --window 64 --json 2>/dev/null)
[ -n "$want" ] && [ "$want" = "$got" ] || bad "ppl on 4 ranks: '$got', expected '$want'"

want=$("$octet" run -m "$model" -p "hacker:" -n 20 --temp 0.8 --seed 7 2>/dev/null)
got=$(ranks 2 run -m "$model" -p "hacker:" -n 20 --temp 0.8 --seed 7 --shard expert 2>"$work/err")
[ -n "$want" ] && [ "$want" = "$got" ] || bad "text of 2 ranks: '$got', expected '$want'"

# What was said at the end adds up: parts of a token, layers (tiny-grok has six), ranks, experts.
# Numbers in the order of the lines; they are rounded.
report() { # report WHAT PROMPT TEXT: tokens that were evaluated of each
    awk -v prompt="$2" -v text="$3" '
    function off(what, is, want, by) {
        if (is < want - by || is > want + by) print what ": " is ", expected " want
    }
    /^ranks [a-z]/ { next } # what was said at the start
    { line[$1]++; gsub(/[(),:;%]/, " ") }
    /^(prompt|text) .* tokens\/s( |$)/ { line[$1]--; tokens[$1] = $2; rate = $6 }
    /^prompt .* ms per token/ {
        token = $7 + $9 + $14
        off("parts of a prompt", token, $2, 0.003)
    }
    /^text .* ms per token/ {
        ms = $2
        token = $7 + $9 + $14
        off("parts of a token", token + $17, ms, 0.003)
        off("milliseconds of a token", ms, 1000 / rate, 0.01 * ms + 0.001)
        if ($7 <= 0 || $9 <= 0) print "compute " $7 ", exchange " $9
    }
    /^layer / {
        off("parts of a layer", $7 + $9 + $11, $2, 0.0003)
        off("parts of the slowest", $16 + $17 + $18, $15, 0.0003)
        if ($15 + 0.0001 < $2 || $14 > 5) print "slowest layer " $14 ": " $15 " of mean " $2
        off("layers and the rest", 6 * $2 + $21, token, 0.005)
    }
    /^rank / { off("experts", $6 + $13, 100, 0.3) }
    /^predicted / {
        off("measured rate", $5, 1000 / ms, 0.02 * $5)
        off("measured of predicted", $6, 100 * $5 / $2, 0.02 * $6 + 0.1)
    }
    END {
        off("tokens of the prompt", tokens["prompt"], prompt, 0)
        off("tokens of text", tokens["text"], text, 0)
        n = split("ranks prompt layer rank text predicted", name, " ")
        for (i = 1; i <= n; i++) off("lines " name[i], line[name[i]], i <= 4 || text > 0, 0)
    }' "$work/err" >"$work/wrong"
    [ -s "$work/wrong" ] && bad "report, $1: $(cat "$work/wrong" "$work/err")"
}
report "the text above" 2 19

# Several texts in steps that hold prompts, too.
printf 'hacker:\nIn the beginning\nAnd God said, Let there be light\n' >"$work/prompts"
want=$("$octet" run -m "$model" --prompts "$work/prompts" -n 20 --temp 0.8 --seed 7 2>/dev/null)
got=$(ranks 2 run -m "$model" --prompts "$work/prompts" -n 20 --temp 0.8 --seed 7 --batch 2 --chunk 3 2>"$work/err")
[ -n "$want" ] && [ "$want" = "$got" ] || bad "three texts of 2 ranks: '$got', expected '$want'"

# A prompt of one token is none that was drawn, however it is evaluated; nor is what is left of a chunk.
for run in "hacker 9 1 8" "hacker 1 1 0" "hacker: 9 2 8 --chunk 1" "hacker: 1 2 0 --chunk 1"; do
    # shellcheck disable=SC2086
    set -- $run
    # shellcheck disable=SC2086
    ranks 2 run -m "$model" -p "$1" -n "$2" --temp 0 --ignore-eos --shard expert ${*:5} 2>"$work/err" >/dev/null
    report "$run" "$3" "$4"
done

# One token at a time: without the exchange in the attention of six layers, 12 rounds less for each.
for more in "" --replicate-attention; do
    # shellcheck disable=SC2086
    ranks 4 run -m "$model" -p "hacker:" -n 9 --temp 0 --chunk 1 --shard slice $more 2>"$work/err" >/dev/null
    sed -n 's/.* sent in \([0-9.]*\) rounds by rank 0$/\1/p' "$work/err"
done >"$work/rounds"
awk '{ r[NR] = $1 } END { exit !(NR == 2 && r[1] - r[2] > 11.85 && r[1] - r[2] < 12.15) }' "$work/rounds" ||
    bad "rounds per token, with attention divided and replicated: $(tr '\n' ' ' <"$work/rounds")"

# Every rank has its own part, or only some have; no other file is needed. auto takes what they hold.
ids=$work/tiny-grok.ids
"$octet" logits -m "$model" --ids "$ids" -o "$work/want.npy" 2>/dev/null
for layout in "slice --replicate-attention" slice expert; do
    shard=$layout
    [ "${layout#* }" = "$layout" ] || shard=auto
    for r in 0 1 2 3; do
        # shellcheck disable=SC2086
        "$octet" slice -m "$model" --shard $layout --rank $r/4 -o "$work/part-$r.gguf" 2>"$work/err" ||
            bad "slicing: $(cat "$work/err")"
    done
    rm -f "$work/got.npy"
    ranks 4 logits -m "$work/part-%r.gguf" --ids "$ids" -o "$work/got.npy" --shard $shard 2>"$work/err"
    cmp -s "$work/want.npy" "$work/got.npy" || bad "4 parts by $layout: $(tail -n 2 "$work/err")"
done
ranks 4 bench -m "$work/part-%r.gguf" -p 0 -n 1 -r 1 >"$work/table" 2>"$work/err" &&
    grep -q '^| decode | 4 | expert |' "$work/table" || bad "bench of parts: $(tail -n 2 "$work/err")"
ln -sf "$model" "$work/part-0.gguf"
ln -sf "$model" "$work/part-2.gguf"
rm -f "$work/got.npy"
(cd "$work" && ranks 4 logits -m part-%r.gguf --ids "$ids" -o got.npy --shard expert 2>err)
cmp -s "$work/want.npy" "$work/got.npy" || bad "parts and whole files: $(tail -n 2 "$work/err")"
ranks 4 logits -m "$work/part-%r.gguf" --ids "$ids" -o "$work/no.npy" --shard slice 2>"$work/err" &&
    bad "parts of the other layout were accepted"
grep -q "rank 3 .*part-3.gguf: holds the part of rank 3 of 4 by expert" "$work/err" ||
    bad "parts of the other layout: $(head -n 4 "$work/err")"
ranks 4 logits -m "$work/part-%r.gguf" --ids "$ids" -o "$work/no.npy" --replicate-attention 2>"$work/err" &&
    bad "parts without all of attention were accepted"
grep -q "rank 1 .*: holds the part of rank 1 of 4 by expert, asked for is .* with attention replicated" "$work/err" ||
    bad "parts without all of attention: $(head -n 4 "$work/err")"
rm -f "$work"/part-*

# The whole context in one sequence.
seq 3 1026 | tr '\n' ' ' >"$work/long"
"$octet" logits -m "$model" --ids "$work/long" -o "$work/want.npy" 2>/dev/null
ranks 8 logits -m "$model" --ids "$work/long" -o "$work/got.npy" 2>"$work/err"
cmp -s "$work/want.npy" "$work/got.npy" || bad "1024 positions on 8 ranks: $(tail -n 2 "$work/err")"

# Measured: a token's time is the sum of its parts; a vector of 24,576 bytes is summed in two rounds,
# in which each of two ranks sends as many.
ranks 2 bench -m "$model" -p 33 -n 8 -d 20 -b 1,2 -r 1 --shard slice --format csv \
    >"$work/csv" 2>"$work/err" || bad "bench: $(tail -n 2 "$work/err")"
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }
    { seen[$at["test"]]++; ranks += $at["ranks"] }
    $at["test"] != "fold" {
        ms = $at["compute_ms_median"] + $at["exchange_ms_median"] + $at["wait_ms_median"]
        sum = ms * $at["tokens_per_second_median"] / 1000
        if (sum < 0.99 || sum > 1.01) print $0 ": parts are " sum " of the whole"
        if ($at["compute_ms_median"] <= 0 || $at["exchange_ms_median"] <= 0 ||
            $at["wait_ms_median"] < 0 || $at["gb_per_token"] <= 0) print $0 ": not positive"
    }
    $at["test"] == "decode" && ($at["predicted_median"] > 0) != ($at["batch"] == 1) {
        print $0 ": predicted " $at["predicted_median"]
    }
    $at["test"] == "fold" && $at["floats"] == 6144 {
        if ($at["bytes_sent"] != 24576 || $at["rounds"] != 2) print $0 ": bytes or rounds"
        if ($at["us_min"] <= 0 || $at["us_median"] > 1e5) print $0 ": us"
    }
    END {
        if (seen["prefill"] != 1 || seen["decode"] != 2 || seen["fold"] != 4 || ranks != 14)
            print "rows: " seen["prefill"] " " seen["decode"] " " seen["fold"] ", ranks " ranks
    }' "$work/csv" >"$work/wrong"
[ -s "$work/wrong" ] && bad "bench: $(cat "$work/wrong")"
for option in "--expert 1" "--simulate 2,1,1"; do
    # shellcheck disable=SC2086
    ranks 2 bench -m "$model" $option >"$work/table" 2>"$work/err" && bad "bench $option was accepted"
    grep -q "^octet: bench: ${option%% [0-9]*} is of one process" "$work/err" ||
        bad "bench $option: $(head -n 3 "$work/err")"
done

for n in 3 5; do
    ranks $n run -m "$model" -p x -n 2 >/dev/null 2>"$work/err"
    code=$?
    [ $code -ge 1 ] && [ $code -le 125 ] || bad "$n ranks: exit code $code"
    grep -q "number of ranks must divide" "$work/err" || bad "$n ranks: $(head -n 3 "$work/err")"
done
ranks 2 run -m "$model" -p x -n 2 --weights owned >/dev/null 2>"$work/err" && bad "owned weights were accepted"
grep -q -- "--weights owned is of one process" "$work/err" || bad "owned weights: $(head -n 3 "$work/err")"
ranks 2 run -m "$work/none.gguf" -p x -n 2 >/dev/null 2>"$work/err" && bad "a missing model was accepted"
grep -q "none.gguf" "$work/err" || bad "missing model: $(head -n 3 "$work/err")"

[ $fails -eq 0 ] && say "all equal"
exit $((fails > 0))
