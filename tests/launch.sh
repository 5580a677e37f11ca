#!/bin/bash
# Launchers: octet that other MPIs, Slurm, or scripts start as one of several. Never several whole
# programs in silence, never a wait without end.
set -u
octet=$OCT_TEST_OCTET
model=$OCT_TEST_MODELS/tiny-grok.gguf
work=$(mktemp -d)
trap 'cd /; rm -rf "$work"' EXIT
cd "$work" || exit 1
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 ASAN_OPTIONS=detect_leaks=0
export LD_LIBRARY_PATH=$OCT_TEST_BUILD/mpi${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
checks=0
fails=0
check()
{
    local what=$1
    shift
    checks=$((checks + 1))
    "$@" && return
    echo "launch: FAILED: $what"
    [ ! -s err ] || head -n 3 err | sed 's/^/    /'
    fails=$((fails + 1))
}
is() { [ "$1" = "$2" ] || { echo "    $1, expected: $2"; false; }; }
run="$octet run -m $model --temp 0 -n 4 -p And"
text=$($run 2>/dev/null)

# refused ENVIRONMENT ...: the process says who started it, and writes nothing.
refused()
{
    timeout 60 env "$@" $run >out 2>err
    check "$*: exit code" is $? 1
    check "$*: no text" is "$(cat out)" ""
    check "$*: why" grep -q '^octet: .*ranks' err
    check "$*: once" is "$(grep -c '^octet: ' err)" 1
}
alone()
{
    check "$*: text" is "$(timeout 60 env "$@" $run 2>err)" "$text"
    check "$*: no complaint" is "$(grep '^octet: ' err)" ""
}
if [ -e "$OCT_TEST_BUILD/mpi/liboctet_mpi.so" ]; then
    refused PMI_SIZE=2 PMI_RANK=0 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=0
    refused PMI_SIZE=8 PMI_RANK=7
    refused MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1
    refused SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_NTASKS=2 SLURM_STEP_NUM_TASKS=2 SLURM_PROCID=1
fi
alone SLURM_JOB_ID=7 SLURM_NTASKS=8 SLURM_STEP_NUM_TASKS=1 SLURM_PROCID=0 # a batch script
alone SLURM_JOB_ID=7 SLURM_NTASKS=8                                       # a shell of salloc
alone PMI_SIZE=1 PMI_RANK=0
alone PMI_SIZE=4 PMI_RANK=2 OCTET_RANKS=0
alone OMPI_COMM_WORLD_SIZE=1 SLURM_STEP_NUM_TASKS=4

# What needs no ranks does not wait for any.
if command -v mpirun >/dev/null && [ -e "$OCT_TEST_BUILD/mpi/liboctet_mpi.so" ]; then
    for rank in 0 1; do
        timeout -k 5 60 mpirun --oversubscribe --bind-to none -n 2 bash -c \
            '[ "$OMPI_COMM_WORLD_RANK" != "$1" ] || exec "$0" info -m "$2"' "$octet" $rank "$model" >out 2>err
        check "info by rank $rank alone: exit code" is $? 0
        check "info by rank $rank alone" grep -q fingerprint out
        timeout -k 5 60 mpirun --oversubscribe --bind-to none -n 2 bash -c \
            '[ "$OMPI_COMM_WORLD_RANK" != "$1" ] || exec "$0" slice -m "$2" --rank 0/2 -o part' \
            "$octet" $rank "$model" >out 2>err
        check "slice by rank $rank alone: exit code" is $? 0
        check "slice by rank $rank alone" test -s part
        rm -f part
    done
fi
# --check: damage behind a header that agrees is found before the first word, on ranks too.
cp "$model" m-0.gguf
cp "$model" m-1.gguf
printf 'damaged' | dd of=m-1.gguf bs=1 seek=9000000 conv=notrunc status=none
$octet run -m m-0.gguf -p And -n 2 --check >out 2>err
check "--check of a whole file" is $? 0
$octet run -m m-1.gguf -p And -n 2 --check >out 2>err
check "--check of a damaged file: exit code" is $? 1
check "--check of a damaged file: message" grep -q '^octet: m-1.gguf: tensor .*damaged' err
check "--check of a damaged file: no text" is "$(cat out)" ""
if command -v mpirun >/dev/null && [ -e "$OCT_TEST_BUILD/mpi/liboctet_mpi.so" ]; then
    timeout -k 5 60 mpirun --oversubscribe --bind-to none -n 2 \
        $octet run -m m-%r.gguf -p And -n 2 --check >out 2>err
    check "--check on ranks: exit code" test $? != 0
    check "--check on ranks: message" grep -q '^octet: rank 1 on .*m-1.gguf: tensor .*damaged' err
fi

echo "launch: $checks checks, $fails failed"
exit $((fails > 0))
