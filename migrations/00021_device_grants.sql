-- +goose Up
-- Programs on machines without a browser that ask to act for somebody (RFC 8628).
CREATE TABLE device_grant (
    id            uuid PRIMARY KEY,
    device_hash   bytea NOT NULL UNIQUE, -- SHA-256 of what the program proves itself by
    user_code     text NOT NULL UNIQUE,  -- what the person types
    client        text NOT NULL,
    source        text NOT NULL,         -- the address that asked
    state         text NOT NULL CHECK (state IN ('pending', 'approved', 'denied', 'used')),
    org_id        uuid REFERENCES organization, -- of the session in which it was decided; NULL: it was not yet
    user_id       uuid REFERENCES app_user,
    second_factor boolean NOT NULL DEFAULT false,
    created_at    timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL,
    polled_at     timestamptz
);
CREATE INDEX device_grant_expiry ON device_grant (expires_at);
ALTER TABLE device_grant ENABLE ROW LEVEL SECURITY;
CREATE POLICY tenant ON device_grant TO leasehold_tenant USING (org_id = current_org()) WITH CHECK (org_id = current_org());
CREATE POLICY platform ON device_grant TO leasehold_platform USING (true) WITH CHECK (true);
GRANT SELECT, INSERT, UPDATE, DELETE ON device_grant TO leasehold_platform;

-- +goose Down
DROP TABLE device_grant;
