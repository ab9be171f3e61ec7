-- +goose Up
-- Who people are to the installation's identity provider. People are not tenants: the tenant role cannot read this.
CREATE TABLE external_identity (
    issuer     text NOT NULL,
    subject    text NOT NULL,
    user_id    uuid NOT NULL REFERENCES app_user,
    created_at timestamptz NOT NULL,
    PRIMARY KEY (issuer, subject)
);
CREATE INDEX external_identity_user ON external_identity (user_id);
GRANT SELECT, INSERT, DELETE ON external_identity TO leasehold_platform;

-- +goose Down
DROP TABLE external_identity;
