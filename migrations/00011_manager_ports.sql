-- +goose Up
-- Ports of the hosts on which a fabric's subnet managers run, standbys included: the one that rules is a full member of the default partition.
ALTER TABLE fabric_watch ADD COLUMN manager_guids jsonb NOT NULL DEFAULT '[]';

-- +goose Down
ALTER TABLE fabric_watch DROP COLUMN manager_guids;
