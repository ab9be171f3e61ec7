// Package demo does the main job against a running instance as a customer would: quote, book, get nodes, log in by SSH, extend, end,
// and check the proofs and the bill. Every step asserts; the first that does not hold ends the demo.
package demo

import (
	"context"
	"fmt"
	"io"
	"time"
)

// Options say what to lease, where.
type Options struct {
	Server       string
	Email        string
	Password     string
	AdminEmail   string // may be empty: then the last step, the doctor, is left out and said so
	AdminPass    string
	InstanceType string
	Instances    int
	Duration     time.Duration
	Extension    time.Duration
	ZeroWork     bool     // the simulated nodes' work takes no time
	Metal        bool     // the nodes are machines that are leased whole and really boot
	Disks        []string // and these are their drives, as files
	Out          io.Writer
}

// step is one line of the demo.
type step struct {
	name string
	run  func(d *demo, ctx context.Context) (string, error) //nolint:revive // a method expression
}

func steps() []step {
	return []step{
		{"log in", (*demo).logIn},
		{"add an SSH key", (*demo).addKey},
		{"top up the balance", (*demo).topUp},
		{"search", (*demo).search},
		{"quote", (*demo).quote},
		{"book", (*demo).book},
		{"provisioning", (*demo).provision},
		{"isolation attested", (*demo).checkIsolation},
		{"SSH log-in", (*demo).logInToNodes},
		{"a stranger's key is refused", (*demo).refuseStranger},
		{"live metrics", (*demo).readMetrics},
		{"extend", (*demo).extend},
		{"end", (*demo).waitForEnd},
		{"SSH refused", (*demo).refuseAfterEnd},
		{"wiped, with certificates", (*demo).checkWipe},
		{"left the partition, attested", (*demo).checkRelease},
		{"charge lines, recomputed", (*demo).checkCharges},
		{"draft invoice", (*demo).checkInvoice},
		{"balance", (*demo).checkBalance},
		{"doctor", (*demo).runDoctor},
	}
}

// Run does all steps. It returns the first failure, and says on Out what came out of each step and how long it took.
func Run(ctx context.Context, options Options) error {
	d := &demo{options: options}
	defer d.cleanUp()
	began := time.Now() //nolint:forbidigo // what a person waits is measured by the wall
	all := steps()
	if options.Metal {
		all = metalSteps()
	}
	for i, s := range all {
		at := time.Now() //nolint:forbidigo // likewise
		fmt.Fprintf(options.Out, "%2d. %-30s ", i+1, s.name)
		said, err := s.run(d, ctx)
		if err != nil {
			fmt.Fprintf(options.Out, "FAILED after %s\n", took(at))
			return fmt.Errorf("%s: %w", s.name, err)
		}
		fmt.Fprintf(options.Out, "%8s  %s\n", took(at), said)
	}
	fmt.Fprintf(options.Out, "\nAll %d steps held, in %s.\n", len(all), time.Since(began).Round(time.Second))
	return nil
}

func took(since time.Time) string {
	return time.Since(since).Round(time.Millisecond).String()
}
