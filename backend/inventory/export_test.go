package inventory

// Permit is Move.permit.
func Permit(m Move, from State) error { return m.permit(from) }
