package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func adminFabricCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "fabric", Short: "Look after the subnets that keep tenants apart"}
	command.AddCommand(fabricAuditCommand(o), fabricDriftCommand(o), fabricDismissCommand(o), fabricPostureCommand(o), fabricReserveCommand(o), fabricManagersCommand(o), fabricRangeCommand(o),
		fabricListCommand(o), fabricTopologyCommand(o), fabricImportCommand(o))
	return command
}

// auditPatience is how long an audit is waited for: its agent has half a minute to come for it and two to read every port.
const auditPatience = 3 * time.Minute

func fabricAuditCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "audit FABRIC",
		Short: "Have every port of a fabric read now and held against what it should hold; status 8 unless all are right",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			id, err := fabricID(ctx, c, args[0])
			if err != nil {
				return err
			}
			answer, err := c.AdminAuditFabricWithResponse(ctx, id, &client.AdminAuditFabricParams{IdempotencyKey: fresh()})
			if err != nil {
				return unreachable(c.server, err)
			}
			asked, err := take(answer.JSON202, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			p.note("asked; its agent reads every port")
			audit, err := awaitAudit(ctx, c, id, asked.AskedAt)
			if err != nil {
				return err
			}
			fabric, err := getFabric(ctx, c, id)
			if err != nil {
				return err
			}
			err = p.show(audit, func(w io.Writer) { describeAudit(w, audit, fabric.Drift) })
			if err == nil && audit.Verdict != client.FabricAuditVerdictClean {
				return &Unhealthy{Detail: "the audit's verdict is " + string(audit.Verdict)}
			}
			return err
		}),
	}
}

// awaitAudit looks until the first audit that began at the instant or later has ended.
func awaitAudit(ctx context.Context, c *connection, fabric string, asked time.Time) (*client.FabricAudit, error) {
	ctx, cancel := context.WithTimeout(ctx, auditPatience)
	defer cancel()
	look := time.NewTicker(time.Second)
	defer look.Stop()
	for {
		answer, err := c.AdminListFabricAuditsWithResponse(ctx, fabric)
		if err != nil {
			return nil, unreachable(c.server, err)
		}
		audits, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
		if err != nil {
			return nil, err
		}
		var found *client.FabricAudit
		for i, a := range audits.Items { // latest first
			if !a.AskedAt.Before(asked) {
				found = &audits.Items[i]
			}
		}
		if found != nil {
			return found, nil
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil, errors.New("the audit has not ended in time: is a worker running, and the fabric's agent?")
		}
	}
}

func describeAudit(w io.Writer, a *client.FabricAudit, drift []client.FabricDrift) {
	row(w, "verdict", a.Verdict)
	row(w, "ports", fmt.Sprintf("%d: %d clean, %d deviating, %d unreadable, %d of no known machine", a.Ports, a.Clean, a.Deviating, a.Unreadable, a.Strangers))
	row(w, "took", a.EndedAt.Sub(a.AskedAt).Round(time.Millisecond))
	if len(a.ForeignPkeys) > 0 {
		row(w, "foreign PKeys", strings.Join(a.ForeignPkeys, " ")+" (reported, never touched)")
	}
	if detail := or(a.Detail, ""); detail != "" {
		row(w, "detail", detail)
	}
	describeDrift(w, drift, false)
}

func fabricDriftCommand(o *options) *cobra.Command {
	var all bool
	command := &cobra.Command{
		Use:   "drift FABRIC",
		Short: "List what a fabric's ports hold and should not, or lack, with what was done about it",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			id, err := fabricID(ctx, c, args[0])
			if err != nil {
				return err
			}
			fabric, err := getFabric(ctx, c, id)
			if err != nil {
				return err
			}
			drift := []client.FabricDrift{}
			for _, d := range fabric.Drift {
				if all || d.EndedAt == nil {
					drift = append(drift, d)
				}
			}
			return p.list(drift, func(w io.Writer) {
				if len(drift) == 0 {
					row(w, "No drift: every port that was read holds what it should.")
				}
				describeDrift(w, drift, all)
			})
		}),
	}
	command.Flags().BoolVar(&all, "all", false, "also what is over")
	return command
}

