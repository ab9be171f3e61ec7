// Package app is the composition root: the only place that knows every implementation. Commands build an App from a Config and run the
// parts that they want.
package app

import (
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/leasehold/leasehold/backend/internal/oidc"
	"github.com/leasehold/leasehold/backend/internal/postgres"
)

// Config is what an installation decides.
type Config struct {
	DatabaseURL         string // an application's log-in: a member of leasehold_tenant and leasehold_platform
	MaxConns            int    // of the database pool; 0: 40
	TemporalAddress     string
	TemporalNamespace   string
	KeysDir             string // session.key, attestation.key and secrets.key; shared by all replicas
	PublicURL           string // where people find the portal
	Environment         string // in API keys: lh_<environment>_…
	SecureCookies       bool   // set wherever people come by HTTPS
	TrustedProxies      []string
	StripeSecretKey     string // "": the built-in test gateway
	StripeWebhookSecret string
	WindowStep          time.Duration // the smallest step of a window; 0: 60 s
	QuoteTTL            time.Duration // 0: 10 min
	LogFile             string        // "": standard error
	NodesURL            string        // where machines in the service OS reach the API from their own network; "": PublicURL
	ServiceOSDir        string        // what tools/serviceos built; "": no machine boots from the network
	ImagesDir           string        // disk images that the API itself serves to machines; "": none
	Portal              fs.FS         // the built portal; nil: none
	// How many requests a minute one credential may make, and one organization with all of its credentials; 0: 1,200 and 6,000.
	CredentialRequests   int
	OrganizationRequests int
	OIDC                 oidc.Config // the identity provider; without an Issuer there is none
	// Lab loosens what protects an installation that strangers reach: webhooks may go to private addresses and by plain HTTP, and admins need no
	// second factor.
	Lab    bool
	Tracer postgres.Tracer // sees every SQL statement, to measure; nil: nobody does
}

const (
	defaultCredentialRequests   = 1_200
	defaultOrganizationRequests = 6_000
)

// EnvironmentHelp describes ConfigFromEnv.
const EnvironmentHelp = `Configured by the environment:
  DATABASE_URL                     PostgreSQL, as the application's log-in
  TEMPORAL_ADDRESS                 Temporal's frontend, host:port (default 127.0.0.1:7233)
  TEMPORAL_NAMESPACE               (default leasehold)
  LEASEHOLD_KEYS_DIR               directory of session.key, attestation.key (Ed25519) and secrets.key (AES), PEM; made if missing (default keys)
  LEASEHOLD_PUBLIC_URL             where people find the portal; https:// turns on secure cookies
  LEASEHOLD_ENVIRONMENT            part of API keys (default live)
  LEASEHOLD_CREDENTIAL_REQUESTS    requests a minute of one credential (default 1200)
  LEASEHOLD_ORGANIZATION_REQUESTS  requests a minute of one organization (default 6000)
  LEASEHOLD_OIDC_ISSUER            identity provider (OpenID Connect); callback: LEASEHOLD_PUBLIC_URL/v1/sessions/oidc/callback
  LEASEHOLD_OIDC_CLIENT_ID         what this installation is to it
  LEASEHOLD_OIDC_CLIENT_SECRET
  LEASEHOLD_LAB                    1: nobody but friends can reach it; webhooks may go to private
                                   addresses and by plain HTTP, and admins need no second factor
  LEASEHOLD_TRUSTED_PROXY          address or network whose X-Forwarded-For is believed
  LEASEHOLD_NODES_URL              where machines that boot from the network reach the API (default: as people do)
  LEASEHOLD_SERVICE_OS_DIR         directory with vmlinuz and initramfs.gz of the service OS, which /netboot/v1 serves
  LEASEHOLD_IMAGES_DIR             directory of disk images, which /netboot/v1 serves
  STRIPE_SECRET_KEY                without it a built-in test gateway is used, and every page that shows money says so
  STRIPE_WEBHOOK_SECRET            of the endpoint /v1/webhooks/stripe`

// ConfigFromEnv reads what EnvironmentHelp lists.
func ConfigFromEnv() Config {
	c := Config{
		DatabaseURL:         os.Getenv("DATABASE_URL"),
		TemporalAddress:     or(os.Getenv("TEMPORAL_ADDRESS"), "127.0.0.1:7233"),
		TemporalNamespace:   or(os.Getenv("TEMPORAL_NAMESPACE"), "leasehold"),
		KeysDir:             or(os.Getenv("LEASEHOLD_KEYS_DIR"), "keys"),
		PublicURL:           or(os.Getenv("LEASEHOLD_PUBLIC_URL"), "http://127.0.0.1:8080"),
		Environment:         or(os.Getenv("LEASEHOLD_ENVIRONMENT"), "live"),
		NodesURL:            strings.TrimRight(os.Getenv("LEASEHOLD_NODES_URL"), "/"),
		ServiceOSDir:        os.Getenv("LEASEHOLD_SERVICE_OS_DIR"),
		ImagesDir:           os.Getenv("LEASEHOLD_IMAGES_DIR"),
		StripeSecretKey:     os.Getenv("STRIPE_SECRET_KEY"),
		StripeWebhookSecret: os.Getenv("STRIPE_WEBHOOK_SECRET"),

		CredentialRequests:   requests(os.Getenv("LEASEHOLD_CREDENTIAL_REQUESTS")),
		OrganizationRequests: requests(os.Getenv("LEASEHOLD_ORGANIZATION_REQUESTS")),
	}
	c.OIDC = oidc.Config{
		Issuer: os.Getenv("LEASEHOLD_OIDC_ISSUER"), ClientID: os.Getenv("LEASEHOLD_OIDC_CLIENT_ID"), ClientSecret: os.Getenv("LEASEHOLD_OIDC_CLIENT_SECRET"),
	}
	c.Lab = os.Getenv("LEASEHOLD_LAB") == "1"
	if proxy := os.Getenv("LEASEHOLD_TRUSTED_PROXY"); proxy != "" {
		c.TrustedProxies = []string{proxy}
	}
	c.SecureCookies = len(c.PublicURL) > 8 && c.PublicURL[:8] == "https://"
	return c
}

// requests reads a limit; what is no number above zero becomes one that Open refuses.
func requests(value string) int {
	if value == "" {
		return 0
	}
	if n, err := strconv.Atoi(value); err == nil && n > 0 {
		return n
	}
	return -1
}

func or(value, other string) string {
	if value == "" {
		return other
	}
	return value
}
