#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The chat page in a real browser and the official OpenAI client, with a ring of three processes behind them. Pictures of
# the page go to build/web; the client comes from npm, and is skipped where that cannot be reached.
# usage: tests/web/run.sh KVASIR
set -eu
cd "$(dirname -- "$0")/../.."

kvasir=$1
out=build/web
mkdir -p "$out"
"$kvasir" up tests/data/llama-tied-f32.gguf --stages 3 --threads 1 --port 0 >"$out/up.out" 2>"$out/up.err" &
up=$!
trap 'kill -TERM $up 2>/dev/null || :; wait $up 2>/dev/null || :' EXIT
trap 'exit 1' INT TERM HUP

i=0
until grep -q '(rank 2)$' "$out/up.out"; do # the URLs are there
    i=$((i + 1))
    if [ $i -gt 600 ] || ! kill -0 $up 2>/dev/null; then
        echo "the ring does not come up:" >&2
        cat "$out/up.out" "$out/up.err" >&2
        exit 1
    fi
    sleep 0.1
done
first=$(sed -n 's,^API: \(http:[^ ]*/\)v1 .*,\1,p' "$out/up.out")
other=$(sed -n "s,^ *\\(http:.*/\\)v1 (rank 1)$,\\1,p" "$out/up.out")
failed=0
node tests/web/test_page.js src/api/page/index.html "$out" "$first" "$other" 3 || failed=1

cp tests/web/openai.mjs tests/web/package.json "$out/"
if (cd "$out" && npm install --no-audit --no-fund --loglevel=error >npm.log 2>&1); then
    # every node of the ring is an entry
    # shellcheck disable=SC2046
    (cd "$out" && node openai.mjs $(sed -n 's,.*\(http:[^ ]*/v1\).*,\1,p' up.out)) || failed=1
else
    echo "skipped: the OpenAI client cannot be installed (see $out/npm.log)"
fi
exit $failed
