package cli

import (
	"context"

	"github.com/spf13/cobra"
)

// options are the flags that every customer command has.
type options struct {
	server string
	output form
}

func (o *options) printer(cmd *cobra.Command) printer {
	return newPrinter(cmd.OutOrStdout(), cmd.ErrOrStderr(), o.output)
}

// connected wraps a command's body with an authenticated connection.
func (o *options) connected(run func(ctx context.Context, c *connection, p printer, args []string) error) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		c, err := connect(cmd.Context(), o.server)
		if err != nil {
			return err
		}
		return run(cmd.Context(), c, o.printer(cmd), args)
	}
}

// Commands adds the commands for customers to root, each with the flags --server and -o, and makes every command of root, whoever
// added it, strict about its arguments.
func Commands(root *cobra.Command) {
	o := &options{output: formTable}
	root.AddGroup(&cobra.Group{ID: "customer", Title: "Renting:"})
	for _, command := range []*cobra.Command{
		loginCommand(o), logoutCommand(o), whoamiCommand(o), secondFactorCommand(o), marketCommand(o), quoteCommand(o), leaseCommand(o), balanceCommand(o), topUpCommand(o),
		invoiceCommand(o), keysCommand(o), webhooksCommand(o), auditCommand(o), attestCommand(o), adminCommand(o),
	} {
		command.GroupID = "customer"
		flags := command.PersistentFlags()
		flags.StringVar(&o.server, "server", "", "the server's address (default: where you logged in, $"+envServer+", or "+DefaultServer+")")
		flags.VarP(&o.output, "output", "o", "how to print results: table (fits the terminal), wide (nothing cut off) or json")
		root.AddCommand(command)
	}
	beStrict(root)
}
