# Ray's head with the scheduler in it. Ends when Ray ends. Ray restarts the scheduler; Kubernetes restarts this. What may
# take longer than a moment runs in the background, since a trap waits for what runs in the foreground.
set -u
trap 'exit 0' TERM INT # the kernel ends the rest; the scheduler's state is on disk, and Ray would take half a minute
mkdir -p "$STATE_DIR/logs"
log="$STATE_DIR/logs/scheduler.log"
if (: >>/proc/1/fd/1) 2>/dev/null; then ln -sf /proc/1/fd/1 "$log"; fi # it logs to a file: let that be our output

ray start --head --block --port=6379 "$@" &
ray=$!

# Creates the scheduler actor, or finds it; fails as long as Ray is starting.
until
  python -m polyfleet.scheduler --address="$POD_IP:6379" --config=/etc/polyfleet/config/scheduler.yaml &
  wait $!
do
  kill -0 $ray 2>/dev/null || exit 1
  sleep 1
done
wait $ray
exit 1
