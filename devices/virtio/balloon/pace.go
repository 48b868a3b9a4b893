package balloon

import "time"

const (
	// unit is the time in which a driver earns one request or one piece of
	// memory released, each of which takes a lock of the whole process.
	unit = 500 * time.Microsecond

	// burst is how many a driver that was idle may have at once: 16 GiB in
	// the blocks that Linux reports.
	burst = 4096 * unit
)

// pace is how far ahead a driver is of what it has earned. The zero value is
// one that was idle.
type pace struct {
	due time.Time // when all that was had will have been earned
}

// wait is how long the driver has to wait for its next request. It is at most
// zero if the driver need not.
func (p *pace) wait(now time.Time) time.Duration { return p.due.Sub(now.Add(burst)) }

// spend takes n units.
func (p *pace) spend(now time.Time, n int) {
	if p.due.Before(now) {
		p.due = now
	}
	p.due = p.due.Add(time.Duration(n) * unit)
}
