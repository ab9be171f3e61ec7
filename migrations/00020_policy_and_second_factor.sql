-- +goose Up
-- What an organization allows its own people and programs, and the second factor of log-ins.
CREATE TABLE organization_policy (
    org_id                uuid PRIMARY KEY REFERENCES organization,
    instance_types        text[], -- names; NULL: all
    sites                 text[], -- names; NULL: all
    max_duration_seconds  bigint CHECK (max_duration_seconds > 0), -- of a lease with its extensions
    max_lease_minor       bigint CHECK (max_lease_minor >= 0),     -- worst case of a lease with its extensions, tax included
    max_key_seconds       bigint CHECK (max_key_seconds > 0),      -- how long an API key lives at most
    require_second_factor boolean NOT NULL DEFAULT false,
    version               bigint NOT NULL,
    updated_at            timestamptz NOT NULL
);
ALTER TABLE organization_policy ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON organization_policy TO leasehold_tenant USING (org_id = current_org()) WITH CHECK (org_id = current_org());
CREATE POLICY platform ON organization_policy TO leasehold_platform USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE ON organization_policy TO leasehold_tenant, leasehold_platform;

-- People are not tenants: the tenant role cannot read these.
CREATE TABLE second_factor (
    user_id      uuid PRIMARY KEY REFERENCES app_user,
    secret       bytea NOT NULL, -- of RFC 6238, sealed
    confirmed_at timestamptz,    -- NULL: begun, and of no effect yet
    last_step    bigint NOT NULL DEFAULT 0, -- a code is good once
    created_at   timestamptz NOT NULL
);
CREATE TABLE recovery_code (
    user_id uuid NOT NULL REFERENCES app_user,
    hash    bytea NOT NULL, -- SHA-256; the codes are random
    PRIMARY KEY (user_id, hash)
);
GRANT SELECT, INSERT, UPDATE, DELETE ON second_factor, recovery_code TO leasehold_platform;
ALTER TABLE session ADD COLUMN second_factor boolean NOT NULL DEFAULT false; -- it was shown when the session began, or in it

-- +goose Down
ALTER TABLE session DROP COLUMN second_factor;
DROP TABLE recovery_code, second_factor, organization_policy;
