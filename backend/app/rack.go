package app

import (
	"context"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/leasehold/leasehold/backend/catalog"
	"github.com/leasehold/leasehold/backend/fault"
	"github.com/leasehold/leasehold/backend/image"
	"github.com/leasehold/leasehold/backend/inventory"
	"github.com/leasehold/leasehold/backend/power"
)

const (
	// DemoRack is the name of the site of virtual machines that stand for bare metal, and DemoMetal that of the type they are leased as.
	DemoRack  = "rack-1"
	DemoMetal = "mi250x.8x.metal"
	// DemoImage is the disk image that they are leased with.
	DemoImage = "debian-12"
)

// Handover is what is known of a machine before it was ever on: where its BMC is, and who may use it.
type Handover struct {
	Name       string `json:"name"`
	BMCURL     string `json:"bmc_url"`
	User       string `json:"user"`
	Password   string `json:"password"`
	PinSHA256  string `json:"pin_sha256"`
	MAC        string `json:"mac"`
	AccessHost string `json:"access_host"`
	AccessPort int    `json:"access_port"`
	Disk       string `json:"disk"`
	Console    string `json:"console"`
}

// SeedRack makes the site of virtual bare metal with its image and its price, and registers the machines, which boot the service OS. What
// exists stays; machines that nobody has are booted anew.
func (a *App) SeedRack(ctx context.Context, img image.Image, rack []Handover) error {
	if err := a.images.Put(ctx, img); err != nil {
		return err
	}
	site, err := a.rackSite(ctx)
	if err != nil {
		return err
	}
	for _, h := range rack {
		pin, err := hex.DecodeString(h.PinSHA256)
		if err != nil {
			return fmt.Errorf("read certificate's sum of %s: %w", h.Name, err)
		}
		node, fresh, err := a.power.Register(ctx, power.Registration{
			Site: site.ID, Name: h.Name, URL: h.BMCURL, User: h.User, Password: h.Password, Pin: pin, MACs: []string{h.MAC},
			AccessHost: h.AccessHost, AccessPort: h.AccessPort,
		})
		if err != nil {
			return err
		}
		if fresh {
			continue
		}
		if _, err := a.power.Recall(ctx, node); err != nil && !fault.Is(err, fault.Conflict) {
			return err
		}
	}
	return nil
}

func (a *App) rackSite(ctx context.Context) (inventory.Site, error) {
	site, err := a.inventory.SiteByName(ctx, DemoRack)
	if !fault.Is(err, fault.NotFound) {
		return site, err
	}
	demo, err := a.inventory.SiteByName(ctx, DemoSite)
	if err != nil {
		return site, err
	}
	err = a.db.WithinTx(ctx, func(ctx context.Context) error {
		site, err = a.inventory.AddSite(ctx, inventory.Site{
			Provider: demo.Provider, Name: DemoRack, Region: "simulated", Country: "US", TimeZone: "UTC", AutoAccept: true,
		})
		if err != nil {
			return fmt.Errorf("seed rack: %w", err)
		}
		return a.catalog.Offer(ctx, site.ID, metalListing(a.clock.Now()))
	})
	return site, err
}

// metalPace is for virtual machines: they boot in seconds or minutes, by how fast they are emulated.
func metalPace() catalog.Pace {
	return catalog.Pace{Lead: 30 * time.Second, Turnaround: 2 * time.Minute, MinDuration: 10 * time.Second}
}

// metalListing is the default catalogue's bare metal without a fabric, with the demonstration's image.
func metalListing(now time.Time) []catalog.Listing {
	for _, l := range catalog.Defaults(metalPace(), now) {
		if l.Type.Name == "mi250x.8x" {
			l.Type.Name, l.Type.Title, l.Type.Image = DemoMetal, "8 × MI250X 128 GB (simulated) in a virtual bare-metal machine", DemoImage
			return []catalog.Listing{l}
		}
	}
	return nil
}

// RackStanding counts the rack's machines that are for rent, and says what the others wait for.
func (a *App) RackStanding(ctx context.Context, since time.Time) (SiteStanding, error) {
	site, err := a.inventory.SiteByName(ctx, DemoRack)
	if err != nil {
		return SiteStanding{}, err
	}
	nodes, err := a.inventory.Nodes(ctx, inventory.Filter{Site: site.ID, Limit: demoNodes})
	if err != nil {
		return SiteStanding{}, err
	}
	standing := SiteStanding{Expected: len(nodes)}
	for _, n := range nodes {
		switch {
		case n.LastSeen.Before(since) || n.Node.State == inventory.Discovered || n.Node.State == inventory.Verifying:
			standing.Awaited++
		case n.Node.State == inventory.Available:
			standing.ForRent++
		default:
			standing.OffSale = append(standing.OffSale, n.Node.Name+" is "+string(n.Node.State))
		}
	}
	return standing, nil
}
