-- Each Fleet has a queue of its own (R-PLC-06), and lists of jobs begin at once however many there are (L-L2).

DROP INDEX job_waiting;
CREATE INDEX job_waiting ON job (live_fleet_id, priority DESC, created_at, id) WHERE state = 'queued';
CREATE INDEX job_newest_of_owner ON job (owner, created_at DESC, id DESC);
CREATE INDEX job_newest_of_fleet ON job (fleet_id, created_at DESC, id DESC);
CREATE INDEX job_newest_live ON job (created_at DESC, id DESC) WHERE ended_at IS NULL;
