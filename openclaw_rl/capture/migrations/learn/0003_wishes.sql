CREATE TABLE wishes (
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
    versions INTEGER NOT NULL
);
CREATE INDEX wishes_by_user ON wishes ("user", created_at);
