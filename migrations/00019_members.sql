-- +goose Up
-- Who belongs to an organization, how they came, and programs that belong to nobody in particular.
ALTER TABLE membership ADD COLUMN version bigint NOT NULL DEFAULT 1;

CREATE TABLE user_group (
    id         uuid PRIMARY KEY,
    org_id     uuid NOT NULL REFERENCES organization,
    name       text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    role       text NOT NULL CHECK (role IN ('owner', 'admin', 'member', 'billing', 'viewer')),
    project_id uuid, -- NULL: the role is in the whole organization
    version    bigint NOT NULL DEFAULT 1,
    created_at timestamptz NOT NULL,
    UNIQUE (org_id, name),
    UNIQUE (org_id, id),
    FOREIGN KEY (org_id, project_id) REFERENCES project (org_id, id)
);
CREATE TABLE user_group_member (
    group_id uuid NOT NULL,
    org_id   uuid NOT NULL,
    user_id  uuid NOT NULL REFERENCES app_user,
    added_at timestamptz NOT NULL,
    PRIMARY KEY (group_id, user_id),
    FOREIGN KEY (org_id, group_id) REFERENCES user_group (org_id, id) ON DELETE CASCADE
);
CREATE INDEX user_group_member_user ON user_group_member (user_id, org_id);

-- What anybody may do where: by themselves or through a group. A group gives nothing to who is no member of the organization.
CREATE VIEW standing WITH (security_invoker = true) AS
    SELECT org_id, user_id, project_id, role, created_at FROM membership
    UNION ALL
    SELECT g.org_id, p.user_id, g.project_id, g.role, p.added_at
    FROM user_group_member p JOIN user_group g ON g.id = p.group_id
    WHERE EXISTS (SELECT FROM membership m WHERE m.org_id = g.org_id AND m.user_id = p.user_id);
GRANT SELECT ON standing TO leasehold_platform;

CREATE TABLE invitation (
    id          uuid PRIMARY KEY,
    org_id      uuid NOT NULL REFERENCES organization,
    email       text NOT NULL CHECK (email = lower(email)),
    role        text NOT NULL CHECK (role IN ('owner', 'admin', 'member', 'billing', 'viewer')),
    project_id  uuid,
    token_hash  bytea NOT NULL UNIQUE, -- SHA-256
    invited_by  text NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz NOT NULL,
    accepted_at timestamptz,
    accepted_by uuid REFERENCES app_user,
    revoked_at  timestamptz,
    FOREIGN KEY (org_id, project_id) REFERENCES project (org_id, id)
);
CREATE INDEX invitation_org ON invitation (org_id, id DESC);
CREATE UNIQUE INDEX invitation_open ON invitation (org_id, email) WHERE accepted_at IS NULL AND revoked_at IS NULL;

CREATE TABLE service_account (
    id          uuid PRIMARY KEY,
    org_id      uuid NOT NULL REFERENCES organization,
    name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    role        text NOT NULL CHECK (role IN ('owner', 'admin', 'member', 'billing', 'viewer')),
    project_id  uuid,
    created_by  text NOT NULL,
    created_at  timestamptz NOT NULL,
    expires_at  timestamptz,
    disabled_at timestamptz,
    deleted_at  timestamptz,
    version     bigint NOT NULL DEFAULT 1,
    UNIQUE (org_id, id),
    FOREIGN KEY (org_id, project_id) REFERENCES project (org_id, id)
);
CREATE UNIQUE INDEX service_account_name ON service_account (org_id, name) WHERE deleted_at IS NULL;

ALTER TABLE api_key
    ALTER COLUMN created_by DROP NOT NULL, -- a service account's key may make keys
    ADD COLUMN service_account_id uuid,
    ADD COLUMN networks text[] NOT NULL DEFAULT '{}', -- where it may be used from; none: anywhere
    ADD COLUMN previous_hash bytea,                   -- of the secret before the last rotation
    ADD COLUMN previous_until timestamptz,
    ADD FOREIGN KEY (org_id, service_account_id) REFERENCES service_account (org_id, id);

-- +goose StatementBegin
DO $$
DECLARE
    t text;
BEGIN
    FOREACH t IN ARRAY ARRAY['user_group', 'user_group_member', 'invitation', 'service_account'] LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', t);
        EXECUTE format('CREATE POLICY tenant ON %I TO leasehold_tenant USING (org_id = current_org()) WITH CHECK (org_id = current_org())', t);
        EXECUTE format('CREATE POLICY platform ON %I TO leasehold_platform USING (true) WITH CHECK (true)', t);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE ON %I TO leasehold_tenant', t);
        EXECUTE format('GRANT SELECT, INSERT, UPDATE, DELETE ON %I TO leasehold_platform', t);
    END LOOP;
END
$$;
-- +goose StatementEnd
GRANT DELETE ON user_group, user_group_member TO leasehold_tenant;
GRANT UPDATE ON membership TO leasehold_tenant;

-- +goose Down
DROP VIEW standing;
ALTER TABLE api_key DROP COLUMN previous_until, DROP COLUMN previous_hash, DROP COLUMN networks, DROP COLUMN service_account_id;
DROP TABLE service_account, invitation, user_group_member, user_group;
ALTER TABLE membership DROP COLUMN version;
