package sandbox

// Idle tells whether no guest of any team runs or is about to, and no template is
// being built: then [Engine.Close] has nothing to pause or destroy.
func (e *Engine) Idle() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.memory == 0 && e.builds == 0
}
