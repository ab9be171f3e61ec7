-- +goose Up
-- Whether the fabric's manager reports pods of its own plan. Otherwise they are worked out from the graph, and again when a machine turns
-- out to hang on leaves of several.
ALTER TABLE fabric ADD COLUMN planned_pods boolean NOT NULL DEFAULT false;

-- +goose Down
ALTER TABLE fabric DROP COLUMN planned_pods;
