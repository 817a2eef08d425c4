#!/bin/sh
# SPDX-License-Identifier: MIT
#
# ./dev demo: a ring of four ranks, four processes on this machine, continues a text with the demo model; then what each
# rank did. Further arguments go to kvasir run, for example: ./dev demo --seed 8, or ./dev demo -p "The sea" -n 60
set -eu
cd "$(dirname -- "$0")/.."

PROMPT='Emma was very happy to see her friend, and'
SEED=4
TOKENS=120

kvasir=build/release/kvasir

own= # a prompt of the user's own
for arg in "$@"; do
    case "$arg" in
    -p* | -f* | --pro* | --fi*) own=1 ;;
    esac
done
set -- --stages 4 -n "$TOKENS" --temp 0.8 --top-p 0.9 --min-p 0.1 --seed "$SEED" --report "$@"
[ -n "$own" ] || set -- -p "$PROMPT" "$@"
unset KVASIR_MODEL # the shipped model is what run takes when none is named
set -- run "$@"

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
