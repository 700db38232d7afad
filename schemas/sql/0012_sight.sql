-- What the workers see together, one row (P-16, P-19): from when silence counts, and whether the mass-failure brake is on
CREATE TABLE sight (
    one_row           boolean PRIMARY KEY DEFAULT true CHECK (one_row),
    seen_since        timestamptz NOT NULL,
    looked_at         timestamptz NOT NULL,
    blind_from        timestamptz,
    released_at       timestamptz,
    brake_since       timestamptz,
    brake_window_from timestamptz,
    live              integer NOT NULL,
    vanished          integer NOT NULL,
    CHECK ((brake_since IS NULL) = (brake_window_from IS NULL))
);

-- Owners of a cordon, each of whom lifts only its own (L-F4): now also the machine itself (`tuneplane-node drain`) and the updater.
ALTER TABLE cordon DROP CONSTRAINT cordon_owner_check;
ALTER TABLE cordon ADD CONSTRAINT cordon_owner_check CHECK (owner IN ('operator', 'storage', 'journal', 'cards', 'machine', 'updater'));

-- R-LIV-03: since when the cause is gone without a break; the cordon is lifted once that has lasted. NULL: the cause lasts
ALTER TABLE cordon ADD COLUMN clear_since timestamptz;
CREATE INDEX cordon_clearing ON cordon (clear_since) WHERE clear_since IS NOT NULL;
