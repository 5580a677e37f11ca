#!/usr/bin/env bash
# octet on several hosts that share nothing but a network: each is a set of Linux namespaces with its
# own addresses, name and processes, on a bridge in one more. The same bits as one process, over IPv4
# and IPv6; dead ranks and cut cables are named; a slow network costs what is predicted.
#
#     mpi_net.sh RELAY     the program made from relay.c
set -u
relay=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/mpi_rig.sh"
model=$models/tiny-grok.gguf
limit=10  # seconds from a failure to the end of the job
n_nodes=4

[ "$(id -u)" = 0 ] || skip "making network namespaces takes root"
command -v ip >/dev/null || skip "no ip (package iproute2)"
own=(--net --uts --ipc --pid --mount)
unshare "${own[@]}" --fork --mount-proc true 2>/dev/null || skip "namespaces cannot be made here"
# What a kernel may lack is tried by itself: what fails after that is a fault of this script.
if ! lacks=$(unshare --net sh -c 'ip link add type veth && ip link add type bridge' 2>&1); then
    case $lacks in
    *"Unknown device type"* | *"not supported"* | *"not permitted"*)
        skip "no bridge with cables here: $lacks" ;;
    esac
    bad "making a bridge with cables: $lacks"
    exit 1
fi

export OMPI_MCA_btl=self,tcp OMPI_MCA_plm_rsh_agent=$work/agent
export OMPI_MCA_oob_tcp_keepalive_time=4 OMPI_MCA_oob_tcp_keepalive_intvl=2 \
    OMPI_MCA_oob_tcp_keepalive_probes=2

# ---- hosts --------------------------------------------------------------------------------------
# Namespaces have no names that could be left behind: they live as long as their first process, which
# ends by itself after 10 minutes, and everything inside with it.
holders=()
end() {
    [ ${#holders[@]} -eq 0 ] || kill -KILL "${holders[@]}" 2>/dev/null
    wait 2>/dev/null
    rm -rf "$work"
}
trap end EXIT
trap 'exit 1' INT TERM HUP

host() { # host NAME: makes it
    local first
    unshare "${own[@]}" --fork --kill-child --mount-proc sleep 600 &
    holders+=($!)
    for _ in $(seq 100); do
        first=$(pgrep -P $! sleep) && break
        sleep 0.05
    done
    [ -n "$first" ] || return 1
    echo "$first" >"$work/$1"
    on "$1" hostname "$1" && on "$1" ip link set lo up
}
on() { # on NAME COMMAND...
    local first
    first=$(cat "$work/$1")
    shift
    nsenter --target "$first" "${own[@]}" "$@"
}
cable() { # cable I: node I's eth0 is port pI of the switch
    on switch ip link add "p$1" type veth peer name "n$1" &&
        nsenter --target "$(cat "$work/switch")" --net \
            ip link set "n$1" netns "$(cat "$work/node$1")" &&
        on "node$1" ip link set "n$1" name eth0 &&
        on switch ip link set "p$1" up &&
        on "node$1" ip link set eth0 up
}
address() { # address 4|6: all nodes have such addresses and no others
    local i
    for ((i = 0; i < n_nodes; i++)); do
        on "node$i" ip address flush dev eth0 scope global
        case $1 in
        4) on "node$i" ip address add "10.81.0.$((i + 1))/24" dev eth0 ;;
        6) on "node$i" ip address add "fd00:81::$((i + 1))/64" dev eth0 nodad ;;
        esac || return 1
    done
    for ((i = 0; i < n_nodes; i++)); do
        # Open MPI 4.1 wants names for IPv6 hosts: an address makes its daemon crash.
        [ "$1" = 4 ] && echo "10.81.0.$((i + 1)) slots=1" || echo "node$i slots=1"
    done >"$work/hosts"
}
bridge() { # bridge up|down: whether frames go by the bridge
    local i
    for ((i = 0; i < n_nodes; i++)); do
        if [ "$1" = up ]; then
            on switch ip link set "p$i" master bridge
        else
            on switch ip link set "p$i" nomaster
        fi || return 1
    done
}

