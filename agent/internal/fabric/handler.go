package fabric

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/leasehold/leasehold/agent/internal/operation"
	"github.com/leasehold/leasehold/agent/protocol"
)

// HandlerConfig is what the fabric's operations need.
type HandlerConfig struct {
	Driver   Driver
	FabricID string
	Now      func() time.Time
}

// Handlers returns the handlers of a fabric agent's operations: apply_partitions and observe_fabric.
func Handlers(config HandlerConfig) map[protocol.OperationKind]operation.Handler {
	return map[protocol.OperationKind]operation.Handler{
		protocol.ApplyPartitions: &applyHandler{config},
		protocol.ObserveFabric:   &observeHandler{config},
	}
}

type applyHandler struct{ HandlerConfig }

// Handle implements operation.Handler: apply, read back, cross-check. Evidence comes with a failure too, unless nothing was done.
func (h *applyHandler) Handle(ctx context.Context, op protocol.Operation, progress func(int, string)) (operation.Outcome, error) {
	var spec protocol.ApplyPartitionsSpec
	if err := json.Unmarshal(op.Spec, &spec); err != nil {
		return operation.Outcome{}, refuse(CodeInvalidSpec, "decode apply_partitions: %v", err)
	}
	desired := Desired{
		Partitions: spec.Partitions, Managed: Range{Low: spec.ManagedLow, High: spec.ManagedHi, Reserved: spec.Reserved}, AllowShrink: spec.AllowShrink,
		Repair: spec.Repair,
	}
	before, err := h.Driver.Current(ctx)
	if err != nil {
		return operation.Outcome{}, fmt.Errorf("apply partitions: %w", err)
	}
	progress(10, "applying")
	applied, failure := h.Driver.Apply(ctx, desired, op.Epoch)
	if failure != nil && !inPlace(failure) {
		return operation.Outcome{}, fmt.Errorf("apply partitions: %w", failure)
	}
	progress(60, "reading back")
	ports := slices.Sorted(slices.Values(slices.Concat(applied.Changed, spec.Observe, spec.Repair)))
	seen, err := h.observe(ctx, NewJudge(desired), slices.Compact(ports))
	if err != nil {
		return operation.Outcome{}, fmt.Errorf("apply partitions: %w", errors.Join(failure, err))
	}
	progress(80, "checking paths")
	seen.observation.Checks = h.checkPaths(ctx, before.Desired, desired, seen.observation.Ports)
	seen.observation.Nonce, seen.observation.Epoch, seen.observation.Sweeps = spec.Nonce, op.Epoch, applied.Sweeps
	seen.observation.Repaired = applied.Repaired
	return seen.outcome(), cmp.Or(failure, seen.failure())
}

// inPlace reports whether the set was put in place although Apply failed.
func inPlace(err error) bool {
	var refusal *operation.Refusal
	return errors.As(err, &refusal) && refusal.Code == CodeManagerUnavailable
}

type observeHandler struct{ HandlerConfig }

// Handle implements operation.Handler. An audit that finds a deviation has succeeded; the evidence says what it found.
func (h *observeHandler) Handle(ctx context.Context, op protocol.Operation, progress func(int, string)) (operation.Outcome, error) {
	var spec protocol.ObserveFabricSpec
	if err := json.Unmarshal(op.Spec, &spec); err != nil {
		return operation.Outcome{}, refuse(CodeInvalidSpec, "decode observe_fabric: %v", err)
	}
	current, err := h.Driver.Current(ctx)
	if err != nil {
		return operation.Outcome{}, fmt.Errorf("observe fabric: %w", err)
	}
	ports := spec.Ports
	if len(ports) == 0 {
		topology, err := h.Driver.Topology(ctx)
		if err != nil {
			return operation.Outcome{}, fmt.Errorf("observe fabric: %w", err)
		}
		for _, port := range topology.Ports {
			ports = append(ports, port.GUID)
		}
		if len(ports) == 0 { // a manager that lists nothing must not pass for a subnet on which all is well
			return operation.Outcome{}, errors.New("observe fabric: the manager lists no port")
		}
	}
	progress(20, "reading tables")
	seen, err := h.observe(ctx, NewJudge(current.Desired), ports)
	if err != nil {
		return operation.Outcome{}, fmt.Errorf("observe fabric: %w", err)
	}
	seen.observation.Checks = h.checkPaths(ctx, current.Desired, current.Desired, seen.observation.Ports)
	seen.observation.Nonce, seen.observation.Epoch = spec.Nonce, current.Epoch
	return seen.outcome(), nil
}

// finding is an observation and what is wrong in it.
type finding struct {
	observation protocol.FabricObservation
	wrong       []string
}

func (c HandlerConfig) observe(ctx context.Context, judge Judge, ports []protocol.GUID) (finding, error) {
	links, err := c.Driver.Observe(ctx, ports)
	if err != nil {
		return finding{}, err
	}
	if len(links) != len(ports) {
		return finding{}, fmt.Errorf("read ports: %d of %d were told", len(links), len(ports))
	}
	posture, err := c.Driver.Posture(ctx)
	if err != nil {
		return finding{}, err
	}
	var f finding
	for _, link := range links {
		if fault := judge.Disagreement(link); fault != "" {
			f.wrong = append(f.wrong, fmt.Sprintf("%v %s", link.GUID, fault))
		}
	}
	f.observation = protocol.FabricObservation{
		FabricID: c.FabricID, ObservedAt: c.Now().UTC(), Ports: links, Converged: len(f.wrong) == 0,
		Posture: posture, Foreign: judge.Foreign(links),
	}
	return f, nil
}

func (f finding) outcome() operation.Outcome {
	return operation.Outcome{Evidence: f.observation, PayloadType: protocol.PayloadFabricObservation}
}

// failure says why a set that was applied does not hold.
func (f finding) failure() error {
	if len(f.wrong) > 0 {
		return &operation.Refusal{Code: CodeNotConverged, Detail: strings.Join(atMost(f.wrong, 5), "; "), Retryable: true}
	}
	for _, check := range f.observation.Checks {
		if check.Found != check.Want {
			detail := fmt.Sprintf("path from %v to %v: found %s, want %s", check.From, check.To, check.Found, check.Want)
			return &operation.Refusal{Code: CodePathCheckFailed, Detail: detail, Retryable: true}
		}
	}
	return nil
}
