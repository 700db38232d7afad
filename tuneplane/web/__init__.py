"""The web room: HTTPS server, HTTP API, console, live feeds. It knows the services of ``control.api`` and nothing below.

Read in this order: ``routing`` (what a route is), ``routes*`` (all of them), ``gate`` (who calls, with what), ``app``
and ``border`` (every error a problem document, every cancellation to its owner), ``connection`` and ``server``.

Long-lived tasks: the actor ``web/feed`` (one, looks at the database for all event streams), the actor ``web/server``
(the accept loop, and a task per connection and request in its ``run``'s own nursery), and a pump task per event stream
(owned by the request that answers with it).
Queues: an event stream's channel holds 8 events (``streams.PENDING_EVENTS``), a watcher 500 coalesced changes
(``feed.MOST_PENDING``), a request's body 1 MiB (``inputs.MOST_BODY_BYTES``), the accept backlog 256, connections 2000,
streams 512; hypercorn's queue to an application 10 messages. Everything beyond is refused, closed or told to look again.
"""
