#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The chat page in a real browser, with a ring of three processes behind it. Pictures of the page go to build/web.
# usage: tests/web/run.sh KVASIR
set -eu
cd "$(dirname -- "$0")/../.."

kvasir=$1
out=build/web
mkdir -p "$out"
port=$(node -e "const s = require('net').createServer().listen(0, '127.0.0.1', () => { console.log(s.address().port); s.close(); })")
"$kvasir" up tests/data/llama-tied-f32.gguf --stages 3 --threads 1 --port "$port" >"$out/up.out" 2>"$out/up.err" &
up=$!
trap 'kill -TERM $up 2>/dev/null || :; wait $up 2>/dev/null || :' EXIT
trap 'exit 1' INT TERM HUP

i=0
until grep -q '^API: ' "$out/up.out"; do
    i=$((i + 1))
    if [ $i -gt 600 ] || ! kill -0 $up 2>/dev/null; then
        echo "the ring does not come up:" >&2
        cat "$out/up.out" "$out/up.err" >&2
        exit 1
    fi
    sleep 0.1
done
other=$(sed -n "s,^ *\\(http:.*/\\)v1 (rank 1)$,\\1,p" "$out/up.out")
node tests/web/test_page.js src/api/page/index.html "$out" "http://127.0.0.1:$port/" "$other" 3
