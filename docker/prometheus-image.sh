#!/usr/bin/env bash
# Makes outrider-prometheus from Debian's package, for machines that reach no image registry.
# Needs root, apt, a Docker engine and python:3.11-slim-bookworm (see base-image.sh).
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"
apt-get download -qq -o APT::Sandbox::User=root prometheus
dpkg-deb --fsys-tarfile prometheus_*.deb | tar -x ./usr/bin
cat >Dockerfile <<'EOF'
FROM python:3.11-slim-bookworm
COPY usr/bin/prometheus usr/bin/promtool /bin/
RUN mkdir /prometheus && chown nobody:nogroup /prometheus
USER nobody
VOLUME /prometheus
WORKDIR /prometheus
ENTRYPOINT ["/bin/prometheus"]
EOF
docker build --quiet --tag outrider-prometheus:bookworm . >/dev/null
