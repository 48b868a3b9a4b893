package agent

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/forkvm/forkvm/guestagent/proto"
)

// Machine carries out what an agent does to its machine as a whole.
type Machine interface {
	// SetClock sets the wall clock.
	SetClock(time.Time) error
	// AddEntropy credits random bytes to the kernel's generator and makes it
	// take a new key from them before it returns.
	AddEntropy([]byte) error
	// SetHostname sets the host name.
	SetHostname(string) error
	// NewBootID draws a new boot id. The kernel has one for the whole time it
	// runs, which all forks would share.
	NewBootID() error
	// Stop powers the machine off, or restarts it. It may not return.
	Stop(reboot bool) error
}

// ThisMachine is the Machine that this process runs on. Using it takes root.
var ThisMachine Machine = thisMachine{}

type thisMachine struct{}

func (thisMachine) SetClock(t time.Time) error {
	ts, err := unix.TimeToTimespec(t)
	if err != nil {
		return fmt.Errorf("agent: set clock: %w", err)
	}
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &ts); err != nil {
		return fmt.Errorf("agent: set clock: %w", err)
	}
	return nil
}

// AddEntropy uses ioctls and not a write to the device: a write is mixed in
// without credit and does not re-key, so two forks would go on returning the
// same bytes until the next periodic reseed (random(4)).
func (thisMachine) AddEntropy(b []byte) error {
	f, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("agent: add entropy: %w", err)
	}
	defer f.Close()
	return creditEntropy(f, b)
}

func (thisMachine) SetHostname(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("agent: set host name: %w", err)
	}
	return nil
}

// The kernel's boot id, and the file that is mounted over it.
const (
	kernelBootID = "/proc/sys/kernel/random/boot_id"
	kernelUUID   = "/proc/sys/kernel/random/uuid"
	bootIDFile   = "/run/forkvm-boot-id"
)

// NewBootID writes the id to a file that hides the kernel's own, and mounts it
// there if this is the first time.
func (thisMachine) NewBootID() error {
	id, err := os.ReadFile(kernelUUID)
	if err != nil {
		return fmt.Errorf("agent: boot id: %w", err)
	}
	if err := os.WriteFile(bootIDFile, id, 0o444); err != nil {
		return fmt.Errorf("agent: boot id: %w", err)
	}
	if shown, err := os.ReadFile(kernelBootID); err == nil && bytes.Equal(shown, id) {
		return nil
	}
	if err := unix.Mount(bootIDFile, kernelBootID, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("agent: boot id: %w", err)
	}
	return nil
}

func (thisMachine) Stop(reboot bool) error {
	unix.Sync()
	cmd := unix.LINUX_REBOOT_CMD_POWER_OFF
	if reboot {
		cmd = unix.LINUX_REBOOT_CMD_RESTART
	}
	if err := unix.Reboot(cmd); err != nil {
		return fmt.Errorf("agent: stop machine: %w", err)
	}
	return nil
}

// noMachine refuses everything: an ordinary process does not change its host.
type noMachine struct{}

var errNoMachine = &proto.Error{Code: proto.CodeUnsupported, Message: "this agent does not own its machine"}

func (noMachine) SetClock(time.Time) error { return errNoMachine }
func (noMachine) AddEntropy([]byte) error  { return errNoMachine }
func (noMachine) SetHostname(string) error { return errNoMachine }
func (noMachine) NewBootID() error         { return errNoMachine }
func (noMachine) Stop(bool) error          { return errNoMachine }

// onMachine answers the operations on the machine as a whole.
func (s *server) onMachine(c *conn, h proto.Handshake) error {
	var reply any = proto.Empty{}
	var err error
	switch h.Op {
	case proto.OpHello:
		reply = s.info()
	case proto.OpRenew:
		reply, err = s.renew(h)
	case proto.OpClock:
		var req proto.ClockRequest
		if err = proto.DecodeRequest(h.Request, &req); err == nil {
			err = s.opts.Machine.SetClock(req.Time)
		}
	case proto.OpEntropy:
		var req proto.EntropyRequest
		if err = proto.DecodeRequest(h.Request, &req); err == nil {
			err = s.opts.Machine.AddEntropy(req.Bytes)
		}
	case proto.OpHostname:
		var req proto.HostnameRequest
		if err = proto.DecodeRequest(h.Request, &req); err == nil {
			err = s.opts.Machine.SetHostname(req.Hostname)
		}
	case proto.OpPowerOff, proto.OpReboot:
		return s.stop(c, h.Op == proto.OpReboot)
	}
	if err != nil {
		return err
	}
	return ignoreGone(c.w.WriteJSON(proto.TypeReply, reply))
}

// stop answers before it stops the machine, since it cannot afterwards.
func (s *server) stop(c *conn, reboot bool) error {
	if s.opts.Machine == Machine(noMachine{}) {
		return errNoMachine
	}
	if err := c.w.WriteJSON(proto.TypeReply, proto.Empty{}); err != nil {
		return nil
	}
	c.linger()
	return s.opts.Machine.Stop(reboot)
}

// renew gives the machine its new identity. The generation comes last: until
// all the rest is in place the machine answers to no name but its old one,
// which no client of a fork uses.
func (s *server) renew(h proto.Handshake) (*proto.RenewReply, error) {
	var req proto.RenewRequest
	if err := proto.DecodeRequest(h.Request, &req); err != nil {
		return nil, err
	}
	m := s.opts.Machine
	err := errors.Join(m.AddEntropy(req.Entropy), m.SetClock(req.WallClock))
	if err == nil { // from the generator's new key
		err = m.NewBootID()
	}
	if err == nil && req.Hostname != "" {
		err = m.SetHostname(req.Hostname)
	}
	if err != nil {
		return nil, err
	}
	var sample [16]byte
	if _, err := unix.Getrandom(sample[:], 0); err != nil {
		return nil, fmt.Errorf("agent: renew: getrandom: %w", err)
	}
	if bytes.Equal(sample[:], make([]byte, len(sample))) {
		return nil, errors.New("agent: renew: getrandom gives zeros")
	}
	hash := sha256.Sum256(sample[:])
	s.mu.Lock()
	s.gen = req.Generation
	s.mu.Unlock()
	return &proto.RenewReply{
		Generation: req.Generation,
		WallClock:  time.Now(),
		Hostname:   s.info().Hostname,
		RandomHash: hash[:],
	}, nil
}
