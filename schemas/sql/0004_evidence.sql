-- Evidence between Node and control plane: which journal told what we know, in which session, and what contradicts it.

ALTER TABLE member
    ADD COLUMN journal_id text NOT NULL DEFAULT '',          -- whose revisions count: another journal's are not comparable
    ADD COLUMN revision_epoch bigint NOT NULL DEFAULT 0,     -- the session that reported the stored revision (P-12)
    ADD COLUMN violation text NOT NULL DEFAULT '';           -- it had ended and its Node reports it alive (R-LCH-05)
CREATE INDEX member_in_violation ON member (node_id) WHERE violation <> '';
