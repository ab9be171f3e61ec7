package main

import (
	"errors"

	"github.com/spf13/cobra"
)

func nodeCommand() *cobra.Command {
	return &cobra.Command{Use: "node", RunE: func(*cobra.Command, []string) error { return errors.New("not built yet") }}
}

func fabricCommand() *cobra.Command {
	return &cobra.Command{Use: "fabric", RunE: func(*cobra.Command, []string) error { return errors.New("not built yet") }}
}
