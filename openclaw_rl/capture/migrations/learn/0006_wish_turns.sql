ALTER TABLE wishes ADD COLUMN said TEXT NOT NULL DEFAULT '';
CREATE TABLE wish_turns (
    wish TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    at DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (wish, turn_id)
);
CREATE INDEX wish_turns_by_turn ON wish_turns (turn_id);
INSERT INTO wish_turns (wish, turn_id, at) SELECT turn_id, turn_id, created_at FROM wishes;
