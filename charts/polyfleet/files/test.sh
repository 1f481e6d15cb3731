# Ends well if a real answer comes through the gateway.
set -eu
if [ -s "${CA_FILE:-}" ]; then
  set -- "$@" --ca-file="$CA_FILE"
elif [ -n "${CA_FILE:-}" ]; then
  set -- "$@" --tls
fi
prompt="The capital of France is"
answer=$(polyfleet generate "$@" --prompt "$prompt" --max-tokens 16 --temperature 0)
echo "$prompt$answer"
test -n "$(echo "$answer" | tr -d ' \n')"
