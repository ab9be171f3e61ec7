package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Usage says that the command line is wrong, before anybody was asked anything.
type Usage struct {
	Detail string
	// Command is whose help says more, e.g. "leasehold lease show"; "": none.
	Command string
}

// Error implements error.
func (u *Usage) Error() string {
	if u.Command == "" {
		return u.Detail
	}
	return u.Detail + "\nSee: " + u.Command + " --help"
}

func usagef(format string, args ...any) error { return &Usage{Detail: fmt.Sprintf(format, args...)} }

// beStrict makes wrong flags, wrong numbers of arguments and unknown subcommands of the whole tree into Usage errors. Cobra by itself
// prints the help of a group for a subcommand that it does not know, and calls that a success.
func beStrict(root *cobra.Command) {
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if errors.Is(err, pflag.ErrHelp) {
			return err
		}
		return &Usage{Detail: err.Error(), Command: cmd.CommandPath()}
	})
	for _, command := range root.Commands() {
		strict(command)
	}
}

func strict(command *cobra.Command) {
	for _, child := range command.Commands() {
		strict(child)
	}
	if command.HasSubCommands() && !command.Runnable() {
		command.DisableFlagsInUseLine = true
		command.Args = cobra.ArbitraryArgs
		command.RunE = runGroup
		return
	}
	if check := command.Args; check != nil {
		command.Args = func(cmd *cobra.Command, args []string) error {
			if check(cmd, args) == nil {
				return nil
			}
			return &Usage{Detail: "usage: " + cmd.UseLine(), Command: cmd.CommandPath()}
		}
	}
}

func runGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	detail := fmt.Sprintf("%s has no command %q", cmd.Name(), args[0])
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		detail += "; did you mean " + strings.Join(near, " or ") + "?"
	}
	return &Usage{Detail: detail, Command: cmd.CommandPath()}
}

// isUsage also knows what cobra finds after flags and arguments, and has no type for.
func isUsage(err error) bool {
	var usage *Usage
	if errors.As(err, &usage) {
		return true
	}
	for _, prefix := range []string{"unknown command", "required flag", "at least one of the flags", "if any flags in the group"} {
		if strings.HasPrefix(err.Error(), prefix) {
			return true
		}
	}
	return false
}
