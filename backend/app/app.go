package app

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.temporal.io/sdk/client"
	temporallog "go.temporal.io/sdk/log"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/billing"
	"github.com/leasehold/leasehold/backend/booking"
	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/clock"
	"github.com/leasehold/leasehold/backend/delivery"
	"github.com/leasehold/leasehold/backend/doctor"
	"github.com/leasehold/leasehold/backend/fabric"
	"github.com/leasehold/leasehold/backend/fleet"
	"github.com/leasehold/leasehold/backend/image"
	"github.com/leasehold/leasehold/backend/internal/agenttoken"
	"github.com/leasehold/leasehold/backend/internal/httpapi"
	"github.com/leasehold/leasehold/backend/internal/keys"
	"github.com/leasehold/leasehold/backend/internal/netboot"
	"github.com/leasehold/leasehold/backend/internal/oidc"
	"github.com/leasehold/leasehold/backend/internal/pdf"
	"github.com/leasehold/leasehold/backend/internal/postgres"
	"github.com/leasehold/leasehold/backend/internal/ratelimit"
	"github.com/leasehold/leasehold/backend/internal/redfish"
	"github.com/leasehold/leasehold/backend/internal/stripe"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/lease"
	"github.com/leasehold/leasehold/backend/ledger"
	"github.com/leasehold/leasehold/backend/outbox"
	"github.com/leasehold/leasehold/backend/overview"
	"github.com/leasehold/leasehold/backend/power"
	"github.com/leasehold/leasehold/backend/tenant"
	"github.com/leasehold/leasehold/backend/webhook"
	"github.com/leasehold/leasehold/workflows/reconcile"
)

// App is a wired installation: every service on its real store.
type App struct {
	config   Config
	clock    clock.Clock
	log      *slog.Logger
	logFile  io.Closer
	db       *postgres.DB
	hub      *postgres.Hub
	temporal client.Client
	registry *postgres.SigningKeys
	stopHub  context.CancelFunc
	metrics  *prometheus.Registry

	audit     *audit.Log
	tenants   *tenant.Service
	catalog   *catalog.Service
	inventory *inventory.Service
	ledger    *ledger.Service
	bills     *billing.Service
	payments  *billing.Payments
	gateway   billing.Gateway
	fleet     *fleet.Service
	fabric    *fabric.Service
	delivery  *delivery.Service
	reclaim   *delivery.Reclaim
	booking   *booking.Service
	leases    *lease.Service
	webhooks  *webhook.Service
	vault     *keys.Vault
	images    *image.Service
	power     *power.Service
	doctor    *doctor.Doctor
	box       *postgres.Outbox
	work      *postgres.LeaseWork
}

// doctorSettles is how old Temporal's list of workflows may be.
const doctorSettles = 5 * time.Second

// defaultMaxConns leaves room for several replicas on PostgreSQL's default of 100.
const defaultMaxConns = 40

// Open connects to everything and wires the services. Close it.
func Open(ctx context.Context, config Config) (*App, error) {
	if config.DatabaseURL == "" {
		return nil, errors.New("set DATABASE_URL")
	}
	if config.CredentialRequests < 0 || config.OrganizationRequests < 0 {
		return nil, errors.New("LEASEHOLD_CREDENTIAL_REQUESTS and LEASEHOLD_ORGANIZATION_REQUESTS are whole numbers above zero")
	}
	a := &App{config: config, clock: clock.System{}, metrics: prometheus.NewRegistry()}
	if err := a.open(ctx); err != nil {
		_ = a.Close()
		return nil, err
	}
	return a, nil
}

func (a *App) open(ctx context.Context) error {
	a.metrics.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	if err := a.openLog(); err != nil {
		return err
	}
	maxConns := a.config.MaxConns
	if maxConns == 0 {
		maxConns = defaultMaxConns
	}
	var err error
	if a.db, err = postgres.Open(ctx, a.config.DatabaseURL, maxConns, postgres.Traced(a.config.Tracer)); err != nil {
		return err
	}
	if err := a.db.Ping(ctx); err != nil {
		return err
	}
	a.hub = postgres.NewHub(a.db, a.log, fleet.Channel, lease.Channel, outbox.Channel, webhook.Channel)
	hubCtx, stop := context.WithCancel(context.WithoutCancel(ctx))
	a.stopHub = stop
	go func() { _ = a.hub.Run(hubCtx) }() // it says itself what troubles it, and ends with its context
	a.temporal, err = client.NewLazyClient(client.Options{
		HostPort: a.config.TemporalAddress, Namespace: a.config.TemporalNamespace, Logger: temporallog.NewStructuredLogger(a.log),
	})
	if err != nil {
		return fmt.Errorf("connect to Temporal: %w", err)
	}
	return a.wire(ctx)
}

