package agent

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
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
var ThisMachine Machine = &thisMachine{random: -1}

// thisMachine keeps at hand what each renewal needs: a fork's first reply waits
// for it, and to look a file up touches more memory than to use it.
type thisMachine struct {
	mu     sync.Mutex
	random int    // a descriptor, -1 before its first use; guarded by mu
	bootID []byte // the file with the boot id, nil before the first; guarded by mu
}

func (*thisMachine) SetClock(t time.Time) error {
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
func (m *thisMachine) AddEntropy(b []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.random < 0 {
		fd, err := unix.Open("/dev/urandom", unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("agent: add entropy: %w", err)
		}
		m.random = fd
	}
	return creditEntropy(m.random, b)
}

func (*thisMachine) SetHostname(name string) error {
	if err := unix.Sethostname([]byte(name)); err != nil {
		return fmt.Errorf("agent: set host name: %w", err)
	}
	return nil
}

// The kernel's boot id, and the file that is mounted over it.
const (
	kernelBootID = "/proc/sys/kernel/random/boot_id"
	bootIDFile   = "/run/forkvm-boot-id"
)

// NewBootID writes the id to a file that hides the kernel's own, and mounts it
// there the first time.
func (m *thisMachine) NewBootID() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	id, err := newUUID()
	if err != nil {
		return fmt.Errorf("agent: boot id: %w", err)
	}
	if m.bootID == nil {
		if m.bootID, err = mountBootID(len(id)); err != nil {
			return fmt.Errorf("agent: boot id: %w", err)
		}
	}
	copy(m.bootID, id)
	return nil
}

// mountBootID has the kernel's boot id read as the size bytes that it returns.
// Nobody else can change them or their number, by which they could vanish under
// the hands of this process: the file has no other name, and that one is
// read-only.
func mountBootID(size int) ([]byte, error) {
	fd, err := unix.Open(bootIDFile, unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC|unix.O_CLOEXEC, 0o444)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(size)); err != nil {
		return nil, err
	}
	if err := unix.Mount(bootIDFile, kernelBootID, "", unix.MS_BIND, ""); err != nil {
		return nil, err
	}
	if err := unix.Mount("", kernelBootID, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_RDONLY, ""); err != nil {
		return nil, err
	}
	if err := unix.Unlink(bootIDFile); err != nil {
		return nil, err
	}
	return unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
}

// newUUID draws a random UUID (RFC 9562, version 4), as the line of text that
// the kernel's files have.
func newUUID() ([]byte, error) {
	var u [16]byte
	if _, err := unix.Getrandom(u[:], 0); err != nil {
		return nil, fmt.Errorf("getrandom: %w", err)
	}
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	const digits = "0123456789abcdef"
	line := make([]byte, 0, 37)
	for i, b := range u {
		if i == 4 || i == 6 || i == 8 || i == 10 {
			line = append(line, '-')
		}
		line = append(line, digits[b>>4], digits[b&15])
	}
	return append(line, '\n'), nil
}

func (*thisMachine) Stop(reboot bool) error {
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
	return ignoreGone(c.w.WriteValue(proto.TypeReply, reply))
}

// stop answers before it stops the machine, since it cannot afterwards.
func (s *server) stop(c *conn, reboot bool) error {
	if s.opts.Machine == Machine(noMachine{}) {
		return errNoMachine
	}
	if err := c.w.WriteValue(proto.TypeReply, proto.Empty{}); err != nil {
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
	if err != nil {
		return nil, err
	}
	hostname, err := s.rename(req.Hostname)
	if err != nil {
		return nil, err
	}
	sample := make([]byte, 16)
	if _, err := unix.Getrandom(sample, 0); err != nil {
		return nil, fmt.Errorf("agent: renew: getrandom: %w", err)
	}
	if bytes.Equal(sample, make([]byte, len(sample))) {
		return nil, errors.New("agent: renew: getrandom gives zeros")
	}
	s.mu.Lock()
	forked := s.gen != proto.Generation{}
	s.gen = req.Generation
	s.mu.Unlock()
	if forked {
		s.spares.postpone()
	}
	return &proto.RenewReply{
		Generation: req.Generation,
		WallClock:  time.Now(),
		Hostname:   hostname,
		Random:     sample,
	}, nil
}

// rename sets the host name unless it is that already, or want is empty, and
// returns what it is now.
func (s *server) rename(want string) (string, error) {
	var uts unix.Utsname
	if err := unix.Uname(&uts); err != nil {
		return "", fmt.Errorf("agent: host name: %w", err)
	}
	have := unix.ByteSliceToString(uts.Nodename[:])
	if want == "" || want == have {
		return have, nil
	}
	return want, s.opts.Machine.SetHostname(want)
}
