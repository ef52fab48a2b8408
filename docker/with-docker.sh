#!/usr/bin/env bash
# Runs a command with a Docker engine, Compose and the project's images at hand:
#
#   docker/with-docker.sh COMMAND...
#
# As root on Debian it installs what is missing. An engine that it had to start it also stops, and
# whatever the command left of the Compose project COMPOSE_PROJECT_NAME is removed. Where no image
# registry can be reached, the base images are made here. Exit status 77: no engine can be had.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
readonly here base=python:3.11-slim-bookworm
export COMPOSE_PROJECT_NAME=${COMPOSE_PROJECT_NAME:-outrider-$$}
engine=

readonly unavailable=77  # exit status where this machine cannot have an engine

say() { echo "with-docker: $*" >&2; }

finish() {
  local status=$? label=label=com.docker.compose.project=$COMPOSE_PROJECT_NAME
  trap '' INT TERM
  docker ps --all --quiet --filter "$label" | xargs -r docker rm --force --volumes >/dev/null || true
  docker network ls --quiet --filter "$label" | xargs -r docker network rm >/dev/null || true
  docker volume ls --quiet --filter "$label" | xargs -r docker volume rm >/dev/null || true
  if [ -n "$engine" ]; then
    say 'stopping the engine'
    kill "$engine" && wait "$engine" || true
  fi
  exit "$status"
}

packages() {
  local missing=()
  command -v dockerd >/dev/null || docker info >/dev/null 2>&1 || missing+=(docker.io)
  command -v docker >/dev/null || missing+=(docker.io)
  compose version >/dev/null 2>&1 || missing+=(docker-compose)
  if [ ${#missing[@]} -gt 0 ]; then install "${missing[@]}"; fi
}

install() {
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
    say "needs $*, and can install it only as root on Debian"
    exit "$unavailable"
  fi
  say "installing $*"
  {
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
  } || exit "$unavailable"
}

compose() {
  if docker compose version >/dev/null 2>&1; then docker compose "$@"; else docker-compose "$@"; fi
}

start_engine() {
  docker info >/dev/null 2>&1 && return
  say 'starting an engine'
  log=$(mktemp)
  # A session of its own: Ctrl-C must not end the engine before the containers.
  setsid dockerd --log-level warn >"$log" 2>&1 &
  engine=$!
  for _ in $(seq 60); do
    docker info >/dev/null 2>&1 && { rm "$log"; return; }
    kill -0 "$engine" 2>/dev/null || break
    sleep 1
  done
  say 'the engine does not start:'
  tail "$log" >&2
  exit "$unavailable"
}

has() { docker image inspect "$1" >/dev/null 2>&1 || docker pull --quiet "$1" >/dev/null 2>&1; }

images() {
  if ! has "$base"; then
    command -v debootstrap >/dev/null || install debootstrap
    say "making $base"
    "$here/base-image.sh" || exit "$unavailable"
  fi
  if docker image inspect outrider-builder:bookworm >/dev/null 2>&1; then
    export BUILDER_IMAGE=outrider-builder:bookworm BUILD_NETWORK=host
  fi
  if ! has "$(compose -f "$here/compose.yaml" config | awk '$1 == "image:" && /prometheus/ { print $2 }')"; then
    export PROMETHEUS_IMAGE=outrider-prometheus:bookworm
    docker image inspect "$PROMETHEUS_IMAGE" >/dev/null 2>&1 || "$here/prometheus-image.sh"
  fi
  say 'building the images'
  local log
  log=$(mktemp)
  compose -f "$here/compose.yaml" build orchestrator openai verifier drafter >"$log" 2>&1 || {
    say 'the images cannot be built:'
    tail -n 40 "$log" >&2
    exit 1
  }
  rm "$log"
}

trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
packages
start_engine
images
"$@"
