#!/usr/bin/env bash
# Every call of the driver fails once, by number, and fails for good from there on: octet ends with a
# line, or goes on with less on the GPU and says so; the logits are right or there are none; nothing
# is left on the device or in the process.
set -u
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
. "$(dirname "$0")/gpu_rig.sh"
model=dense
echo "5 9" >"$work/$model.ids"
logits $model --gpu off || bad "no logits"
mv "$work/out.npy" "$work/want.npy"

# The calls of a run that fails nowhere.
on "$2" logits $model -t 1 || bad "a run without failures"
calls=$(awk '$1 == "counted" { print $2 }' "$work/report")
[ "$calls" -gt 50 ] || bad "only $calls calls"
ended=0
went_on=0
for lasting in "" ,lasting; do
    # A device that is lost behaves alike wherever that happens: every third call is enough.
    for ((i = 1; i <= calls; i += ${#lasting} > 0 ? 3 : 1)); do
        rm -f "$work/out.npy"
        on "$2,fail=$i$lasting" logits $model -t 1
        code=$?
        what="call $i$lasting"
        grep -qx 'left nothing' "$work/report" || bad "$what: $(grep left "$work/report")"
        if [ $code = 0 ]; then
            went_on=$((went_on + 1))
            cmp -s "$work/out.npy" "$work/want.npy" || bad "$what: other logits"
        elif [ $code = 1 ]; then
            ended=$((ended + 1))
            [ "$(grep -c '^octet: GPU' "$work/err")" = 1 ] || bad "$what: no line that says what failed"
            [ ! -e "$work/out.npy" ] || bad "$what: a file of logits"
        else
            bad "$what: exit code $code"
        fi
        [ $fails -lt 5 ] || exit 1
    done
done
[ $fails = 0 ] && say "$calls calls, each failed: $went_on times octet went on, $ended times it ended"
[ $ended -gt 0 ] && [ $went_on -gt 0 ] || bad "always the same"
exit $fails
