INSERT INTO counters (name, value)
SELECT 'out_cancelled', COUNT(*) FROM turns
WHERE finish_reason = 'cancelled' AND secrets = ''
AND NOT EXISTS (SELECT 1 FROM events WHERE events.turn = turns.seq AND events.kind IN ('next_state', 'feedback', 'secret'));
INSERT INTO counters (name, value)
SELECT 'out_retried', COUNT(*) FROM turns
WHERE finish_reason <> 'cancelled' AND secrets = ''
AND EXISTS (SELECT 1 FROM events WHERE events.turn = turns.seq AND events.kind = 'retried')
AND NOT EXISTS (SELECT 1 FROM events WHERE events.turn = turns.seq AND events.kind IN ('next_state', 'feedback', 'secret'));
INSERT INTO counters (name, value)
SELECT 'out_side', COUNT(*) FROM turns
WHERE kind = 'side' AND finish_reason <> 'cancelled' AND secrets = ''
AND NOT EXISTS (SELECT 1 FROM events WHERE events.turn = turns.seq AND events.kind IN ('next_state', 'feedback', 'secret', 'retried'));
DELETE FROM counters WHERE name = 'side';
