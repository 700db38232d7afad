"""What crosses the socket: protobuf (``pb``), its codec to domain values, the session protocol, the link, TLS.

Protobuf never leaves this room. :mod:`.machine` says which frame is legal when; :mod:`.link` runs it on a gRPC call.

Long-lived tasks (all children of the caller's scope):

* ``serve_gateway``: the server's accept and sweep tasks (bridge), one task that watches every session's heartbeat and
  idle deadline, and one task per session, which runs ``Door.session``.
* ``run_node_session``: the body, and one task that sends heartbeats and watches the idle deadline.
* ``serve_relay``: one task per log reader.

Queues, all bounded: four outgoing lanes per session (:data:`.link.base.LANES`), an inbox of 256 frames per session whose
overflow closes the peer's HTTP/2 window, log credit of 256 KiB per Node.
"""
