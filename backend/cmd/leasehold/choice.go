package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// choice is a flag that takes one of some words.
type choice struct {
	word *string
	of   []string
}

var _ pflag.Value = choice{}

// newChoice sets word to the first of the words.
func newChoice(word *string, of ...string) choice {
	*word = of[0]
	return choice{word: word, of: of}
}

// Set implements pflag.Value.
func (c choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return fmt.Errorf("want %s", strings.Join(c.of, " or "))
	}
	*c.word = text
	return nil
}

// String implements pflag.Value.
func (c choice) String() string {
	if c.word == nil { // pflag asks a zero value
		return ""
	}
	return *c.word
}

// Type implements pflag.Value.
func (c choice) Type() string { return strings.Join(c.of, "|") }
