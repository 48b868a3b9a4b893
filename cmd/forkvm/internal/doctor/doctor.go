// Package doctor finds out what this machine can do for forkvm, and what to
// do about the rest. It needs no privilege and changes nothing, except that
// finding a guest kernel may unpack an installed one into the cache.
package doctor

import "context"

// Status is the outcome of a check.
type Status string

// The outcomes: a FAIL keeps forkvm from booting and forking guests; a WARN
// limits it; a SKIP could not be looked at, or does not matter here.
const (
	Pass Status = "PASS"
	Warn Status = "WARN"
	Fail Status = "FAIL"
	Skip Status = "SKIP"
)

// Check is one thing looked at.
type Check struct {
	Group  string `json:"group"`         // host, kvm, capability, memory or guest
	Name   string `json:"name"`          // unique
	Status Status `json:"status"`        //
	Detail string `json:"detail"`        // what was found
	Fix    string `json:"fix,omitempty"` // what to do; set for WARN and FAIL
}

// Options say what to look at.
type Options struct {
	KVM    string // path of the device; empty means /dev/kvm
	Kernel string // path or release of the guest kernel; empty means whatever is found
}

// Run makes all checks. It takes a fraction of a second, and ends early, with
// what is left as SKIP, when ctx does.
func Run(ctx context.Context, o Options) []Check {
	if o.KVM == "" {
		o.KVM = "/dev/kvm"
	}
	checks := host()
	k, hardware := kvmChecks(o.KVM)
	checks = append(checks, k...)
	checks = append(checks, memory()...)
	return append(checks, guest(ctx, o.Kernel, hardware)...)
}

// Worst is the most serious status among checks, in the order FAIL, WARN,
// PASS; SKIP does not count.
func Worst(checks []Check) Status {
	worst := Pass
	for _, c := range checks {
		if c.Status == Fail {
			return Fail
		}
		if c.Status == Warn {
			worst = Warn
		}
	}
	return worst
}

// The outcomes of a check; those that ask for action say which.

func (c Check) pass(detail string) Check {
	c.Status, c.Detail = Pass, detail
	return c
}

func (c Check) skip(detail string) Check {
	c.Status, c.Detail = Skip, detail
	return c
}

func (c Check) warn(detail, fix string) Check {
	c.Status, c.Detail, c.Fix = Warn, detail, fix
	return c
}

func (c Check) fail(detail, fix string) Check {
	c.Status, c.Detail, c.Fix = Fail, detail, fix
	return c
}