func fabricDismissCommand(o *options) *cobra.Command {
	var reason string
	command := &cobra.Command{
		Use:   "dismiss FABRIC [PORT]",
		Short: "End what is known to be wrong with a port that cannot be read any more, by its GUID, or with the fabric itself",
		Args:  cobra.RangeArgs(1, 2),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			id, err := fabricID(ctx, c, args[0])
			if err != nil {
				return err
			}
			body := client.DriftDismissal{Reason: reason}
			if len(args) > 1 {
				body.PortGUID = args[1]
			}
			answer, err := c.AdminDismissDriftWithResponse(ctx, id, &client.AdminDismissDriftParams{IdempotencyKey: fresh()}, body)
			if err != nil {
				return unreachable(c.server, err)
			}
			isolation, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(isolation, func(w io.Writer) { row(w, "hand-over:", or(isolation.Open, "nothing is in its way")) })
		}),
	}
	command.Flags().StringVar(&reason, "reason", "", "why, for the audit log")
	if err := command.MarkFlagRequired("reason"); err != nil {
		panic(err) // the flag is defined right above
	}
	return command
}

// describeDrift ends every line with words, which may be long.
func describeDrift(w io.Writer, drift []client.FabricDrift, all bool) {
	headed := false
	for _, d := range drift {
		if d.EndedAt != nil && !all {
			continue
		}
		if !headed {
			row(w, "PORT", "KIND", "SINCE", "UNTIL", "WHAT", "REPAIR")
			headed = true
		}
		until, repair := "now", or(d.Repair, "")
		if d.EndedAt != nil {
			until = instant(*d.EndedAt)
		}
		if d.GaveUpAt != nil {
			repair = strings.TrimPrefix(repair+"; it did not help: see to it, then audit again", "; ")
		}
		row(w, or(&d.PortGUID, "the fabric"), d.Kind, instant(d.Onset), until, d.What, repair)
	}
}

func fabricPostureCommand(o *options) *cobra.Command {
	var override string
	var enforce bool
	command := &cobra.Command{
		Use:   "posture FABRIC",
		Short: "Show how hardened a fabric is, or let that pass for a lab (audited, and shown in every attestation)",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			id, err := fabricID(ctx, c, args[0])
			if err != nil {
				return err
			}
			if override != "" || enforce {
				answer, err := c.AdminOverridePostureWithResponse(ctx, id, &client.AdminOverridePostureParams{IdempotencyKey: fresh()},
					client.PostureOverride{Reason: override})
				if err != nil {
					return unreachable(c.server, err)
				}
				if _, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse); err != nil {
					return err
				}
			}
			fabric, err := getFabric(ctx, c, id)
			if err != nil {
				return err
			}
			return p.show(fabric, func(w io.Writer) { describePosture(w, fabric) })
		}),
	}
	command.Flags().StringVar(&override, "override", "", "let the posture pass, for this reason")
	command.Flags().BoolVar(&enforce, "enforce", false, "let it pass no longer")
	command.MarkFlagsMutuallyExclusive("override", "enforce")
	return command
}

func describePosture(w io.Writer, fabric *client.FabricDetail) {
	row(w, "ITEM", "VERDICT", "DETAIL")
	for _, check := range fabric.Fabric.Posture {
		row(w, check.Item, check.Verdict, or(check.Detail, ""))
	}
	row(w, "new leases", or(fabric.Isolation.Barred, "are taken"))
	if reason := or(fabric.Isolation.PostureOverride, ""); reason != "" {
		row(w, "override", reason)
	}
	if open := or(fabric.Isolation.Open, ""); open != "" {
		row(w, "hand-over", "waits: "+open)
	}
}

