#!/usr/bin/env bash
# What a step of 32 requests costs beside the model: see serve_overhead.c.
#   serve_overhead.sh BIG_MODEL SERVE_OVERHEAD
work=$(mktemp -d "$OCT_TEST_BUILD/overhead-XXXXXX")
trap 'rm -rf "$work"' EXIT
[ "$OCT_TEST_SANITIZE" = 0 ] || { echo "SKIPPED: sanitizers take their time"; exit 77; }
"$1" "$work/wide.gguf" 131072 && "$2" "$work/wide.gguf"
