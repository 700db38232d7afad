"""Whether a Node can be heard, in SQL: live is an open session row on a gateway whose lease is fresh, by the database's clock.

For queries that have ``member`` (or another table with a ``node_id``) and ``node``.
"""

WITH_SESSION = "LEFT JOIN session ON session.node_id = node.id LEFT JOIN gateway ON gateway.id = session.gateway_id"
LIVE = "coalesce(closed_at IS NULL AND lease_until > now(), false)"
SILENT_SINCE = f"CASE WHEN NOT {LIVE} THEN coalesce(closed_at, lease_until, node.created_at) END"