func fabricReserveCommand(o *options) *cobra.Command {
	var keys []string
	command := &cobra.Command{
		Use:   "reserve FABRIC",
		Short: "Keep PKeys of the managed range from leases, since they are somebody else's",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			id, err := fabricID(ctx, c, args[0])
			if err != nil {
				return err
			}
			wanted := client.ReservedPKeys{Pkeys: []string{}}
			for _, key := range keys {
				if key != "" {
					wanted.Pkeys = append(wanted.Pkeys, key)
				}
			}
			answer, err := c.AdminReservePKeysWithResponse(ctx, id, &client.AdminReservePKeysParams{IdempotencyKey: fresh()}, wanted)
			if err != nil {
				return unreachable(c.server, err)
			}
			isolation, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(isolation, func(w io.Writer) { row(w, "reserved:", strings.Join(isolation.ReservedPkeys, " ")) })
		}),
	}
	command.Flags().StringSliceVar(&keys, "pkeys", nil, "the whole list, e.g. 0x0010,0x0011; an empty one ends it")
	if err := command.MarkFlagRequired("pkeys"); err != nil {
		panic(err) // the flag is defined right above
	}
	return command
}

func fabricManagersCommand(o *options) *cobra.Command {
	var ports []string
	command := &cobra.Command{
		Use:   "managers FABRIC",
		Short: "Say on which ports a fabric's subnet managers run, standbys included: the one that rules is a full member of the default partition",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			id, err := fabricID(ctx, c, args[0])
			if err != nil {
				return err
			}
			wanted := client.ManagerPorts{PortGuids: []string{}}
			for _, port := range ports {
				if port != "" {
					wanted.PortGuids = append(wanted.PortGuids, port)
				}
			}
			answer, err := c.AdminNameManagersWithResponse(ctx, id, &client.AdminNameManagersParams{IdempotencyKey: fresh()}, wanted)
			if err != nil {
				return unreachable(c.server, err)
			}
			isolation, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(isolation, func(w io.Writer) { row(w, "managers' ports:", strings.Join(isolation.ManagerPortGuids, " ")) })
		}),
	}
	command.Flags().StringSliceVar(&ports, "ports", nil, "the whole list, by GUID; an empty one ends it")
	if err := command.MarkFlagRequired("ports"); err != nil {
		panic(err) // the flag is defined right above
	}
	return command
}

func fabricRangeCommand(o *options) *cobra.Command {
	var wanted client.PKeyRange
	command := &cobra.Command{
		Use:   "range FABRIC",
		Short: "Say which PKeys of a fabric leases get; all others are foreign, reported and never touched",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			id, err := fabricID(ctx, c, args[0])
			if err != nil {
				return err
			}
			answer, err := c.AdminSetPKeyRangeWithResponse(ctx, id, &client.AdminSetPKeyRangeParams{IdempotencyKey: fresh()}, wanted)
			if err != nil {
				return unreachable(c.server, err)
			}
			isolation, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.show(isolation, func(w io.Writer) { row(w, "leases get:", isolation.ManagedLow+" to "+isolation.ManagedHigh) })
		}),
	}
	command.Flags().StringVar(&wanted.Low, "low", "", "the first, e.g. 0x0100")
	command.Flags().StringVar(&wanted.High, "high", "", "the last, e.g. 0x01ff")
	for _, name := range []string{"low", "high"} {
		if err := command.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is defined right above
		}
	}
	return command
}

// fabricID finds a fabric by its id, its name, or site/name.
func fabricID(ctx context.Context, c *connection, name string) (string, error) {
	if strings.HasPrefix(name, "fabric_") {
		return name, nil
	}
	answer, err := c.AdminListFabricsWithResponse(ctx)
	if err != nil {
		return "", unreachable(c.server, err)
	}
	all, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	if err != nil {
		return "", err
	}
	var found, known []string
	for _, f := range all.Items {
		if name == f.Name || name == f.Site+"/"+f.Name {
			found = append(found, f.ID)
		}
		known = append(known, f.Site+"/"+f.Name)
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", &Problem{Status: http.StatusNotFound, Title: fmt.Sprintf("there is no fabric %q; there are: %s", name, strings.Join(known, ", "))}
	default:
		return "", usagef("%d fabrics are called %q: say which of %s", len(found), name, strings.Join(known, ", "))
	}
}

func getFabric(ctx context.Context, c *connection, id string) (*client.FabricDetail, error) {
	answer, err := c.AdminGetFabricWithResponse(ctx, id)
	if err != nil {
		return nil, unreachable(c.server, err)
	}
	return take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
}
