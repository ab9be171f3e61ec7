package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/client"
)

func fabricImportCommand(o *options) *cobra.Command {
	var apply bool
	var digest string
	command := &cobra.Command{
		Use:   "import FABRIC FILE",
		Short: "Compare a topology file with inventory, and apply it with --apply",
		Long: "Read what ibnetdiscover printed, or a netlist of ibsim, from FILE (- is the standard input), and say how it differs from inventory.\n" +
			"Nothing changes without --apply; with it, all of the file is applied or nothing. With --digest only what an earlier look showed is\n" +
			"applied: it is refused when the file or the inventory have changed since.",
		Example: "  ibnetdiscover | leasehold admin fabric import fra1/ib0 -\n  leasehold admin fabric import ib0 fabric.txt --apply --digest sha256:…",
		Args:    cobra.ExactArgs(2),
	}
	command.RunE = func(cmd *cobra.Command, args []string) error {
		if digest != "" && !apply {
			return usagef("--digest goes with --apply")
		}
		source, err := readSource(cmd.InOrStdin(), args[1])
		if err != nil {
			return err
		}
		return o.connected(func(ctx context.Context, c *connection, p printer, args []string) error {
			id, err := fabricID(ctx, c, args[0])
			if err != nil {
				return err
			}
			result, err := importTopology(ctx, c, id, source, apply, digest)
			if err != nil {
				return err
			}
			return p.show(result, func(w io.Writer) { describeImport(w, result, args) })
		})(cmd, args)
	}
	command.Flags().BoolVar(&apply, "apply", false, "make it so")
	command.Flags().StringVar(&digest, "digest", "", "apply only what the look with this digest showed")
	return command
}

// readSource reads a file, or the standard input.
func readSource(in io.Reader, name string) (string, error) {
	raw, err := func() ([]byte, error) {
		if name == "-" {
			return io.ReadAll(in)
		}
		return os.ReadFile(name) //nolint:gosec // the user's own file
	}()
	if err != nil {
		return "", fmt.Errorf("read topology: %w", err)
	}
	if len(raw) == 0 {
		return "", usagef("%s is empty", name)
	}
	if !utf8.Valid(raw) { // descriptions are bytes that anybody may have set
		return strings.ToValidUTF8(string(raw), "?"), nil
	}
	return string(raw), nil
}

// importTopology looks, and applies what it saw, or what was seen before.
func importTopology(ctx context.Context, c *connection, id, source string, apply bool, digest string) (*client.TopologyImport, error) {
	post := func(dryRun bool, digest *string) (*client.TopologyImport, error) {
		answer, err := c.AdminImportTopologyWithResponse(ctx, id, &client.AdminImportTopologyParams{DryRun: &dryRun, IdempotencyKey: fresh()},
			client.TopologyImportCreate{Source: source, Digest: digest})
		if err != nil {
			return nil, unreachable(c.server, err)
		}
		return take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
	}
	if digest == "" {
		seen, err := post(true, nil)
		if err != nil || !apply {
			return seen, err
		}
		digest = seen.Digest
	}
	return post(false, &digest)
}

// mostLines is how much of each list people are shown; -o json has more.
const mostLines = 40

func describeImport(w io.Writer, i *client.TopologyImport, args []string) {
	s := i.Seen
	row(w, fmt.Sprintf("%s: %d switches, %d links between them, %d adapters (%d aggregation nodes), %d routers; %d host ports, %d of nodes that are known",
		i.Format, s.Switches, s.Links, s.Hcas, s.AggregationNodes, s.Routers, s.HostPorts, s.KnownPorts))
	for _, warning := range i.Warnings {
		row(w, "! "+warning)
	}
	few(w, "switches", i.Counts.Switches, i.Switches, func(d client.SwitchDifference) string {
		words := fmt.Sprintf("%s switch %s (%s)", sign(string(d.Kind)), d.Name, d.GUID)
		if d.PortsLeft > 0 {
			words += fmt.Sprintf(": stays, %d ports of inventory hang on it", d.PortsLeft)
		}
		if len(d.What) > 0 {
			words += ": " + strings.Join(d.What, ", ")
		}
		return words
	})
	few(w, "links", i.Counts.Links, i.Links, func(d client.LinkDifference) string {
		words := fmt.Sprintf("%s link %s – %s", sign(string(d.Kind)), plugWords(&d.From), plugWords(&d.To))
		if d.Kind == client.LinkDifferenceKindChanged {
			words += fmt.Sprintf(": %d becomes %d Gbit/s", d.RateBeforeGbps, d.RateAfterGbps)
		}
		return words
	})
	few(w, "ports", i.Counts.Ports, i.Ports, func(d client.PortDifference) string {
		words := fmt.Sprintf("~ port %s %s (%s): %s → %s", d.Node, d.Device, d.GUID, plugWords(d.Before), plugWords(&d.After))
		if d.FabricBefore != nil {
			words += ", from fabric " + *d.FabricBefore
		}
		if d.Review {
			words += "; NOT APPLIED: the node is leased, review its change"
		}
		return words
	})
	few(w, "nodes", i.Counts.Nodes, i.Nodes, func(d client.NodeDifference) string {
		return fmt.Sprintf("~ node %s: leaf %s → %s, pod %s → %s", d.Node, dash(d.LeafBefore), dash(d.LeafAfter), dash(d.PodBefore), dash(d.PodAfter))
	})
	few(w, "unknown ports", i.Counts.Strangers, i.Strangers, func(d client.UnknownPort) string {
		kind := "of no node"
		if d.Aggregation {
			kind = "aggregation node"
		}
		return fmt.Sprintf("? port %s (%s) at %s: %s", d.GUID, kind, plugWords(d.At), d.Description)
	})
	few(w, "missing ports", i.Counts.Missing, i.Missing, func(d client.MissingPort) string {
		return fmt.Sprintf("? port %s %s (%s) at %s by inventory is not in the file", d.Node, d.Device, d.GUID, plugWords(d.At))
	})
	describeOutcome(w, i, args)
}

func describeOutcome(w io.Writer, i *client.TopologyImport, args []string) {
	n := i.Counts
	changes := n.Switches + n.Links + n.Ports + n.Nodes
	switch {
	case i.Applied && n.Reviews > 0:
		row(w, fmt.Sprintf("Applied. %d moves wait for a review: leasehold admin node review NODE accept", n.Reviews))
	case i.Applied:
		row(w, "Applied.")
	case changes == 0:
		row(w, "Inventory has it all: nothing would change.")
	default:
		row(w, fmt.Sprintf("Nothing was changed. To apply just this: leasehold admin fabric import %s --apply --digest %s", strings.Join(args, " "), i.Digest))
	}
}

// few writes the first of a list, one a line, and how many more there are.
func few[T any](w io.Writer, what string, count int, list []T, words func(T) string) {
	shown := min(len(list), mostLines)
	for _, one := range list[:shown] {
		row(w, words(one))
	}
	if count > shown {
		row(w, fmt.Sprintf("… and %d more %s", count-shown, what))
	}
}

func sign(kind string) string {
	return map[string]string{"added": "+", "removed": "-", "changed": "~"}[kind]
}

func plugWords(p *client.SwitchPort) string {
	if p == nil {
		return "nowhere"
	}
	return fmt.Sprintf("%s port %d", p.Switch, p.Port)
}

func dash(s string) string {
	if s == "" {
		return "–"
	}
	return s
}
