#!/bin/sh
# SPDX-License-Identifier: MIT
#
# ./dev demo: a ring of four ranks, four processes on this machine, continues a text with the demo model; then what each
# rank did. Further arguments go to kvasir run, for example: ./dev demo --seed 8, or ./dev demo -p "The sea" -n 60
set -eu
cd "$(dirname -- "$0")/.."

PROMPT='It was a cold morning in the village, and the old sailor'
SEED=7
TOKENS=160

kvasir=build/release/kvasir
model=models/huginn.gguf
if [ ! -r "$model" ]; then
    PROMPT='Once upon a time'
    model=../shared/models/stories260K-F32.gguf
fi
if [ ! -r "$model" ]; then
    model=build/demo/random.gguf
    mkdir -p build/demo
    [ -r "$model" ] || build/release/tests/make_model "$model" --name "random demo" --vocab 4096 >/dev/null
    echo "demo: no trained model here: this one has random weights, so its words mean nothing" >&2
fi

own= # a prompt of the user's own
for arg in "$@"; do
    case "$arg" in
    -p* | -f* | --pro* | --fi*) own=1 ;;
    esac
done
set -- --stages 4 -n "$TOKENS" --temp 0.8 --seed "$SEED" --report "$@"
[ -n "$own" ] || set -- -p "$PROMPT" "$@"
if [ "$model" = models/huginn.gguf ]; then
    unset KVASIR_MODEL # it is what run takes when no model is named
    set -- run "$@"
else
    set -- run "$model" "$@"
fi

printf '$ kvasir' >&2
for arg in "$@"; do
    case "$arg" in
    *[!A-Za-z0-9_./:=-]* | '') printf " '%s'" "$arg" >&2 ;;
    *) printf ' %s' "$arg" >&2 ;;
    esac
done
printf '\n\n' >&2
[ -n "$own" ] || printf '%s' "$PROMPT" # run writes the continuation only
exec "$kvasir" "$@"
