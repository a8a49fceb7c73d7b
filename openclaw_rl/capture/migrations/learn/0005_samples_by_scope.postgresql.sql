CREATE INDEX samples_by_scope ON samples (scope, status, created_at, turn_id);
CREATE INDEX samples_by_score ON samples (scope, status, score, "user", created_at);
CREATE INDEX samples_by_reason ON samples (scope, reason, created_at);
