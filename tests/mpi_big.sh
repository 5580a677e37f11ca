#!/usr/bin/env bash
# Eight ranks on a model of more than 1 GiB: every rank maps what it said that it would hold, an
# eighth, and no more is resident after it has computed; the ranks' ranges together are the file.
# With parts on disk each has its own part open, and no other file is there.
set -u
n=8
work=$(mktemp -d "$OCT_TEST_BUILD/big-XXXXXX")
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_rig.sh"
free_kib=$(df -Pk "$OCT_TEST_BUILD" | awk 'NR == 2 { print $4 }')
have_kib=$(awk '/^MemAvailable/ { print $2 }' /proc/meminfo)
if [ "$free_kib" -lt $((3 << 20)) ] || [ "$have_kib" -lt $((3 << 20)) ]; then
    skip "needs 3 GiB of disk in $OCT_TEST_BUILD and 3 GiB of memory"
fi
"$1" "$work/big.gguf" || exit 1
file_bytes=$(stat -c %s "$work/big.gguf")
[ "$file_bytes" -ge $((1 << 30)) ] || bad "the model has $file_bytes bytes"
awk 'BEGIN { for (i = 0; i < 2000; i++) printf "%d ", 3 + i * 7919 % 8000 }' >"$work/ids"

# start MODEL LAYOUT CHUNK: starts the ranks, lets them evaluate 64 tokens and more, stops them all.
# Sets job, pid[RANK], share (bytes that each said it holds).
start() {
    local rank tries done
    rm -f "$work"/pid-* "$work"/out*
    # shellcheck disable=SC2016
    timeout -k 5 200 mpirun -n $n --oversubscribe --bind-to none \
        bash -c 'echo $$ >"$0/pid-$OMPI_COMM_WORLD_RANK"; exec "$@"' "$work" \
        "$octet" logits -m "$1" --shard "$2" --chunk "$3" --ids "$work/ids" -o "$work/out" -t 1 \
        2>"$work/err" &
    job=$!
    for tries in $(seq 1500); do
        # The file has its size from the beginning; what is not written yet is zero.
        done=$(tail -c +$((64 * 8192 * 4)) "$work"/out.tmp-* 2>/dev/null | head -c 4096 | tr -d '\0' | wc -c)
        [ "$done" -gt 0 ] && break
        kill -0 $job 2>/dev/null || break
        sleep 0.1
    done
    pid=()
    for ((rank = 0; rank < n; rank++)); do
        pid[rank]=$(cat "$work/pid-$rank")
        kill -STOP "${pid[rank]}"
    done
    [ "$done" -gt 0 ] || bad "$1 by $2, after $tries looks: $(tail -n 3 "$work/err")"
    share=$(awk '/ ranks hold [0-9.]+ MiB of weights each$/ { printf "%d", $4 * 1048576 }' "$work/err")
    [ -n "$share" ] || bad "$1 by $2: they do not say what they hold: $(head -n 3 "$work/err")"
}

stop() {
    kill -KILL "${pid[@]}"
    wait $job
}

# at_most WHAT IS LIMIT
at_most() { [ "$2" -le "$3" ] || bad "$1: $2, expected at most $3"; }

cores() { awk '/^Cpus_allowed_list/ { print $2 }' "/proc/$1/status"; }

# mapped RANK FILE: sets size and rss, bytes; adds "first end" of the file's ranges to $work/ranges.
mapped() {
    local range off
    size=0
    while read -r range _ off _; do
        off=$((16#$off))
        range=$((16#${range#*-} - 16#${range%-*}))
        size=$((size + range))
        printf '%d %d\n' $off $((off + range)) >>"$work/ranges"
    done < <(grep -F " $2" "/proc/${pid[$1]}/maps")
    rss=$(awk -v file="$2" '/^[0-9a-f]+-[0-9a-f]+ / { on = $6 == file }
        /^Rss:/ && on { sum += $2 } END { printf "%d", sum * 1024 }' "/proc/${pid[$1]}/smaps")
}

# check LAYOUT PATTERN: of the ranks that were started with that model.
check() {
    local rank file others text=""
    at_most "$1: a rank's share" "$share" $((file_bytes / n * 102 / 100))
    : >"$work/ranges"
    for ((rank = 0; rank < n; rank++)); do
        file=${2/\%r/$rank}
        mapped $rank "$file"
        text+=" $((rss >> 20))"
        at_most "$1, rank $rank: mapped" $size $((share * 102 / 100))
        at_most "$1, rank $rank: resident" "$rss" $((share * 105 / 100))
        at_most "$1, rank $rank: nine tenths of its share, all of which it has used" \
            $((share * 9 / 10)) "$rss"
        others=$({
            find "/proc/${pid[rank]}/fd" -type l -printf '%l\n'
            awk '{ print $6 }' "/proc/${pid[rank]}/maps"
        } 2>/dev/null | grep -F gguf | grep -vFx "$file" | sort -u)
        [ -z "$others" ] || bad "$1, rank $rank: other files: $others"
        # Ranks that share cores leave it to the system which of them they use.
        [ "$(cores "${pid[rank]}")" = "$(cores self)" ] ||
            bad "$1, rank $rank: bound to cores $(cores "${pid[rank]}") of $(cores self)"
    done
    say "$1, $2: share $((share >> 20)) MiB, resident:$text"
}

for layout in slice expert; do
    start "$work/big.gguf" $layout 16
    check $layout "$work/big.gguf"
    stop
    # The ranks' ranges, in order, leave out nothing.
    end=$(sort -n "$work/ranges" | awk '$1 <= end && $2 > end { end = $2 } END { printf "%d", end }')
    [ "$end" -ge "$file_bytes" ] || bad "$layout: no rank has what is at $end of $file_bytes"
done

for layout in slice expert; do
    for ((rank = 0; rank < n; rank++)); do
        "$octet" slice -m "$work/big.gguf" --shard $layout --rank $rank/$n \
            -o "$work/part-$rank.gguf" 2>"$work/err" || bad "slicing: $(cat "$work/err")"
    done
    mv "$work/big.gguf" "$work/away"
    start "$work/part-%r.gguf" $layout 1
    check $layout "$work/part-%r.gguf"
    stop
    mv "$work/away" "$work/big.gguf"
done

[ $fails -eq 0 ] && say "every rank held its share"
exit $((fails > 0))