make_network() {
    local i
    host switch && on switch ip link add name bridge type bridge && on switch ip link set bridge up ||
        return 1
    for ((i = 0; i < n_nodes; i++)); do
        host "node$i" && cable "$i" || return 1
    done
    bridge up && address 4
}

# What mpirun calls in place of ssh: agent ADDRESS-OR-NAME COMMAND.
cat >"$work/agent" <<'END'
#!/usr/bin/env bash
case $1 in
10.81.0.*) node=node$((${1##*.} - 1)) ;;
*) node=$1 ;;
esac
shift
exec nsenter --target "$(cat "$OCT_TEST_JOB/$node")" --net --uts --ipc --pid --mount bash -c "$*"
END
chmod +x "$work/agent"

if ! make_network >"$work/err" 2>&1; then
    bad "the hosts cannot be made"
    exit 1
fi

# mpirun runs on node 0, but sees all processes: its agent enters the other nodes.
ranks() { # ranks N COMMAND...
    local n=$1
    shift
    timeout -k 5 60 nsenter --target "$(cat "$work/node0")" --net --uts --ipc \
        mpirun --hostfile "$work/hosts" -n "$n" --map-by node --bind-to none "$octet" "$@" -t 1
}

# ---- the same bits ------------------------------------------------------------------------------
printf '677 263 2224\n272\n263 1252 272 485 832 396 1020 292 263 761 272 339\n' >"$work/ids"
"$octet" logits -m "$model" --ids "$work/ids" -o "$work/want.npy" 2>"$work/err" || bad "alone"
want=$("$octet" run -m "$model" -p "hacker:" -n 20 --temp 0.8 --seed 7 2>/dev/null)
same() { # same N LAYOUT WHAT
    rm -f "$work/got.npy"
    ranks "$1" logits -m "$model" --ids "$work/ids" -o "$work/got.npy" --shard "$2" 2>"$work/err" ||
        bad "$1 ranks by $2, $3"
    cmp -s "$work/want.npy" "$work/got.npy" || bad "$1 ranks by $2, $3: the logits differ"
    say "$1 ranks by $2, $3: same bytes"
}
text() { # text N WHAT
    local got
    got=$(ranks "$1" run -m "$model" -p "hacker:" -n 20 --temp 0.8 --seed 7 2>"$work/err")
    [ -n "$want" ] && [ "$want" = "$got" ] || bad "$1 ranks, $2: '$got', expected '$want'"
}
for n in 2 4; do
    same $n slice IPv4
    same $n expert IPv4
    text $n IPv4
done

# ---- hosts that are lost ------------------------------------------------------------------------
for i in $(seq 100); do
    printf 'hacker %d: what can we do about the weather in the north in winter?\n' "$i"
done >"$work/prompts"

lose() { # lose N RANK kill|cut WHAT: how is the rank lost, and how is that told?
    local n=$1 rank=$2 how=$3 what="$4, rank $2 of $1: $3" job start code ms line p
    : >"$work/err"
    ranks "$n" run -m "$model" --prompts "$work/prompts" -n 900 -c 1000 --ignore-eos --chunk 4 \
        --shard auto >/dev/null 2>"$work/err" </dev/null &
    job=$!
    if ! find_ranks "$n"; then
        bad "$what: the ranks did not start"
        kill $job
        wait $job
        return
    fi
    sleep 1.5 # until every rank has heard from every other
    kill -0 "${pid[rank]}" || bad "$what: it had ended before"
    start=$(date +%s%N)
    if [ "$how" = kill ]; then
        kill -KILL "${pid[rank]}"
    else
        on switch ip link set "p$rank" down
    fi
    wait $job
    code=$?
    ms=$((($(date +%s%N) - start) / 1000000))
    line=$(grep -m 1 -E "octet: rank $rank on node$rank has (died|stopped)" "$work/err")
    say "$what: exit code $code after $ms ms: $line"
    [ $code -ne 0 ] && [ $code -ne 124 ] || bad "$what: exit code $code"
    [ $ms -le $((limit * 1000)) ] || bad "$what: took $ms ms"
    [ -n "$line" ] || bad "$what: it was not named"
    for p in "${pid[@]}"; do
        for _ in $(seq 50); do
            runs "$p" || break
            sleep 0.1
        done
        runs "$p" && bad "$what: a rank was left running"
    done
    on switch ip link set "p$rank" up
}
lose 4 3 kill IPv4
lose 2 1 cut IPv4

if on node0 test -e /proc/sys/net/ipv6/conf/eth0; then
    address 6 || bad "no IPv6 addresses"
    same 2 slice IPv6
    text 4 IPv6
    lose 2 1 kill IPv6
    address 4
else
    say "IPv6: SKIPPED, this kernel has none"
fi

# ---- a slow network -----------------------------------------------------------------------------
# token_ms MICROSECONDS N OPTION...: of N ranks, each of whose messages is so late
token_ms() {
    local late
    renice -n -20 -p $BASHPID >/dev/null 2>&1 # in a subshell: before others' work
    nsenter --target "$(cat "$work/switch")" --net "$relay" "$1" "${ports[@]}" >/dev/null 2>&1 &
    late=$!
    shift
    ranks "$1" run -m "$model" -p "hacker:" -n 41 --ignore-eos --temp 0 "${@:2}" \
        >/dev/null 2>"$work/err"
    kill $late
    wait $late 2>/dev/null
    # text      40 tokens     0.024 s ...
    awk '$1 == "text" && $3 == "tokens" && $2 == 40 { print 1000 * $4 / $2 }' "$work/err"
}
# What 1 ms adds to a token of N ranks by LAYOUT; the other numbers do not matter.
predicted_ms() {
    "$octet" bench -m "$model" --simulate "$1,1000,1000,1000" |
        awk -F ' *[|] *' -v n="$1" -v by="$2" '$2 == n && $3 == by { print $7 }'
}
# What else a machine does makes tokens slower, never faster: the fastest runs count.
late() { # late N LAYOUT OPTION...
    local want fast='' slow='' off
    want=$(predicted_ms "$1" "$2")
    for _ in 1 2 3 4 5 6 7 8; do
        fast=$({ echo "$fast"; token_ms 0 "$1" "${@:3}"; } | grep . | sort -g | head -n 1)
        slow=$({ echo "$slow"; token_ms 1000 "$1" "${@:3}"; } | grep . | sort -g | head -n 1)
        off=$(awk -v a="$fast" -v b="$slow" -v want="$want" \
            'BEGIN { printf "%.1f", (a > 0 && want > 0) ? 100 * ((b - a) / want - 1) : 999 }')
        say "1 ms late, $1 ranks by $2: $fast -> $slow ms per token, predicted +$want: $off %"
        awk -v off="$off" 'BEGIN { exit !(off >= -20 && off <= 20) }' && return
    done
    bad "1 ms late, $1 ranks by $2: $off % from what was predicted"
}
if [ "$OCT_TEST_SANITIZE" = 1 ]; then
    say "a slow network: SKIPPED, sanitizers are slower than it"
else
    bridge down || bad "the bridge cannot be left out"
    ports=()
    for ((i = 0; i < n_nodes; i++)); do ports+=("p$i"); done
    late 2 slice --shard slice
    late 2 expert --shard expert
    late 2 "slice with attention replicated" --shard slice --replicate-attention
    if [ "$(nproc)" -ge 4 ]; then # ranks that share cores wait for each other too
        late 4 slice --shard slice
        late 4 expert --shard expert
    fi
fi

[ $fails -eq 0 ] && say "the hosts work together"
exit $((fails > 0))
