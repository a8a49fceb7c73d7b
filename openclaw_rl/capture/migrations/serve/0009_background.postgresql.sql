CREATE TABLE background (
    id TEXT NOT NULL,
    "user" TEXT NOT NULL,
    model TEXT NOT NULL,
    created_at DOUBLE PRECISION NOT NULL,
    seen_at DOUBLE PRECISION NOT NULL,
    status TEXT NOT NULL,
    error TEXT,
    PRIMARY KEY (id)
);
