package operation

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/leasehold/leasehold/agent/protocol"
)

// result turns what a handler returned into what is reported.
func (r *Runner) result(e *entry, outcome Outcome, err error) protocol.Result {
	result := protocol.Result{State: protocol.Succeeded, StartedAt: e.begunAt, FinishedAt: r.cfg.Now()}
	if err != nil {
		result.State, result.Fault = protocol.Failed, faultOf(err)
	}
	if outcome.Evidence == nil {
		return result
	}
	evidence, err := json.Marshal(outcome.Evidence)
	if err != nil {
		result.State = protocol.Failed
		result.Fault = &protocol.Fault{Code: "internal", Detail: fmt.Sprintf("encode evidence of %s: %v", e.op.Kind, err)}
		return result
	}
	result.Evidence = evidence
	if outcome.PayloadType != "" {
		envelope := r.cfg.Signer.Sign(outcome.PayloadType, evidence)
		result.Signed = &envelope
	}
	return result
}

func faultOf(err error) *protocol.Fault {
	var refusal *Refusal
	if errors.As(err, &refusal) {
		return &protocol.Fault{Code: refusal.Code, Detail: refusal.Detail, Retryable: refusal.Retryable}
	}
	return &protocol.Fault{Code: "failed", Detail: err.Error(), Retryable: true}
}
