CREATE INDEX IF NOT EXISTS turns_by_session ON turns (session, seq);
CREATE INDEX IF NOT EXISTS turns_by_time ON turns (created_at);
