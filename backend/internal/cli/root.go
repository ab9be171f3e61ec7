package cli

import (
	"context"

	"github.com/spf13/cobra"
)

// options are the flags that every customer command has.
type options struct {
	server string
	output string
}

func (o *options) printer(cmd *cobra.Command) printer {
	return printer{out: cmd.OutOrStdout(), json: o.output == "json"}
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

// Commands returns the commands for customers. They add the flags --server and -o to root.
func Commands(root *cobra.Command) {
	o := &options{}
	root.PersistentFlags().StringVar(&o.server, "server", "", "the server's address (default: where you logged in, $"+envServer+", or "+DefaultServer+")")
	root.PersistentFlags().StringVarP(&o.output, "output", "o", "table", "how to print results: table or json")
	root.AddGroup(&cobra.Group{ID: "customer", Title: "Renting:"})
	for _, command := range []*cobra.Command{
		loginCommand(o), logoutCommand(o), whoamiCommand(o), marketCommand(o), quoteCommand(o), leaseCommand(o), balanceCommand(o), topUpCommand(o),
		invoiceCommand(o), keysCommand(o), attestCommand(o), adminCommand(o),
	} {
		command.GroupID = "customer"
		root.AddCommand(command)
	}
}
