CREATE TABLE wishes_new (
    turn_id TEXT NOT NULL PRIMARY KEY,
    scope TEXT NOT NULL DEFAULT 'everyone',
    "user" TEXT NOT NULL,
    text TEXT NOT NULL,
    status TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    ended_at DOUBLE PRECISION,
    served INTEGER NOT NULL,
    tried INTEGER NOT NULL,
    accepted INTEGER NOT NULL,
    versions INTEGER NOT NULL,
    said TEXT NOT NULL DEFAULT '',
    noted INTEGER,
    in_vain INTEGER NOT NULL DEFAULT 0
);
INSERT INTO wishes_new
    SELECT turn_id, scope, "user", text, status, created_at, ended_at, served, tried, accepted, versions, said, noted, in_vain
    FROM wishes;
DROP TABLE wishes;
ALTER TABLE wishes_new RENAME TO wishes;
CREATE INDEX wishes_by_user ON wishes ("user", created_at);
