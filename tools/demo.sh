#!/bin/sh
# SPDX-License-Identifier: MIT
#
# ./dev demo: a ring of three ranks, three processes on this machine, writes a text; then what each rank did. Takes the
# trained stories260K model where it is (../shared/models), else makes a random one, whose text is nonsense. Further
# arguments go to kvasir run, for example: ./dev demo --seed 8
set -eu
cd "$(dirname -- "$0")/.."

kvasir=build/release/kvasir
model=../shared/models/stories260K-F32.gguf
prompt="Once upon a time"
if [ ! -r "$model" ]; then
    model=build/demo/random.gguf
    mkdir -p build/demo
    [ -r "$model" ] || build/release/tests/make_model "$model" --name "random demo" --vocab 4096 >/dev/null
    echo "demo: no trained model in ../shared/models: this one has random weights, so its words mean nothing" >&2
fi
set -- run "$model" --stages 3 -p "$prompt" -n 160 --temp 0.8 --seed 7 --report "$@"
printf '$ kvasir' >&2
for arg in "$@"; do
    case "$arg" in
    *[!A-Za-z0-9_./:=-]* | '') printf " '%s'" "$arg" >&2 ;;
    *) printf ' %s' "$arg" >&2 ;;
    esac
done
printf '\n\n' >&2
exec "$kvasir" "$@"
