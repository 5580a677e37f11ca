#!/bin/bash
# Proves `octet export` on stock llama.cpp, see peer_llama.py. A check for developers, not part of the
# test suite: the first run builds llama.cpp (15 minutes on 2 cores) in a virtual environment.
#   tests/peer_llama.sh [PROGRAM [--model MODEL.gguf]]     PROGRAM: build/release/bin/octet
#   OCT_PEER_VENV    the virtual environment [build/peer]
set -eu
cd "$(dirname "$0")/.."
program=${1:-build/release/bin/octet}
[ $# -gt 0 ] && shift
venv=${OCT_PEER_VENV:-build/peer}
if [ ! -x "$program" ]; then
    echo "peer_llama.sh: $program: no such program; build it first" >&2
    exit 2
fi
[ -x "$venv/bin/python" ] || python3 -m venv "$venv"
"$venv/bin/python" -c 'import llama_cpp, numpy' 2>/dev/null ||
    "$venv/bin/pip" install 'numpy<2' 'llama-cpp-python==0.3.36'
exec "$venv/bin/python" tests/peer_llama.py "$program" "$@"
