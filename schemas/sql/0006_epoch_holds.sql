-- P-07: which hold of a Node, begun because our session epochs went back, an operator has accepted.

ALTER TABLE node ADD COLUMN accepted_hold text NOT NULL DEFAULT '';
