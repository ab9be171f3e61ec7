-- +goose Up
-- Machines that found their ports not clear: few or none, and a reason to audit their fabric at once.
CREATE INDEX operation_ports_not_clear ON operation (node_id, finished_at) WHERE fault->>'code' = 'ports-not-clear';

-- +goose Down
DROP INDEX operation_ports_not_clear;
