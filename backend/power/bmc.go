// Package power has the machines that are leased whole switched on and off and booted through their management controllers (BMCs):
// which of them runs the operator's service OS, which one its tenant's own system, and which one nothing at all.
//
// A tenant owns such a machine, so nothing that runs on it is believed. What counts is what its BMC says when it is read back after
// each command: a command that was accepted has done nothing yet.
package power

import (
	"context"
	"time"
)

// State is whether a machine has power, as its BMC says it.
type State string

// The states. A machine that is on its way up or down is neither on nor off.
const (
	On      State = "on"
	Off     State = "off"
	Turning State = "turning" // powering on or off, or paused
	Unknown State = "unknown" // the BMC does not say
)

// Reset is what can be done to a machine's power in one command.
type Reset string

// The resets.
const (
	TurnOn   Reset = "turn_on"
	ForceOff Reset = "force_off"
	ShutDown Reset = "shut_down" // asks the operating system, which may not listen
	Restart  Reset = "restart"   // without asking it
)

// Source is where a machine boots from.
type Source string

// The sources.
const (
	Network Source = "network"
	Disk    Source = "disk"
)

// Boot is a BMC's boot override.
type Boot struct {
	Source Source `json:"source"`
	// Once: the override is for the next boot only; else it stays until it is changed.
	Once bool `json:"once"`
}

// Event is an entry of a BMC's system event log.
type Event struct {
	ID       string    `json:"id"`
	At       time.Time `json:"at"` // by the BMC's own clock, which may be wrong; zero when it gives none
	Severity string    `json:"severity"`
	Message  string    `json:"message"`
}

// Part is a chassis, or a piece of firmware.
type Part struct {
	ID           string `json:"id"`
	Name         string `json:"name"`
	Manufacturer string `json:"manufacturer,omitempty"`
	Model        string `json:"model,omitempty"`
	Serial       string `json:"serial,omitempty"`
	Version      string `json:"version,omitempty"`
}

// Console says how a machine's serial console is reached through its BMC.
type Console struct {
	Enabled  bool     `json:"enabled"`
	Kinds    []string `json:"kinds"` // e.g. SSH, IPMI
	SSHPort  int      `json:"ssh_port,omitempty"`
	Sessions int      `json:"sessions,omitempty"`
}

// System is what a BMC says of the machine that it manages.
type System struct {
	Manufacturer string   `json:"manufacturer"`
	Model        string   `json:"model"`
	Serial       string   `json:"serial"`
	UUID         string   `json:"uuid"`
	BIOSVersion  string   `json:"bios_version"`
	MACs         []string `json:"macs"`
	State        State    `json:"state"`
}

// Controller is a machine's BMC, logged in to. It is not safe for concurrent use: BMCs do not like it either.
//
// All methods return Unavailable faults for what may pass (no answer in time, busy, an error of its own), Forbidden faults, code
// "bmc-credentials" or "bmc-certificate", when it cannot be trusted or does not trust us, an Invalid fault, code "bmc-unsupported", for
// what it cannot do, and a Conflict fault, code "bmc-refused", for what it would not do.
type Controller interface {
	System(ctx context.Context) (System, error)
	State(ctx context.Context) (State, error)
	// Reset gives the command and returns when the BMC has taken it, or has finished the task that it made of it. The machine's state is
	// another question.
	Reset(ctx context.Context, r Reset) error
	// SetBoot sets the boot override and reads it back.
	SetBoot(ctx context.Context, b Boot) error
	// Events reads the newest entries of the system event log, at most limit, newest first.
	Events(ctx context.Context, limit int) ([]Event, error)
	Console(ctx context.Context) (Console, error)
	Chassis(ctx context.Context) ([]Part, error)
	Firmware(ctx context.Context) ([]Part, error)
	// ResetBIOS sets the firmware's settings back to their defaults, from the next boot on.
	ResetBIOS(ctx context.Context) error
	// ClearTPM has the TPM cleared at the next boot.
	ClearTPM(ctx context.Context) error
	// Close logs out: BMCs have few places for sessions.
	Close(ctx context.Context) error
}
