#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The scripts that train the demo model run through: two steps on a text that is made here, and a model that kvasir loads
# and continues a text with, the same around a ring. Needs python3 with torch, which building and running Kvasir does not:
# skipped (exit status 77) without. PYTHON names another interpreter.
# usage: test_train.sh KVASIR SOURCE_DIR
set -eu

kvasir=$1
scripts=$2/tools/train_demo_model
python=${PYTHON:-python3}
if ! "$python" -c 'import torch' 2>/dev/null; then
    echo "skipped: there is no $python with torch"
    exit 77
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export PYTHONDONTWRITEBYTECODE=1 KVASIR_HOME="$tmp/cache"

fail() {
    echo "test_train: $*" >&2
    exit 1
}

# A book as the source "alice" of data.py is laid out: chapters of sentences, from a fixed row of numbers.
book=$tmp/data/librust-brotli-dev/usr/share/cargo/registry/brotli-0/testdata
mkdir -p "$book"
awk 'BEGIN {
    nouns = split("sailor harbour captain village winter window garden letter morning candle river stranger", noun, " ")
    verbs = split("watched remembered followed carried forgot painted answered opened", verb, " ")
    adjectives = split("old quiet narrow golden distant broken gentle empty", adjective, " ")
    x = 1
    for (heading = "CHAPTER I"; length(heading) < 12; heading = heading "I") {
        print heading ".\n"
        for (p = 0; p < 40; p++) {
            for (s = 0; s < 4; s++) {
                x = (x * 16807) % 2147483647
                printf "The %s %s %s the %s %s", adjective[x % adjectives + 1], noun[int(x / 8) % nouns + 1],
                    verb[int(x / 97) % verbs + 1], adjective[int(x / 776) % adjectives + 1], noun[int(x / 6211) % nouns + 1]
                print x % 3 ? "," : ", and nobody spoke of it afterwards,"
                print "because the " noun[int(x / 74531) % nouns + 1] " was still there."
            }
            print ""
        }
    }
}' >"$book/alice29.txt"

train() { # options of a run that is as small as the shape of the model allows
    "$python" "$scripts/train.py" --data "$tmp/data" --shares alice=1 --out "$tmp/out" --vocab 320 --batch 1 --length 64 \
        --eval-tokens 64 --sample-tokens 2 --no-bf16 "$@" >"$tmp/log" 2>&1 || {
        tail -n 20 "$tmp/log" >&2
        fail "train.py $* failed"
    }
}

train --steps 2 --polish 0
model=$tmp/out/huginn.gguf
[ -s "$model" ] || fail "train.py wrote no huginn.gguf"
grep -q '^2,' "$tmp/out/loss.csv" || fail "loss.csv has no line of step 2"

set -- --temp 0 -n 20 -p 'The old sailor'
"$kvasir" index "$model" >"$tmp/index" || fail "kvasir index does not read the model"
"$kvasir" run "$model" "$@" >"$tmp/one" 2>"$tmp/err" || fail "kvasir run: $(tail -n 1 "$tmp/err")"
"$kvasir" run "$model" "$@" --stages 8 >"$tmp/eight" 2>"$tmp/err" || fail "kvasir run --stages 8: $(tail -n 1 "$tmp/err")"
grep -q " tokens" "$tmp/err" || fail "kvasir run does not say how many tokens it wrote"
cmp -s "$tmp/one" "$tmp/eight" || fail "one rank and eight write different texts"

# A run that is ended goes on where it was.
train --steps 3 --polish 1 --resume
grep -q '^resumed at step 2' "$tmp/log" || fail "--resume did not go on from step 2"
grep -q '^4,' "$tmp/out/loss.csv" || fail "loss.csv has no line of step 4, which polishes"
