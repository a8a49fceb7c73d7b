CREATE TABLE waves (
    id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    scope TEXT NOT NULL DEFAULT 'everyone',
    "user" TEXT NOT NULL,
    since DOUBLE NOT NULL,
    until DOUBLE NOT NULL,
    number INTEGER NOT NULL,
    state TEXT NOT NULL,
    decided_at DOUBLE
);
CREATE INDEX waves_by_user ON waves (scope, "user", state);
