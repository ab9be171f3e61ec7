package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/leasehold/leasehold/agent/protocol"
)

// Placement says how many memory slices a MIG profile takes and where it may begin.
type Placement struct {
	Width  int
	Starts []int
}

// Placements is one card's table, by profile.
type Placements map[string]Placement

// PlacementsOf returns the table of a model as its driver names it, nil for a model without MIG. The geometry is that of NVIDIA's
// MIG user guide for cards with 8 memory and 7 compute slices; only the profiles' names carry the card's memory.
func PlacementsOf(model string) Placements {
	switch strings.ToUpper(model) {
	case "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB":
		return placements("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb")
	case "NVIDIA A100-SXM4-40GB":
		return placements("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb")
	case "NVIDIA H200":
		return placements("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb")
	case "NVIDIA B200":
		return placements("1g.23gb", "1g.45gb", "2g.45gb", "3g.90gb", "4g.90gb", "7g.180gb")
	default:
		return nil
	}
}

func placements(one, oneDouble, two, three, four, seven string) Placements {
	return Placements{
		one:       {Width: 1, Starts: []int{0, 1, 2, 3, 4, 5, 6}},
		oneDouble: {Width: 2, Starts: []int{0, 2, 4, 6}},
		two:       {Width: 2, Starts: []int{0, 2, 4}},
		three:     {Width: 4, Starts: []int{0, 4}},
		four:      {Width: 4, Starts: []int{0}},
		seven:     {Width: 8, Starts: []int{0}},
	}
}

// Check refuses, with ErrPlacement, an instance that cannot lie at start beside those that are there.
func (p Placements) Check(profile string, start int, there []Instance) (Placement, error) {
	placement, known := p[profile]
	if !known {
		return placement, fmt.Errorf("profile %q is not one of this card's: %w", profile, ErrPlacement)
	}
	if !slices.Contains(placement.Starts, start) {
		return placement, fmt.Errorf("%s cannot begin at memory slice %d but at %v: %w", profile, start, placement.Starts, ErrPlacement)
	}
	wanted := protocol.Slots{From: start, To: start + placement.Width}
	for _, other := range there {
		if other.slots().Overlaps(wanted) {
			return placement, fmt.Errorf("%s at memory slice %d overlaps %s at %d: %w", profile, start, other.Profile, other.Start, ErrPlacement)
		}
	}
	return placement, nil
}
