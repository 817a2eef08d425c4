#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Everything that is checked without running the program. Run as ./dev lint [PART...]; parts: format layers shell man
# cppcheck tidy. All parts run even when one fails; the last line says how it went; exit status 0, or 1.
#
# A file that clang-tidy found clean is not looked at again until it, a header it includes, or the configuration changes.
set -eu
cd "$(dirname -- "$0")/.."

parts="format layers shell man cppcheck tidy"
build=${KVASIR_LINT_BUILD:-build/release} # where compile_commands.json is
state=build/lint
jobs=$(nproc 2>/dev/null || echo 1)

sources() { find src tests bench tools -type f \( -name '*.c' -o -name '*.h' \) -size +0 | LC_ALL=C sort; }

compiled() { # the .c files that the build knows and that are still there
    sed -n 's/^ *"file": "\(.*\)",*$/\1/p' "$build/compile_commands.json" | sed "s|^$PWD/||" | LC_ALL=C sort -u |
        while read -r f; do [ ! -s "$f" ] || echo "$f"; done
}

part_format() { # one line a file: where it begins to differ
    sources | xargs clang-format --dry-run -Werror >"$state/format" 2>&1 && return 0
    awk -F: '/: error: / && !seen[$1]++ { print $1 ":" $2 ": not as clang-format has it (./dev shell clang-format -i " $1 ")" }' "$state/format"
    return 1
}

part_layers() { sh tools/check_layers.sh; }

part_shell() {
    bad=
    for f in dev tools/*.sh bench/*.sh .ci/run tests/integration/*.sh tests/web/*.sh; do
        [ ! -s "$f" ] || shellcheck "$f" || bad=1
    done
    [ ! -s completion/kvasir.bash ] || shellcheck -s bash completion/kvasir.bash || bad=1
    [ -z "$bad" ]
}

part_man() {
    bad=
    for f in man/*.[1-8]; do
        [ ! -s "$f" ] || mandoc -T lint -W warning "$f" || bad=1
    done
    [ -z "$bad" ]
}

# Left out: normalCheckLevelMaxBranches is a remark, not a finding; readdir_r is the one that should not be used; uninitvar,
# uninitdata: clang-tidy and the sanitizers follow such paths without false alarms; nullPointerArithmeticOutOfMemory does
# not know MAP_FAILED; sampler.c: the sum has a term exp(0); sched.c: checked together, through `ok`; a test that runs out
# of memory may crash.
part_cppcheck() {
    mkdir -p "$state/cppcheck"
    find src tests bench -type f -name '*.c' -size +0 | LC_ALL=C sort >"$state/cppcheck.list"
    cppcheck --quiet --error-exitcode=1 --enable=warning,performance,portability --inline-suppr --std=c17 \
        --suppress=normalCheckLevelMaxBranches --suppress=readdirCalled --suppress=uninitvar --suppress=uninitdata \
        --suppress=nullPointerArithmeticOutOfMemory --suppress=invalidFunctionArg:src/engine/sampler.c \
        --suppress=nullPointerOutOfMemory:src/ring/sched.c --suppress="nullPointerOutOfMemory:tests/*" \
        --library=posix,gnu --platform=unix64 -j "$jobs" --cppcheck-build-dir="$state/cppcheck" \
        -D_GNU_SOURCE -DKVASIR_VERSION='"0"' -Isrc -Itests --template='{file}:{line}: {severity}: {message} [{id}]' \
        --file-list="$state/cppcheck.list"
}

# What decides about one file: the tool, its configuration, the file and the project's headers it includes.
tidy_key() {
    {
        clang-tidy --version
        cat .clang-tidy tools/lint.sh tools/lint_model.h
        if deps=$(cc -MM -MT x -D_GNU_SOURCE -Isrc -Itests "$1" 2>/dev/null); then
            echo "$deps" | tr -d '\134' | cut -d: -f2- | tr -s ' ' '\n' | grep -v '^/' | grep . | xargs cat
        else
            cat "$1" # does not compile: clang-tidy will say why
        fi
    } | sha256sum | cut -c1-40
}

tidy_one() {
    file=$1
    stamp=$state/tidy/$(echo "$file" | tr / _)
    key=$(tidy_key "$file")
    [ "$(cat "$stamp" 2>/dev/null)" != "$key" ] || return 0
    rm -f "$stamp"
    set -- --quiet -p "$build"
    [ "$file" = src/base/err.c ] || # it defines what the model replaces
        set -- "$@" --extra-arg=-include "--extra-arg=$PWD/tools/lint_model.h"
    if out=$(clang-tidy "$@" "$file" 2>&1); then
        echo "$key" >"$stamp"
        return 0
    fi
    # In one write, so that the reports of files looked at side by side do not mix.
    printf '%s\n' "$(echo "$out" | grep -vE '^([0-9]+ warnings? (generated|treated as error)|Suppressed |Use -header-filter)')"
    return 1
}

part_tidy() {
    if [ ! -r "$build/compile_commands.json" ]; then
        echo "$build/compile_commands.json is missing: ./dev build first"
        return 1
    fi
    mkdir -p "$state/tidy"
    compiled | xargs -P "$jobs" -n 1 sh tools/lint.sh __tidy
}

if [ "${1:-}" = __tidy ]; then
    tidy_one "$2"
    exit
fi

# shellcheck disable=SC2086 # a list of words
[ $# -gt 0 ] || set -- $parts
mkdir -p "$state"
failed=
for part in "$@"; do
    case " $parts " in
    *" $part "*) ;;
    *)
        echo "lint: no part '$part': one of $parts" >&2
        exit 2
        ;;
    esac
    "part_$part" || failed="$failed $part"
done
if [ -n "$failed" ]; then
    echo "lint: failed:$failed"
    exit 1
fi
echo "lint: clean"
