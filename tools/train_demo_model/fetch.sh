#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Fetches the Debian packages that hold the texts and unpacks each into a folder of its own. Nothing is installed.
# usage: fetch.sh FOLDER    on Debian 13, or wherever apt knows its packages
set -eu

[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
for package in jargon-text dict-devil r-cran-janeaustenr golang-github-pierrec-lz4-dev librust-brotli-dev sqlite3-doc; do
    [ ! -d "$package" ] || continue
    apt-get -q download "$package"
    mkdir "$package.new"
    dpkg-deb -x "$package"_*.deb "$package.new"
    mv "$package.new" "$package"
done