func (a *App) openLog() error {
	var out io.Writer = os.Stderr
	if a.config.LogFile != "" {
		file, err := os.OpenFile(a.config.LogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return fmt.Errorf("open log: %w", err)
		}
		out, a.logFile = file, file
	}
	a.log = slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: slog.LevelInfo}))
	return nil
}

func (a *App) wire(ctx context.Context) error {
	a.registry = postgres.NewSigningKeys(a.db)
	session, err := a.key(ctx, keys.Session)
	if err != nil {
		return err
	}
	attestation, err := a.key(ctx, keys.Attestation)
	if err != nil {
		return err
	}
	sealer := fabric.Sealer{Key: attestation}
	a.audit = audit.New(postgres.NewAuditEvents(a.db), a.clock)
	if a.vault, err = keys.OpenVault(a.config.KeysDir); err != nil {
		return fmt.Errorf("open vault: %w", err)
	}
	a.tenants, err = tenant.New(a.db, postgres.NewTenants(a.db), keys.NewTokens(session, a.registry, a.clock), a.audit, a.clock,
		tenant.Options{Environment: a.config.Environment, Vault: a.vault, AdminsNeedSecondFactor: !a.config.Lab})
	if err != nil {
		return fmt.Errorf("wire identity: %w", err)
	}
	a.box, a.work = postgres.NewOutbox(a.db), postgres.NewLeaseWork(a.db)
	a.webhooks = webhook.New(a.db, postgres.NewWebhooks(a.db), a.vault, a.audit, a.hub, a.clock, a.config.Lab)
	a.catalog = catalog.New(a.db, postgres.NewCatalog(a.db), a.clock)
	stock := postgres.NewInventory(a.db)
	a.inventory = inventory.New(a.db, stock, stock, stock, a.clock)
	a.wireMoney()
	a.wireFleet(attestation)
	a.wireLeases(sealer)
	a.doctor = &doctor.Doctor{
		Rows: postgres.NewDoctor(a.db), Bills: doctorBills{a.bills},
		Log: doctorLog{audit.Verifier{Tx: a.db, Witness: postgres.NewAuditEvents(a.db), Clock: a.clock}}, Workflows: a.reconciler(), Clock: a.clock, Settle: doctorSettles,
	}
	return nil
}

func (a *App) wireMoney() {
	a.ledger = ledger.New(a.db, postgres.NewLedger(a.db), a.clock)
	a.bills = billing.New(a.db, a.ledger, postgres.NewMetering(a.db), postgres.NewInvoices(a.db), a.clock)
	a.gateway = stripe.Choose(
		stripe.Config{SecretKey: a.config.StripeSecretKey, WebhookSecret: a.config.StripeWebhookSecret, ReturnURL: a.config.PublicURL + "/billing"},
		stripe.NewTestGateway(postgres.NewTestGatewayVault(a.db), rand.Text(), a.config.PublicURL+testGatewayPage+"/"),
	)
	a.payments = billing.NewPayments(a.db, postgres.NewPayments(a.db), a.gateway, a.ledger, a.clock)
	a.payments.Audited(a.audit)
	a.payments.Announce(paymentEvents{postgres.NewWebhooks(a.db)})
}

func (a *App) wireFleet(attestation *keys.Key) {
	store, isolation := postgres.NewFleet(a.db), postgres.NewIsolation(a.db)
	a.metrics.MustRegister(fabric.Collector{Gauges: isolation})
	a.fleet = fleet.New(fleet.Deps{
		Tx: a.db, Agents: store, Beats: store, Operations: store, Hardware: a.inventory, Outbox: a.box, Audit: a.audit,
		Tokens: agenttoken.New(a.clock), Waker: a.hub, Clock: a.clock, Log: a.log,
	})
	a.fabric = fabric.New(fabric.Deps{
		Tx: a.db, Leases: postgres.NewLeases(a.db), Partitions: isolation, Work: a.fleet, Keys: store, Outbox: a.box, Audit: a.audit,
		Signer: attestation, Clock: a.clock,
	})
}

