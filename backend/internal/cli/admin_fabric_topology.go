package cli

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func fabricListCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "list",
		Short: "List fabrics with their subnet managers",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			answer, err := c.AdminListFabricsWithResponse(ctx)
			if err != nil {
				return unreachable(c.server, err)
			}
			all, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.list(all, func(w io.Writer) {
				row(w, "FABRIC", "SITE", "MANAGER", "PARTITIONS", "TOPOLOGY READ", "ID")
				for _, f := range all.Items {
					seen := "never"
					if f.ObservedAt != nil {
						seen = instant(*f.ObservedAt)
					}
					row(w, f.Name, f.Site, strings.TrimSpace(f.Driver+" "+f.ControllerVersion), f.Partitions, seen, f.ID)
				}
			})
		}),
	}
}

func fabricTopologyCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "topology FABRIC",
		Short: "Show a fabric as a tree: pods, their leaves, and what is plugged into them",
		Args:  cobra.ExactArgs(1),
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			id, err := fabricID(ctx, c, args[0])
			if err != nil {
				return err
			}
			all, err := getTopology(ctx, c, id)
			if err != nil {
				return err
			}
			return p.list(all, func(w io.Writer) { describeTopology(w, all) })
		}),
	}
}

// getTopology reads every page into one answer.
func getTopology(ctx context.Context, c *connection, id string) (*client.FabricTopology, error) {
	var all *client.FabricTopology
	limit := 200
	err := pages(func(cursor *string) (*client.FabricTopology, *httpResponse, error) {
		answer, err := c.AdminGetTopologyWithResponse(ctx, id, &client.AdminGetTopologyParams{Cursor: cursor, Limit: &limit})
		if err != nil {
			return nil, nil, unreachable(c.server, err)
		}
		page, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
		return page, answer.HTTPResponse, err
	}, func(page *client.FabricTopology) {
		if all == nil {
			all = page
			return
		}
		all.Items = append(all.Items, page.Items...)
	})
	return all, err
}

// describeTopology draws the pods with their switches, the lowest first, and then the tier above all pods.
func describeTopology(w io.Writer, t *client.FabricTopology) {
	s := t.Summary
	row(w, fmt.Sprintf("Fabric %s at %s: %d switches with %d links, %d pods, %d nodes; %d adapter ports, %d of them of no node",
		t.Fabric, t.Site, s.Switches, s.Links, s.Pods, s.Nodes, s.Ports, s.UnknownPorts))
	if len(t.Items) == 0 {
		row(w, "Nothing is known of it yet: its agent reports it, or import a file: leasehold admin fabric import")
		return
	}
	switches := slices.Clone(t.Items)
	slices.SortStableFunc(switches, func(a, b client.TopologySwitch) int {
		return cmp.Or(cmp.Compare(groupOf(a), groupOf(b)), cmp.Compare(a.Level, b.Level), cmp.Compare(a.Name, b.Name))
	})
	group := -1
	pod := ""
	for _, sw := range switches {
		if g := groupOf(sw); g != group || sw.Pod != pod {
			group, pod = g, sw.Pod
			row(w, headingOf(sw))
		}
		describeSwitch(w, sw)
	}
}

// groupOf orders pods before what is above them, and what is out of reach last.
func groupOf(s client.TopologySwitch) int {
	switch {
	case s.Level == 0:
		return 2
	case s.Pod == "":
		return 1
	default:
		return 0
	}
}

func headingOf(s client.TopologySwitch) string {
	return [...]string{s.Pod, "above the pods", "without a way to any host"}[groupOf(s)]
}

func describeSwitch(w io.Writer, s client.TopologySwitch) {
	row(w, "├─ "+s.Name, tier(s.Level), fmt.Sprintf("%d of %d ports", len(s.Links)+len(s.Hosts), s.Ports), peersOf(s.Links))
	for _, h := range s.Hosts {
		row(w, fmt.Sprintf("│    %3d", h.Port), hostWords(h), speed(h.RateGbps), h.GUID)
	}
}

func tier(level int) string {
	names := [...]string{"level unknown", "leaf", "spine", "core"}
	if level < len(names) {
		return names[level]
	}
	return fmt.Sprintf("level %d", level)
}

func speed(gbps int) string {
	if gbps == 0 {
		return ""
	}
	return fmt.Sprintf("%d Gbit/s", gbps)
}

// peersOf counts the cables to each neighbour.
func peersOf(links []client.TopologyLink) string {
	counts := map[string]int{}
	var names []string
	for _, l := range links {
		if counts[l.Peer] == 0 {
			names = append(names, l.Peer)
		}
		counts[l.Peer]++
	}
	slices.Sort(names)
	for i, name := range names {
		names[i] = fmt.Sprintf("%s ×%d", name, counts[name])
	}
	if len(names) == 0 {
		return ""
	}
	return "↔ " + strings.Join(names, ", ")
}

func hostWords(h client.TopologyHost) string {
	switch {
	case h.Node != nil && h.Absent:
		return fmt.Sprintf("%s %s rail %d (not seen by the manager)", *h.Node, or(h.Device, ""), railOf(h))
	case h.Node != nil:
		return fmt.Sprintf("%s %s rail %d", *h.Node, or(h.Device, ""), railOf(h))
	case h.Aggregation:
		return "(aggregation node)"
	default:
		return "(of no node) " + h.Description
	}
}

func railOf(h client.TopologyHost) int {
	if h.Rail == nil {
		return 0
	}
	return *h.Rail
}
