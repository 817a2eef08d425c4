#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Fetches the Debian packages that hold the texts (one of them a source package) and unpacks each into a folder of its
# own. Nothing is installed.
# usage: fetch.sh FOLDER    on Debian 13, or wherever apt knows its packages
set -eu

[ $# -eq 1 ] || { echo "usage: $0 FOLDER" >&2; exit 2; }
mkdir -p "$1"
cd "$1"
for package in jargon-text dict-devil r-cran-janeaustenr golang-github-pierrec-lz4-dev librust-brotli-dev sqlite3-doc \
    liblingua-stem-perl golang-github-colinmarc-hdfs-dev golang-github-andybalholm-brotli-dev sword-text-web \
    sword-text-kjv; do
    [ ! -d "$package" ] || continue
    apt-get -q download "$package"
    mkdir "$package.new"
    dpkg-deb -x "$package"_*.deb "$package.new"
    mv "$package.new" "$package"
done

# A source package, next to its binary package on the mirror, so that no deb-src line is needed.
if [ ! -d lz4-java ]; then
    url=$(apt-get download --print-uris liblz4-java | cut -d "'" -f 2)
    /usr/lib/apt/apt-helper download-file "${url%/*}/lz4-java_1.8.0.orig.tar.xz" lz4-java_1.8.0.orig.tar.xz \
        SHA256:49eedaa526263a828251677135fad84744ffca626556d793119bdc897381bfa3
    mkdir -p lz4-java.new
    tar -xJf lz4-java_1.8.0.orig.tar.xz -C lz4-java.new
    mv lz4-java.new lz4-java
fi