func (a *App) wireLeases(sealer fabric.Sealer) {
	leases, allocations := postgres.NewLeases(a.db), postgres.NewAllocations(a.db)
	a.leases = lease.NewService(a.db, postgres.NewLeaseReads(a.db), a.hub)
	sales := postgres.NewBooking(a.db)
	a.booking = booking.New(booking.Deps{
		Tx: a.db, Catalog: postgres.NewCatalog(a.db), Market: sales, Customers: sales, Quotes: sales, Leases: leases, Allocations: allocations,
		Money: a.bills, Outbox: a.box, Audit: a.audit, Clock: a.clock,
		Rules: booking.Rules{Step: a.config.WindowStep, QuoteTTL: a.config.QuoteTTL},
	})
	a.wireMachines()
	a.delivery = delivery.New(delivery.Deps{
		DB: a.db, Leases: leases, Allocations: allocations, Work: a.work, Agents: deliveryAgents{a.fleet}, Fabric: deliveryFabric{a.fabric},
		Machines: a.power, Images: a.images,
		Billing: a.bills, Placement: a.booking, Outbox: a.box, Signer: sealer, Clock: a.clock,
	})
	a.reclaim = delivery.NewReclaim(a.delivery, delivery.ReclaimDeps{Rows: a.work, Nodes: a.inventory, Ports: a.fabric, Audit: a.audit})
	a.inventory.UseWriteOffs(a.reclaim)
}

// wireMachines has machines that are leased whole switched and booted.
func (a *App) wireMachines() {
	a.images = image.New(a.db, postgres.NewImages(a.db), a.audit, a.clock)
	control := a.fleet.Control()
	a.power = power.New(power.Deps{
		Tx: a.db, Machines: postgres.NewPower(a.db), Work: control, Agents: control, Nodes: a.inventory, Dialer: redfish.Dialer{}, Vault: a.vault,
		Audit: a.audit, Clock: a.clock, Log: a.log, Worker: rand.Text(), NodesURL: cmp.Or(a.config.NodesURL, a.config.PublicURL),
		InsecureNodes: strings.HasPrefix(cmp.Or(a.config.NodesURL, a.config.PublicURL), "http://"),
	})
	a.fleet.UseBoots(a.power)
}

// netboot is what machines boot from.
func (a *App) netboot() http.Handler {
	server := &netboot.Server{
		Machines: a.power, ServiceOS: a.config.ServiceOSDir, Images: a.config.ImagesDir, Console: "console=ttyS0", Log: a.log,
	}
	return server.Handler()
}

// key loads or makes a signing key and publishes its public half.
func (a *App) key(ctx context.Context, purpose keys.Purpose) (*keys.Key, error) {
	key, err := keys.LoadOrCreate(a.config.KeysDir, purpose)
	if err != nil {
		return nil, fmt.Errorf("load %s key: %w", purpose, err)
	}
	if err := key.Publish(ctx, a.registry, purpose, a.clock.Now()); err != nil {
		return nil, fmt.Errorf("publish %s key: %w", purpose, err)
	}
	return key, nil
}

// Close lets go of everything.
func (a *App) Close() error {
	var errs []error
	if a.stopHub != nil {
		a.stopHub()
	}
	if a.temporal != nil {
		a.temporal.Close()
	}
	if a.db != nil {
		errs = append(errs, a.db.Close())
	}
	if a.logFile != nil {
		errs = append(errs, a.logFile.Close())
	}
	return errors.Join(errs...)
}

// Server is the API and the portal, ready to Serve.
func (a *App) Server(ctx context.Context) (*http.Server, error) {
	handler, err := a.handler(ctx)
	if err != nil {
		return nil, err
	}
	return &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		ReadTimeout:       30 * time.Second,
		// Long polls last up to a minute, event streams longer: those lift the limit for themselves.
		WriteTimeout:   90 * time.Second,
		IdleTimeout:    2 * time.Minute,
		MaxHeaderBytes: 32 << 10,
		ErrorLog:       slog.NewLogLogger(a.log.Handler(), slog.LevelWarn),
	}, nil
}

