package fleet

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/leasehold/leasehold/agent/protocol"
	"github.com/leasehold/leasehold/backend/ids"
)

const (
	// KeepSamples is how long raw samples are kept.
	KeepSamples = 24 * time.Hour
	// maxAhead is how far an agent's clock may be ahead of ours before its samples are dropped.
	maxAhead = time.Minute
	// maxChunk bounds what is read of one chunk, uncompressed.
	maxChunk = 64 << 20
)

// chunk is compressed samples of one minute.
type chunk struct {
	minute     time.Time
	compressed []byte
}

// chunksOf sorts samples into minutes by their own instants, by the agent's clock, and drops those that are too old to be kept or
// from the future.
func chunksOf(samples []protocol.Sample, now time.Time) ([]chunk, error) {
	minutes := map[time.Time][]protocol.Sample{}
	for _, s := range samples {
		if s.At.Before(now.Add(-KeepSamples)) || s.At.After(now.Add(maxAhead)) {
			continue
		}
		minute := s.At.UTC().Truncate(time.Minute)
		minutes[minute] = append(minutes[minute], s)
	}
	var chunks []chunk
	for _, minute := range slices.SortedFunc(maps.Keys(minutes), time.Time.Compare) {
		compressed, err := compress(minutes[minute])
		if err != nil {
			return nil, err
		}
		chunks = append(chunks, chunk{minute: minute, compressed: compressed})
	}
	return chunks, nil
}

func compress(samples []protocol.Sample) ([]byte, error) {
	var out bytes.Buffer
	z := gzip.NewWriter(&out)
	if err := errors.Join(json.NewEncoder(z).Encode(samples), z.Close()); err != nil {
		return nil, fmt.Errorf("compress samples: %w", err)
	}
	return out.Bytes(), nil
}

// expand reads a chunk: gzip members one after the other, each a JSON array of samples.
func expand(compressed []byte) ([]protocol.Sample, error) {
	z, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		return nil, fmt.Errorf("expand samples: %w", err)
	}
	var all []protocol.Sample
	for decoder := json.NewDecoder(io.LimitReader(z, maxChunk)); ; {
		var some []protocol.Sample
		err := decoder.Decode(&some)
		if errors.Is(err, io.EOF) {
			return all, nil
		}
		if err != nil {
			return nil, fmt.Errorf("expand samples: %w", err)
		}
		all = append(all, some...)
	}
}

// Samples returns the node's raw samples in [from, to), by instant and device. They are the agent's word and serve charts only.
func (s *Service) Samples(ctx context.Context, node ids.Node, from, to time.Time) ([]protocol.Sample, error) {
	var chunks [][]byte
	err := s.Tx.WithinTx(ctx, func(ctx context.Context) error {
		var err error
		chunks, err = s.Beats.Chunks(ctx, node, from.Truncate(time.Minute), to)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("read samples: %w", err)
	}
	samples := []protocol.Sample{}
	for _, compressed := range chunks {
		some, err := expand(compressed)
		if err != nil {
			return nil, err
		}
		for _, sample := range some {
			if !sample.At.Before(from) && sample.At.Before(to) {
				samples = append(samples, sample)
			}
		}
	}
	slices.SortStableFunc(samples, func(a, b protocol.Sample) int { return a.At.Compare(b.At) })
	return samples, nil
}
