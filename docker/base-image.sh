#!/usr/bin/env bash
# Makes python:3.11-slim-bookworm from Debian's packages, for machines that reach no image registry,
# and outrider-builder, the same with this machine's pip configuration and wheel folders.
# Needs root, debootstrap and a Docker engine. Takes a minute or two.
set -euo pipefail

readonly image=python:3.11-slim-bookworm
readonly builder=outrider-builder:bookworm
work=$(mktemp -d)
readonly work root=$work/root
finish() {
  umount "$root" 2>/dev/null || true
  rm -rf "$work"
}
trap finish EXIT

# The mirror is the one that this machine uses itself.
mirror=$(
  cat /etc/apt/sources.list.d/*.sources /etc/apt/sources.list 2>/dev/null |
    awk '$1 == "URIs:" && !n++ { print $2 } $1 == "deb" && !n++ { print ($2 ~ /^\[/) ? $3 : $2 }'
) || true
: "${mirror:?no Debian mirror in the apt sources of this machine}"

mkdir "$root"
mount -t tmpfs -o size=2g tmpfs "$root"  # dpkg syncs every file, which disks are slow at
debootstrap --variant=minbase --include=ca-certificates,python3,python3-venv \
  bookworm "$root" "$mirror" >"$work/debootstrap.log" || { tail "$work/debootstrap.log" >&2; exit 1; }
ln -s /usr/bin/python3 "$root/usr/local/bin/python"

# What this machine trusts and where it gets Debian's packages.
cp -r /etc/apt/sources.list* "$root/etc/apt/"
find "$root/etc/apt/sources.list.d" -type f ! -name 'debian*' -delete
if [ -d /usr/local/share/ca-certificates ]; then
  cp -rL /usr/local/share/ca-certificates "$root/usr/local/share/"
fi
cp -L /etc/ssl/certs/ca-certificates.crt "$root/etc/ssl/certs/ca-certificates.crt"

rm -rf "$root"/var/cache/apt/* "$root"/var/lib/apt/lists/* "$root"/var/log/* "$root"/dev/* \
  "$root"/usr/share/doc/* "$root"/usr/share/man/* "$root"/usr/share/locale/*
find "$root" -type d -name __pycache__ -prune -exec rm -r {} +
tar -C "$root" -c . | docker import --change 'CMD ["python3"]' - "$image" >/dev/null

# pip as this machine has it: all its settings in one file, and the folders of wheels that they name.
mkdir "$work/builder" "$work/builder/files"
python3 -m pip config list 2>/dev/null | "$(dirname "$0")/pip-settings.py" "$work/builder/files"
printf 'FROM %s\nCOPY files/ /\n' "$image" >"$work/builder/Dockerfile"
docker build --quiet --tag "$builder" "$work/builder" >/dev/null