// proofsPerHour is how many proofs of its isolation a lease's owner may ask for in an hour, all of them at once when they like.
const proofsPerHour = 30

// codesPerHour is how many second factors may be tried at one address: a guesser needs three of a million, and years.
const codesPerHour = 20

const testGatewayPage = "/test-gateway"

// identityProvider is nil without one.
func (a *App) identityProvider() httpapi.IdentityProvider {
	if a.config.OIDC.Issuer == "" {
		return nil
	}
	config := a.config.OIDC
	config.RedirectURL = strings.TrimSuffix(a.config.PublicURL, "/") + "/v1/sessions/oidc/callback"
	return oidc.New(config)
}

func (a *App) handler(ctx context.Context) (http.Handler, error) {
	limit := func(name string, requests int) ratelimit.Policy {
		return ratelimit.Policy{Name: name, Requests: requests, Window: time.Minute}
	}
	rates := postgres.NewRateLimits(a.db)
	pages := map[string]http.Handler{}
	if test, ok := a.gateway.(*stripe.TestGateway); ok {
		pages[testGatewayPage] = test.Page()
	}
	handler, err := httpapi.New(ctx, httpapi.Deps{
		Areas: httpapi.Areas{
			Identity: httpapi.Identity{
				OIDC: a.identityProvider(), Vault: a.vault,
				Tenants: a.tenants, Gateway: a.gateway.Name(), SecureCookies: a.config.SecureCookies, PublicURL: strings.TrimSuffix(a.config.PublicURL, "/"),
				LogIns: ratelimit.New(rates, a.clock, limit("log-in", 20)),
				Codes:  ratelimit.New(rates, a.clock, ratelimit.Policy{Name: "code", Requests: codesPerHour, Window: time.Hour}),
			},
			System: httpapi.System{
				Checks: map[string]func(context.Context) error{"database": a.db.Ping, "migrations": a.db.CheckMigrations}, Keys: a.registry, Log: a.log,
			},
			Market: httpapi.Market{Catalog: a.catalog, Sites: a.inventory, Sales: a.booking, Clock: a.clock},
			Quotes: httpapi.Quotes{Sales: a.booking},
			Leases: httpapi.Leases{
				Leases: a.leases, Usage: a.bills, Sales: a.booking, Metrics: a.fleet, Clock: a.clock, Power: a.power,
				Proofs: ratelimit.New(rates, a.clock, ratelimit.Policy{Name: "proof", Requests: proofsPerHour, Window: time.Hour}),
			},
			Billing:  httpapi.Billing{Bills: a.bills, Payments: a.payments, Draw: pdf.Invoice},
			Events:   httpapi.Events{Webhooks: a.webhooks},
			AuditLog: httpapi.AuditLog{Events: audit.NewReader(a.db, postgres.NewAuditEvents(a.db))},
			Admin: httpapi.Admin{
				Inventory: a.inventory, Overview: overview.New(a.db, postgres.NewOverview(a.db), a.clock), Tenants: a.tenants, Enroller: a.fleet,
				Doctor: a.doctor, Audit: a.audit, Fabrics: a.fabric,
			},
		},
		Agent: httpapi.Agent{Fleet: a.fleet, Clock: a.clock}, Netboot: a.netboot(),
		Authenticator: a.tenants, Tx: a.db, Idempotency: postgres.NewIdempotency(a.db), RateLimits: rates,
		Limits: httpapi.Limits{
			Credential:   limit("credential", cmp.Or(a.config.CredentialRequests, defaultCredentialRequests)),
			Organization: limit("organization", cmp.Or(a.config.OrganizationRequests, defaultOrganizationRequests)),
			Address:      limit("address", 60),
		},
		Clock: a.clock, Log: a.log, Metrics: a.metrics, Portal: a.config.Portal, Pages: pages, TrustedProxies: a.config.TrustedProxies,
	})
	if err != nil {
		return nil, fmt.Errorf("build API: %w", err)
	}
	return handler, nil
}

func (a *App) reconciler() *reconcile.Reconciler {
	return &reconcile.Reconciler{
		Rows: a.work, Locker: a.db, Fleet: a.fleet, Delivery: a.delivery, Outbox: a.box, Temporal: a.temporal, TaskQueue: taskQueue, Clock: a.clock, Log: a.log,
	}
}
