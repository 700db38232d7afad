"""A process group in busybox: rank 0 listens where all were told to meet, and ends when every other rank has called there;
each other rank ends when rank 0 has answered it. So exit 0 of all members means that all have met."""

MEET = """
set -eu
[ "$MASTER_ADDR:$MASTER_PORT" = "$TUNEPLANE_MAIN_PROCESS_IP:$TUNEPLANE_MAIN_PROCESS_PORT" ]
[ "$NODE_RANK/$NNODES" = "$TUNEPLANE_MACHINE_RANK/$TUNEPLANE_MACHINE_COUNT" ]
if [ "$TUNEPLANE_MACHINE_RANK" = 0 ]; then
  : >/tmp/callers
  nc -ll -p "$MASTER_PORT" -e sh -c 'read rank; echo $rank >>/tmp/callers; echo welcome-to-'"$TUNEPLANE_JOB_ID" &
  until [ "$(sort -u /tmp/callers | wc -l)" = $((TUNEPLANE_MACHINE_COUNT - 1)) ]; do sleep 0.1; done
  sleep 1  # the last answer is on its way
else
  until [ "$(echo "$TUNEPLANE_MACHINE_RANK" | nc "$MASTER_ADDR" "$MASTER_PORT" 2>/dev/null)" = "welcome-to-$TUNEPLANE_JOB_ID" ]
  do sleep 0.1; done
fi
"""
