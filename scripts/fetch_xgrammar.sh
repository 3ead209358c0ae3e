#!/usr/bin/env bash
# Unpacks XGrammar's source package, pinned by hash, into .cache/xgrammar. ./dev and CMake call it;
# without a network, unpack the package there by hand.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

readonly REQUIREMENTS=cmake/xgrammar-requirements.txt
readonly TARGET=.cache/xgrammar

cmp -s "$REQUIREMENTS" "$TARGET/.requirements" && exit 0

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# pip looks into a source package before it keeps it, for which it installs the package's build
# back end into a place of its own; nothing of the package is built here.
python3 -m venv "$work/venv"
"$work/venv/bin/pip" download -q --disable-pip-version-check --no-deps --no-binary xgrammar \
  --require-hashes -r "$REQUIREMENTS" -d "$work" >&2
mkdir "$work/source"
tar -xzf "$work"/xgrammar-*.tar.gz -C "$work/source" --strip-components=1
cp "$REQUIREMENTS" "$work/source/.requirements"
mkdir -p .cache
rm -rf "$TARGET"
mv "$work/source" "$TARGET"
