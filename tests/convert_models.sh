#!/bin/bash
# Converts the shipped model and the two random checkpoints into $OCT_TEST_MODELS, once: a model that
# is newer than the program and its checkpoint is kept.
set -eu
mkdir -p "$OCT_TEST_MODELS"

# convert NAME CHECKPOINT [OPTION ...]
convert()
{
    local out="$OCT_TEST_MODELS/$1.gguf" from="$2"
    shift 2
    if [ -s "$out" ] && [ "$out" -nt "$OCT_TEST_OCTET" ] &&
       [ -z "$(find "$from" -newer "$out" -print -quit)" ]; then
        return
    fi
    "$OCT_TEST_OCTET" convert "$from" -o "$out" "$@"
}

convert tiny-grok "$OCT_TEST_TINY"
convert odd "$OCT_TEST_DATA/models/odd" --no-tokenizer
convert dense "$OCT_TEST_DATA/models/dense" --no-tokenizer
