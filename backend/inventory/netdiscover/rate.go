package netdiscover

import (
	"fmt"
	"strconv"
)

// perLane are the data rates of one lane in Mbit/s, by the names that ibnetdiscover prints. Source: InfiniBand Trade Association's
// roadmap; FDR is 14.0625 Gbit/s before encoding and sold as 56 Gbit/s for four lanes.
func perLane() map[string]int {
	return map[string]int{
		"SDR": 2_500, "DDR": 5_000, "QDR": 10_000, "FDR10": 10_000, "FDR": 14_000, "EDR": 25_000, "HDR": 50_000, "NDR": 100_000, "XDR": 200_000,
		"???": 0, // the tool did not know it either
	}
}

// link is how fast a cable is.
type link struct {
	width    string // "4X"; "" when unknown
	rateGbps int    // 0 when unknown
}

// parseLink reads e.g. "4xNDR". What is in neither list is a defect: it may be the stump of a longer word.
func (g grammar) parseLink(word string) (link, error) {
	parts := g.link.FindStringSubmatch(word)
	if parts == nil {
		return link{}, fmt.Errorf("%s is no width and speed such as 4xNDR", quote(word))
	}
	mbps, known := perLane()[parts[2]]
	if !known {
		return link{}, fmt.Errorf("%s is no speed that is known here", quote(parts[2]))
	}
	if parts[1] == "??" { // the tool did not know the width
		return link{}, nil
	}
	lanes, err := strconv.Atoi(parts[1])
	if err != nil {
		return link{}, fmt.Errorf("width %s: %w", quote(parts[1]), err)
	}
	const mega = 1000
	return link{width: parts[1] + "X", rateGbps: lanes * mbps / mega}, nil
}
