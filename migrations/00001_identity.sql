-- +goose Up
-- Who there is: organizations, projects, people, keys. Roles are cluster-wide, so they are made only when missing.
CREATE EXTENSION IF NOT EXISTS btree_gist;

-- +goose StatementBegin
DO $$
BEGIN
    -- Two starters may race here on one cluster; the loser's duplicate is what was wanted.
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'leasehold_tenant') THEN
        BEGIN CREATE ROLE leasehold_tenant NOLOGIN NOBYPASSRLS; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'leasehold_platform') THEN
        BEGIN CREATE ROLE leasehold_platform NOLOGIN NOBYPASSRLS; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END;
    END IF;
END
$$;
-- +goose StatementEnd

GRANT USAGE ON SCHEMA public TO leasehold_tenant, leasehold_platform;

-- The organization that the present transaction acts for; NULL for none. A transaction-local setting leaves '' behind on a
-- pooled connection, hence nullif.
CREATE FUNCTION current_org() RETURNS uuid LANGUAGE sql STABLE PARALLEL SAFE
    AS $$ SELECT nullif(current_setting('app.org', true), '')::uuid $$;

CREATE TABLE organization (
    id                    uuid PRIMARY KEY,
    name                  text NOT NULL CHECK (length(name) BETWEEN 1 AND 200),
    kind                  text NOT NULL CHECK (kind IN ('customer', 'provider', 'operator')),
    country               text NOT NULL DEFAULT 'US' CHECK (country ~ '^[A-Z]{2}$'),
    currency              text NOT NULL DEFAULT 'USD' CHECK (currency ~ '^[A-Z]{3}$'),
    tax_rate_bps          integer NOT NULL DEFAULT 0 CHECK (tax_rate_bps BETWEEN 0 AND 10000),
    credit_limit_minor    bigint NOT NULL DEFAULT 0 CHECK (credit_limit_minor >= 0),
    platform_fee_bps      integer NOT NULL DEFAULT 0 CHECK (platform_fee_bps BETWEEN 0 AND 10000),
    bookings_suspended_at timestamptz,
    version               bigint NOT NULL DEFAULT 1,
    created_at            timestamptz NOT NULL
);

CREATE TABLE project (
    id          uuid PRIMARY KEY,
    org_id      uuid NOT NULL REFERENCES organization,
    name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    version     bigint NOT NULL DEFAULT 1,
    created_at  timestamptz NOT NULL,
    archived_at timestamptz,
    UNIQUE (org_id, name),
    UNIQUE (org_id, id) -- target of composite foreign keys: a lease cannot name another organization's project
);

-- People are not tenants: one person may belong to several organizations. The tenant role cannot read this table.
CREATE TABLE app_user (
    id            uuid PRIMARY KEY,
    email         text NOT NULL CHECK (email = lower(email) AND email LIKE '%_@_%'),
    name          text NOT NULL DEFAULT '',
    password_hash text NOT NULL, -- argon2id, PHC string
    disabled_at   timestamptz,
    created_at    timestamptz NOT NULL,
    UNIQUE (email)
);

CREATE TABLE membership (
    org_id     uuid NOT NULL REFERENCES organization,
    user_id    uuid NOT NULL REFERENCES app_user,
    project_id uuid, -- NULL: the whole organization
    role       text NOT NULL CHECK (role IN ('owner', 'admin', 'member', 'billing', 'viewer')),
    created_at timestamptz NOT NULL,
    UNIQUE NULLS NOT DISTINCT (org_id, user_id, project_id),
    FOREIGN KEY (org_id, project_id) REFERENCES project (org_id, id)
);
CREATE INDEX membership_user ON membership (user_id);

CREATE TABLE session (
    id           uuid PRIMARY KEY,
    org_id       uuid NOT NULL REFERENCES organization,
    user_id      uuid NOT NULL REFERENCES app_user,
    refresh_hash bytea NOT NULL UNIQUE,  -- SHA-256 of the current refresh token
    previous_hash bytea UNIQUE,          -- the one before: seeing it again means theft, and ends the session
    user_agent   text NOT NULL DEFAULT '',
    created_at   timestamptz NOT NULL,
    refreshed_at timestamptz NOT NULL,
    expires_at   timestamptz NOT NULL,
    revoked_at   timestamptz
);
CREATE INDEX session_by_user ON session (user_id);

CREATE TABLE api_key (
    id           uuid PRIMARY KEY,
    org_id       uuid NOT NULL REFERENCES organization,
    project_id   uuid,
    name         text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    secret_hash  bytea NOT NULL, -- SHA-256; the secret has 256 random bits, so a slow hash would add nothing
    scopes       text[] NOT NULL,
    created_by   uuid NOT NULL REFERENCES app_user,
    created_at   timestamptz NOT NULL,
    expires_at   timestamptz,
    last_used_at timestamptz,
    revoked_at   timestamptz,
    FOREIGN KEY (org_id, project_id) REFERENCES project (org_id, id)
);
CREATE INDEX api_key_org ON api_key (org_id, created_at DESC);

CREATE TABLE ssh_key (
    id          uuid PRIMARY KEY,
    org_id      uuid NOT NULL REFERENCES organization,
    user_id     uuid REFERENCES app_user,
    name        text NOT NULL CHECK (length(name) BETWEEN 1 AND 100),
    public_key  text NOT NULL CHECK (length(public_key) <= 16384), -- authorized_keys form, without options
    fingerprint text NOT NULL,                                     -- SHA256:…
    created_at  timestamptz NOT NULL,
    UNIQUE (org_id, fingerprint)
);

-- +goose Down
DROP TABLE ssh_key, api_key, session, membership, app_user, project, organization;
DROP FUNCTION current_org();
