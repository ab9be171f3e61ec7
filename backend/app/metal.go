package app

import (
	"context"

	"github.com/leasehold/leasehold/backend/ids"
	"github.com/leasehold/leasehold/backend/image"
	"github.com/leasehold/leasehold/backend/power"
)

// RegisterMachine makes a machine known by its BMC; see power.Service.Register.
func (a *App) RegisterMachine(ctx context.Context, site string, r power.Registration) (ids.Node, error) {
	found, err := a.inventory.SiteByName(ctx, site)
	if err != nil {
		return ids.Node{}, err
	}
	r.Site = found.ID
	node, _, err := a.power.Register(ctx, r)
	return node, err
}

// RecallMachine has a machine that nobody has boot the service OS anew.
func (a *App) RecallMachine(ctx context.Context, node ids.Node) error {
	_, err := a.power.Recall(ctx, node)
	return err
}

// InspectMachine asks a machine's BMC what it says of it.
func (a *App) InspectMachine(ctx context.Context, node ids.Node) (power.Inspection, error) {
	return a.power.Inspect(ctx, node)
}

// Images is the register of disk images.
func (a *App) Images() *image.Service { return a.images }
