-- +goose Up
-- A node's own process: what is left of leases that are over is cleaned again before the node comes back to the market.

-- Whose process waits for the step. NULL: that of the step's lease or fabric.
ALTER TABLE step ADD COLUMN node_id uuid REFERENCES node;

-- +goose Down
ALTER TABLE step DROP COLUMN node_id;
