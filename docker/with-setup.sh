#!/bin/bash
# Becomes the program of this name in Polyfleet's environment, after sourcing the vendor's files that there are.
setup() { # a function, so that those files don't see the program's arguments
  local file
  for file in $POLYFLEET_SETUP; do
    # shellcheck source=/dev/null
    if [ -r "$file" ]; then . "$file" >&2; fi
  done
}
setup
exec "/opt/polyfleet/venv/bin/${0##*/}" "$@"
