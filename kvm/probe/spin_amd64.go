package probe

// spin counts n down to 0, n > 0, with the instructions of loop.
func spin(n uint32)
