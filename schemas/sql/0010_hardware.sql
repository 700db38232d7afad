-- R-ENR-06: which cards are of which series. A name, as the domain compares names, belongs to one series.

CREATE TABLE hardware_series (
    series     text PRIMARY KEY,
    created_at timestamptz NOT NULL
);
CREATE TABLE hardware_card (
    card_key text PRIMARY KEY,
    series   text NOT NULL REFERENCES hardware_series ON DELETE CASCADE,
    name     text NOT NULL,  -- as it was entered
    place    bigint GENERATED ALWAYS AS IDENTITY
);
CREATE INDEX hardware_card_series ON hardware_card (series, place);

-- A series that a live job pins is not deleted under it. Not read out of the specification here: PostgreSQL's JSON functions
-- refuse one that has an escaped NUL anywhere.
ALTER TABLE job ADD COLUMN series text;
ALTER TABLE job ADD COLUMN live_series text GENERATED ALWAYS AS (CASE WHEN ended_at IS NULL THEN series END) STORED;
ALTER TABLE job ADD CONSTRAINT job_series FOREIGN KEY (live_series) REFERENCES hardware_series (series);
CREATE INDEX job_live_series ON job (live_series) WHERE live_series IS NOT NULL;
