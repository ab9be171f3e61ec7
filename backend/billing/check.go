package billing

// Breach is a broken invariant: the claim that does not hold, for what, and what was found instead.
type Breach struct {
	Claim string
	What  string
	Found string
}
