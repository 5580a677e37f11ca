#!/bin/bash
# Reads the machine code of the AVX-512 and AMX kernels: no innermost loop may load or store a zmm
# register on the stack. A compiler that runs out of registers halves their speed without a word.
set -u
fails=0
checked=0

# Prints the innermost loops (between a backward jump and its target, with no other such pair inside)
# that touch the stack with a zmm register, and at the end how many loops there were.
stack_loops='
    function hex(s,   i, v) {
        for (i = 1; i <= length(s); i++)
            v = v * 16 + index("0123456789abcdef", substr(s, i, 1)) - 1
        return v
    }
    function close_function(   i, k, inner, j, bad) {
        for (i = 1; i <= n_jumps; i++) {
            inner = 1
            for (k = 1; k <= n_jumps; k++)
                if (k != i && to[k] >= to[i] && from[k] <= from[i])
                    inner = 0
            if (!inner)
                continue
            loops++
            bad = ""
            for (j = 1; j <= n; j++)
                if (at[j] >= to[i] && at[j] <= from[i] && text[j] ~ /%zmm/ && text[j] ~ /\(%r[sb]p/)
                    bad = text[j]
            if (bad != "")
                print name ": " bad
        }
        n = n_jumps = 0
    }
    /^[0-9a-f]+ <.*>:$/ { close_function(); name = $2; next }
    /^ *[0-9a-f]+:/ {
        address = $1
        sub(":", "", address)
        at[++n] = hex(address)
        text[n] = $0
        if ($2 ~ /^j/ && $3 ~ /^[0-9a-f]+$/ && hex($3) <= at[n]) {
            from[++n_jumps] = at[n]
            to[n_jumps] = hex($3)
        }
    }
    END { close_function(); print "loops " loops + 0 }'

if [ "$OCT_TEST_SANITIZE" = 1 ]; then
    echo "SKIPPED: sanitizers use the stack"
    exit 77
fi
for object in $(find "$OCT_TEST_BUILD/ggml-like" -name 'k_avx512.c.o' -o -name 'k_amx.c.o'); do
    found=$(objdump -d --no-show-raw-insn "$object" | awk "$stack_loops")
    loops=${found##*loops }
    [ "$loops" -ge 10 ] || { echo "only $loops loops found in $object"; fails=1; }
    checked=$((checked + loops))
    # The f32 path of kv_store hands lanes to scalar stores through the stack: not a hot loop.
    bad=$(printf '%s\n' "$found" | grep -v '^loops' | grep -v 'kv_store')
    [ -z "$bad" ] || { printf '%s\n' "$bad"; fails=1; }
done
[ $checked -gt 0 ] || { echo "no kernel objects found"; fails=1; }

# The reading itself must be able to find one.
sample='0000000000000000 <bad>:
   0:	vmovups %zmm0,0x40(%rsp)
   8:	dec    %rax
   b:	jne    0 <bad>'
printf '%s\n' "$sample" | awk "$stack_loops" | grep -q '^<bad>' || { echo "the check finds nothing"; fails=1; }
[ $fails = 0 ] && echo "$checked innermost loops, none with a zmm register on the stack"
exit $fails
