package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/leasehold/leasehold/backend/audit"
	"github.com/leasehold/leasehold/backend/client"
)

func auditCommand(o *options) *cobra.Command {
	command := &cobra.Command{Use: "audit", Short: "See who changed what, and prove that the log is whole"}
	command.AddCommand(auditListCommand(o), auditExportCommand(o), auditVerifyCommand(o))
	return command
}

func auditListCommand(o *options) *cobra.Command {
	var actor, action, target string
	var since span
	var most int
	command := &cobra.Command{
		Use:   "list",
		Short: "Show the newest events",
		Args:  cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			params := client.ListAuditEventsParams{Limit: &most, Actor: optional(actor), Action: optional(action), Target: optional(target), Since: ago(since)}
			answer, err := c.ListAuditEventsWithResponse(ctx, &params)
			if err != nil {
				return unreachable(c.server, err)
			}
			list, err := take(answer.JSON200, answer.ApplicationProblemJSONDefault, answer.HTTPResponse)
			if err != nil {
				return err
			}
			return p.list(list, func(w io.Writer) {
				row(w, "WHEN", "WHO", "WHAT", "TARGET", "FROM", "AFTER")
				for _, e := range list.Items {
					after := ""
					if e.After != nil {
						after = compact(*e.After)
					}
					row(w, instant(e.At), e.Actor, e.Action, e.Target, or(e.Source, "–"), after)
				}
			})
		}),
	}
	command.Flags().StringVar(&actor, "actor", "", "only what user_… or key_… did")
	command.Flags().StringVar(&action, "action", "", "only that: api_key.created, or api_key. for all about API keys")
	command.Flags().StringVar(&target, "target", "", "only what was done to the thing with this id")
	command.Flags().Var(&since, "since", "only what happened since so long ago, e.g. 7d")
	command.Flags().IntVar(&most, "limit", 50, "how many; at most 200")
	return command
}

// ago is the instant so long ago, nil for no span.
func ago(d span) *time.Time {
	if d == 0 {
		return nil
	}
	return new(time.Now().Add(-time.Duration(d)).UTC())
}

func auditExportCommand(o *options) *cobra.Command {
	var since span
	var file, org string
	command := &cobra.Command{
		Use:   "export",
		Short: "Save the log as JSON lines, in the order of its chain",
		Long: "Save the log as JSON lines, in the order of its chain. Each line has the hash of the one before: `leasehold audit verify` checks files\n" +
			"without asking anybody. Keep exports where the platform's operator cannot reach: a log that was cut off or written anew differs from them.",
		Args: cobra.NoArgs,
		RunE: o.connected(func(ctx context.Context, c *connection, p printer, _ []string) error {
			size, err := saveAudit(ctx, c, file, org, ago(since))
			if err != nil {
				return err
			}
			return p.show(map[string]any{"file": file, "bytes": size}, func(w io.Writer) { row(w, fmt.Sprintf("Saved %s, %d bytes.", file, size)) })
		}),
	}
	command.Flags().Var(&since, "since", "only what happened since so long ago, e.g. 400d (default: everything)")
	command.Flags().StringVar(&file, "file", "audit.jsonl", "where to")
	command.Flags().StringVar(&org, "organization", "", "for the operator: whose, or platform (default: your own)")
	return command
}

// saveAudit streams the export into a file, which appears when it is whole.
func saveAudit(ctx context.Context, c *connection, path, org string, since *time.Time) (int64, error) {
	// Without a limit of time: it takes as long as it takes.
	api, err := client.NewClient(c.server, client.WithHTTPClient(&http.Client{}), client.WithRequestEditorFn(c.authorize))
	if err != nil {
		return 0, fmt.Errorf("connect: %w", err)
	}
	var answer *http.Response
	if org == "" {
		answer, err = api.ExportAuditEvents(ctx, &client.ExportAuditEventsParams{Since: since})
	} else {
		answer, err = api.AdminExportAuditEvents(ctx, &client.AdminExportAuditEventsParams{OrganizationID: org, Since: since})
	}
	if err != nil {
		return 0, unreachable(c.server, err)
	}
	defer answer.Body.Close() //nolint:errcheck // it was read
	if answer.StatusCode != http.StatusOK {
		parsed, err := client.ParseExportAuditEventsResponse(answer)
		if err != nil {
			return 0, unreachable(c.server, err)
		}
		return 0, newProblem(parsed.ApplicationProblemJSONDefault, answer)
	}
	return saveStream(path, answer.Body)
}

func saveStream(path string, from io.Reader) (int64, error) {
	file, err := os.CreateTemp(filepath.Dir(path), ".audit-*")
	if err != nil {
		return 0, fmt.Errorf("save export: %w", err)
	}
	defer os.Remove(file.Name()) //nolint:errcheck // it is gone already when all went well
	size, err := io.Copy(file, from)
	if err = errors.Join(err, file.Close()); err != nil {
		return 0, fmt.Errorf("save export: %w", err)
	}
	if err := os.Rename(file.Name(), path); err != nil {
		return 0, fmt.Errorf("save export: %w", err)
	}
	return size, nil
}

func auditVerifyCommand(o *options) *cobra.Command {
	return &cobra.Command{
		Use:   "verify FILE...",
		Short: "Check exports: each line is what was written, and none is missing; status 8 otherwise",
		Long:  "Check exports without asking the server. Several files are read one after the other, as one chain.",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			report := auditReport{}
			for _, path := range args {
				if err := report.read(path); err != nil {
					return err
				}
			}
			return o.printer(cmd).show(report, func(w io.Writer) {
				row(w, fmt.Sprintf("%d events, numbers %d to %d: whole. The last hash is %s.", report.Events, report.First, report.Last, report.Hash))
			})
		},
	}
}

type auditReport struct {
	Events int    `json:"events"`
	First  int64  `json:"first"`
	Last   int64  `json:"last"`
	Hash   string `json:"hash"`
	link   *audit.Link
}

// maxLine is more than any event has: a request's body is smaller.
const maxLine = 4 << 20

func (r *auditReport) read(path string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open export: %w", err)
	}
	defer file.Close() //nolint:errcheck // only read
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		link, err := audit.CheckLine(lines.Bytes(), r.link)
		if err != nil {
			return &Unhealthy{Detail: fmt.Sprintf("%s, line %d: %s", path, n, err)}
		}
		if r.link == nil {
			r.First = link.Seq
		}
		r.link, r.Last, r.Hash = &link, link.Seq, link.Hash
		r.Events++
	}
	if err := lines.Err(); err != nil {
		return &Unhealthy{Detail: fmt.Sprintf("%s is no export: %s", path, err)}
	}
	return nil
}
