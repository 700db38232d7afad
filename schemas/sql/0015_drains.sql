-- R-LIV-06: how wrong the measured clock offset may be; NULL: it was told by the Hello alone
ALTER TABLE session ADD COLUMN clock_error_seconds double precision;
