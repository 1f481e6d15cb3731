# This pod's place in Ray, beside a worker that serves without it. Never ends by itself: the pod's readiness must not
# depend on Ray, so a head that is away is waited for here and not by restarts of the container.
set -u
trap 'exit 0' TERM INT # the kernel ends the rest
mkdir -p "$STATE_DIR/logs"
log="$STATE_DIR/logs/launchers.log"
if (: >>/proc/1/fd/1) 2>/dev/null; then ln -sf /proc/1/fd/1 "$log"; fi # they log to a file: let that be our output

while true; do
  ray start --block --address="$RAY_HEAD" "$@" &
  wait $!
  echo "Ray has ended here; it is started again in 5 s."
  sleep 5 &
  wait $!
done
