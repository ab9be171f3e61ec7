package app

import (
	"context"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/tenant"
)

// DemoSite is the simulated site's name, and DemoFabric its subnet's, as `leasehold-agent sim` enrols them.
const (
	DemoSite   = "sim-1"
	DemoFabric = "ib-1"
	// demoNodes is how many machines the default simulated site has: 16 H100, 4 A100, 2 RTX 4090, 2 MI250X.
	demoNodes = 24
)

// Login is a person's e-mail address and password.
type Login struct {
	Email    string
	Password string
}

// DemoLogins are the people of a demonstration.
type DemoLogins struct{ Customer, Provider, Admin Login }

// SeedDemo makes a customer, a provider and the operator with a person each, and the simulated site with its prices. What exists stays.
func (a *App) SeedDemo(ctx context.Context, people DemoLogins) error {
	seeds := []tenant.Seed{
		{Organization: "Example Labs", Kind: tenant.Customer, Email: people.Customer.Email, Name: "Demo customer", Password: people.Customer.Password},
		{Organization: "Example Data Centres", Kind: tenant.Provider, Email: people.Provider.Email, Name: "Demo provider", Password: people.Provider.Password},
		{Organization: "Leasehold", Kind: tenant.Operator, Email: people.Admin.Email, Name: "Demo admin", Password: people.Admin.Password},
	}
	made, err := a.tenants.Bootstrap(ctx, seeds)
	if err != nil {
		return fmt.Errorf("seed organizations: %w", err)
	}
	return a.db.WithinTx(ctx, func(ctx context.Context) error {
		if _, err := a.inventory.SiteByName(ctx, DemoSite); !fault.Is(err, fault.NotFound) {
			return err // it is there already, or cannot be looked for
		}
		site, err := a.inventory.AddSite(ctx, inventory.Site{
			Provider: made[1].Org, Name: DemoSite, Region: "simulated", Country: "US", TimeZone: "UTC", AutoAccept: true,
		})
		if err != nil {
			return fmt.Errorf("seed site: %w", err)
		}
		subnet, err := a.inventory.AddFabric(ctx, site.ID, DemoFabric)
		if err != nil {
			return fmt.Errorf("seed fabric: %w", err)
		}
		// Upstream OpenSM has no m_key_per_port, so its posture is false in one item; a simulator's wires carry nobody's data.
		if err := a.fabric.Override(ctx, subnet.ID, "simulated site: no real data crosses it"); err != nil {
			return fmt.Errorf("seed fabric: %w", err)
		}
		if err := a.catalog.Offer(ctx, site.ID, catalog.Defaults(catalog.SimulatedPace(), a.clock.Now())); err != nil {
			return fmt.Errorf("seed catalogue: %w", err)
		}
		return nil
	})
}

const (
	tokenUses = 10_000
	tokenTTL  = time.Hour
)

// EnrollmentToken makes a token with which the agents of the site enrol.
func (a *App) EnrollmentToken(ctx context.Context, site string) (string, error) {
	found, err := a.inventory.SiteByName(ctx, site)
	if err != nil {
		return "", err
	}
	_, token, _, err := a.fleet.CreateToken(ctx, found.ID, tokenUses, tokenTTL)
	return token, err
}

// SiteStanding is how far a site has come since an instant.
type SiteStanding struct {
	ForRent  int
	OffSale  []string // heard, and off the market until an admin has seen to them: "gpu-h100-01 is quarantined"
	Awaited  int      // not heard yet, or still being verified
	Expected int
}

// Settled reports whether all nodes were heard, and those that are for rent can be rented.
func (s SiteStanding) Settled() bool { return s.Awaited == 0 }

// SiteStanding counts the demo site's nodes, of which those count that were heard since the instant.
func (a *App) SiteStanding(ctx context.Context, site string, since time.Time) (SiteStanding, error) {
	found, err := a.inventory.SiteByName(ctx, site)
	if err != nil {
		return SiteStanding{}, err
	}
	nodes, err := a.inventory.Nodes(ctx, inventory.Filter{Site: found.ID, Limit: demoNodes})
	if err != nil {
		return SiteStanding{}, err
	}
	standing := SiteStanding{Awaited: demoNodes, Expected: demoNodes}
	for _, n := range nodes {
		switch n.Node.State {
		case inventory.Discovered, inventory.Verifying:
		case inventory.Retired:
			standing.Awaited--
		case inventory.Available, inventory.Maintenance, inventory.Quarantined:
			if n.LastSeen.Before(since) {
				continue
			}
			standing.Awaited--
			if n.Node.State == inventory.Available {
				standing.ForRent++
			} else {
				standing.OffSale = append(standing.OffSale, n.Node.Name+" is "+string(n.Node.State))
			}
		}
	}
	return standing, nil
}
