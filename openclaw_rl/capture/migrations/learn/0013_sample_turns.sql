CREATE TABLE sample_turns (
    sample TEXT NOT NULL,
    turn_id TEXT NOT NULL,
    role TEXT NOT NULL,
    PRIMARY KEY (sample, turn_id, role)
);
CREATE INDEX sample_turns_by_turn ON sample_turns (turn_id);
