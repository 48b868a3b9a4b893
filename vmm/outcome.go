package vmm

import (
	"errors"
	"fmt"
	"strings"

	"github.com/forkvm/forkvm/kvm"
)

// How a machine can end. Errors returned by [VM.Wait], and by what was under
// way when the machine ended, wrap one of them; [ErrPowerOff] is the only
// peaceful one.
var (
	ErrPowerOff = errors.New("guest powered off")
	ErrReset    = errors.New("guest reset")
	ErrPanic    = errors.New("guest kernel panic")
	ErrCrash    = errors.New("guest cannot go on")
	ErrClosed   = errors.New("machine closed")
)

// Outcome is how a machine ended. It wraps one of the errors above.
type Outcome struct {
	Err     error  // one of ErrPowerOff, ErrReset, ErrPanic, ErrCrash, ErrClosed
	Cause   error  // of a crash: what KVM answered; may be nil
	Detail  string // what happened, for people
	Console string // the end of what the guest wrote to its console
}

// Error is a line, and for a panic or crash the console's tail below.
func (o *Outcome) Error() string {
	s := "vmm: " + o.Err.Error()
	if o.Detail != "" {
		s += ": " + o.Detail
	}
	if errors.Is(o.Err, ErrPanic) || errors.Is(o.Err, ErrCrash) {
		s += consoleEnd([]byte(o.Console))
	}
	return s
}

// Unwrap returns Err and Cause.
func (o *Outcome) Unwrap() []error {
	if o.Cause == nil {
		return []error{o.Err}
	}
	return []error{o.Err, o.Cause}
}

// consoleEnd is the last lines of a console as the end of an error's text, ""
// if there are none.
func consoleEnd(console []byte) string {
	const lines = 20
	all := strings.Split(strings.TrimRight(string(console), "\r\n"), "\n")
	if len(all) == 1 && all[0] == "" {
		return ""
	}
	return "\nlast console output:\n  " + strings.Join(all[max(0, len(all)-lines):], "\n  ")
}

// orPanic tells a panic, after which Linux resets the machine, from a reset
// that somebody asked for.
func (o Outcome) orPanic() Outcome {
	const mark = "Kernel panic - not syncing"
	if i := strings.LastIndex(o.Console, mark); i >= 0 {
		line, _, _ := strings.Cut(o.Console[i:], "\n")
		o.Err, o.Detail = ErrPanic, strings.TrimSpace(line)
	}
	return o
}

// crash is the outcome of a vCPU that cannot go on, with its registers. It
// runs on the vCPU's thread.
func (vm *VM) crash(c *vcpu, detail string) Outcome {
	return Outcome{Err: ErrCrash, Detail: detail + "\n" + vm.describe(c)}
}

// outcomeOf explains an exit after which the guest cannot be entered again.
func (vm *VM) outcomeOf(c *vcpu, reason kvm.ExitReason) Outcome {
	switch reason {
	case kvm.ExitShutdown:
		return Outcome{Err: ErrReset, Detail: "triple fault"}
	case kvm.ExitSystemEvent:
		return Outcome{Err: ErrReset, Detail: fmt.Sprintf("system event %v", c.kvm.SystemEvent().Type)}
	case kvm.ExitHLT:
		return vm.crash(c, fmt.Sprintf("vCPU %d halted for ever (KVM_EXIT_HLT)", c.id))
	case kvm.ExitInternalError:
		e := c.kvm.InternalError()
		detail := fmt.Sprintf("KVM_EXIT_INTERNAL_ERROR: %v, data %#x", e.Suberror, e.Data)
		if e.Suberror == kvm.InternalErrorEmulation {
			detail += ": this KVM had to emulate an instruction that it cannot; where KVM itself is emulated " +
				"('forkvm doctor' tells) ordinary kernels do not run"
		}
		return vm.crash(c, detail)
	case kvm.ExitFailEntry:
		return vm.crash(c, fmt.Sprintf("KVM_EXIT_FAIL_ENTRY, hardware reason %#x", c.kvm.FailEntry().HardwareReason))
	default:
		return vm.crash(c, fmt.Sprintf("unexpected exit %v", reason))
	}
}

// describe dumps registers and the bytes at RIP. It runs on the vCPU's thread.
func (vm *VM) describe(c *vcpu) string {
	r, err := c.kvm.Regs()
	if err != nil {
		return fmt.Sprintf("registers unknown: %v", err)
	}
	s, err := c.kvm.Sregs()
	if err != nil {
		return fmt.Sprintf("registers unknown: %v", err)
	}
	var b strings.Builder
	fmt.Fprintf(&b, "rip %016x rsp %016x rflags %08x\n", r.RIP, r.RSP, r.RFLAGS)
	fmt.Fprintf(&b, "rax %016x rbx %016x rcx %016x rdx %016x\n", r.RAX, r.RBX, r.RCX, r.RDX)
	fmt.Fprintf(&b, "rsi %016x rdi %016x rbp %016x r8  %016x\n", r.RSI, r.RDI, r.RBP, r.R8)
	fmt.Fprintf(&b, "r9  %016x r10 %016x r11 %016x r12 %016x\n", r.R9, r.R10, r.R11, r.R12)
	fmt.Fprintf(&b, "r13 %016x r14 %016x r15 %016x\n", r.R13, r.R14, r.R15)
	fmt.Fprintf(&b, "cr0 %x cr2 %x cr3 %x cr4 %x efer %x cs %x cpl %d\n", s.CR0, s.CR2, s.CR3, s.CR4, s.EFER, s.CS.Selector, s.SS.DPL)
	b.WriteString("bytes at rip:")
	linear := r.RIP
	if s.EFER&eferLMA == 0 {
		linear += s.CS.Base
	}
	for i := range uint64(16) {
		p, ok := vm.peek(c, linear+i)
		if !ok {
			b.WriteString(" ??")
			break
		}
		fmt.Fprintf(&b, " %02x", p)
	}
	return b.String()
}

// peek reads a byte of guest-linear memory.
func (vm *VM) peek(c *vcpu, linear uint64) (byte, bool) {
	t, err := c.kvm.Translate(linear)
	if err != nil || t.Valid == 0 {
		return 0, false
	}
	p, err := vm.mem.Slice(t.PhysicalAddress, 1)
	if err != nil {
		return 0, false
	}
	return p[0], true
}
