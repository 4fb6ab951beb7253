#!/usr/bin/env bash
# Prints the hosts of a host file as horovodrun's --host-discovery-script must: HOST:SLOTS, one to a line.
#
#   examples/launch/hosts_now.sh hosts
set -euo pipefail
sed -nE 's/#.*//; s/^[[:space:]]*([^[:space:]]+)[[:space:]]+slots[[:space:]]*=[[:space:]]*([0-9]+)[[:space:]]*$/\1:\2/p' "$1"
