-- +goose Up
-- Who may see what. Two roles do all the application's work, one per transaction (SET LOCAL ROLE):
--   leasehold_tenant    one organization's rows, by row-level security; no market tables at all
--   leasehold_platform  the platform's own narrow functions: search, booking's allocations, the ledger, workflows, admin
-- A table with org_id must have row-level security and a policy; a test fails for one without.

-- +goose StatementBegin
DO $$
DECLARE
    t text;
BEGIN
    -- Rows of one organization.
    FOREACH t IN ARRAY ARRAY['project', 'membership', 'session', 'api_key', 'ssh_key', 'quote', 'lease', 'lease_segment', 'lease_ssh_key',
        'lease_event', 'wipe_certificate', 'partition', 'partition_member', 'attestation', 'usage_event', 'usage_interval', 'rating_run', 'charge_line',
        'invoice', 'ledger_account', 'ledger_tx', 'ledger_entry', 'ledger_balance', 'hold', 'payment', 'idempotency_record', 'audit_event'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY tenant ON %I TO leasehold_tenant USING (org_id = current_org()) WITH CHECK (org_id = current_org())', t);
        EXECUTE format('CREATE POLICY platform ON %I TO leasehold_platform USING (true) WITH CHECK (true)', t);
        EXECUTE format('GRANT SELECT ON %I TO leasehold_tenant', t);
    END LOOP;
END
$$;
-- +goose StatementEnd

ALTER TABLE organization ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON organization TO leasehold_tenant USING (id = current_org());
CREATE POLICY platform ON organization TO leasehold_platform USING (true) WITH CHECK (true);
GRANT SELECT ON organization TO leasehold_tenant;

-- What a tenant's own request may write as itself; everything else goes through the platform role's functions.
GRANT INSERT, UPDATE ON project, api_key, ssh_key, quote, lease, lease_segment, payment, idempotency_record TO leasehold_tenant;
GRANT DELETE ON ssh_key, membership, idempotency_record TO leasehold_tenant;
GRANT INSERT ON lease_ssh_key, lease_event, audit_event TO leasehold_tenant;
GRANT UPDATE ON session TO leasehold_tenant;

GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO leasehold_platform;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA public TO leasehold_platform;
-- Append-only by privilege, not by good manners.
REVOKE UPDATE, DELETE ON ledger_tx, ledger_entry, lease_event, audit_event, usage_interval FROM leasehold_platform;
REVOKE DELETE ON lease, allocation, invoice, charge_line, payment, hold, usage_event FROM leasehold_platform;

-- +goose Down
REVOKE ALL ON ALL TABLES IN SCHEMA public FROM leasehold_tenant, leasehold_platform;
