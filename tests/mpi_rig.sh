# mpi_rig.sh: what the scripts that start ranks share; sourced, with $work set: a folder of the test's
# own, where a job's messages go to $work/err.
octet=$OCT_TEST_OCTET
models=$OCT_TEST_MODELS
fails=0

say() { printf '%s\n' "$*"; }
bad() {
    say "FAILED: $*"
    [ ! -f "$work/err" ] || sed 's/^/    /' "$work/err" | head -n 12
    fails=$((fails + 1))
}
skip() {
    say "SKIPPED: $*"
    exit 77
}

command -v mpirun >/dev/null && [ -e "$OCT_TEST_BUILD/mpi/liboctet_mpi.so" ] ||
    skip "no mpirun, or built without MPI"
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# Ranks share cores here, so they must give them up while they wait. Open MPI leaks at exit.
# AddressSanitizer's dlopen does not look where the program says.
export LD_LIBRARY_PATH=$OCT_TEST_BUILD/mpi${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
export OMPI_MCA_mpi_yield_when_idle=1 ASAN_OPTIONS=detect_leaks=0
export OCT_TEST_JOB=$work

# Sets pid[RANK], once all N ranks of the job have begun to work.
find_ranks() {
    local n=$1 p r env
    for _ in $(seq 300); do
        pid=()
        for p in $(pgrep -x octet); do
            env=$(tr '\0' '\n' 2>/dev/null <"/proc/$p/environ") 2>/dev/null
            grep -q "^OCT_TEST_JOB=$work\$" <<<"$env" || continue
            r=$(sed -n 's/^OMPI_COMM_WORLD_RANK=//p' <<<"$env")
            [ -n "$r" ] && pid[r]=$p
        done 2>/dev/null
        [ ${#pid[@]} -eq "$n" ] && grep -q 'ranks by' "$work/err" && return 0
        sleep 0.1
    done
    return 1
}
runs() { grep -qE '^[0-9]+ \(octet\) [^Z]' "/proc/$1/stat" 2>/dev/null; }
