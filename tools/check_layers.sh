#!/bin/sh
# SPDX-License-Identifier: MIT
#
# The rules of the layout that a compiler does not know, one message a line (file:line: what, what would be right):
# which room may include which (a DAG), which library's headers belong to whom, sizes of files, the SPDX line, and that
# only src/cli writes to stdout or ends the process.
#
# usage: tools/check_layers.sh [ROOT]     exit status 0: clean, 1: something to mend
set -eu
cd "${1:-$(dirname -- "$0")/..}"

find src tests bench -type f \( -name '*.c' -o -name '*.h' \) -size +0 | LC_ALL=C sort >"${TMPDIR:-/tmp}/layers.$$"
trap 'rm -f "${TMPDIR:-/tmp}/layers.$$"' EXIT

# shellcheck disable=SC2016
tr '\n' '\0' <"${TMPDIR:-/tmp}/layers.$$" | xargs -0 awk '
function complain(what) { printf "%s:%d: %s\n", FILENAME, FNR, what; bad++ }
function complain_at(file, line, what) { printf "%s:%d: %s\n", file, line, what; bad++ }
function end_of_file() {
    if (file == "") return
    if (lines > 1000) complain_at(file, lines, "the file has " lines " lines, more than 1000: split it by topic")
    if (file ~ /\.h$/ && lines > 200) complain_at(file, lines, "the header has " lines " lines, more than 200: split it")
}
BEGIN {
    # room -> the rooms it may include besides itself
    may["base"] = " "
    may["batch"] = " "
    may["crypto"] = " base "
    may["net"] = " base crypto "
    may["model"] = " base crypto "
    may["tok"] = " base model "
    may["engine"] = " base batch model "
    may["plan"] = " base crypto model "
    may["ring"] = " base batch crypto net plan "
    may["http"] = " base "
    may["shard"] = " base crypto model http "
    may["api"] = " base batch crypto model tok http plan ring "
    may["cli"] = " base batch crypto net model tok engine plan ring http shard api "
    yyjson = " model plan shard api cli "
}
FNR == 1 {
    end_of_file()
    file = FILENAME
    in_src = file ~ /^src\//
    room = ""
    if (in_src) { split(file, part, "/"); room = part[2] }
    if (in_src && !(room in may)) complain("room " room " is not in the list of rooms of tools/check_layers.sh")
    if ($0 !~ /^\/\* SPDX-License-Identifier: MIT/)
        complain("does not begin with /* SPDX-License-Identifier: MIT")
    comment = 0
}
{ lines = FNR }
/^[ \t]*#[ \t]*include[ \t]*"/ {
    name = $0; sub(/^[^"]*"/, "", name); sub(/".*/, "", name)
    if (name ~ /\.c$/) complain("includes the source file " name ": link it instead")
    if (in_src) {
        slash = index(name, "/")
        to = slash ? substr(name, 1, slash - 1) : ""
        if (to == "" || !(to in may)) complain("\"" name "\" is not of the form \"room/file.h\"")
        else if (to != room && index(may[room], " " to " ") == 0)
            complain("room " room " may not include room " to " (only:" may[room] "and itself)")
    }
}
/^[ \t]*#[ \t]*include[ \t]*[<"]/ {
    name = $0; sub(/^[^<"]*[<"]/, "", name); sub(/[>"].*/, "", name)
    if (name ~ /^sodium/ && room != "crypto") complain("sodium.h belongs to src/crypto: use crypto/*.h")
    if (name ~ /^openssl\// && room != "crypto") complain("openssl belongs to src/crypto: use crypto/*.h")
    if ((name ~ /^ggml/ || name == "gguf.h") && in_src && room != "engine" && file != "src/model/gguf.c")
        complain(name " belongs to src/engine and src/model/gguf.c: use model/gguf.h")
    if (name ~ /^(libwebsockets|curl\/)/ && room != "http") complain(name " belongs to src/http: use http/*.h")
    if (name ~ /^pcre2/ && room != "tok") complain("pcre2.h belongs to src/tok: use tok/*.h")
    if (name ~ /^yyjson/ && in_src && index(yyjson, " " room " ") == 0) complain("yyjson belongs to:" yyjson)
    next
}
in_src && room != "cli" {
    code = $0
    if (comment) { if (!sub(/^.*\*\//, "", code)) next; comment = 0 }
    gsub(/\\"/, "", code); gsub(/"[^"]*"/, "\"\"", code); gsub(/\/\*[^*]*\*\//, "", code); sub(/\/\/.*/, "", code)
    if (sub(/\/\*.*/, "", code)) comment = 1
    if (code ~ /(^|[^A-Za-z0-9_])(printf|puts|putchar|vprintf|perror)[ \t]*\(/ || code ~ /(^|[^A-Za-z0-9_])stdout([^A-Za-z0-9_]|$)/)
        complain("only src/cli writes to the terminal: return a value or use log_")
    if (code ~ /(^|[^A-Za-z0-9_])(exit|_exit|abort|quick_exit)[ \t]*\(/)
        complain("only src/cli ends the process: return an error")
}
END { end_of_file(); exit bad > 0 }' || exit 1 # xargs has a status of its own
