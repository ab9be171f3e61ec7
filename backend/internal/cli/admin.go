package cli

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func adminCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "admin", Short: "Operate the platform, or your own sites as their provider"}
	command.AddCommand(adminNodesCommand(o), adminNodeCommand(o), adminDoctorCommand(o), adminFabricCommand(o))
	return command
}

func adminNodesCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "nodes",
		Short: "List nodes with state and use",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			all, err := adminNodes(ctx, c)
			if err != nil {
				return err
			}
			return p.list(all, func(w io.Writer) { describeNodes(w, all.Items) })
		}),
	}
}

func adminNodes(ctx context.Context, c *connection) (client.NodeList, error) {
	all, limit := client.NodeList{Items: []client.Node{}}, 200
	err := pages(func(cursor *string) (*client.NodeList, *httpResponse, error) {
		answer, err := c.AdminListNodesWithResponse(ctx, &client.AdminListNodesParams{Cursor: cursor, Limit: &limit})
		if err != nil {
			return nil, nil, unreachable(c.server, err)
		}
		page, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
		return page, answer.HTTPResponse, err
	}, func(page *client.NodeList) { all.Items = append(all.Items, page.Items...) })
	return all, err
}

// describeNodes ends every line with what is the matter, which may be long.
func describeNodes(w io.Writer, nodes []client.Node) {
	if len(nodes) == 0 {
		row(w, "No nodes yet: they appear when their agents enrol.")
		return
	}
	row(w, "NODE", "SITE", "HARDWARE", "MODE", "STATE", "LEASED", "WHY")
	for _, n := range nodes {
		why := []string{}
		if n.StateReason != "" {
			why = append(why, n.StateReason)
		}
		for _, c := range n.Conditions {
			why = append(why, strings.TrimSpace(c.Name+" "+c.Device))
		}
		row(w, n.Name, n.Site, n.Hardware, n.Mode, n.State, fmt.Sprintf("%d/%d", n.LeasedSlots, n.TotalSlots), strings.Join(why, "; "))
	}
}

func adminDoctorCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Have the server check every invariant on its live database",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			answer, err := c.AdminRunDoctorWithResponse(ctx)
			if err != nil {
				return unreachable(c.server, err)
			}
			report, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			err = p.show(report, func(w io.Writer) {
				for _, check := range report.Checks {
					row(w, check.Invariant, okOr(check.Ok), check.Title)
					for _, finding := range check.Findings {
						row(w, "", "", finding)
					}
				}
				if report.Healthy {
					row(w, "Every invariant holds.")
				} else {
					row(w, "At least one invariant is broken.")
				}
			})
			if err == nil && !report.Healthy {
				return &Unhealthy{Detail: "at least one invariant is broken"}
			}
			return err
		}),
	}
}

func okOr(ok bool) string {
	if ok {
		return "ok"
	}
	return "BROKEN"
}
