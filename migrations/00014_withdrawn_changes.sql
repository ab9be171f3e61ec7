-- +goose Up
-- A difference that a later report took back was neither accepted nor rejected by anybody.
ALTER TABLE inventory_change DROP CONSTRAINT inventory_change_state_check;
ALTER TABLE inventory_change ADD CONSTRAINT inventory_change_state_check CHECK (state IN ('pending', 'accepted', 'rejected', 'withdrawn'));

-- +goose Down
DELETE FROM inventory_change WHERE state = 'withdrawn';
ALTER TABLE inventory_change DROP CONSTRAINT inventory_change_state_check;
ALTER TABLE inventory_change ADD CONSTRAINT inventory_change_state_check CHECK (state IN ('pending', 'accepted', 'rejected'));
