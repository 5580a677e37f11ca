#!/bin/bash
# Clients of one server, in one process and on two ranks: what each is given is what it is given alone.
#   serve_load.sh SERVE_LOAD N AT_ONCE SEED
set -u
model="$OCT_TEST_MODELS/tiny-grok.gguf"
serve=("$OCT_TEST_OCTET" serve -m "$model" --port 0 -c 512 --template plain --parallel 12 --queue 16
    --kv-memory 3M --step-rows 32 --chunk 64)
"$1" "$2" "$3" "$4" "$model" "${serve[@]}" -t 2 || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
command -v mpirun >/dev/null && [ -e "$OCT_TEST_BUILD/mpi/liboctet_mpi.so" ] || exit 0 # that was all
. "$(dirname "$0")/mpi_rig.sh"
"$1" "$2" "$3" "$4" "$model" mpirun -n 2 --oversubscribe "${serve[@]}" -t 1
